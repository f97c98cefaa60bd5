"""``com.microsoft`` attention with caches: multi-head and grouped-query forms, one new token, rotary embedding."""

from __future__ import annotations

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.attention import attention_kernels, head_size
from gkestimator.operators.attention_parts import AttentionShape
from gkestimator.operators.builders import (
    RMSNORM_FLOPS,
    copy_kernel,
    elementwise_kernel,
    input_at,
    int_of,
    memory_kernel,
    optional_input,
    optional_output,
    output_at,
    present_inputs,
    scratch,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.checks import (
    constant_int,
    declared_tensor,
    has_input,
    int_attribute,
    optional_tensor,
    tensor,
)
from gkestimator.operators.microsoft.attending import microsoft_attention
from gkestimator.operators.microsoft.attention import cached_length, heads_of, packed_sizes, projected
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


def _keys_and_values(ctx: ShapeContext, heads: int) -> tuple[int, int, int]:
    """Return length, width of all values and head size of the keys and values of a MultiHeadAttention."""
    q = tensor(ctx, 0, min_rank=3).shape
    k = optional_tensor(ctx, 1)
    v = optional_tensor(ctx, 2)
    if k is None:  # Q, K and V packed as (batch, length, heads, 3, head size)
        _, length, packed_heads, _, head = tensor(ctx, 0, rank=5).shape
        return length, packed_heads * head, head
    if len(q) == 3:
        head = head_size(q[2], heads, "the query")
    else:
        head = q[-1]
    if v is None:  # K and V packed as (batch, length, heads, 2, head size)
        _, length, packed_heads, _, size = tensor(ctx, 1, rank=5).shape
        return length, packed_heads * size, head
    ranks = (len(k.shape), len(v.shape))
    if ranks == (4, 4):  # (batch, heads, length, head size): keys and values of an encoder
        return k.shape[2], v.shape[1] * v.shape[3], head
    if ranks != (3, 3):
        raise ShapeError(f"key is {k} and value {v}, expected 3 dimensions each")
    return k.shape[1], v.shape[2], head


@shape_rule("MultiHeadAttention", "DecoderMaskedMultiHeadAttention", domain=MS)
def multi_head_types(ctx: ShapeContext) -> Outputs:
    """Return (batch, length, value width); present keys, values (batch, heads, total, head size); scores."""
    q = tensor(ctx, 0, min_rank=3)
    heads = int_attribute(ctx, "num_heads")
    total, v_width, head = _keys_and_values(ctx, heads)
    if ctx.op_type == "DecoderMaskedMultiHeadAttention":
        past_at = 5
    else:
        past_at = 6
    past = optional_tensor(ctx, past_at, rank=4)
    if past is not None:
        total = cached_length(ctx, past.shape[2], total)
        # A given past_sequence_length says that the cache is one buffer, large enough for all tokens.
        if has_input(ctx, past_at + 2):
            total = past.shape[2]
    batch, length = q.shape[:2]
    v_head = head_size(v_width, heads, "the value")
    outputs = [
        TensorType(q.dtype, (batch, length, v_width)),
        TensorType(q.dtype, (batch, heads, total, head)),
        TensorType(q.dtype, (batch, heads, total, v_head)),
        TensorType(q.dtype, (batch, heads, length, total)),
    ]
    return outputs[: ctx.outputs]


@lowering_rule("MultiHeadAttention", domain=MS, kind="attention", autocast="half")
def multi_head_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return attention on separate Q, K, V, or packed in query (5 dimensions), or K and V in key; the bias first."""
    query = input_at(op, 0)
    key = optional_input(op, 1)
    past_key = optional_input(op, 6)
    result = output_at(op)
    heads = heads_of(op)
    qk_width = query.shape[-1]
    if len(query.shape) == 5:
        qk_width *= heads
    kv_len = query.shape[1]
    if key is not None:
        kv_len = length_of(key)
    if past_key is not None:
        kv_len += past_key.shape[-2]
    sizes = packed_sizes(
        op,
        batch=query.shape[0],
        q_len=query.shape[1],
        kv_len=kv_len,
        qk_width=qk_width,
        v_width=result.shape[-1],
    )
    operands = present_inputs(op, 0, 1, 2)
    kernels = [*bias_kernels(op, 3, operands), *_appended(op, (6, 7), operands[1:])]
    reads = present_inputs(op, 4, 5)
    kernels += microsoft_attention(sizes, operands, result, options, extra_reads=reads, masked=bool(reads))
    return launched(*kernels, calls=len(kernels))


def length_of(keys: Tensor) -> int:
    """Return the number of keys of (batch, length, width), or of an encoder's (batch, heads, length, size)."""
    if len(keys.shape) == 4:
        return keys.shape[2]
    return keys.shape[1]


def bias_kernels(op: Operator, place: int, operands: tuple[Tensor, ...]) -> list[Kernel]:
    """Return the addition of the bias that is input ``place`` to all operands; none without a bias."""
    bias = optional_input(op, place)
    if bias is None:
        return []
    return [elementwise_kernel("bias_add", (*operands, bias), operands, flops_per_element=1)]


@shape_rule("GroupQueryAttention", "SparseAttention", domain=MS)
def group_query_types(ctx: ShapeContext) -> Outputs:
    """Return (batch, length, heads x size); the cache holds max(past, total_sequence_length) positions.

    Without a constant total length it is declared, or bounded by past + length.
    """
    q = tensor(ctx, 0, rank=3)
    batch, length, width = q.shape
    heads = int_attribute(ctx, "num_heads")
    kv_heads = int_attribute(ctx, "kv_num_heads")
    split = heads
    if not has_input(ctx, 1):  # Q, K and V in one
        split += 2 * kv_heads
    head = head_size(width, split, "the query")
    past = optional_tensor(ctx, 3, rank=4) or TensorType(q.dtype, (batch, kv_heads, 0, head))
    total = constant_int(ctx, 7 if ctx.op_type == "SparseAttention" else 6)
    bounded = False
    if total is not None:
        total = max(past.shape[2], total)
    else:
        declared = declared_tensor(ctx, 1, q.dtype, rank=4)
        bounded = declared is None
        if declared is None:
            total = past.shape[2] + length
        else:
            total = declared.shape[2]
    cache = TensorType(past.dtype, (batch, kv_heads, total, past.shape[3]), bounded)
    scores = TensorType(q.dtype, (batch, heads, length, total), bounded)
    outputs = [TensorType(q.dtype, (batch, length, heads * head)), cache, cache, scores]
    return outputs[: ctx.outputs]


def _appended(op: Operator, past: tuple[int, int], new: tuple[Tensor, ...]) -> list[Kernel]:
    """Return the copies of past (inputs ``past``) and new keys and values into the presents.

    Where the past is as long as the present, both are one buffer: only what is new is written.
    """
    kernels = []
    for index, present in enumerate(tensor_outputs(op)[1:3]):
        held = present_inputs(op, past[index])
        added = new[index : index + 1]
        if held and added and held[0].shape == present.shape:
            held = ()
            present = scratch(added[0], f"appended{index}", added[0].shape)
        parts = (*held, *added)
        if parts:
            kernels.append(copy_kernel("concat", parts, (present,)))
    return kernels


@lowering_rule("GroupQueryAttention", domain=MS, kind="attention", autocast="half")
def group_query_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return causal attention with fewer key-value heads, its cache and (``do_rotary``) the turning of Q and K."""
    query = input_at(op, 0)
    past_key = optional_input(op, 3)
    result = output_at(op)
    presents = tensor_outputs(op)[1:3]
    heads = heads_of(op)
    size = result.shape[-1] // heads
    batch, length = query.shape[:2]
    kv_len = length
    if presents:
        kv_len = presents[0].shape[-2]
    elif past_key is not None:
        kv_len += past_key.shape[-2]
    shape = AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads_of(op, "kv_num_heads"),
        q_len=length,
        kv_len=kv_len,
        qk_dim=size,
        v_dim=size,
    )
    kernels: list[Kernel] = []
    # The kernel that turns queries and keys normalises them first where the file gives scales (inputs 14, 15).
    turning = 3 * bool(op.attributes.get("do_rotary", 0)) + RMSNORM_FLOPS * bool(present_inputs(op, 14, 15))
    if turning:
        for turned in present_inputs(op, 0, 1):
            kernels.append(elementwise_kernel("rotary", (turned,), (turned,), flops_per_element=turning))
    new = present_inputs(op, 1, 2)
    queries = query
    if not new:
        # Keys and values come packed behind the queries and are appended from there: attention reads the queries.
        added = (batch, heads_of(op, "kv_num_heads"), length, size)
        new = (scratch(query, "new_keys", added), scratch(query, "new_values", added))
        queries = scratch(query, "queries", (batch, length, heads * size))
    kernels += _appended(op, (3, 4), new)
    window = max(int_of(op, "local_window_size", -1), 0)
    operands = (queries, *(presents or new))
    kernels += attention_kernels(shape, operands, result, options, masked=True, causal=True, window=window)
    return launched(*kernels)


@lowering_rule("RotaryEmbedding", "MRotaryEmbedding", domain=MS, kind="rotary_embedding")
def rotary(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the turning of x (0) by positions, cosines and sines: 3 FLOPs an element.

    The sections of MRotaryEmbedding take their positions from time, height and width.
    """
    kernel = elementwise_kernel("rotary", tensor_inputs(op), (output_at(op),), flops_per_element=3)
    return launched(kernel)


@lowering_rule("DecoderMaskedSelfAttention", domain=MS, kind="attention")
def decoder_masked_self_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return Q, K and V of the new token in one product; attention appends to the shared cache itself.

    The cache's length is its buffer's, an upper bound of the tokens in it.
    """
    source = input_at(op, 0)
    past = input_at(op, 4)
    result = output_at(op)
    present = optional_output(op, 1) or past
    packed, projection = projected(op, options)
    heads = heads_of(op)
    sizes = packed_sizes(
        op,
        batch=source.shape[0],
        q_len=source.shape[1],
        kv_len=present.shape[3],
        qk_width=past.shape[4] * heads,
        v_width=result.shape[-1],
    )
    reads = present_inputs(op, 3, 5)
    attend = attention_kernels(sizes, (packed, past), result, options, extra_reads=reads, masked=bool(reads))
    return launched(*projection, *attend)


@lowering_rule("DecoderMaskedMultiHeadAttention", domain=MS, kind="attention")
def decoder_masked_multi_head_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return attention of one new query on a cache, or on the encoder's keys and values (4 dimensions).

    A cache that is no shared buffer is copied with the new token behind it.
    """
    query = input_at(op, 0)
    result = output_at(op)
    heads = heads_of(op)
    operands = present_inputs(op, 0, 1, 2)
    new = operands[1:]
    past = present_inputs(op, 5, 6)
    presents = tensor_outputs(op)[1:3]
    kernels = bias_kernels(op, 10, operands)
    kv_len = query.shape[1]
    if len(past) == 2:
        shared = bool(op.attributes.get("past_present_share_buffer", 0)) or optional_input(op, 7) is not None
        if presents:
            kv_len = presents[0].shape[2]
        elif shared:
            kv_len = past[0].shape[2]
        else:
            kv_len += past[0].shape[2]
        if shared or len(presents) < 2 or len(new) < 2:
            operands = (*operands, *past)
        else:
            kernels += _appended(op, (5, 6), new)
            operands = (query, *presents)
    elif new:
        kv_len = length_of(new[0])
    qk_width = query.shape[-1]
    if len(query.shape) != 3:
        qk_width *= heads
    sizes = packed_sizes(
        op,
        batch=query.shape[0],
        q_len=query.shape[1],
        kv_len=kv_len,
        qk_width=qk_width,
        v_width=result.shape[-1],
    )
    reads = present_inputs(op, 3, 4)
    kernels += attention_kernels(sizes, operands, result, options, extra_reads=reads, masked=bool(reads))
    return launched(*kernels)


@shape_rule("GemmaRotaryEmbedding", domain=MS)
def gemma_rotary_types(ctx: ShapeContext) -> Outputs:
    """Return the types of Q and K."""
    outputs = [tensor(ctx, 1), tensor(ctx, 3)]
    return outputs[: ctx.outputs]


@lowering_rule("GemmaRotaryEmbedding", domain=MS, kind="rotary_embedding")
def gemma_rotary(op: Operator, options: LoweringOptions) -> Lowered:
    """Return sine and cosine of the angles, then q cos + q_rot sin (3 an element) for Q and K in one kernel."""
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
    return launched(kernel)
