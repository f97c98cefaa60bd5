"""Elementwise operators: one result element from one element of each operand.

``FLOPS`` gives the operations per result element and the formula they were counted from: every arithmetic operation,
comparison, and function value (exp, log, sqrt, erf, tanh, sin, ...) counts one. Moving or reinterpreting bits counts
none. An operand that broadcasts is read once at its own size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import INDEXED, Kernel
from gkestimator.operators.builders import (
    elementwise_kernel,
    input_at,
    optional_input,
    output_at,
    tensor_inputs,
)
from gkestimator.operators.checks import all_tensors, broadcast, tensor
from gkestimator.operators.registry import (
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

# op_type: (variant, FLOPs per element, formula)
FLOPS: Mapping[str, tuple[str, int, str]] = {
    "Abs": ("abs", 1, "|x|"),
    "Acos": ("acos", 1, "acos x"),
    "Acosh": ("acosh", 1, "acosh x"),
    "Add": ("add", 1, "a + b"),
    "And": ("and", 1, "a and b"),
    "Asin": ("asin", 1, "asin x"),
    "Asinh": ("asinh", 1, "asinh x"),
    "Atan": ("atan", 1, "atan x"),
    "Atanh": ("atanh", 1, "atanh x"),
    "BitShift": ("bit_shift", 1, "a << b"),
    "BitwiseAnd": ("bitwise_and", 1, "a & b"),
    "BitwiseNot": ("bitwise_not", 1, "~a"),
    "BitwiseOr": ("bitwise_or", 1, "a | b"),
    "BitwiseXor": ("bitwise_xor", 1, "a ^ b"),
    "Ceil": ("ceil", 1, "ceil x"),
    "Celu": (
        "celu",
        6,
        "max(0, x) + min(0, alpha (exp(x / alpha) - 1)): max, divide, exp, subtract, multiply+min, add",
    ),
    "Clip": ("clip", 2, "min(max(x, lo), hi)"),
    "Cos": ("cos", 1, "cos x"),
    "Cosh": ("cosh", 1, "cosh x"),
    "Div": ("div", 1, "a / b"),
    "Elu": ("elu", 4, "x > 0 ? x : alpha (exp x - 1)"),
    "Equal": ("equal", 1, "a == b"),
    "Erf": ("erf", 1, "erf x"),
    "Exp": ("exp", 1, "exp x"),
    "Floor": ("floor", 1, "floor x"),
    "Gelu": ("gelu", 5, "0.5 x (1 + erf(x / sqrt 2)): multiply, erf, add, multiply, multiply"),
    "Greater": ("greater", 1, "a > b"),
    "GreaterOrEqual": ("greater_or_equal", 1, "a >= b"),
    "HardSigmoid": ("hard_sigmoid", 4, "max(0, min(1, alpha x + beta))"),
    "HardSwish": ("hard_swish", 5, "x max(0, min(1, x / 6 + 0.5))"),
    "IsInf": ("is_inf", 1, "x is inf"),
    "IsNaN": ("is_nan", 1, "x != x"),
    "LeakyRelu": ("leaky_relu", 2, "x > 0 ? x : alpha x"),
    "Less": ("less", 1, "a < b"),
    "LessOrEqual": ("less_or_equal", 1, "a <= b"),
    "Log": ("log", 1, "log x"),
    "Mish": ("mish", 5, "x tanh(log(1 + exp x))"),
    "Mod": ("mod", 4, "a - b floor(a / b)"),
    "Mul": ("mul", 1, "a b"),
    "Neg": ("neg", 1, "-x"),
    "Not": ("not", 1, "not x"),
    "Or": ("or", 1, "a or b"),
    "PRelu": ("prelu", 2, "x > 0 ? x : s x"),
    "Pow": ("pow", 3, "exp(b log a)"),
    "Reciprocal": ("reciprocal", 1, "1 / x"),
    "Relu": ("relu", 1, "max(0, x)"),
    "Round": ("round", 1, "round x"),
    "Selu": ("selu", 5, "gamma (x > 0 ? x : alpha (exp x - 1))"),
    "Shrink": ("shrink", 3, "x < -l ? x + b : x > l ? x - b : 0"),
    "Sigmoid": ("sigmoid", 4, "1 / (1 + exp(-x))"),
    "Sign": ("sign", 2, "(x > 0) - (x < 0), the two comparisons"),
    "Sin": ("sin", 1, "sin x"),
    "Sinh": ("sinh", 1, "sinh x"),
    "Softplus": ("softplus", 3, "log(1 + exp x)"),
    "Softsign": ("softsign", 3, "x / (1 + |x|)"),
    "Sqrt": ("sqrt", 1, "sqrt x"),
    "Sub": ("sub", 1, "a - b"),
    "Swish": ("swish", 6, "x / (1 + exp(-alpha x)): multiply, negate, exp, add, divide, multiply"),
    "Tan": ("tan", 1, "tan x"),
    "Tanh": ("tanh", 1, "tanh x"),
    "ThresholdedRelu": ("thresholded_relu", 1, "x > alpha ? x : 0"),
    "Where": ("where", 1, "c ? a : b"),
    "Xor": ("xor", 1, "a xor b"),
    # Experimental operators of the first opsets, which old CNTK and Keras exports still hold.
    "Affine": ("affine", 2, "alpha x + beta"),
    "ParametricSoftplus": ("parametric_softplus", 5, "alpha log(1 + exp(beta x))"),
    "ScaledTanh": ("scaled_tanh", 3, "alpha tanh(beta x)"),
}
GELU_TANH_FLOPS = 9  # 0.5 x (1 + tanh(c (x + d x^3))): two for x^3, d, +, c, tanh, +, 0.5, x
# Operators with traits; what is said of each is what torch.autocast's lists (aten/src/ATen/autocast_mode.h), ONNX
# Runtime's declarations MayInplace (onnxruntime/core/providers/cuda) and the activations of vision models say.
_ACTIVATIONS = ("Clip", "Elu", "HardSwish", "LeakyRelu", "Relu")
_GATED = ("Mish", "Swish")  # no kernel of ONNX Runtime's CUDA provider
_IN_FLOAT = ("Exp", "Log", "Reciprocal", "Softplus")
_IN_FLOAT_APART = ("Acos", "Asin", "Cosh", "Sinh", "Tan")
_OVER_FIRST = (
    "Abs",
    "And",
    "Ceil",
    "Celu",
    "Cos",
    "Div",
    "Erf",
    "Floor",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sqrt",
    "Sub",
    "Tanh",
    "ThresholdedRelu",
    "Xor",
)
_NAMED = frozenset(
    {"Add", "PRelu", "Pow", "Gelu", "Softsign", "HardSigmoid"}
    | {*_ACTIVATIONS, *_GATED, *_IN_FLOAT, *_IN_FLOAT_APART, *_OVER_FIRST}
)

# Binary operators by the element type of their result: the first operand's, or bool.
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor")
_OTHER_SHAPES = frozenset({*_ARITHMETIC, *_COMPARISONS, "IsInf", "IsNaN", "Where"})


@shape_rule(*(name for name in FLOPS if name not in _OTHER_SHAPES))
@shape_rule("Hardmax", "LogSoftmax", "Softmax", "CumProd", "Identity")
@shape_rule("CumSum", host_inputs=(1,))
def same_types(ctx: ShapeContext) -> Outputs:
    """Return the first input's type (Identity: also of a sequence).

    Identity is no ``weight_view`` on purpose: exporters merge equal initializers behind it, which are separate
    parameters.
    """
    if ctx.op_type == "Identity":
        return ctx.types[:1]
    return [tensor(ctx, 0)]


@shape_rule("IsNaN", "IsInf")
def predicate_types(ctx: ShapeContext) -> Outputs:
    """Return a bool per element."""
    return [TensorType(DType.BOOL, tensor(ctx, 0).shape)]


def _binary_shape(ctx: ShapeContext, a: Shape, b: Shape) -> Shape:
    """Return the shape of a binary operator's result.

    Before opset 7, ``broadcast=1`` aligned the second operand with ``axis``: the first's shape results.
    """
    if a == b:
        return a
    if ctx.version >= 7 or not ctx.attributes.get("broadcast"):
        return broadcast(a, b)
    if len(b) > len(a):
        raise ShapeError(f"operand {list(b)} has more dimensions than {list(a)}")
    return a


@shape_rule(*_ARITHMETIC)
def arithmetic_types(ctx: ShapeContext) -> Outputs:
    """Return the operands broadcast; the element type is the first operand's."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    shape = _binary_shape(ctx, a.shape, b.shape)
    return [TensorType(a.dtype, shape)]


@shape_rule(*_COMPARISONS)
def comparison_types(ctx: ShapeContext) -> Outputs:
    """Return the operands broadcast to bool."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    shape = _binary_shape(ctx, a.shape, b.shape)
    return [TensorType(DType.BOOL, shape)]


@shape_rule("Where")
def where_types(ctx: ShapeContext) -> Outputs:
    """Return condition and both choices broadcast together."""
    condition = tensor(ctx, 0)
    x = tensor(ctx, 1)
    y = tensor(ctx, 2)
    shape = broadcast(condition.shape, x.shape, y.shape)
    return [TensorType(x.dtype, shape)]


# ResNets of torchvision and timm add their shortcut in place, before the activation: ``out += identity; relu(out)``.
@lowering_rule(
    "Add", kind="elementwise", in_place=("onnxruntime",), in_place_before="Relu", feeds_in_place=True
)
@lowering_rule("PRelu", kind="elementwise", autocast="half")
@lowering_rule(*_ACTIVATIONS, kind="elementwise", in_place=("torch", "onnxruntime"))
@lowering_rule(*_GATED, kind="elementwise", in_place=("torch",))
@lowering_rule(*_IN_FLOAT, kind="elementwise", in_place=("onnxruntime",), autocast="fp32")
@lowering_rule(*_IN_FLOAT_APART, kind="elementwise", autocast="fp32")
@lowering_rule(*_OVER_FIRST, kind="elementwise", in_place=("onnxruntime",))
@lowering_rule(*(name for name in FLOPS if name not in _NAMED), kind="elementwise")
def elementwise(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel over the result's elements."""
    variant, flops, _ = FLOPS[op.op_type]
    result = output_at(op)
    operands = tensor_inputs(op)
    if options.runtime == "onnxruntime":
        variant += _indexing(operands, result)
    kernel = elementwise_kernel(variant, operands, (result,), flops_per_element=flops)
    return launched(kernel)


def _indexing(operands: Sequence[Tensor], result: Tensor) -> str:
    """Return the ending of the variant that says by how many dimensions ONNX Runtime's kernel divides each index.

    Nothing broadcasts but one element: none. A right operand with one dimension beside ones, as a bias has: two, what
    lies before and behind it. Any other: all of the result (``BinaryElementwiseBroadcastPrepare`` of its CUDA
    provider).
    """
    broadcasting = [x for x in operands if x.elements not in (1, result.elements)]
    if not broadcasting:
        return ""
    wide = [n for n in broadcasting[0].shape if n != 1]
    on_the_right = broadcasting == [operands[-1]] and operands[0].shape == result.shape
    if on_the_right and len(wide) == 1:
        return f"{INDEXED}2"
    return f"{INDEXED}{len(result.shape)}"


@lowering_rule("Softsign", kind="elementwise", in_place=("onnxruntime",))
def softsign(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel in onnxruntime; torch composes it (torch/nn/functional.py): ``input / (input.abs() + 1)``."""
    if options.runtime != "torch":
        return elementwise(op, options)
    x = input_at(op, 0)
    result = output_at(op)
    kernels = (
        elementwise_kernel("abs", (x,), (result,), flops_per_element=1),
        elementwise_kernel("add", (result,), (result,), flops_per_element=1),
        elementwise_kernel("div", (x, result), (result,), flops_per_element=1),
    )
    return launched(*kernels, calls=len(kernels))


@lowering_rule("HardSigmoid", kind="elementwise", in_place=("onnxruntime",))
def hard_sigmoid(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel in onnxruntime and, with slope 1/6 and offset 1/2, in torch; other slopes have no call in
    torch and are a product, a sum and a clamp there.
    """
    alpha = op.attributes.get("alpha", 0.2)
    beta = op.attributes.get("beta", 0.5)
    known = isinstance(alpha, float) and abs(alpha - 1 / 6) <= 1e-4 and beta == 0.5
    if options.runtime != "torch" or known:
        return elementwise(op, options)
    result = output_at(op)
    kernels = (
        elementwise_kernel("mul", tensor_inputs(op), (result,), flops_per_element=1),
        elementwise_kernel("add", (result,), (result,), flops_per_element=1),
        elementwise_kernel("clip", (result,), (result,), flops_per_element=2),
    )
    return launched(*kernels, calls=len(kernels))


@lowering_rule("Gelu", kind="elementwise")
def gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the exact (erf) or the tanh form, by the attribute ``approximate``."""
    if op.attributes.get("approximate", "none") != "tanh":
        return elementwise(op, options)
    kernel = elementwise_kernel(
        "gelu_tanh", tensor_inputs(op), (output_at(op),), flops_per_element=GELU_TANH_FLOPS
    )
    return launched(kernel)


@lowering_rule("Pow", kind="elementwise", in_place=("onnxruntime",), autocast="fp32")
def power(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a power; a square, cube or root is multiplications or one function, as the runtimes special-case it."""
    exponent = optional_input(op, 1)
    flops = FLOPS["Pow"][1]
    if exponent is not None and exponent.value is not None and exponent.value.size == 1:
        flops = _POWERS.get(exponent.value.item(), flops)
    kernel = elementwise_kernel("pow", tensor_inputs(op), (output_at(op),), flops_per_element=flops)
    return launched(kernel)


_POWERS = {2.0: 1, 3.0: 2, 0.5: 1, 1.0: 0, -1.0: 1}  # FLOPs by exponent


@shape_rule("Max", "Min", "Sum", "Mean")
def variadic_types(ctx: ShapeContext) -> Outputs:
    """Return any number of operands broadcast together."""
    operands = all_tensors(ctx)
    shape = broadcast(*[operand.shape for operand in operands])
    return [TensorType(operands[0].dtype, shape)]


@lowering_rule("Sum", "Max", "Min", kind="elementwise", in_place=("onnxruntime",))
@lowering_rule("Mean", kind="elementwise")
def variadic(op: Operator, options: LoweringOptions) -> Lowered:
    """Return n-1 binary kernels for n operands in both runtimes (and a division for Mean); one operand is a copy."""
    operands = tensor_inputs(op)
    result = output_at(op)
    if len(operands) == 1:
        return launched(elementwise_kernel("copy", operands, (result,), flops_per_element=0))
    variant = {"Max": "max", "Min": "min"}.get(op.op_type, "add")
    kernels: list[Kernel] = []
    left = operands[0]
    for right in operands[1:]:
        kernels.append(elementwise_kernel(variant, (left, right), (result,), flops_per_element=1))
        left = result
    if op.op_type == "Mean":
        kernels.append(elementwise_kernel("div", (result,), (result,), flops_per_element=1))
    return launched(*kernels, calls=len(kernels))


@shape_rule("SwiGLU")
def swiglu_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the gate, which the value has to equal in shape."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    if a.shape != b.shape:
        raise ShapeError(f"gate is {a} and value {b}, expected equal shapes")
    return [a]


@lowering_rule("SwiGLU", kind="gated_activation")
def swiglu(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the gate through Swish, times the value; eager mode composes SiLU and a product."""
    result = output_at(op)
    operands = tensor_inputs(op)
    swish = FLOPS["Swish"][1]
    if options.runtime == "torch":
        kernels = (
            elementwise_kernel("swish", (result,), (result,), flops_per_element=swish),
            elementwise_kernel("mul", operands, (result,), flops_per_element=1),
        )
        return launched(*kernels, calls=2)
    kernel = elementwise_kernel("swiglu", operands, (result,), flops_per_element=swish + 1)
    return launched(kernel)
