"""``com.microsoft`` attention of one new token against its cache, and further forms of rotary embedding."""

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
from gkestimator.operators.microsoft.attention import MS, heads_of
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []


def _reads(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(t for t in tensors if t is not None)


@lowering_rule("DecoderMaskedSelfAttention", domain=MS, kind="attention")
def decoder_masked_self_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Q, K and V of the new token in one product; attention appends to the shared cache itself.

    The cache's length is its buffer's, an upper bound of the tokens in it.
    """
    source, weight, bias, past = (input_at(op, i) for i in (0, 1, 2, 4))
    mask = optional_input(op, 3)
    extra = optional_input(op, 5)
    result = output_at(op)
    present = next(iter(tensor_outputs(op)[1:]), past)
    heads = heads_of(op, "num_heads")
    shape = matmul_shape(source.shape, weight.shape)
    name = f"{result.name}#qkv"
    packed = Tensor(name=name, dtype=result.dtype, shape=(*source.shape[:-1], weight.shape[1]), storage=name)
    projection = matmul_kernels(
        shape, (source, weight, bias), packed, options, epilogue_flops=shape.batch * shape.m * shape.n
    )
    sizes = AttentionShape(
        batch=source.shape[0],
        heads=heads,
        kv_heads=heads,
        q_len=source.shape[1],
        kv_len=present.shape[3],
        qk_dim=past.shape[4],
        v_dim=result.shape[-1] // heads,
    )
    reads = _reads(mask, extra)
    attend = attention_kernels(sizes, (packed, past), result, options, extra_reads=reads, masked=bool(reads))
    return Lowered(kernels=(*projection, *attend), host_calls=1)


@lowering_rule("DecoderMaskedMultiHeadAttention", domain=MS, kind="attention")
def decoder_masked_multi_head_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """One new query against a cache (self-attention) or the encoder's keys and values (4 dimensions).

    A cache that is no shared buffer is copied with the new token behind it.
    """
    query = input_at(op, 0)
    key = optional_input(op, 1)
    value = optional_input(op, 2)
    mask, extra, past_key, past_value = (optional_input(op, i) for i in (3, 4, 5, 6))
    bias = optional_input(op, 10)
    result = output_at(op)
    presents = tensor_outputs(op)[1:3]
    heads = heads_of(op, "num_heads")
    shared = bool(op.attributes.get("past_present_share_buffer", 0)) or optional_input(op, 7) is not None
    operands = _reads(query, key, value)
    kernels: list[Kernel] = []
    if bias is not None:
        kernels.append(elementwise_kernel("bias_add", (*operands, bias), operands, flops_per_element=1))
    caches: tuple[Tensor, ...] = ()
    kv_len = query.shape[1]
    if past_key is not None and past_value is not None:
        if presents:
            kv_len = presents[0].shape[2]
        else:
            kv_len = past_key.shape[2] + (0 if shared else query.shape[1])
        caches = (past_key, past_value)
        if not shared and len(presents) == 2 and key is not None and value is not None:
            for cache, new, present in zip(caches, (key, value), presents, strict=True):
                kernels.append(copy_kernel("concat", (cache, new), (present,)))
            operands = (query,)
            caches = presents
    elif key is not None:
        if len(key.shape) == 4:
            kv_len = key.shape[2]
        else:
            kv_len = key.shape[1]
    if len(query.shape) == 3:
        width = query.shape[2] // heads
    else:
        width = query.shape[-1]
    sizes = AttentionShape(
        batch=query.shape[0],
        heads=heads,
        kv_heads=heads,
        q_len=query.shape[1],
        kv_len=kv_len,
        qk_dim=width,
        v_dim=result.shape[-1] // heads,
    )
    reads = _reads(mask, extra)
    kernels.extend(
        attention_kernels(sizes, (*operands, *caches), result, options, extra_reads=reads, masked=bool(reads))
    )
    return Lowered(kernels=tuple(kernels), host_calls=1)


@lowering_rule("GemmaRotaryEmbedding", domain=MS, kind="rotary_embedding")
def gemma_rotary(op: Operator, options: LoweringOptions) -> Lowered:
    """Sine and cosine of the angles, then q cos + q_rot sin (3 an element) for Q and K in one kernel."""
    angles = input_at(op, 0)
    results = tensor_outputs(op)
    elements = sum(t.elements for t in results)
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "rotary",
        tensor_inputs(op),
        results,
        flops=2 * angles.elements + 3 * elements,
        rows=elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("MRotaryEmbedding", domain=MS, kind="rotary_embedding")
def multimodal_rotary(op: Operator, options: LoweringOptions) -> Lowered:
    """Rotary embedding whose sections take their positions from time, height and width: 3 FLOPs an element."""
    result = output_at(op)
    kernel = elementwise_kernel("rotary", tensor_inputs(op), (result,), flops_per_element=3)
    return Lowered(kernels=(kernel,), host_calls=1)
