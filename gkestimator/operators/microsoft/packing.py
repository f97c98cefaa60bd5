"""``com.microsoft`` operators on batches without padding (onnxruntime's packing mode) and relative position biases.

How many tokens are real is data: sizes are those of the full batch, an upper bound that the shapes mark ``bounded``.
"""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape
from gkestimator.operators.attention import attention_kernels, head_size
from gkestimator.operators.builders import (
    copy_kernel,
    elementwise_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
    scratch,
    tensor_outputs,
)
from gkestimator.operators.checks import constant_int, int_attribute, optional_tensor, tensor, unknown_value
from gkestimator.operators.composed_attention import AttentionShape
from gkestimator.operators.matmul import matmul_kernels
from gkestimator.operators.microsoft.attention import packed_result, packed_sizes, projected
from gkestimator.operators.microsoft.decoding import bias_kernels
from gkestimator.operators.registry import (
    MS,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

# FLOPs of one entry's bucket: subtract, absolute value, compare, divide, logarithm, multiply, add, minimum.
_BUCKET_FLOPS = 8


@shape_rule("RemovePadding", domain=MS)
def remove_padding_types(ctx: ShapeContext) -> Outputs:
    """Return at most batch x length tokens of (batch, length, hidden), and where each of them was."""
    x = tensor(ctx, 0, rank=3)
    batch, length, hidden = x.shape
    outputs = [
        TensorType(x.dtype, (batch * length, hidden), True),
        TensorType(DType.INT32, (batch, length)),
        TensorType(DType.INT32, (batch + 1,)),
        TensorType(DType.INT32, (1,)),
    ]
    return outputs[: ctx.outputs]


@lowering_rule("RemovePadding", domain=MS, kind="packing")
def remove_padding(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel that adds up lengths and lists where tokens are, and one that gathers the tokens."""
    source = input_at(op, 0)
    counts = input_at(op, 1)
    result, *offsets = tensor_outputs(op)
    places = source.shape[0] * source.shape[1]
    kernels = [copy_kernel("remove_padding", (source,), (result,))]
    if offsets:
        listing = memory_kernel(
            Family.SCAN,
            "token_offset",
            (counts,),
            offsets,
            flops=places + source.shape[0],
            rows=1,
            cols=max(1, places),
        )
        kernels.insert(0, listing)
    return launched(*kernels)


@shape_rule("RestorePadding", domain=MS)
def restore_padding_types(ctx: ShapeContext) -> Outputs:
    """Return the tokens in the places that the offsets (batch, length) name."""
    x = tensor(ctx, 0, rank=2)
    offset = tensor(ctx, 1, rank=2)
    shape = (*offset.shape, x.shape[1])
    return [TensorType(x.dtype, shape)]


@lowering_rule("RestorePadding", domain=MS, kind="packing")
def restore_padding(op: Operator, options: LoweringOptions) -> Lowered:
    """Return tokens back to their places, zeros in between."""
    kernel = copy_kernel("restore_padding", (input_at(op, 0), input_at(op, 1)), (output_at(op),))
    return launched(kernel)


@shape_rule("PackedAttention", domain=MS)
def packed_attention_types(ctx: ShapeContext) -> Outputs:
    """Return (tokens, hidden): the tokens of all sequences lie in one dimension."""
    tensor(ctx, 0, rank=2)
    return packed_result(ctx, past_at=_NO_PAST)[:1]


_NO_PAST = 1 << 16  # packed tokens have no cache: the place of an input that no operator has


def _padded_sizes(op: Operator, offset: Tensor, qk_width: int) -> AttentionShape:
    """Return the sizes of attention within sequences whose tokens ``offset`` (batch, length) places."""
    batch, length = offset.shape
    v_width = output_at(op).shape[-1]
    return packed_sizes(op, batch=batch, q_len=length, kv_len=length, qk_width=qk_width, v_width=v_width)


@lowering_rule("PackedAttention", domain=MS, kind="attention")
def packed_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return Q, K and V of all tokens in one product, then attention within each sequence."""
    result = output_at(op)
    packed, projection = projected(op, options)
    qk_width = (packed.shape[-1] - result.shape[-1]) // 2
    sizes = _padded_sizes(op, input_at(op, 3), qk_width)
    masked = optional_input(op, 5) is not None
    reads = present_inputs(op, 5, 4)
    attend = attention_kernels(sizes, (packed,), result, options, extra_reads=reads, masked=masked)
    return launched(*projection, *attend)


@shape_rule("PackedMultiHeadAttention", domain=MS)
def packed_multi_head_types(ctx: ShapeContext) -> Outputs:
    """Return (tokens, hidden) for separate Q, K and V, or for (tokens, heads, 3, size)."""
    value = optional_tensor(ctx, 2, rank=2)
    if value is not None:
        q = tensor(ctx, 0, rank=2)
        shape = (q.shape[0], value.shape[1])
        return [TensorType(q.dtype, shape)]
    q = tensor(ctx, 0, rank=4)
    tokens, heads, _, size = q.shape
    return [TensorType(q.dtype, (tokens, heads * size))]


@lowering_rule("PackedMultiHeadAttention", domain=MS, kind="attention")
def packed_multi_head_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return attention on Q, K and V per token, or packed as (tokens, heads, 3, size); a bias is added before."""
    query = input_at(op, 0)
    qk_width = query.shape[1]
    if len(query.shape) != 2:
        qk_width *= query.shape[3]
    operands = present_inputs(op, 0, 1, 2)
    sizes = _padded_sizes(op, input_at(op, 4), qk_width)
    masked = optional_input(op, 6) is not None
    reads = present_inputs(op, 6, 5)
    kernels = attention_kernels(sizes, operands, output_at(op), options, extra_reads=reads, masked=masked)
    return launched(*bias_kernels(op, 3, operands), *kernels)


@shape_rule("RelativePositionBias", domain=MS)
def relative_position_bias_types(ctx: ShapeContext) -> Outputs:
    """Return (1, heads, query length, key length) for a bias table (buckets, heads)."""
    table = tensor(ctx, 0, rank=2)
    query = constant_int(ctx, 1)
    key = constant_int(ctx, 2)
    if query is None or key is None:
        return [unknown_value(ctx, 1, "a length", table.dtype, rank=4)]
    if query < 0 or key < 0:
        raise ShapeError(f"lengths are {query} and {key}, expected positive numbers")
    shape = (1, table.shape[1], query, key)
    return [TensorType(table.dtype, shape)]


@lowering_rule("RelativePositionBias", domain=MS, kind="position_bias")
def relative_position_bias(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one entry of the table, that of its bucket, for each (head, query, key)."""
    table = input_at(op, 0)
    result = output_at(op)
    kernel = memory_kernel(
        Family.GATHER,
        "relative_position_bias",
        (table,),
        (result,),
        flops=_BUCKET_FLOPS * result.elements,
        rows=max(1, result.elements),
        read_bytes=min(table.nbytes, result.nbytes),
    )
    return launched(kernel)


@shape_rule("GatedRelativePositionBias", domain=MS)
def gated_position_bias_types(ctx: ShapeContext) -> Outputs:
    """Return (batch, heads, length, length); packed tokens find batch and length in token_offset."""
    x = tensor(ctx, 0, min_rank=2)
    offset = optional_tensor(ctx, 6, rank=2) or x
    batch, length = offset.shape[:2]
    heads = int_attribute(ctx, "num_heads")
    head_size(x.shape[-1], heads, "the query")
    return [TensorType(x.dtype, (batch, heads, length, length))]


@lowering_rule("GatedRelativePositionBias", domain=MS, kind="position_bias")
def gated_relative_position_bias(op: Operator, options: LoweringOptions) -> Lowered:
    """Return bias and transpose of the query, its product with a narrow weight (size, d), then the gate.

    Gate of a (batch, head, position): d bias additions and d - 2 more sum either half; two sigmoids (4 each); ``u
    (r eco - 1) + 2`` is 4 more. One multiplication per result element.
    """
    query, bias, position, weight, weight_bias, eco = (input_at(op, i) for i in range(6))
    result = output_at(op)
    batch, heads, length, _ = result.shape
    size, width = weight.shape
    rows = batch * heads * length
    turned = scratch(result, "query", (batch, heads, length, size))
    gates = scratch(result, "gates", (batch, heads, length, width))
    product = GemmShape(batch=1, m=rows, n=width, k=size)
    kernels = (
        elementwise_kernel("bias_add", (query, bias), (turned,), flops_per_element=1),
        *matmul_kernels(product, (turned, weight), gates, options),
        memory_kernel(
            Family.ELEMENTWISE,
            "gated_position_bias",
            (gates, weight_bias, eco, position),
            (result,),
            flops=rows * (2 * width + 10) + result.elements,
            rows=result.elements,
        ),
    )
    return launched(*kernels)
