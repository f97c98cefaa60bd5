"""Shape rules of ONNX Runtime's quantised operators (com.microsoft)."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    broadcast,
    dtype_attribute,
    int_attribute,
    ints_attribute,
    matmul_shape,
    optional_tensor,
    refuse,
    same_as_input,
    tensor,
    text_attribute,
)
from gkestimator.operators.shapes.microsoft import nhwc_conv_shape, transposed_product
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule
from gkestimator.operators.shapes.windows import conv_channels_first, pool_spatial

__all__: list[str] = []

_MS = "com.microsoft"


@shape_rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=_MS)
def _same(ctx: ShapeContext) -> Outputs:
    return same_as_input(ctx)


@shape_rule("QLinearAdd", "QLinearMul", domain=_MS)
def _binary(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0)
    b = tensor(ctx, 3)
    return [TensorType(a.dtype, broadcast(ctx, a.shape, b.shape))]


@shape_rule("QLinearWhere", domain=_MS)
def _where(ctx: ShapeContext) -> Outputs:
    condition = tensor(ctx, 0)
    x = tensor(ctx, 1)
    y = tensor(ctx, 4)
    return [TensorType(x.dtype, broadcast(ctx, condition.shape, x.shape, y.shape))]


@shape_rule("QLinearConv", domain=_MS)
def _conv(ctx: ShapeContext) -> Outputs:
    dtype = tensor(ctx, 7).dtype
    if int_attribute(ctx, "channels_last", 0):
        return [
            TensorType(dtype, nhwc_conv_shape(ctx, tensor(ctx, 0, min_rank=3).shape, tensor(ctx, 3).shape))
        ]
    return [TensorType(dtype, conv_channels_first(ctx, 0, 3))]


@shape_rule("QLinearAveragePool", "QLinearGlobalAveragePool", domain=_MS)
def _pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    last = bool(int_attribute(ctx, "channels_last", 0))
    if last:
        spatial = x.shape[1:-1]
    else:
        spatial = x.shape[2:]
    if ctx.op_type == "QLinearGlobalAveragePool":
        out = (1,) * len(spatial)
    else:
        out = pool_spatial(ctx, spatial)
    return [TensorType(x.dtype, (x.shape[0], *out, x.shape[-1]) if last else (*x.shape[:2], *out))]


@shape_rule("QLinearConcat", domain=_MS)
def _concat(ctx: ShapeContext) -> Outputs:
    """Y_scale, Y_zero_point, then (tensor, scale, zero point) for each part."""
    dtype = tensor(ctx, 1).dtype
    count, rest = divmod(len(ctx.types) - 2, 3)
    if rest or count < 1:
        refuse(ctx, f"{len(ctx.types)} inputs, expected 2 and a multiple of 3")
    parts = [tensor(ctx, 2 + 3 * i, min_rank=1).shape for i in range(count)]
    axis = axis_of(ctx, int_attribute(ctx, "axis"), len(parts[0]))
    frame = (*parts[0][:axis], *parts[0][axis + 1 :])
    for part in parts:
        if len(part) != len(parts[0]) or (*part[:axis], *part[axis + 1 :]) != frame:
            refuse(ctx, f"parts {list(parts[0])} and {list(part)} do not join along axis {axis}")
    return [TensorType(dtype, (*frame[:axis], sum(p[axis] for p in parts), *frame[axis:]))]


@shape_rule("QLinearReduceMean", "ReduceSumInteger", domain=_MS)
def _reduce(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    rank = len(x.shape)
    named = ints_attribute(ctx, "axes")
    if named is None:
        axes = set(range(rank))
    else:
        axes = {axis_of(ctx, a, rank) for a in named}
    dtype = x.dtype
    if ctx.op_type == "ReduceSumInteger":
        if x.dtype is DType.INT8:
            dtype = DType.INT32
        else:
            dtype = DType.UINT32
    if int_attribute(ctx, "keepdims", 1):
        return [TensorType(dtype, tuple(1 if i in axes else d for i, d in enumerate(x.shape)))]
    return [TensorType(dtype, tuple(d for i, d in enumerate(x.shape) if i not in axes))]


@shape_rule("DynamicQuantizeMatMul", domain=_MS)
def _dynamic_matmul(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0)
    return [TensorType(a.dtype, matmul_shape(ctx, a.shape, tensor(ctx, 1).shape))]


@shape_rule("MatMulIntegerToFloat", domain=_MS)
def _integer_to_float(ctx: ShapeContext) -> Outputs:
    shape = matmul_shape(ctx, tensor(ctx, 0).shape, tensor(ctx, 1).shape)
    return [TensorType(tensor(ctx, 2).dtype, shape)]


@shape_rule("MatMulInteger16", domain=_MS, quantised=True)
def _matmul_integer16(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.INT32, matmul_shape(ctx, tensor(ctx, 0).shape, tensor(ctx, 1).shape))]


@shape_rule("MulInteger", domain=_MS)
def _mul_integer(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.INT32, broadcast(ctx, tensor(ctx, 0).shape, tensor(ctx, 2).shape))]


@shape_rule("QGemm", domain=_MS)
def _gemm(ctx: ShapeContext) -> Outputs:
    """Quantised with y_zero_point, else in the scale's type."""
    zero_point = optional_tensor(ctx, 8)
    dtype = tensor(ctx, 1).dtype if zero_point is None else zero_point.dtype
    shape = transposed_product(ctx, tensor(ctx, 0, rank=2).shape, tensor(ctx, 3, rank=2).shape)
    return [TensorType(dtype, shape)]


@shape_rule("GatherBlockQuantized", domain=_MS)
def _gather(ctx: ShapeContext) -> Outputs:
    """Gather of a block-quantised table; uint8 elements of 2 or 4 bits are packed along the last axis."""
    data = tensor(ctx, 0, min_rank=1)
    indices = tensor(ctx, 1)
    scales = tensor(ctx, 2)
    axis = axis_of(ctx, int_attribute(ctx, "gather_axis", 0), len(data.shape), what="gather_axis")
    bits = int_attribute(ctx, "bits", 4)
    if bits not in (2, 4, 8):
        refuse(ctx, f"bits are {bits}, expected 2, 4 or 8")
    shape = data.shape
    if data.dtype is DType.UINT8:
        shape = (*shape[:-1], shape[-1] * (8 // bits))
    return [TensorType(scales.dtype, (*shape[:axis], *indices.shape, *shape[axis + 1 :]))]


@shape_rule("DynamicQuantizeLSTM", domain=_MS)
def _lstm(ctx: ShapeContext) -> Outputs:
    """As LSTM; the weights are stored transposed: W (dirs, input, 4 hidden), R (dirs, hidden, 4 hidden)."""
    x = tensor(ctx, 0, rank=3)
    r = tensor(ctx, 2, rank=3)
    directions = 2 if text_attribute(ctx, "direction", "forward") == "bidirectional" else 1
    hidden = int_attribute(ctx, "hidden_size", r.shape[1])
    if r.shape != (directions, hidden, 4 * hidden):
        refuse(ctx, f"recurrent weight is {list(r.shape)}, expected {[directions, hidden, 4 * hidden]}")
    last = TensorType(x.dtype, (directions, x.shape[1], hidden))
    return [TensorType(x.dtype, (x.shape[0], directions, x.shape[1], hidden)), last, last][: ctx.outputs]


@shape_rule("QuantizeWithOrder", "QOrderedGelu", "QOrderedLayerNormalization", domain=_MS)
@shape_rule("QOrderedLongformerAttention", domain=_MS)
def _ordered(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.INT8, tensor(ctx, 0).shape)]


@shape_rule("DequantizeWithOrder", domain=_MS)
def _dequantise_ordered(ctx: ShapeContext) -> Outputs:
    return [TensorType(dtype_attribute(ctx, "to"), tensor(ctx, 0).shape)]


@shape_rule("QOrderedMatMul", domain=_MS)
def _ordered_matmul(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.INT8, matmul_shape(ctx, tensor(ctx, 0).shape, tensor(ctx, 2).shape))]


@shape_rule("QOrderedAttention", domain=_MS)
def _ordered_attention(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=3)
    return [TensorType(DType.INT8, (*x.shape[:2], tensor(ctx, 7, rank=2).shape[1]))]
