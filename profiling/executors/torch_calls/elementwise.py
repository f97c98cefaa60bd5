"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gkestimator.lowering.patterns.match import FUSED_DOMAIN
from gkestimator.profiling.executors.torch_calls.registry import Call, Run, calling, python_number, torch_call

__all__: list[str] = []

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_FUNCTIONAL = {"HardSwish": "hardswish", "Mish": "mish", "Softplus": "softplus", "Softsign": "softsign"}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "Mul": "mul",
    "Or": "logical_or",
    "Sub": "sub",
    "Xor": "logical_xor",
}
_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875
_BROADCAST_SINCE = 7  # before, an attribute asked for it


@torch_call(*_UNARY)
def unary(call: Call) -> Run:
    """torch's function of that name."""
    import torch

    return calling(getattr(torch, _UNARY[call.op.op_type]))


@torch_call(*_FUNCTIONAL)
def functional(call: Call) -> Run:
    """torch.nn.functional's function of that name."""
    import torch.nn.functional as F  # noqa: N812

    return calling(getattr(F, _FUNCTIONAL[call.op.op_type]))


@torch_call("Rsqrt", domain=FUSED_DOMAIN)
def rsqrt(call: Call) -> Run:
    """torch.rsqrt."""
    import torch

    return calling(torch.rsqrt)


def with_scalars(call: Call, function: Callable[[Any, Any], Any]) -> Run:
    """A binary function; a one-element constant is a python number, as an author writes it."""
    align = _old_broadcast(call)
    if align is not None:
        return lambda a, b: function(a, align(b))
    first = call.tensor(0)
    second = call.tensor(1)
    for position, other in ((1, first), (0, second)):
        known = call.peek(position)
        if known is None or known.size != 1 or len(call.shape(position)) > len(other.shape):
            continue
        if other.elements == 1 and call.peek(1 - position) is not None:
            continue
        number = python_number(known)
        call.host.add(position)
        if position == 1:
            return lambda a, b: function(a, number)
        return lambda a, b: function(number, b)
    return function


def _old_broadcast(call: Call) -> Callable[[Any], Any] | None:
    """Before opset 7: the second operand's dimensions lie at ``axis`` of the first."""
    if call.op.version >= _BROADCAST_SINCE or not call.attribute("broadcast", 0):
        return None
    rank = len(call.shape(0))
    extent = call.shape(1)
    axis = int(call.attribute("axis", rank - len(extent)))
    shape = (*extent, *(1,) * (rank - axis - len(extent)))
    return lambda b: b.reshape(shape)


@torch_call(*_BINARY)
def binary(call: Call) -> Run:
    """torch's function of that name."""
    import torch

    function = getattr(torch, _BINARY[call.op.op_type])
    if call.op.op_type in ("Add", "Mul", "Sub"):
        return with_scalars(call, function)
    if function in (torch.eq, torch.gt, torch.ge, torch.lt, torch.le):
        known = call.peek(1)
        if known is not None and known.size == 1 and len(call.shape(1)) <= len(call.shape(0)):
            number = python_number(known)
            call.host.add(1)
            return lambda a, b: function(a, number)
    align = _old_broadcast(call)
    if align is None:
        return function
    return lambda a, b: function(a, align(b))


@torch_call("Div")
def div(call: Call) -> Run:
    """torch.div; whole numbers truncate."""
    import torch

    if call.tensor(0).dtype.is_integer:
        return with_scalars(call, lambda a, b: torch.div(a, b, rounding_mode="trunc"))
    return with_scalars(call, lambda a, b: a / b)


@torch_call("Mod")
def mod(call: Call) -> Run:
    """The sign of the divisor (remainder), or with ``fmod`` that of the dividend."""
    import torch

    return calling(torch.fmod if call.attribute("fmod", 0) else torch.remainder)


@torch_call("Pow")
def power(call: Call) -> Run:
    """torch.pow; a constant exponent is a python number, which selects the square, cube or root."""
    import torch

    wanted = call.result().dtype
    base = call.tensor(0).dtype
    known = call.peek(1)
    if known is not None and known.size == 1 and len(call.shape(1)) <= len(call.shape(0)):
        number = python_number(known)
        if base.is_floating or isinstance(number, int):
            call.host.add(1)
            return lambda a, b: torch.pow(a, number)
    if base is not call.tensor(1).dtype:
        from gkestimator.profiling.executors.torch_calls.registry import torch_dtype

        kind = torch_dtype(wanted)
        return lambda a, b: torch.pow(a, b).to(kind)
    return calling(torch.pow)


@torch_call("BitShift")
def bit_shift(call: Call) -> Run:
    """torch's shift in the direction asked for."""
    import torch

    return calling(
        torch.bitwise_left_shift if call.attribute("direction") == "LEFT" else torch.bitwise_right_shift
    )


@torch_call("IsInf")
def is_inf(call: Call) -> Run:
    """Both infinities, or one."""
    import torch

    positive = call.attribute("detect_positive", 1)
    negative = call.attribute("detect_negative", 1)
    if positive and negative:
        return calling(torch.isinf)
    if positive:
        return calling(torch.isposinf)
    if negative:
        return calling(torch.isneginf)
    return lambda x: torch.zeros_like(x, dtype=torch.bool)


@torch_call("Where")
def where(call: Call) -> Run:
    """torch.where; one-element constants are python numbers where the result's shape allows."""
    import torch

    rank = max(len(call.shape(0)), *(len(call.shape(i)) for i in (1, 2) if call.peek(i) is None), 0)
    numbers: dict[int, Any] = {}
    for i in (1, 2):
        known = call.peek(i)
        if known is not None and known.size == 1 and len(known.shape) <= rank and not numbers:
            numbers[i] = python_number(known)
            call.host.add(i)
    if 1 in numbers:
        return lambda c, a, b: torch.where(c, numbers[1], b)
    if 2 in numbers:
        return lambda c, a, b: torch.where(c, a, numbers[2])
    return calling(torch.where)


@torch_call("Clip")
def clip(call: Call) -> Run:
    """torch.clamp with bounds from attributes (before opset 11) or constants."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    if call.op.version < 11:
        low = call.attribute("min")
        high = call.attribute("max")
    else:
        if any(call.has(i) and call.peek(i) is None for i in (1, 2)):
            return calling(torch.clamp)
        low = call.scalar(1)
        high = call.scalar(2)
    if (low, high) == (0, 6) and call.tensor(0).dtype.is_floating:
        return lambda x, *_: F.relu6(x)
    if low is None and high is None:
        return lambda x, *_: x.clone()
    return lambda x, *_: torch.clamp(x, min=low, max=high)


@torch_call("Celu")
def celu(call: Call) -> Run:
    """F.celu."""
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", 1.0))
    return lambda x: F.celu(x, alpha)


@torch_call("Elu")
def elu(call: Call) -> Run:
    """F.elu."""
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", 1.0))
    return lambda x: F.elu(x, alpha)


@torch_call("Gelu")
def gelu(call: Call) -> Run:
    """F.gelu, exact or tanh."""
    import torch.nn.functional as F  # noqa: N812

    approximate = str(call.attribute("approximate", "none"))
    return lambda x: F.gelu(x, approximate=approximate)


@torch_call("HardSigmoid")
def hard_sigmoid(call: Call) -> Run:
    """F.hardsigmoid where slope and offset are torch's, else arithmetic."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", 0.2))
    beta = float(call.attribute("beta", 0.5))
    if math.isclose(alpha, 1 / 6, rel_tol=1e-4) and beta == 0.5:
        return calling(F.hardsigmoid)
    return lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)


@torch_call("LeakyRelu")
def leaky_relu(call: Call) -> Run:
    """F.leaky_relu."""
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", 0.01))
    return lambda x: F.leaky_relu(x, alpha)


@torch_call("PRelu")
def prelu(call: Call) -> Run:
    """F.prelu where the slopes are one or one a channel, else arithmetic."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    source = call.shape(0)
    slope = call.shape(1)
    extent = math.prod(slope)
    aligned = (1,) * (len(source) - len(slope)) + tuple(slope)
    per_channel = len(source) > 1 and extent == source[1] and aligned[1] == source[1]
    if call.tensor(0).dtype.is_floating and (extent == 1 or per_channel):
        flat = call.prepare(1, lambda s: s.reshape(-1))
        return lambda x, s: F.prelu(x, flat(s))
    return lambda x, s: torch.where(x > 0, x, s * x)


@torch_call("Selu")
def selu(call: Call) -> Run:
    """F.selu with torch's constants, else a scaled F.elu."""
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", _SELU_ALPHA))
    gamma = float(call.attribute("gamma", _SELU_GAMMA))
    if math.isclose(alpha, _SELU_ALPHA, rel_tol=1e-4) and math.isclose(gamma, _SELU_GAMMA, rel_tol=1e-4):
        return calling(F.selu)
    return lambda x: gamma * F.elu(x, alpha)


@torch_call("Shrink")
def shrink(call: Call) -> Run:
    """F.softshrink or F.hardshrink where bias and threshold are theirs, else arithmetic."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    bias = float(call.attribute("bias", 0.0))
    lambd = float(call.attribute("lambd", 0.5))
    if bias == lambd and call.tensor(0).dtype.is_floating:
        return lambda x: F.softshrink(x, lambd)
    if bias == 0.0 and call.tensor(0).dtype.is_floating:
        return lambda x: F.hardshrink(x, lambd)
    return lambda x: torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0.0))


@torch_call("Swish")
def swish(call: Call) -> Run:
    """F.silu, or with another slope the arithmetic that authors write."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", 1.0))
    if alpha == 1.0:
        return calling(F.silu)
    return lambda x: x * torch.sigmoid(alpha * x)


@torch_call("ThresholdedRelu")
def thresholded_relu(call: Call) -> Run:
    """F.threshold."""
    import torch.nn.functional as F  # noqa: N812

    alpha = float(call.attribute("alpha", 1.0))
    return lambda x: F.threshold(x, alpha, 0.0)


_VARIADIC = {"Sum": "add", "Max": "maximum", "Min": "minimum", "Mean": "add"}


@torch_call(*_VARIADIC)
def variadic(call: Call) -> Run:
    """One binary call after the other, and for the mean a division."""
    import torch

    function = getattr(torch, _VARIADIC[call.op.op_type])
    mean = call.op.op_type == "Mean"

    def run(*operands: Any) -> Any:
        if len(operands) == 1:
            return operands[0].clone()
        total = operands[0]
        for operand in operands[1:]:
            total = function(total, operand)
        if mean:
            return total / len(operands)
        return total

    return run
