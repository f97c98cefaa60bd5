"""``com.microsoft`` operators on batches without padding (onnxruntime's packing mode) and relative position biases.

How many tokens are real is data: sizes are those of the full batch, an upper bound that the shapes mark ``bounded``.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.attention import AttentionShape, attention_kernels
from gkestimator.operators.builders import (
    copy_kernel,
    elementwise_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    tensor_outputs,
)
from gkestimator.operators.matmul import matmul_kernels, matmul_shape
from gkestimator.operators.microsoft.attention import MS, heads_of
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []

# FLOPs of one entry's bucket: subtract, absolute value, compare, divide, logarithm, multiply, add, minimum.
_BUCKET_FLOPS = 8


def _scratch(base: Tensor, suffix: str, shape: tuple[int, ...]) -> Tensor:
    name = f"{base.name}#{suffix}"
    return Tensor(name=name, dtype=base.dtype, shape=shape, storage=name)


@lowering_rule("RemovePadding", domain=MS, kind="packing")
def remove_padding(op: Operator, options: LoweringOptions) -> Lowered:
    """One kernel adds up the sequences' lengths and lists where tokens are, one gathers the tokens."""
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
    return Lowered(kernels=tuple(kernels), host_calls=1)


@lowering_rule("RestorePadding", domain=MS, kind="packing")
def restore_padding(op: Operator, options: LoweringOptions) -> Lowered:
    """Tokens back to their places, zeros in between."""
    kernel = copy_kernel("restore_padding", (input_at(op, 0), input_at(op, 1)), (output_at(op),))
    return Lowered(kernels=(kernel,), host_calls=1)


def _padded_attention(op: Operator, offset: Tensor, qk_width: int, v_width: int) -> AttentionShape:
    heads = heads_of(op, "num_heads")
    batch, length = offset.shape
    return AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads,
        q_len=length,
        kv_len=length,
        qk_dim=qk_width // heads,
        v_dim=v_width // heads,
    )


@lowering_rule("PackedAttention", domain=MS, kind="attention")
def packed_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Q, K and V of all tokens in one product, then attention within each sequence."""
    source, weight, bias, offset = (input_at(op, i) for i in (0, 1, 2, 3))
    lengths = input_at(op, 4)
    extra = optional_input(op, 5)
    result = output_at(op)
    shape = matmul_shape(source.shape, weight.shape)
    packed = _scratch(result, "qkv", (source.shape[0], weight.shape[1]))
    projection = matmul_kernels(
        shape, (source, weight, bias), packed, options, epilogue_flops=shape.m * shape.n
    )
    v_width = result.shape[-1]
    sizes = _padded_attention(op, offset, (weight.shape[1] - v_width) // 2, v_width)
    reads = (lengths,) if extra is None else (extra, lengths)
    attend = attention_kernels(sizes, (packed,), result, options, extra_reads=reads, masked=extra is not None)
    return Lowered(kernels=(*projection, *attend), host_calls=1)


@lowering_rule("PackedMultiHeadAttention", domain=MS, kind="attention")
def packed_multi_head_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Q, K and V per token, or packed as (tokens, heads, 3, size); a bias is added by a kernel of its own."""
    query = input_at(op, 0)
    key = optional_input(op, 1)
    value = optional_input(op, 2)
    bias, offset, lengths, extra = (
        optional_input(op, 3),
        input_at(op, 4),
        input_at(op, 5),
        optional_input(op, 6),
    )
    result = output_at(op)
    if len(query.shape) == 2:
        qk_width = query.shape[1]
    else:
        qk_width = query.shape[1] * query.shape[3]
    operands = tuple(t for t in (query, key, value) if t is not None)
    kernels: list[Kernel] = []
    if bias is not None:
        kernels.append(elementwise_kernel("bias_add", (*operands, bias), operands, flops_per_element=1))
    reads = (lengths,) if extra is None else (extra, lengths)
    sizes = _padded_attention(op, offset, qk_width, result.shape[-1])
    kernels.extend(
        attention_kernels(sizes, operands, result, options, extra_reads=reads, masked=extra is not None)
    )
    return Lowered(kernels=tuple(kernels), host_calls=1)


@lowering_rule("RelativePositionBias", domain=MS, kind="position_bias")
def relative_position_bias(op: Operator, options: LoweringOptions) -> Lowered:
    """Each (head, query, key) finds its bucket and reads one entry of the table."""
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
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("GatedRelativePositionBias", domain=MS, kind="position_bias")
def gated_relative_position_bias(op: Operator, options: LoweringOptions) -> Lowered:
    """Bias and transpose of the query, its product with a narrow weight (size, d), then the gate.

    Gate of a (batch, head, position): d bias additions and d - 2 more sum either half; two sigmoids (4 each);
    ``u (r eco - 1) + 2`` is 4 more. One multiplication per result element.
    """
    query, bias, position, weight, weight_bias, eco = (input_at(op, i) for i in range(6))
    result = output_at(op)
    batch, heads, length, _ = result.shape
    size, width = weight.shape
    rows = batch * heads * length
    turned = _scratch(result, "query", (batch, heads, length, size))
    gates = _scratch(result, "gates", (batch, heads, length, width))
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
    return Lowered(kernels=kernels, host_calls=1)
