"""Shape rules of ONNX Runtime's attention operators (com.microsoft), their caches included."""

from __future__ import annotations

from gkestimator.operators.shapes.attention import heads_of, linear_attention
from gkestimator.operators.shapes.checks import (
    Outputs,
    constant_int,
    declared_tensor,
    int_attribute,
    ints_attribute,
    optional_tensor,
    refuse,
    same_as_input,
    tensor,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []

_MS = "com.microsoft"


def _merged(ctx: ShapeContext, width: int, past: TensorType | None, length: int) -> Outputs:
    """(batch, length, value width) and the stacked present (2, batch, heads, total, head size).

    ``width`` is that of Q, K and V together; a cache that shares the past's buffer keeps its shape.
    """
    x = tensor(ctx, 0, min_rank=2)
    heads = int_attribute(ctx, "num_heads")
    sizes = ints_attribute(ctx, "qkv_hidden_sizes", length=3, low=1)
    if sizes is None and width % 3:
        refuse(ctx, f"weight of width {width} does not split into Q, K and V")
    hidden, _, v_hidden = sizes or (width // 3,) * 3
    head = heads_of(ctx, hidden, heads, "the weight")
    dtype = x.dtype if past is None else past.dtype
    present: tuple[int, ...] = (2, x.shape[0], heads, length, head)
    if past is not None:
        if len(past.shape) != 5:
            refuse(ctx, f"past has shape {list(past.shape)}, expected 5 dimensions")
        shared = int_attribute(ctx, "past_present_share_buffer", 0)
        if shared:
            total = past.shape[3]
        else:
            total = past.shape[3] + length
        present = (2, x.shape[0], heads, total, head)
    return [TensorType(x.dtype, (*x.shape[:-1], v_hidden)), TensorType(dtype, present)]


@shape_rule("Attention", "DecoderMaskedSelfAttention", domain=_MS)
def _attention(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, rank=2)
    if w.shape[0] != x.shape[2]:
        refuse(ctx, f"input is {list(x.shape)} and the weight {list(w.shape)}")
    return _merged(ctx, w.shape[1], optional_tensor(ctx, 4), x.shape[1])[: ctx.outputs]


@shape_rule("QAttention", domain=_MS)
def _quantised_attention(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, rank=2)
    if w.shape[0] != x.shape[2]:
        refuse(ctx, f"input is {list(x.shape)} and the weight {list(w.shape)}")
    dtype = tensor(ctx, 3).dtype  # the scale's: outputs are not quantised
    found = _merged(ctx, w.shape[1], optional_tensor(ctx, 8), x.shape[1])
    return [TensorType(dtype, t.shape) for t in found if isinstance(t, TensorType)][: ctx.outputs]


@shape_rule("PackedAttention", domain=_MS)
def _packed_attention(ctx: ShapeContext) -> Outputs:
    """Tokens of all sequences in one dimension: (tokens, hidden)."""
    x = tensor(ctx, 0, rank=2)
    w = tensor(ctx, 1, rank=2)
    if w.shape[0] != x.shape[1]:
        refuse(ctx, f"input is {list(x.shape)} and the weight {list(w.shape)}")
    return _merged(ctx, w.shape[1], None, 0)[:1]


@shape_rule("PackedMultiHeadAttention", domain=_MS)
def _packed_multi_head(ctx: ShapeContext) -> Outputs:
    if optional_tensor(ctx, 2) is not None:
        q = tensor(ctx, 0, rank=2)
        return [TensorType(q.dtype, (q.shape[0], tensor(ctx, 2, rank=2).shape[1]))]
    q = tensor(ctx, 0, rank=4)
    return [TensorType(q.dtype, (q.shape[0], q.shape[1] * q.shape[3]))]


@shape_rule("LongformerAttention", domain=_MS)
def _longformer(ctx: ShapeContext) -> Outputs:
    return same_as_input(ctx)


def _keys_and_values(ctx: ShapeContext, heads: int) -> tuple[int, int, int]:
    """(length, width of all values, head size) of the keys and values of a MultiHeadAttention."""
    q = tensor(ctx, 0, min_rank=3).shape
    k = optional_tensor(ctx, 1)
    v = optional_tensor(ctx, 2)
    if k is None:  # Q, K and V packed as (batch, length, heads, 3, head size)
        q = tensor(ctx, 0, rank=5).shape
        return q[1], q[2] * q[4], q[4]
    if len(q) == 3:
        head = heads_of(ctx, q[2], heads, "the query")
    else:
        head = q[-1]
    if v is None:  # K and V packed as (batch, length, heads, 2, head size)
        packed = tensor(ctx, 1, rank=5).shape
        return packed[1], packed[2] * packed[4], head
    if len(k.shape) == 4:  # (batch, heads, length, head size): keys and values of an encoder
        if len(v.shape) != 4:
            refuse(ctx, f"key is {list(k.shape)} and value {list(v.shape)}")
        return k.shape[2], v.shape[1] * v.shape[3], head
    if len(k.shape) != 3 or len(v.shape) != 3:
        refuse(ctx, f"key is {list(k.shape)} and value {list(v.shape)}, expected 3 dimensions")
    return k.shape[1], v.shape[2], head


@shape_rule("MultiHeadAttention", "DecoderMaskedMultiHeadAttention", domain=_MS)
def _multi_head(ctx: ShapeContext) -> Outputs:
    """Output (batch, length, value width); present keys, values (batch, heads, total, head size); scores."""
    q = tensor(ctx, 0, min_rank=3)
    heads = int_attribute(ctx, "num_heads")
    masked = ctx.op_type == "DecoderMaskedMultiHeadAttention"
    kv_length, v_width, head = _keys_and_values(ctx, heads)
    past = optional_tensor(ctx, 5 if masked else 6)
    total = kv_length
    if past is not None:
        if len(past.shape) != 4:
            refuse(ctx, f"past_key has shape {list(past.shape)}, expected 4 dimensions")
        shared = int_attribute(ctx, "past_present_share_buffer", 0)
        # a given past_sequence_length says that the cache is one buffer, large enough for all tokens
        shared = shared or optional_tensor(ctx, 7 if masked else 8) is not None
        if shared:
            total = past.shape[2]
        else:
            total = past.shape[2] + kv_length
    batch, length = q.shape[:2]
    v_head = heads_of(ctx, v_width, heads, "the value")
    return [
        TensorType(q.dtype, (batch, length, v_width)),
        TensorType(q.dtype, (batch, heads, total, head)),
        TensorType(q.dtype, (batch, heads, total, v_head)),
        TensorType(q.dtype, (batch, heads, length, total)),
    ][: ctx.outputs]


@shape_rule("GroupQueryAttention", "SparseAttention", domain=_MS)
def _group_query(ctx: ShapeContext) -> Outputs:
    """Output (batch, length, heads x size); the cache holds max(past, total_sequence_length) positions.

    Without a constant total length it is declared, or bounded by past + length.
    """
    q = tensor(ctx, 0, rank=3)
    heads = int_attribute(ctx, "num_heads")
    kv_heads = int_attribute(ctx, "kv_num_heads")
    packed = optional_tensor(ctx, 1) is None
    head = heads_of(ctx, q.shape[2], heads + 2 * kv_heads if packed else heads, "the query")
    past = optional_tensor(ctx, 3)
    start = 0
    if past is not None:
        if len(past.shape) != 4:
            refuse(ctx, f"past_key has shape {list(past.shape)}, expected 4 dimensions")
        start = past.shape[2]
    given = constant_int(ctx, 7 if ctx.op_type == "SparseAttention" else 6)
    if ctx.outputs > 1:
        declared = declared_tensor(ctx, 1, q.dtype, rank=4)
    else:
        declared = None
    bounded = False
    if given is not None:
        total = max(start, given)
    elif declared is not None:
        total = declared.shape[2]
    else:
        total = start + q.shape[1]
        bounded = True
    cache = TensorType(
        q.dtype if past is None else past.dtype,
        (q.shape[0], kv_heads, total, head if past is None else past.shape[3]),
        bounded,
    )
    scores = TensorType(q.dtype, (q.shape[0], heads, q.shape[1], total), bounded)
    return [TensorType(q.dtype, (*q.shape[:2], heads * head)), cache, cache, scores][: ctx.outputs]


@shape_rule("RotaryEmbedding", "MRotaryEmbedding", domain=_MS)
def _rotary(ctx: ShapeContext) -> Outputs:
    return same_as_input(ctx)


@shape_rule("GemmaRotaryEmbedding", domain=_MS)
def _gemma_rotary(ctx: ShapeContext) -> Outputs:
    return [tensor(ctx, 1), tensor(ctx, 3)][: ctx.outputs]


@shape_rule("GatedRelativePositionBias", domain=_MS)
def _gated_bias(ctx: ShapeContext) -> Outputs:
    """(batch, heads, length, length); packed tokens find batch and length in token_offset."""
    x = tensor(ctx, 0, min_rank=2)
    offset = optional_tensor(ctx, 6)
    batch, length = x.shape[:2] if offset is None else tensor(ctx, 6, rank=2).shape
    heads = int_attribute(ctx, "num_heads")
    heads_of(ctx, x.shape[-1], heads, "the query")
    return [TensorType(x.dtype, (batch, heads, length, length))]


@shape_rule("LinearAttention", domain=_MS)
def _linear(ctx: ShapeContext) -> Outputs:
    return linear_attention(ctx, int_attribute(ctx, "state_window", 0))


@shape_rule("CausalConvWithState", domain=_MS)
def _causal_conv(ctx: ShapeContext) -> Outputs:
    """One causal dimension, channels first or last; the state holds the last kernel - 1 positions."""
    x = tensor(ctx, 0, min_rank=3)
    w = tensor(ctx, 1, min_rank=3)
    last = int_attribute(ctx, "channels_last", 0)
    if int_attribute(ctx, "ndim", 1) != 1 or len(x.shape) != 3:
        refuse(ctx, f"input is {list(x.shape)}, expected one spatial dimension")
    kept = (w.shape[-1] - 1) * int_attribute(ctx, "dilation", 1)
    state: tuple[int, ...] = (x.shape[0], kept, x.shape[2]) if last else (*x.shape[:2], kept)
    window = int_attribute(ctx, "state_window", 0)
    return [x, TensorType(x.dtype, (window, *state) if window > 0 else state)][: ctx.outputs]
