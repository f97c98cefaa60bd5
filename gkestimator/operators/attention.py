"""Attention: fused kernels, the eager composition, linear attention, rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import (
    SOFTMAX_FLOPS,
    copy_kernel,
    distinct,
    fill_kernel,
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
    total_bytes,
    weight_bytes,
)
from gkestimator.operators.checks import int_attribute, optional_tensor, tensor
from gkestimator.operators.composed_attention import AttentionShape, composed_attention, composed_by_call
from gkestimator.operators.decode import DecodeWork, decode_kernel, few_queries
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.registry import (
    MS,
    Kernels,
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    matrix_precision,
    shape_rule,
)


def head_size(width: int, heads: int, what: str) -> int:
    """Return the size of one head of ``heads`` in a packed ``width``; ShapeError where it does not divide."""
    if heads < 1 or width % heads:
        raise ShapeError(f"{what} of width {width} does not split into {heads} heads")
    return width // heads


def _unpacked(ctx: ShapeContext, index: int, heads_name: str) -> Shape:
    """Return input ``index`` as (batch, heads, length, head size), from four dimensions or packed in three."""
    shape = tensor(ctx, index, min_rank=3).shape
    if len(shape) == 4:
        return shape
    if len(shape) != 3:
        raise ShapeError(f"input {index} has shape {list(shape)}, expected 3 or 4 dimensions")
    batch, length, width = shape
    heads = int_attribute(ctx, heads_name)
    return (batch, heads, length, head_size(width, heads, f"input {index}"))


def _require_fit(q: Shape, k: Shape, v: Shape) -> None:
    """Raise ShapeError unless Q, K and V of (batch, heads, length, head size) fit together."""
    batch, heads, _, size = q
    if (batch, size) != (k[0], k[3]) or k[:3] != v[:3]:
        raise ShapeError(f"Q {list(q)}, K {list(k)} and V {list(v)} do not fit together")
    if k[1] < 1 or heads % k[1]:
        raise ShapeError(f"{heads} query heads are no multiple of {k[1]} key heads")


@shape_rule("Attention")
def attention_types(ctx: ShapeContext) -> Outputs:
    """Return Y like Q with V's head size, the present keys and values, the (batch, heads, q, total) scores."""
    q = tensor(ctx, 0)
    k = tensor(ctx, 1)
    v = tensor(ctx, 2)
    queries = _unpacked(ctx, 0, "q_num_heads")
    keys = _unpacked(ctx, 1, "kv_num_heads")
    values = _unpacked(ctx, 2, "kv_num_heads")
    _require_fit(queries, keys, values)
    batch, heads, length, size = queries
    kv_heads = keys[1]
    total = keys[2]
    past = optional_tensor(ctx, 4, rank=4)
    if past is not None:
        total += past.shape[2]
    v_size = values[3]
    y: Shape = (batch, heads, length, v_size)
    if len(q.shape) == 3:
        y = (batch, length, heads * v_size)
    outputs = [
        TensorType(q.dtype, y),
        TensorType(k.dtype, (batch, kv_heads, total, size)),
        TensorType(v.dtype, (batch, kv_heads, total, v_size)),
        TensorType(q.dtype, (batch, heads, length, total)),
    ]
    return outputs[: ctx.outputs]


COMPOSED = "gkestimator_composed"
"""Attribute of an Attention that torch's call composes itself, because its fused kernels do not take the operands."""
COPIES_KEYS = "gkestimator_copies_keys"
"""Attribute of an Attention whose keys lie transposed in memory, so that the caller makes them contiguous."""


def attention_kernels(
    shape: AttentionShape,
    qkv: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
    *,
    extra_reads: Sequence[Tensor] = (),
    masked: bool = False,
    softcap: bool = False,
    causal: bool = False,
    name: str = "attention",
    window: int = 0,
) -> Kernels:
    """Return attention as one fused kernel, or composed (``options.attention == "eager"``).

    A fused kernel of few queries on many keys is one of decoding (:func:`decode_kernel`); ``window`` is how many of the
    last keys it sees, 0 for all.

    FLOPs: 2 x scores x (qk_dim + v_dim) for the two products, and per score 1 (scale) + 5 (softmax) + 1 (mask, if
    any) + 3 (divide, tanh, multiply of a soft cap). The definition computes every score, also masked ones; torch's
    fused kernels skip the blocks above the diagonal when told that attention is ``causal``.
    """
    casts, operands = autocast_kernels(distinct(qkv), options)
    if options.attention == "eager":
        composed = composed_attention(shape, operands, result, options, extra_reads[:1], masked, softcap)
        return (*casts, *composed)
    dtype = operands[0].dtype
    per_score = 1 + SOFTMAX_FLOPS + masked + 3 * softcap
    scored = shape.scores
    variant = name
    if options.runtime == "torch":
        if causal:
            scored = shape.seen_scores
        # torch's FlashAttention takes no mask tensor: with one, its memory-efficient kernel runs.
        if name == "attention" and extra_reads:
            variant = "masked"
    reads = distinct((*operands, *extra_reads))
    if few_queries(shape) and name == "attention":
        work = DecodeWork(per_score=per_score, window=window, uncut=variant == "masked")
        return (*casts, decode_kernel(shape, work, operands, extra_reads, result, options))
    kernel = Kernel(
        name="attention" if variant == "attention" else f"attention.{variant}",
        family=Family.ATTENTION,
        variant=variant,
        precision=matrix_precision(dtype, options),
        flops=scored * (2 * (shape.qk_dim + shape.v_dim) + per_score),
        read_bytes=total_bytes(reads),
        write_bytes=result.nbytes,
        weight_bytes=weight_bytes(reads),
        rows=shape.batch * shape.heads * shape.q_len,
        cols=shape.kv_len,
        element_bytes=result.dtype.bits / 8,
        inputs=len(reads),
        gemm=shape.first_product,
        sequences=shape.batch,
    )
    return (*casts, kernel)


def _calls(kernels: Sequence[Kernel], options: LoweringOptions) -> int:
    """Return the framework calls of an attention: one where it is fused, else one a kernel."""
    return len(kernels) if options.attention == "eager" else 1


def attention_shape(op: Operator, past: Tensor | None = None) -> AttentionShape:
    """Return the sizes of Q, K and V (inputs 0 to 2): (batch, heads, length, size) or (batch, length, heads x
    size).
    """
    heads = int_of(op, "q_num_heads", 0)
    kv_heads = int_of(op, "kv_num_heads", 0)
    batch, q_heads, q_len, qk_dim = _split_heads(op, input_at(op, 0), heads)
    _, k_heads, kv_len, _ = _split_heads(op, input_at(op, 1), kv_heads)
    _, _, _, v_dim = _split_heads(op, input_at(op, 2), kv_heads)
    if past is not None:
        kv_len += past.shape[-2]
    return AttentionShape(
        batch=batch,
        heads=q_heads,
        kv_heads=k_heads,
        q_len=q_len,
        kv_len=kv_len,
        qk_dim=qk_dim,
        v_dim=v_dim,
    )


def _split_heads(op: Operator, tensor: Tensor, heads: int) -> tuple[int, int, int, int]:
    """Return (batch, heads, length, size) of Q, K or V."""
    shape = tensor.shape
    if len(shape) > 4:
        return math.prod(shape[:-3]), shape[-3], shape[-2], shape[-1]
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    if len(shape) == 3 and heads > 0:
        return shape[0], heads, shape[1], shape[2] // heads
    raise ShapeError(
        f"{op.op_type} {op.name!r}: expected a tensor of 4 dimensions, or 3 and the number of heads, "
        f"found {list(shape)}"
    )


@lowering_rule("Attention", kind="attention", autocast="half")
def attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return attention with an optional cache (appended by a copy), mask, soft cap and score output."""
    mask = optional_input(op, 3)
    past_keys = optional_input(op, 4)
    shape = attention_shape(op, past_keys)
    sizes = (shape.batch, shape.kv_heads, shape.kv_len)
    keys, key_copies = _appended(op, 1, past_keys, (*sizes, shape.qk_dim))
    values, value_copies = _appended(op, 2, optional_input(op, 5), (*sizes, shape.v_dim))
    extra = present_inputs(op, 3, 6)
    causal = bool(int_of(op, "is_causal", 0))
    cap = op.attributes.get("softcap", 0.0)
    kernels = [*key_copies, *value_copies]
    if int_of(op, COMPOSED, 0):
        kernels += composed_by_call(shape, (input_at(op, 0), keys, values), output_at(op), options, extra)
        return launched(*kernels, calls=len(kernels))
    if int_of(op, COPIES_KEYS, 0):
        turned = scratch(keys, "contiguous", keys.shape)
        kernels.append(copy_kernel("contiguous", (keys,), (turned,)))
    kernels += attention_kernels(
        shape,
        (input_at(op, 0), keys, values),
        output_at(op),
        options,
        extra_reads=extra,
        masked=causal or len(extra) > 0,
        softcap=isinstance(cap, (int, float)) and cap != 0,
        causal=causal and mask is None,
    )
    scores = optional_output(op, 3)
    if scores is not None:
        kernels.append(fill_kernel(scores))
    return launched(*kernels, calls=_calls(kernels, options))


def _appended(op: Operator, index: int, past: Tensor | None, size: Shape) -> tuple[Tensor, list[Kernel]]:
    """Return the keys (input 1) or values (2) with their past before them, and the copy that joins the two."""
    new = input_at(op, index)
    present = optional_output(op, index)
    if past is None and present is None:
        return new, []
    if present is None:
        present = scratch(new, f"present{index}", size)
    parts = [new]
    if past is not None:
        parts.insert(0, past)
    return present, [copy_kernel("concat", parts, (present,))]


@shape_rule("FlexAttention", domain="ai.onnx.preview")
def flex_attention_types(ctx: ShapeContext) -> Outputs:
    """Return Q with V's head size."""
    q = tensor(ctx, 0, rank=4)
    v = tensor(ctx, 2, rank=4)
    _require_fit(q.shape, tensor(ctx, 1, rank=4).shape, v.shape)
    shape = q.shape[:3] + v.shape[3:]
    return [TensorType(q.dtype, shape)]


@lowering_rule("FlexAttention", domain="ai.onnx.preview", kind="attention")
def flex_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return attention with score and probability functions, each one FLOP a score inside the fused kernel."""
    qkv = [input_at(op, index) for index in range(3)]
    changed = op.attributes.get("score_mod") is not None or op.attributes.get("prob_mod") is not None
    kernels = attention_kernels(attention_shape(op), qkv, output_at(op), options, masked=changed, name="flex")
    return launched(*kernels, calls=_calls(kernels, options))


@shape_rule("LinearAttention")
@shape_rule("LinearAttention", domain=MS)
def linear_attention_types(ctx: ShapeContext) -> Outputs:
    """Return output and state for packed (batch, length, heads x size) inputs.

    The state is (batch, key heads, key size, value size); com.microsoft's ``state_window`` keeps that many of them.
    """
    q = tensor(ctx, 0, rank=3)
    k = tensor(ctx, 1, rank=3)
    v = tensor(ctx, 2, rank=3)
    heads = int_attribute(ctx, "q_num_heads")
    kv_heads = int_attribute(ctx, "kv_num_heads")
    q_size = head_size(q.shape[2], heads, "the query")
    k_size = head_size(k.shape[2], kv_heads, "the key")
    v_size = head_size(v.shape[2], kv_heads, "the value")
    if q_size != k_size or k.shape[:2] != v.shape[:2]:
        raise ShapeError(f"Q {q}, K {k} and V {v} do not fit together")
    past = optional_tensor(ctx, 3) or q
    state = windowed(ctx, (q.shape[0], kv_heads, k_size, v_size))
    result = (*q.shape[:2], heads * v_size)
    outputs = [TensorType(q.dtype, result), TensorType(past.dtype, state)]
    return outputs[: ctx.outputs]


def windowed(ctx: ShapeContext, state: Shape) -> Shape:
    """Return the shape of ``state``, or of as many of it as com.microsoft's attribute ``state_window`` keeps."""
    window = int_attribute(ctx, "state_window", 0)
    if window > 0:
        return (window, *state)
    return state


@lowering_rule("LinearAttention", kind="linear_attention")
@lowering_rule("LinearAttention", domain=MS, kind="linear_attention")
def linear_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a recurrence over tokens on a (key size x value size) state per head.

    Per token and state element: decay 1 (with a decay), outer product and sum 2, readout 2; the delta rules also
    read the state with the key (2) and scale the correction (1).
    """
    shape = attention_shape(op)
    rule = op.attributes.get("update_rule", "gated_delta")
    per_state = _PER_STATE.get(str(rule), 4)
    tokens = shape.batch * max(shape.heads, shape.kv_heads) * shape.q_len
    kernel = memory_kernel(
        Family.ATTENTION,
        "linear",
        tensor_inputs(op),
        tensor_outputs(op),
        flops=per_state * tokens * shape.qk_dim * shape.v_dim,
        rows=tokens,
        cols=shape.v_dim,
        precision=matrix_precision(input_at(op, 0).dtype, options),
    )
    return launched(kernel)


_PER_STATE = {"gated": 5, "delta": 7, "gated_delta": 8}  # FLOPs of a state element and token


@shape_rule("RotaryEmbedding")
def rotary_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type; three dimensions need the number of heads."""
    x = tensor(ctx, 0, min_rank=3)
    if len(x.shape) == 3:
        head_size(x.shape[2], int_attribute(ctx, "num_heads"), "the input")
    return [x]


@lowering_rule("RotaryEmbedding", kind="rotary_embedding")
def rotary_embedding(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the turning of every pair: 4 products and 2 sums, so 3 FLOPs an element.

    The caches are read where positions point.
    """
    source, cos, sin = (input_at(op, index) for index in range(3))
    positions = optional_input(op, 3)
    result = output_at(op)
    touched = source.nbytes + cos.nbytes + sin.nbytes
    if positions is not None:
        rows = positions.elements * cos.shape[-1] * cos.dtype.bits // 8
        touched = source.nbytes + positions.nbytes + 2 * min(cos.nbytes, rows)
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "rotary",
        present_inputs(op, 0, 1, 2, 3),
        (result,),
        flops=3 * result.elements,
        rows=result.elements,
        read_bytes=touched,
    )
    return launched(kernel)
