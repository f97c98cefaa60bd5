"""Shape rules of elementwise operators: unary ones keep the shape, the others broadcast."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.operators.shapes.support import broadcast, has, tensor

_UNARY = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitwiseNot",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "Mish",
    "Neg",
    "Reciprocal",
    "Relu",
    "Round",
    "ScaledTanh",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "ParametricSoftplus",
    "Affine",
    "Clip",
    "Identity",
    "CumProd",
    "Not",
)


# Identity is no weight_view on purpose: exporters merge equal initializers behind it, which are separate parameters.
@shape_rule("CumSum", host_inputs=(1,))
@shape_rule(*_UNARY)
def same(ctx: ShapeContext) -> list[ValueType | None]:
    """The output has the first input's type (Identity: also of a sequence)."""
    return [ctx.types[0] if ctx.op_type == "Identity" else tensor(ctx, 0)]


@shape_rule("IsNaN", "IsInf")
def predicate(ctx: ShapeContext) -> list[ValueType | None]:
    """A bool per element."""
    return [TensorType(DType.BOOL, tensor(ctx, 0).shape)]


def _legacy(ctx: ShapeContext, a: TensorType, b: TensorType) -> tuple[int, ...] | None:
    """Before opset 7, ``broadcast=1`` aligned the second operand with ``axis``: the first's shape results."""
    if ctx.version < 7 and ctx.attributes.get("broadcast"):
        if len(b.shape) > len(a.shape):
            raise ShapeError(f"operand {list(b.shape)} has more dimensions than {list(a.shape)}")
        return a.shape
    return None


@shape_rule("Add", "Sub", "Mul", "Div", "Pow", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Mod")
def arithmetic(ctx: ShapeContext) -> list[ValueType | None]:
    """Broadcast; the element type is the first operand's."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    if a.shape == b.shape:
        shape = a.shape
    else:
        shape = _legacy(ctx, a, b) or broadcast(a.shape, b.shape)
    return [TensorType(a.dtype, shape)]


@shape_rule("PRelu")
def prelu(ctx: ShapeContext) -> list[ValueType | None]:
    """The slope broadcasts to the input; the output has the input's type."""
    return [tensor(ctx, 0)]


@shape_rule("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor")
def comparison(ctx: ShapeContext) -> list[ValueType | None]:
    """Broadcast to bool."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    return [TensorType(DType.BOOL, _legacy(ctx, a, b) or broadcast(a.shape, b.shape))]


@shape_rule("Max", "Min", "Sum", "Mean")
def variadic(ctx: ShapeContext) -> list[ValueType | None]:
    """Any number of operands broadcast together."""
    operands = [tensor(ctx, i) for i in range(len(ctx.types))]
    if not operands:
        raise ShapeError("has no inputs")
    return [TensorType(operands[0].dtype, broadcast(*[o.shape for o in operands]))]


@shape_rule("Where")
def where(ctx: ShapeContext) -> list[ValueType | None]:
    """Condition and both choices broadcast together."""
    condition = tensor(ctx, 0)
    x = tensor(ctx, 1)
    y = tensor(ctx, 2)
    return [TensorType(x.dtype, broadcast(condition.shape, x.shape, y.shape))]


@shape_rule("Dropout", host_inputs=(1, 2))
def dropout(ctx: ShapeContext) -> list[ValueType | None]:
    """Data as it comes in, and a mask (bool from opset 10 on)."""
    data = tensor(ctx, 0)
    mask = TensorType(DType.BOOL if ctx.version >= 10 else data.dtype, data.shape)
    if ctx.outputs > 1:
        return [data, mask]
    return [data]


def cast_target(number: object) -> DType:
    """The element type that attribute ``to`` names: a number, before opset 6 a word."""
    if isinstance(number, str):
        return DType(number.lower())
    if not isinstance(number, int) or number not in _BY_NUMBER:
        raise ShapeError(f"casts to element type {number!r}, which ONNX does not define")
    return _BY_NUMBER[number]


# TensorProto.DataType
_BY_NUMBER = dict(
    enumerate(
        (
            DType.FLOAT, DType.UINT8, DType.INT8, DType.UINT16, DType.INT16, DType.INT32, DType.INT64,
            DType.STRING,
            DType.BOOL, DType.FLOAT16, DType.DOUBLE, DType.UINT32, DType.UINT64, DType.COMPLEX64,
            DType.COMPLEX128,
            DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ,
            DType.UINT4, DType.INT4, DType.FLOAT4E2M1, DType.FLOAT8E8M0, DType.UINT2, DType.INT2,
        ),
        start=1,
    )
)  # fmt: skip


@shape_rule("Cast")
def cast(ctx: ShapeContext) -> list[ValueType | None]:
    """The shape of the input in element type ``to``."""
    return [TensorType(cast_target(ctx.attributes.get("to")), tensor(ctx, 0).shape)]


@shape_rule("CastLike")
def cast_like(ctx: ShapeContext) -> list[ValueType | None]:
    """The shape of the first input in the element type of the second."""
    return [TensorType(tensor(ctx, 1).dtype, tensor(ctx, 0).shape)]


@shape_rule("BatchNormalization")
def batch_normalization(ctx: ShapeContext) -> list[ValueType | None]:
    """The data's type; further outputs (training) are per channel."""
    data = tensor(ctx, 0)
    if has(ctx, 3):
        channel = tensor(ctx, 3)
    else:
        channel = TensorType(data.dtype, data.shape[1:2] or (1,))
    per_channel = ctx.attributes.get("spatial", 1)  # before opset 9, 0 meant statistics per element
    if per_channel and len(data.shape) > 1 and channel.shape not in ((data.shape[1],), ()):
        raise ShapeError(f"{data.shape[1]} channels but statistics of shape {list(channel.shape)}")
    return [data, *[channel] * (ctx.outputs - 1)]
