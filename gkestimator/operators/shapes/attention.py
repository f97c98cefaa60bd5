"""Shape rules of the attention family in the standard domain, caches and rotary embedding included."""

from __future__ import annotations

from gkestimator.operators.shapes.checks import (
    Outputs,
    int_attribute,
    optional_tensor,
    refuse,
    same_as_input,
    tensor,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule


def heads_of(ctx: ShapeContext, width: int, heads: int, what: str) -> int:
    """Size of one head of ``heads`` in a packed ``width``."""
    if heads < 1 or width % heads:
        refuse(ctx, f"{what} of width {width} does not split into {heads} heads")
    return width // heads


def _unpacked(ctx: ShapeContext, index: int, heads_name: str) -> tuple[int, int, int, int]:
    """Input ``index`` as (batch, heads, length, head size), from four dimensions or packed in three."""
    shape = tensor(ctx, index, min_rank=3).shape
    if len(shape) == 4:
        return (shape[0], shape[1], shape[2], shape[3])
    if len(shape) != 3:
        refuse(ctx, f"input {index} has shape {list(shape)}, expected 3 or 4 dimensions")
    heads = int_attribute(ctx, heads_name)
    return (shape[0], heads, shape[1], heads_of(ctx, shape[2], heads, f"input {index}"))


@shape_rule("Attention")
def _attention(ctx: ShapeContext) -> Outputs:
    """Y like Q with V's head size, the present keys and values, the (batch, heads, q, total) scores."""
    q = tensor(ctx, 0)
    k = tensor(ctx, 1)
    v = tensor(ctx, 2)
    batch, heads, length, size = _unpacked(ctx, 0, "q_num_heads")
    k_batch, kv_heads, kv_length, k_size = _unpacked(ctx, 1, "kv_num_heads")
    v_batch, v_heads, v_length, v_size = _unpacked(ctx, 2, "kv_num_heads")
    if k_size != size or (k_batch, kv_heads, kv_length) != (v_batch, v_heads, v_length) or k_batch != batch:
        refuse(ctx, f"Q {list(q.shape)}, K {list(k.shape)} and V {list(v.shape)} do not fit together")
    if kv_heads < 1 or heads % kv_heads:
        refuse(ctx, f"{heads} query heads are no multiple of {kv_heads} key heads")
    past = optional_tensor(ctx, 4)
    total = kv_length
    if past is not None:
        if len(past.shape) != 4:
            refuse(ctx, f"past_key has shape {list(past.shape)}, expected 4 dimensions")
        total += past.shape[2]
    if len(q.shape) == 4:
        y = (batch, heads, length, v_size)
    else:
        y = (batch, length, heads * v_size)
    outputs = [
        TensorType(q.dtype, y),
        TensorType(k.dtype, (batch, kv_heads, total, size)),
        TensorType(v.dtype, (batch, kv_heads, total, v_size)),
        TensorType(q.dtype, (batch, heads, length, total)),
    ]
    return outputs[: ctx.outputs]


@shape_rule("FlexAttention", domain="ai.onnx.preview")
def _flex_attention(ctx: ShapeContext) -> Outputs:
    q = tensor(ctx, 0, rank=4)
    k = tensor(ctx, 1, rank=4)
    v = tensor(ctx, 2, rank=4)
    if q.shape[3] != k.shape[3] or k.shape[:3] != v.shape[:3] or k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        refuse(ctx, f"Q {list(q.shape)}, K {list(k.shape)} and V {list(v.shape)} do not fit together")
    return [TensorType(q.dtype, (*q.shape[:3], v.shape[3]))]


@shape_rule("LinearAttention")
def _linear_attention(ctx: ShapeContext) -> Outputs:
    """Packed (batch, length, heads x size) inputs; the state is (batch, key heads, key size, value size)."""
    return linear_attention(ctx)


def linear_attention(ctx: ShapeContext, state_window: int = 0) -> Outputs:
    """Output and state of a linear attention; ``state_window`` > 0 keeps that many states (com.microsoft)."""
    q = tensor(ctx, 0, rank=3)
    k = tensor(ctx, 1, rank=3)
    v = tensor(ctx, 2, rank=3)
    heads = int_attribute(ctx, "q_num_heads")
    kv_heads = int_attribute(ctx, "kv_num_heads")
    k_size = heads_of(ctx, k.shape[2], kv_heads, "the key")
    v_size = heads_of(ctx, v.shape[2], kv_heads, "the value")
    if heads_of(ctx, q.shape[2], heads, "the query") != k_size or k.shape[:2] != v.shape[:2]:
        refuse(
            ctx, f"query {list(q.shape)}, key {list(k.shape)} and value {list(v.shape)} do not fit together"
        )
    past = optional_tensor(ctx, 3)
    state: tuple[int, ...] = (q.shape[0], kv_heads, k_size, v_size)
    if state_window > 0:
        state = (state_window, *state)
    return [
        TensorType(q.dtype, (*q.shape[:2], heads * v_size)),
        TensorType(q.dtype if past is None else past.dtype, state),
    ][: ctx.outputs]


@shape_rule("CausalConvWithState")
def _causal_conv(ctx: ShapeContext) -> Outputs:
    """Output like the input (batch, channels, length); the state holds the last kernel - 1 positions."""
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, rank=3)
    if w.shape[:2] != (x.shape[1], 1) or w.shape[2] < 1:
        refuse(ctx, f"weight is {list(w.shape)}, expected {[x.shape[1], 1]} and the kernel size")
    return [x, TensorType(x.dtype, (x.shape[0], x.shape[1], w.shape[2] - 1))][: ctx.outputs]


@shape_rule("RotaryEmbedding")
def _rotary(ctx: ShapeContext) -> Outputs:
    shape = tensor(ctx, 0, min_rank=3).shape
    if len(shape) == 3:
        heads_of(ctx, shape[2], int_attribute(ctx, "num_heads"), "the input")
    return same_as_input(ctx)


@shape_rule("TensorScatter")
def _tensor_scatter(ctx: ShapeContext) -> Outputs:
    cache = tensor(ctx, 0)
    update = tensor(ctx, 1)
    if len(cache.shape) != len(update.shape):
        refuse(ctx, f"cache {list(cache.shape)} and update {list(update.shape)} differ in rank")
    return [cache]
