"""``com.microsoft`` attention on packed Q, K and V."""

from __future__ import annotations

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Kernel
from gkestimator.operators.attention import head_size
from gkestimator.operators.builders import (
    copy_kernel,
    int_of,
    optional_input,
    optional_output,
    output_at,
    present_inputs,
    scratch,
)
from gkestimator.operators.checks import int_attribute, ints_attribute, optional_tensor, tensor
from gkestimator.operators.composed_attention import AttentionShape
from gkestimator.operators.matmul import matmul_kernels, matmul_shape
from gkestimator.operators.microsoft.attending import microsoft_attention
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


@shape_rule("QAttention", domain=MS)
def quantised_attention_types(ctx: ShapeContext) -> Outputs:
    """Return what Attention does in the scale's type: outputs are not quantised."""
    tensor(ctx, 0, rank=3)
    dtype = tensor(ctx, 3).dtype
    outputs = [TensorType(dtype, part.shape) for part in packed_result(ctx, past_at=8)]
    return outputs[: ctx.outputs]


def packed_result(ctx: ShapeContext, past_at: int = 4) -> list[TensorType]:
    """Return (..., value width) and the stacked present (2, batch, heads, total, head size).

    Input 1 is the weight of Q, K and V together; a cache that shares the past's buffer keeps its shape.
    """
    x = tensor(ctx, 0, min_rank=2)
    weight = tensor(ctx, 1, rank=2).shape
    if weight[0] != x.shape[-1]:
        raise ShapeError(f"input is {x} and the weight {list(weight)}")
    heads = int_attribute(ctx, "num_heads")
    sizes = ints_attribute(ctx, "qkv_hidden_sizes", length=3, low=1)
    if sizes is None and weight[1] % 3:
        raise ShapeError(f"weight of width {weight[1]} does not split into Q, K and V")
    hidden, _, v_hidden = sizes or (weight[1] // 3,) * 3
    head = head_size(hidden, heads, "the weight")
    past = optional_tensor(ctx, past_at, rank=5)
    total = x.shape[1]
    dtype = x.dtype
    if past is not None:
        dtype = past.dtype
        total = cached_length(ctx, past.shape[3], total)
    present = TensorType(dtype, (2, x.shape[0], heads, total, head))
    return [TensorType(x.dtype, (*x.shape[:-1], v_hidden)), present]


def cached_length(ctx: ShapeContext, past: int, new: int) -> int:
    """Return how many positions a cache has: those of the past, and the new ones unless it is one shared buffer."""
    if int_attribute(ctx, "past_present_share_buffer", 0):
        return past
    return past + new


@shape_rule("Attention", "DecoderMaskedSelfAttention", domain=MS)
def attention_types(ctx: ShapeContext) -> Outputs:
    """Return the output (batch, length, value width) and the present."""
    tensor(ctx, 0, rank=3)
    return packed_result(ctx)[: ctx.outputs]


def heads_of(op: Operator, name: str = "num_heads") -> int:
    """Return the attribute ``name`` (a number of heads), at least 1."""
    return max(1, int_of(op, name, 1))


def packed_sizes(
    op: Operator, *, batch: int, q_len: int, kv_len: int, qk_width: int, v_width: int
) -> AttentionShape:
    """Return the sizes of an attention with as many key as query heads, by the widths of all heads together."""
    heads = heads_of(op)
    return AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads,
        q_len=q_len,
        kv_len=kv_len,
        qk_dim=qk_width // heads,
        v_dim=v_width // heads,
    )


@lowering_rule("Attention", domain=MS, kind="attention", autocast="half")
def attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return Q, K and V in one product with the packed weight, then attention; a past is appended by a copy.

    The host pays for every launch, not for the operator.
    """
    packed, projection = projected(op, options)
    attending = packed_attention(op, packed, optional_input(op, 3), optional_input(op, 4), options)
    kernels = (*projection, *attending)
    return launched(*kernels, calls=len(kernels))


def projected(op: Operator, options: LoweringOptions) -> tuple[Tensor, tuple[Kernel, ...]]:
    """Return Q, K and V of input 0 side by side, and the kernels of its product with the weight (1) and bias (2)."""
    reads = present_inputs(op, 0, 1, 2)
    source, weight = reads[:2]
    shape = matmul_shape(source.shape, weight.shape)
    if len(reads) > 2:
        epilogue = shape.batch * shape.m * shape.n
    else:
        epilogue = 0
    packed = scratch(output_at(op), "qkv", (*source.shape[:-1], weight.shape[-1]))
    return packed, matmul_kernels(shape, reads, packed, options, epilogue_flops=epilogue)


def packed_attention(
    op: Operator, packed: Tensor, mask: Tensor | None, past: Tensor | None, options: LoweringOptions
) -> list[Kernel]:
    """Return attention over a packed (batch, length, q + k + v) tensor of the com.microsoft operators."""
    result = output_at(op)
    batch, length, width = packed.shape
    v_width = result.shape[-1]
    kernels: list[Kernel] = []
    kv_len = length
    operands: tuple[Tensor, ...] = (packed,)
    if past is not None:
        kv_len += past.shape[-2]
        present = optional_output(op, 1) or past
        kernels.append(copy_kernel("concat", (past, packed), (present,)))
        operands = (packed, present)
    sizes = packed_sizes(
        op, batch=batch, q_len=length, kv_len=kv_len, qk_width=(width - v_width) // 2, v_width=v_width
    )
    extra = () if mask is None else (mask,)
    masked = mask is not None or bool(op.attributes.get("unidirectional", 0))
    kernels += microsoft_attention(sizes, operands, result, options, extra_reads=extra, masked=masked)
    return kernels
