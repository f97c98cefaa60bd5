"""Fused multi-head attention: two batched products, scale, mask and softmax in one kernel, with the copies that split
and join heads around them.

Developer Guide, "Multi-Head Attention Fusion": half precision (and 8 bits), heads of 16 to 256 values in steps of 8,
from compute capability 7.5 on; float32 is not fused. The kernels read queries, keys and values in the layout in which
the products before them write, so splitting heads costs no copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from gkestimator.core.graph import Attribute, Operator, Tensor, Value
from gkestimator.core.options import spelled
from gkestimator.lowering.idle_copies import moving_order, permutation
from gkestimator.lowering.patterns.attention import match_attention
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.tensorrt.regions import only_result
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch, NotFused, is_scalar
from gkestimator.operators.attention import attention_kernels, attention_shape
from gkestimator.operators.attention_parts import AttentionShape
from gkestimator.operators.builders import int_of, output_at, tensor_inputs
from gkestimator.operators.registry import HALF_TYPES, Lowered, LoweringOptions, launched, lowering_rule

_LEAST_HEAD = 16
_LARGEST_HEAD = 256
_HEAD_STEP = 8
_WHAT = "attention"
_BETWEEN = ("Dropout", "Cast", "CastLike", "Identity", "IsNaN")
_COPIES = frozenset(
    {
        *("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity"),
        *("Split", "SplitToSequence", "SequenceAt", "Slice", "Gather"),
    }
)
_SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "qk_dim", "v_dim")


def match_fused_attention(view: GraphView, softmax: int, options: LoweringOptions) -> Match:
    """Return the attention around the Softmax at index ``softmax`` that a fused kernel of TensorRT exists for."""
    _require_product(view, softmax)
    if options.attention == "eager":
        raise NotFused(_WHAT, f"on GPUs before compute capability 7.5, or by {spelled('attention')} eager")
    try:
        inner = match_attention(view, softmax, replace(options, attention="fused"))
    except Mismatch as mismatch:
        reason = "its products and factors have another form than fused kernels take"
        raise NotFused(_WHAT, reason, str(mismatch)) from mismatch
    shape = attention_shape(inner.operator)
    _require_kernel(view, softmax, shape)
    covered = set(inner.covered)
    _absorb_before(view, covered, inner.operator.inputs[:3])
    end = _absorb_after(view, covered, max(covered), shape)
    reads = _operands(view, covered, inner)
    masks = [value for value in (*inner.operator.inputs[3:], *inner.also_reads) if isinstance(value, Tensor)]
    attributes: dict[str, Attribute] = {name: getattr(shape, name) for name in _SIZES}
    attributes["masks"] = len(masks)
    return fused(
        view,
        "attention",
        {*covered, *end},
        op_type="FusedAttention",
        domain=FUSED_DOMAIN,
        inputs=(*reads, *masks),
        attributes=attributes,
    )


def _require_product(view: GraphView, softmax: int) -> None:
    """Raise Mismatch unless a product reads what the Softmax gives: any other is no attention."""
    value = view.result(softmax)
    for reader in view.consumers.get(value.name, ()):
        if view.operators[reader].op_type in ("MatMul", *_BETWEEN):
            return
    raise view.mismatch(softmax, "is read by no product")


def _require_kernel(view: GraphView, softmax: int, shape: AttentionShape) -> None:
    """Raise Mismatch unless TensorRT has a fused kernel for the type and the head sizes."""
    dtype = view.operand(softmax, 0).dtype
    if dtype not in HALF_TYPES:
        raise NotFused(_WHAT, f"fused kernels are for half precision, this is {dtype.value}")
    for size in (shape.qk_dim, shape.v_dim):
        if not _LEAST_HEAD <= size <= _LARGEST_HEAD or size % _HEAD_STEP:
            sizes = f"{_LEAST_HEAD} to {_LARGEST_HEAD} in steps of {_HEAD_STEP}"
            raise NotFused(_WHAT, f"heads of {size} values, fused kernels take {sizes}")


def _absorb_before(view: GraphView, covered: set[int], values: Iterable[Value | None]) -> None:
    """Add to ``covered`` the copies that make ``values`` and that nothing else reads, the last first."""
    open_values = [value for value in values if value is not None]
    while open_values:
        value = open_values.pop()
        index = view.producer.get(value.name)
        if index is None or index in covered or not _is_copy(view, index):
            continue
        op = view.operators[index]
        results = [v.name for v in op.outputs if v is not None]
        readers = set(chain.from_iterable(view.consumers.get(name, ()) for name in results))
        if readers <= covered and view.outputs.isdisjoint(results):
            covered.add(index)
            open_values += op.inputs[:1]  # type: ignore[arg-type]


def _is_copy(view: GraphView, index: int) -> bool:
    """Return True for an operator that only moves what input 0 holds, and that belongs to no group yet."""
    op = view.operators[index]
    if op.domain or op.op_type not in _COPIES or not view.free(index):
        return False
    source = op.inputs[0]
    if source is None or (isinstance(source, Tensor) and source.is_weight):
        return False
    if op.op_type == "Gather":
        return is_scalar(view.operand(index, 1))
    return True


def _absorb_after(view: GraphView, covered: set[int], last: int, shape: AttentionShape) -> Indices:
    """Return the transposition that joins heads after ``last``, with the views before and after it."""
    value = view.result(last)
    views: Indices = []
    same = view.optional_reader(value, "Reshape", "Identity")
    while same is not None and view.free(same) and view.result(same).shape == value.shape:
        views.append(same)  # PyTorch's exporter writes one that changes nothing
        value = view.result(same)
        same = view.optional_reader(value, "Reshape", "Identity")
    following = view.optional_reader(value, "Transpose")
    if following is None or not view.free(following):
        return []
    perm = permutation(view.operators[following], len(value.shape))
    if moving_order(perm, value.shape) != moving_order((0, 2, 1, 3), value.shape):
        return []
    after = view.optional_reader(view.result(following), "Reshape", "Flatten")
    if after is None or only_result(view, after) is None:
        return [*views, following]
    return [*views, following, after]


def _operands(view: GraphView, covered: set[int], inner: Match) -> tuple[Tensor, ...]:
    """Return what lies behind queries, keys and values, each tensor once."""
    reads: dict[str, Tensor] = {}
    for value in inner.operator.inputs[:3]:
        while value is not None and view.producer.get(value.name, -1) in covered:
            value = view.operators[view.producer[value.name]].inputs[0]
        if isinstance(value, Tensor):
            reads[value.name] = value
    return tuple(reads.values())


@lowering_rule("FusedAttention", domain=FUSED_DOMAIN, kind="attention")
def lower_fused_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel on queries, keys and values as the products before it wrote them."""
    batch, heads, kv_heads, q_len, kv_len, qk_dim, v_dim = (int_of(op, name, 1) for name in _SIZES)
    shape = AttentionShape(
        batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, qk_dim=qk_dim, v_dim=v_dim
    )
    reads = tensor_inputs(op)
    masks = int_of(op, "masks", 0)
    qkv = reads[: len(reads) - masks]
    kernels = attention_kernels(
        shape, qkv, output_at(op), options, extra_reads=reads[len(qkv) :], masked=masks > 0
    )
    return launched(*kernels)
