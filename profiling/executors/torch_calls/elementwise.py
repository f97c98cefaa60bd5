"""Elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from gkestimator.lowering.patterns.match import FUSED_DOMAIN
from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Change,
    Run,
    calling,
    torch_call,
)

_SAME_NAME = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Ceil",
    "Cos",
    "Cosh",
    "Erf",
    "Exp",
    "Floor",
    "IsNaN",
    "Log",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "Rsqrt",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Sqrt",
    "Tan",
    "Tanh",
]
"""Operators that torch has under the same name in lower case."""
_FUNCTIONS = {name: name.lower() for name in _SAME_NAME} | {
    "BitwiseNot": "bitwise_not",
    "Det": "linalg.det",
    "HardSwish": "nn.functional.hardswish",
    "Mish": "nn.functional.mish",
    "Not": "logical_not",
    "Softplus": "nn.functional.softplus",
    "Softsign": "nn.functional.softsign",
}
"""Functions of one tensor, by their path in torch."""
_WITH_ALPHA = {
    "Celu": ("celu", 1.0),
    "Elu": ("elu", 1.0),
    "LeakyRelu": ("leaky_relu", 0.01),
}
"""Functions of torch.nn.functional with the attribute ``alpha``, and its default."""
_COMPARISONS = {"Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le"}
_ARITHMETIC = {"Add": "add", "Mul": "mul", "Sub": "sub"}
_LOGIC = {
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875
_BROADCAST_SINCE = 7  # before, an attribute asked for it
_CLIP_TAKES_INPUTS = 11  # before, bounds were attributes


@torch_call("Rsqrt", domain=FUSED_DOMAIN)
@torch_call(*(name for name in _FUNCTIONS if name != "Rsqrt"))
def unary(call: Call) -> Run:
    """Call torch's function of that name."""
    import torch

    return calling(attrgetter(_FUNCTIONS[call.op_type])(torch))


@torch_call(*_WITH_ALPHA)
def with_alpha(call: Call) -> Run:
    """Call torch.nn.functional's function of that name."""
    import torch.nn.functional as F  # noqa: N812

    name, default = _WITH_ALPHA[call.op_type]
    function = getattr(F, name)
    alpha = call.real("alpha", default)
    return lambda x: function(x, alpha)


def with_scalars(call: Call, function: Callable[[Any, Any], Any]) -> Run:
    """Call a binary function; a one-element constant is a python number, as an author writes it."""
    align = _old_broadcast(call)
    if align is not None:
        return lambda a, b: function(a, align(b))
    # The second operand is the usual place of a scalar.
    for position in (1, 0):
        other = call.tensor(1 - position)
        number = call.peek_number(position)
        if number is None or len(call.shape(position)) > len(other.shape):
            continue
        if other.elements == 1 and call.peek(1 - position) is not None:
            continue  # two constants: one of them must stay a tensor
        call.host.add(position)
        if position == 1:
            return lambda a, b: function(a, number)
        return lambda a, b: function(number, b)
    return function


def _second_number(call: Call) -> float | int | bool | None:
    """Return the second operand as a python number; None where it is none, or decides the shape of the result."""
    if len(call.shape(1)) > call.rank:
        return None
    return call.peek_number(1)


def _old_broadcast(call: Call) -> Change | None:
    """Return, before opset 7, what lays the second operand's dimensions at ``axis`` of the first."""
    if call.version >= _BROADCAST_SINCE or not call.attribute("broadcast", 0):
        return None
    extent = call.shape(1)
    axis = call.whole("axis", call.rank - len(extent))
    shape = (*extent, *(1,) * (call.rank - axis - len(extent)))
    return lambda b: b.reshape(shape)


@torch_call(*_ARITHMETIC)
def arithmetic(call: Call) -> Run:
    """Call torch's function of that name."""
    import torch

    return with_scalars(call, getattr(torch, _ARITHMETIC[call.op_type]))


@torch_call(*_COMPARISONS)
def comparison(call: Call) -> Run:
    """Call torch's function of that name."""
    import torch

    function = getattr(torch, _COMPARISONS[call.op_type])
    number = _second_number(call)
    if number is None:
        return _aligned(call, function)
    call.host.add(1)
    return lambda a, b: function(a, number)


@torch_call(*_LOGIC)
def logic(call: Call) -> Run:
    """Call torch's function of that name."""
    import torch

    return _aligned(call, getattr(torch, _LOGIC[call.op_type]))


def _aligned(call: Call, function: Callable[[Any, Any], Any]) -> Run:
    align = _old_broadcast(call)
    if align is None:
        return function
    return lambda a, b: function(a, align(b))


@torch_call("Div")
def div(call: Call) -> Run:
    """Call torch.div; whole numbers truncate."""
    import torch

    if call.dtype.is_integer:
        return with_scalars(call, lambda a, b: torch.div(a, b, rounding_mode="trunc"))
    return with_scalars(call, lambda a, b: a / b)


@torch_call("Mod")
def mod(call: Call) -> Run:
    """The sign of the divisor (remainder), or with ``fmod`` that of the dividend."""
    import torch

    return calling(torch.fmod if call.attribute("fmod", 0) else torch.remainder)


@torch_call("Pow")
def power(call: Call) -> Run:
    """Call torch.pow; a constant exponent is a python number, which selects the square, cube or root."""
    import torch

    number = _second_number(call)
    if number is not None and (call.dtype.is_floating or isinstance(number, int)):
        call.host.add(1)
        return lambda a, b: torch.pow(a, number)
    if call.dtype is not call.tensor(1).dtype:
        kind = call.result_kind
        return lambda a, b: torch.pow(a, b).to(kind)
    return calling(torch.pow)


@torch_call("BitShift")
def bit_shift(call: Call) -> Run:
    """Call torch's shift in the direction asked for."""
    import torch

    left = call.attribute("direction") == "LEFT"
    return calling(torch.bitwise_left_shift if left else torch.bitwise_right_shift)


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
    """Call torch.where; one of two one-element constants is a python number where the result's shape allows."""
    import torch

    rank = call.rank
    for position in (1, 2):
        if call.peek(position) is None:
            rank = max(rank, len(call.shape(position)))
    for position in (1, 2):
        number = call.peek_number(position)
        if number is None or len(call.shape(position)) > rank:
            continue
        call.host.add(position)
        if position == 1:
            return lambda c, a, b: torch.where(c, number, b)
        return lambda c, a, b: torch.where(c, a, number)
    return calling(torch.where)


def _clip_bounds(call: Call) -> tuple[Any, Any] | None:
    """Return the bounds as numbers; None where an earlier operator makes one of them."""
    if call.version < _CLIP_TAKES_INPUTS:
        return call.attribute("min"), call.attribute("max")
    for position in (1, 2):
        if call.has(position) and call.peek(position) is None:
            return None
    return call.scalar(1), call.scalar(2)


@torch_call("Clip")
def clip(call: Call) -> Run:
    """Call torch.clamp with bounds from attributes (before opset 11) or constants."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    bounds = _clip_bounds(call)
    if bounds is None:
        return calling(torch.clamp)
    if bounds == (0, 6) and call.dtype.is_floating:
        return lambda x, *_: F.relu6(x)
    if bounds == (None, None):
        return lambda x, *_: x.clone()
    low, high = bounds
    return lambda x, *_: torch.clamp(x, min=low, max=high)


@torch_call("Gelu")
def gelu(call: Call) -> Run:
    """Call F.gelu, exact or tanh."""
    import torch.nn.functional as F  # noqa: N812

    approximate = call.text("approximate", "none")
    return lambda x: F.gelu(x, approximate=approximate)


@torch_call("HardSigmoid")
def hard_sigmoid(call: Call) -> Run:
    """Call F.hardsigmoid where slope and offset are torch's, else arithmetic."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    alpha = call.real("alpha", 0.2)
    beta = call.real("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-4) and beta == 0.5:
        return calling(F.hardsigmoid)
    return lambda x: torch.clamp(x * alpha + beta, 0.0, 1.0)


@torch_call("PRelu")
def prelu(call: Call) -> Run:
    """Call F.prelu where the slopes are one or one a channel, else arithmetic."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    source = call.shape()
    slope = call.shape(1)
    count = math.prod(slope)
    aligned = (1,) * (len(source) - len(slope)) + tuple(slope)
    per_channel = len(source) > 1 and count == aligned[1] == source[1]
    if call.dtype.is_floating and (count == 1 or per_channel):
        flat = call.prepare(1, lambda s: s.reshape(-1))
        return lambda x, s: F.prelu(x, flat(s))
    return lambda x, s: torch.where(x > 0, x, s * x)


@torch_call("Selu")
def selu(call: Call) -> Run:
    """Call F.selu with torch's constants, else a scaled F.elu."""
    import torch.nn.functional as F  # noqa: N812

    alpha = call.real("alpha", _SELU_ALPHA)
    gamma = call.real("gamma", _SELU_GAMMA)
    usual = math.isclose(alpha, _SELU_ALPHA, rel_tol=1e-4) and math.isclose(gamma, _SELU_GAMMA, rel_tol=1e-4)
    if usual:
        return calling(F.selu)
    return lambda x: gamma * F.elu(x, alpha)


@torch_call("Shrink")
def shrink(call: Call) -> Run:
    """Call F.softshrink or F.hardshrink where bias and threshold are theirs, else arithmetic."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    bias = call.real("bias", 0.0)
    lambd = call.real("lambd", 0.5)
    floating = call.dtype.is_floating
    if floating and bias == lambd:
        return lambda x: F.softshrink(x, lambd)
    if floating and bias == 0.0:
        return lambda x: F.hardshrink(x, lambd)

    def run(x: Any) -> Any:
        upper = torch.where(x > lambd, x - bias, 0.0)
        return torch.where(x < -lambd, x + bias, upper)

    return run


@torch_call("Swish")
def swish(call: Call) -> Run:
    """Call F.silu, or with another slope the arithmetic that authors write."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    alpha = call.real("alpha", 1.0)
    if alpha == 1.0:
        return calling(F.silu)
    return lambda x: x * torch.sigmoid(alpha * x)


@torch_call("ThresholdedRelu")
def thresholded_relu(call: Call) -> Run:
    """Call F.threshold."""
    import torch.nn.functional as F  # noqa: N812

    alpha = call.real("alpha", 1.0)
    return lambda x: F.threshold(x, alpha, 0.0)


_VARIADIC = {"Sum": "add", "Max": "maximum", "Min": "minimum", "Mean": "add"}


@torch_call(*_VARIADIC)
def variadic(call: Call) -> Run:
    """Call a binary function on one operand after the other, and for the mean divide."""
    import torch

    function = getattr(torch, _VARIADIC[call.op_type])
    mean = call.op_type == "Mean"

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
