"""``com.microsoft`` attention: packed, multi-head and grouped-query forms with caches, rotary embedding."""

from __future__ import annotations

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.attention import AttentionShape, attention_kernels
from gkestimator.operators.builders import (
    copy_kernel,
    elementwise_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.matmul import matmul_kernels, matmul_shape
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

MS = "com.microsoft"


def heads_of(op: Operator, name: str) -> int:
    """The attribute ``name`` (a number of heads), at least 1."""
    value = op.attributes.get(name, 1)
    if isinstance(value, int):
        return max(1, value)
    return 1


@lowering_rule("Attention", domain=MS, kind="attention", autocast="half")
def attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Q, K and V in one product with the packed weight, then attention; a past is appended by a copy."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    bias, mask, past = (optional_input(op, i) for i in (2, 3, 4))
    packed = _packed(result, source, weight.shape[-1])
    shape = matmul_shape(source.shape, weight.shape)
    if bias is None:
        reads = (source, weight)
    else:
        reads = (source, weight, bias)
    epilogue = shape.m * shape.n if bias is not None else 0
    kernels = list(matmul_kernels(shape, reads, packed, options, epilogue_flops=epilogue))
    kernels.extend(packed_attention(op, packed, result, mask, past, options))
    return Lowered(kernels=tuple(kernels), host_calls=1)


def _packed(result: Tensor, source: Tensor, width: int) -> Tensor:
    name = f"{result.name}#qkv"
    return Tensor(name=name, dtype=result.dtype, shape=(*source.shape[:-1], width), storage=name)


def packed_attention(
    op: Operator,
    packed: Tensor,
    result: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    options: LoweringOptions,
) -> list[Kernel]:
    """Attention over a packed (batch, length, q + k + v) tensor of the com.microsoft operators."""
    heads = heads_of(op, "num_heads")
    batch = packed.shape[0]
    length = packed.shape[1]
    v_size = result.shape[-1]
    qk_size = (packed.shape[-1] - v_size) // 2
    kernels: list[Kernel] = []
    kv_len = length
    operands: tuple[Tensor, ...] = (packed,)
    if past is not None:
        kv_len += past.shape[-2]
        present = next((t for t in tensor_outputs(op)[1:]), past)
        kernels.append(copy_kernel("concat", (past, packed), (present,)))
        operands = (packed, present)
    shape = AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads,
        q_len=length,
        kv_len=kv_len,
        qk_dim=qk_size // heads,
        v_dim=v_size // heads,
    )
    extra = () if mask is None else (mask,)
    masked = mask is not None or bool(op.attributes.get("unidirectional", 0))
    kernels.extend(attention_kernels(shape, operands, result, options, extra_reads=extra, masked=masked))
    return kernels


@lowering_rule("MultiHeadAttention", domain=MS, kind="attention", autocast="half")
def multi_head_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Separate Q, K, V, or packed in query (5 dimensions), or K and V packed in key; the bias comes first."""
    query = input_at(op, 0)
    key = optional_input(op, 1)
    value = optional_input(op, 2)
    bias, padding, extra, past_key = (optional_input(op, i) for i in (3, 4, 5, 6))
    result = output_at(op)
    heads = heads_of(op, "num_heads")
    batch = query.shape[0]
    q_len = query.shape[1]
    v_dim = result.shape[-1] // heads
    if len(query.shape) == 5:
        qk_dim = query.shape[-1]
    else:
        qk_dim = query.shape[-1] // heads
    if key is None:
        kv_len = q_len
    elif len(key.shape) == 4:
        kv_len = key.shape[2]
    else:
        kv_len = key.shape[1]
    if past_key is not None:
        kv_len += past_key.shape[-2]
    shape = AttentionShape(
        batch=batch, heads=heads, kv_heads=heads, q_len=q_len, kv_len=kv_len, qk_dim=qk_dim, v_dim=v_dim
    )
    operands = tuple(t for t in (query, key, value) if t is not None)
    kernels: list[Kernel] = []
    if bias is not None:
        kernels.append(elementwise_kernel("bias_add", (*operands, bias), operands, flops_per_element=1))
    kernels.extend(_appended(op, (6, 7), operands[1:]))
    reads = tuple(t for t in (padding, extra) if t is not None)
    kernels.extend(attention_kernels(shape, operands, result, options, extra_reads=reads, masked=bool(reads)))
    return Lowered(kernels=tuple(kernels), host_calls=1)


def _appended(op: Operator, past: tuple[int, int], new: tuple[Tensor, ...]) -> list[Kernel]:
    presents = tensor_outputs(op)[1:3]
    kernels = []
    for index, (position, present) in enumerate(zip(past, presents, strict=False)):
        cached = optional_input(op, position)
        parts = tuple(t for t in (cached, new[index] if index < len(new) else None) if t is not None)
        if parts:
            kernels.append(copy_kernel("concat", parts, (present,)))
    return kernels


@lowering_rule("GroupQueryAttention", domain=MS, kind="attention", autocast="half")
def group_query_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Causal attention with fewer key-value heads, its cache and (``do_rotary``) the rotary embedding of Q
    and K.
    """
    query = input_at(op, 0)
    key = optional_input(op, 1)
    value = optional_input(op, 2)
    result = output_at(op)
    heads = heads_of(op, "num_heads")
    kv_heads = heads_of(op, "kv_num_heads")
    size = result.shape[-1] // heads
    presents = tensor_outputs(op)[1:3]
    past_key = optional_input(op, 3)
    if presents:
        kv_len = presents[0].shape[-2]
    else:
        kv_len = query.shape[1] + (past_key.shape[-2] if past_key is not None else 0)
    shape = AttentionShape(
        batch=query.shape[0],
        heads=heads,
        kv_heads=kv_heads,
        q_len=query.shape[1],
        kv_len=kv_len,
        qk_dim=size,
        v_dim=size,
    )
    kernels: list[Kernel] = []
    new = tuple(t for t in (key, value) if t is not None)
    if op.attributes.get("do_rotary", 0):
        turned = (query, key) if key is not None else (query,)
        kernels.extend(
            elementwise_kernel("rotary", (t,), (t,), flops_per_element=3) for t in turned if t is not None
        )
    kernels.extend(_appended(op, (3, 4), new))
    operands = (query, *(presents or new))
    kernels.extend(attention_kernels(shape, operands, result, options, masked=True))
    return Lowered(kernels=tuple(kernels), host_calls=1)


@lowering_rule("RotaryEmbedding", domain=MS, kind="rotary_embedding")
def rotary(op: Operator, options: LoweringOptions) -> Lowered:
    """Inputs in the order x, positions, cosines, sines."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "rotary",
        tensor_inputs(op),
        (result,),
        flops=3 * result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)
