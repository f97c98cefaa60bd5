"""Attention: fused kernels, the eager composition, linear attention, rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.builders import (
    SOFTMAX_FLOPS,
    copy_kernel,
    distinct,
    elementwise_kernel,
    gemm_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    softmax_kernel,
    tensor_inputs,
)
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.precision import matrix_precision
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule


@frozen
class AttentionShape:
    """Sizes of one scaled dot-product attention; ``kv_heads`` < ``heads`` is grouped-query attention."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    qk_dim: int
    v_dim: int

    @property
    def scores(self) -> int:
        """Elements of the score matrix."""
        return self.batch * self.heads * self.q_len * self.kv_len

    @property
    def seen_scores(self) -> int:
        """Those on and below the diagonal that ends in the last query's last key."""
        rows = min(self.q_len, self.kv_len)
        return self.batch * self.heads * (rows * (self.kv_len - rows) + rows * (rows + 1) // 2)


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
) -> tuple[Kernel, ...]:
    """Attention as one fused kernel, or composed (``options.attention == "eager"``).

    FLOPs: 2 x scores x (qk_dim + v_dim) for the two products, and per score 1 (scale) + 5 (softmax) + 1
    (mask, if any) + 3
    (divide, tanh, multiply of a soft cap). The definition computes every score, also masked ones; torch's fused
    kernels skip the blocks above the diagonal when told that attention is ``causal``.
    """
    casts, operands = autocast_kernels(distinct(qkv), options)
    dtype = operands[0].dtype
    per_score = 1 + SOFTMAX_FLOPS + (1 if masked else 0) + (3 if softcap else 0)
    if causal and options.runtime == "torch":
        scored = shape.seen_scores
    else:
        scored = shape.scores
    first = GemmShape(batch=shape.batch * shape.heads, m=shape.q_len, n=shape.kv_len, k=shape.qk_dim)
    if options.attention == "fused":
        reads = distinct((*operands, *extra_reads))
        # torch's FlashAttention takes no mask tensor: with one, its memory-efficient kernel runs.
        if name == "attention" and extra_reads and options.runtime == "torch":
            variant = "masked"
        else:
            variant = name
        kernel = Kernel(
            name="attention" if variant == "attention" else f"attention.{variant}",
            family=Family.ATTENTION,
            variant=variant,
            precision=matrix_precision(dtype, options),
            flops=scored * (2 * (shape.qk_dim + shape.v_dim) + per_score),
            read_bytes=sum(t.nbytes for t in reads),
            write_bytes=result.nbytes,
            weight_bytes=sum(t.nbytes for t in reads if t.is_weight),
            rows=shape.batch * shape.heads * shape.q_len,
            cols=shape.kv_len,
            element_bytes=result.dtype.bits / 8,
            inputs=len(reads),
            gemm=first,
        )
        return (*casts, kernel)
    scores = _scratch(result, "scores", dtype, (shape.batch, shape.heads, shape.q_len, shape.kv_len))
    wide = _scratch(result, "probabilities", DType.FLOAT if options.dtype == "amp" else dtype, scores.shape)
    second = GemmShape(batch=shape.batch * shape.heads, m=shape.q_len, n=shape.v_dim, k=shape.kv_len)
    kernels: list[Kernel] = [*casts]
    kernels.append(gemm_kernel(first, operands[: max(1, len(operands) - 1)], (scores,), options))
    kernels.append(elementwise_kernel("mul", (scores,), (scores,), flops_per_element=1))
    if softcap:
        kernels.extend(
            elementwise_kernel(v, (scores,), (scores,), flops_per_element=1) for v in ("div", "tanh", "mul")
        )
    if masked:
        kernels.append(elementwise_kernel("add", (scores, *extra_reads[:1]), (scores,), flops_per_element=1))
    kernels.append(softmax_kernel("softmax", scores, wide, -1))
    product_casts, (probabilities,) = autocast_kernels((wide,), options)
    kernels.extend(product_casts)
    kernels.append(gemm_kernel(second, (probabilities, operands[-1]), (result,), options))
    return tuple(kernels)


def _scratch(base: Tensor, suffix: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    name = f"{base.name}#{suffix}"
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name)


def _integer(op: Operator, name: str, default: int) -> int:
    value = op.attributes.get(name, default)
    if isinstance(value, int):
        return value
    return default


def attention_shape(
    op: Operator, q: Tensor, k: Tensor, v: Tensor, past: Tensor | None, *, heads: int, kv_heads: int
) -> AttentionShape:
    """Sizes from Q, K, V in either layout: (batch, heads, length, size) or (batch, length, heads x size)."""

    def split(tensor: Tensor, count: int) -> tuple[int, int, int]:
        if len(tensor.shape) == 4:
            return tensor.shape[1], tensor.shape[2], tensor.shape[3]
        if len(tensor.shape) == 3 and count > 0:
            return count, tensor.shape[1], tensor.shape[2] // count
        raise ShapeError(
            f"{op.op_type} {op.name!r}: expected a tensor of 4 dimensions, or 3 and the number of heads, "
            f"found {list(tensor.shape)}"
        )

    q_heads, q_len, qk_dim = split(q, heads)
    k_heads, kv_len, _ = split(k, kv_heads)
    _, _, v_dim = split(v, kv_heads)
    if past is not None:
        kv_len += past.shape[-2]
    return AttentionShape(
        batch=q.shape[0],
        heads=q_heads,
        kv_heads=k_heads,
        q_len=q_len,
        kv_len=kv_len,
        qk_dim=qk_dim,
        v_dim=v_dim,
    )


@lowering_rule("Attention", kind="attention", autocast="half")
def attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Standard attention with an optional cache (appended by a copy), mask, soft cap and score output."""
    q, k, v = (input_at(op, i) for i in range(3))
    mask, past_k, past_v = (optional_input(op, i) for i in (3, 4, 5))
    shape = attention_shape(
        op, q, k, v, past_k, heads=_integer(op, "q_num_heads", 0), kv_heads=_integer(op, "kv_num_heads", 0)
    )
    kernels: list[Kernel] = []
    keys = k
    values = v
    for index, (past, new) in enumerate(((past_k, k), (past_v, v)), start=1):
        if len(op.outputs) > index:
            present = op.outputs[index]
        else:
            present = None
        if past is None and not isinstance(present, Tensor):
            continue
        if not isinstance(present, Tensor):
            size = shape.qk_dim if index == 1 else shape.v_dim
            present = _scratch(
                new, f"present{index}", new.dtype, (shape.batch, shape.kv_heads, shape.kv_len, size)
            )
        parts = (new,) if past is None else (past, new)
        kernels.append(copy_kernel("concat", parts, (present,)))
        keys, values = (present, values) if index == 1 else (keys, present)
    extra = tuple(t for t in (mask, optional_input(op, 6)) if t is not None)
    masked = mask is not None or bool(_integer(op, "is_causal", 0)) or len(extra) > 0
    cap = op.attributes.get("softcap", 0.0)
    softcap = isinstance(cap, (int, float)) and cap != 0
    if len(op.outputs) > 3:
        scores_out = op.outputs[3]
    else:
        scores_out = None
    kernels.extend(
        attention_kernels(
            shape,
            (q, keys, values),
            output_at(op),
            options,
            extra_reads=extra,
            masked=masked,
            softcap=softcap,
            causal=mask is None and bool(_integer(op, "is_causal", 0)),
        )
    )
    if isinstance(scores_out, Tensor):
        kernels.append(elementwise_kernel("fill", (), (scores_out,), flops_per_element=0))
    fused = options.attention == "fused"
    return Lowered(kernels=tuple(kernels), host_calls=1 if fused else len(kernels))


@lowering_rule("FlexAttention", domain="ai.onnx.preview", kind="attention")
def flex_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Attention with score and probability functions, each counted as one FLOP a score inside the fused
    kernel.
    """
    q, k, v = (input_at(op, i) for i in range(3))
    shape = attention_shape(op, q, k, v, None, heads=0, kv_heads=0)
    changed = op.attributes.get("score_mod") is not None or op.attributes.get("prob_mod") is not None
    kernels = attention_kernels(shape, (q, k, v), output_at(op), options, masked=changed, name="flex")
    return Lowered(kernels=kernels, host_calls=1 if options.attention == "fused" else len(kernels))


@lowering_rule("LinearAttention", kind="linear_attention")
def linear_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """A recurrence over tokens on a (key size x value size) state per head.

    Per token and state element: decay 1 (with a decay), outer product and sum 2, readout 2; the delta rules
    also
    read the state with the key (2) and scale the correction (1).
    """
    q, k, v = (input_at(op, i) for i in range(3))
    result = output_at(op)
    shape = attention_shape(
        op, q, k, v, None, heads=_integer(op, "q_num_heads", 0), kv_heads=_integer(op, "kv_num_heads", 0)
    )
    rule = op.attributes.get("update_rule", "gated_delta")
    per_state = (
        4 + (1 if rule in ("gated", "gated_delta") else 0) + (3 if rule in ("delta", "gated_delta") else 0)
    )
    heads = max(shape.heads, shape.kv_heads)
    tokens = shape.batch * heads * shape.q_len
    writes = tuple(t for t in op.outputs if isinstance(t, Tensor))
    kernel = memory_kernel(
        Family.ATTENTION,
        "linear",
        tensor_inputs(op),
        writes or (result,),
        flops=per_state * tokens * shape.qk_dim * shape.v_dim,
        rows=tokens,
        cols=shape.v_dim,
        precision=matrix_precision(q.dtype, options),
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("RotaryEmbedding", kind="rotary_embedding")
def rotary_embedding(op: Operator, options: LoweringOptions) -> Lowered:
    """Each pair is turned: 4 products and 2 sums, so 3 FLOPs an element; the caches are read where positions
    point.
    """
    source, cos, sin = (input_at(op, i) for i in range(3))
    positions = optional_input(op, 3)
    result = output_at(op)
    if positions is None:
        reads = (source, cos, sin)
    else:
        reads = (source, cos, sin, positions)
    if positions is not None:
        rows = positions.elements
        touched = (
            source.nbytes + positions.nbytes + 2 * min(cos.nbytes, rows * cos.shape[-1] * cos.dtype.bits // 8)
        )
    else:
        touched = source.nbytes + cos.nbytes + sin.nbytes
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "rotary",
        reads,
        (result,),
        flops=3 * result.elements,
        rows=result.elements,
        read_bytes=touched,
    )
    return Lowered(kernels=(kernel,), host_calls=1)
