"""Shape rules of ONNX Runtime's fused operators: activations, norms, products, convolutions."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    broadcast,
    constant_int,
    constant_ints,
    dtype_attribute,
    int_attribute,
    ints_attribute,
    matmul_shape,
    refuse,
    same_as_input,
    tensor,
    unknown_value,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule
from gkestimator.operators.shapes.windows import conv_channels_first, conv_shape, pool_spatial

_MS = "com.microsoft"


@shape_rule("Gelu", "QuickGelu", "FastGelu", "ScaledSiLU", "GroupNorm", "MoE", "QMoE", domain=_MS)
def _same(ctx: ShapeContext) -> Outputs:
    return same_as_input(ctx)


@shape_rule("BiasGelu", "BiasSoftmax", "BiasAdd", domain=_MS)
def _biased(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    bias = tensor(ctx, 1)
    if broadcast(ctx, x.shape, bias.shape) != x.shape:
        refuse(ctx, f"bias {list(bias.shape)} does not fit input {list(x.shape)}")
    return [x]


@shape_rule("BiasSplitGelu", domain=_MS)
def _split_gelu(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    if x.shape[-1] % 2:
        refuse(ctx, f"input is {list(x.shape)}, expected an even last dimension")
    return [TensorType(x.dtype, (*x.shape[:-1], x.shape[-1] // 2))]


@shape_rule("BiasDropout", domain=_MS)
def _bias_dropout(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    return [x, TensorType(DType.BOOL, x.shape)][: ctx.outputs]


@shape_rule("BitmaskDropout", "BitmaskBiasDropout", domain=_MS)
def _bitmask_dropout(ctx: ShapeContext) -> Outputs:
    """The mask packs 32 elements in each word."""
    x = tensor(ctx, 0)
    return [x, TensorType(DType.UINT32, (-(-math.prod(x.shape) // 32),))][: ctx.outputs]


@shape_rule("SkipGroupNorm", domain=_MS)
def _skip_group_norm(ctx: ShapeContext) -> Outputs:
    return same_as_input(ctx)


@shape_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MS)
def _skip_layer_norm(ctx: ShapeContext) -> Outputs:
    """Output, mean and inverse deviation per row, and the sum of input, skip and bias."""
    x = tensor(ctx, 0, min_rank=1)
    skip = tensor(ctx, 1)
    if broadcast(ctx, x.shape, skip.shape) != x.shape:
        refuse(ctx, f"skip {list(skip.shape)} does not fit input {list(x.shape)}")
    row = TensorType(DType.FLOAT, (*x.shape[:-1], 1))
    return [x, row, row, x][: ctx.outputs]


@shape_rule("SimplifiedLayerNormalization", domain=_MS)
@shape_rule("SimplifiedLayerNormalization")  # ONNX Runtime registers its RMS norm in the standard domain
def _simplified_layer_norm(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_of(ctx, int_attribute(ctx, "axis", -1), len(x.shape))
    rows = (*x.shape[:axis], *(1 for _ in x.shape[axis:]))
    return [TensorType(tensor(ctx, 1).dtype, x.shape), TensorType(DType.FLOAT, rows)][: ctx.outputs]


@shape_rule("LayerNormalization", domain=_MS)
def _layer_norm(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_of(ctx, int_attribute(ctx, "axis", -1), len(x.shape))
    row = TensorType(DType.FLOAT, (*x.shape[:axis], *(1 for _ in x.shape[axis:])))
    return [x, row, row][: ctx.outputs]


@shape_rule("EmbedLayerNormalization", "QEmbedLayerNormalization", domain=_MS)
def _embed_layer_norm(ctx: ShapeContext) -> Outputs:
    """ids (batch, length) to (batch, length, hidden), a mask index per sequence, the sum of embeddings."""
    ids = tensor(ctx, 0, rank=2)
    words = tensor(ctx, 2, rank=2)
    quantised = ctx.op_type == "QEmbedLayerNormalization"
    dtype = tensor(ctx, 8).dtype if quantised else words.dtype
    out = TensorType(dtype, (*ids.shape, words.shape[1]))
    return [out, TensorType(DType.INT32, (ids.shape[0],)), out][: ctx.outputs]


def _flagged(ctx: ShapeContext, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """``shape`` with its last two dimensions swapped when attribute ``name`` is set."""
    if int_attribute(ctx, name, 0) and len(shape) > 1:
        return (*shape[:-2], shape[-1], shape[-2])
    return shape


def transposed_product(ctx: ShapeContext, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Matrix product with transA, transB, transBatchA, transBatchB.

    transBatch: the first dimension moves behind the batch.
    """
    if int_attribute(ctx, "transBatchA", 0) and len(a) > 2:
        a = (*a[1:-1], a[0], a[-1])
    if int_attribute(ctx, "transBatchB", 0) and len(b) > 2:
        b = (*b[1:-1], b[0], b[-1])
    return matmul_shape(ctx, _flagged(ctx, "transA", a), _flagged(ctx, "transB", b))


@shape_rule(
    "FusedMatMul",
    "FusedMatMulActivation",
    "TransposeMatMul",
    "SparseToDenseMatMul",
    "GemmFastGelu",
    domain=_MS,
)
def _product(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0)
    return [TensorType(a.dtype, transposed_product(ctx, a.shape, tensor(ctx, 1).shape))]


@shape_rule("FusedGemm", "GemmFloat8", domain=_MS)
def _gemm(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0, rank=2)
    b = tensor(ctx, 1, rank=2)
    default = DType.FLOAT if ctx.op_type == "GemmFloat8" else a.dtype
    return [TensorType(dtype_attribute(ctx, "dtype", default), transposed_product(ctx, a.shape, b.shape))]


@shape_rule("MatMulNBits", "MatMulBnb4", domain=_MS)
def _block_quantised_product(ctx: ShapeContext) -> Outputs:
    """A (..., K) times a packed weight of N columns; K and N are attributes."""
    a = tensor(ctx, 0, min_rank=1)
    k = int_attribute(ctx, "K")
    n = int_attribute(ctx, "N")
    if n < 1 or a.shape[-1] != k:
        refuse(ctx, f"input is {list(a.shape)}, K is {k} and N {n}")
    return [TensorType(a.dtype, (*a.shape[:-1], n))]


@shape_rule("MatMulFpQ4", domain=_MS)
def _q4_product(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0)
    weight = constant_ints(ctx, 2)
    if weight is None:
        return [unknown_value(ctx, 2, "B_shape", a.dtype, rank=len(a.shape))]
    if min(weight, default=0) < 0:
        refuse(ctx, f"B_shape is {list(weight)}, expected sizes")
    return [TensorType(a.dtype, matmul_shape(ctx, a.shape, weight))]


def nhwc_conv_shape(ctx: ShapeContext, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, ...]:
    """Output shape of a channels-last convolution; the weight is (M, C / group, kernel) or channels last too.

    Both weight layouts are in use; kernel_shape tells which one it is.
    """
    kernel = ints_attribute(ctx, "kernel_shape")
    groups = int_attribute(ctx, "group", 1)
    if kernel is not None and w[2:] != kernel and w[1:-1] == kernel and x[-1] == w[-1] * groups:
        w = (w[0], w[-1], *w[1:-1])
    return conv_shape(ctx, x, w, channels_last=True)


@shape_rule("FusedConv", domain=_MS)
def _fused_conv(ctx: ShapeContext) -> Outputs:
    return [TensorType(tensor(ctx, 0).dtype, conv_channels_first(ctx))]


@shape_rule("NhwcConv", "NhwcFusedConv", domain=_MS)
def _nhwc_conv(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    w = tensor(ctx, 1, min_rank=3)
    return [TensorType(x.dtype, nhwc_conv_shape(ctx, x.shape, w.shape))]


@shape_rule("NhwcMaxPool", domain=_MS)
def _nhwc_max_pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    return [TensorType(x.dtype, (x.shape[0], *pool_spatial(ctx, x.shape[1:-1]), x.shape[-1]))]


@shape_rule("MaxpoolWithMask", domain=_MS)
def _masked_max_pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    return [TensorType(x.dtype, (*x.shape[:2], *pool_spatial(ctx, x.shape[2:])))]


@shape_rule("CDist", domain=_MS)
def _distances(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0, rank=2)
    b = tensor(ctx, 1, rank=2)
    if a.shape[1] != b.shape[1]:
        refuse(ctx, f"inputs {list(a.shape)} and {list(b.shape)} differ in their last dimension")
    return [TensorType(a.dtype, (a.shape[0], b.shape[0]))]


@shape_rule("TorchEmbedding", domain=_MS)
def _embedding(ctx: ShapeContext) -> Outputs:
    weight = tensor(ctx, 0, rank=2)
    return [TensorType(weight.dtype, (*tensor(ctx, 1).shape, weight.shape[1]))]


@shape_rule("NGramRepeatBlock", domain=_MS)
def _repeat_block(ctx: ShapeContext) -> Outputs:
    return [tensor(ctx, 1, rank=2)]


@shape_rule("RelativePositionBias", domain=_MS)
def _relative_bias(ctx: ShapeContext) -> Outputs:
    """bias_table (buckets, heads) to (1, heads, query length, key length)."""
    table = tensor(ctx, 0, rank=2)
    query = constant_int(ctx, 1)
    key = constant_int(ctx, 2)
    if query is None or key is None:
        return [unknown_value(ctx, 1 if query is None else 2, "a length", table.dtype, rank=4)]
    if query < 0 or key < 0:
        refuse(ctx, f"lengths are {query} and {key}, expected positive numbers")
    return [TensorType(table.dtype, (1, table.shape[1], query, key))]


@shape_rule("RemovePadding", domain=_MS)
def _remove_padding(ctx: ShapeContext) -> Outputs:
    """(batch, length, hidden) to at most batch x length tokens, and where each of them was."""
    x = tensor(ctx, 0, rank=3)
    batch, length, hidden = x.shape
    return [
        TensorType(x.dtype, (batch * length, hidden), True),
        TensorType(DType.INT32, (batch, length)),
        TensorType(DType.INT32, (batch + 1,)),
        TensorType(DType.INT32, (1,)),
    ][: ctx.outputs]


@shape_rule("RestorePadding", domain=_MS)
def _restore_padding(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=2)
    offset = tensor(ctx, 1, rank=2)
    return [TensorType(x.dtype, (*offset.shape, x.shape[1]))]


@shape_rule("Unique", domain=_MS)
def _unique(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=1)
    size = x.shape[0]
    places = TensorType(DType.INT64, (size,))
    counts = TensorType(DType.INT64, (size,), True)
    return [TensorType(x.dtype, (size,), True), places, counts][: ctx.outputs]
