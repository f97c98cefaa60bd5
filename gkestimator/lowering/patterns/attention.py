"""Scaled dot-product attention: MatMul(q, k'), scale, mask, Softmax, MatMul with v.

torch: one call of F.scaled_dot_product_attention, with masks added or selected, the guard against rows without
a key (IsNaN, Where), dropout. What the author called shows in the graph: the call's own decomposition, which
every exporter of torch writes, scales queries AND keys by the root of the scale. Attention that was written by
hand scales one of them, or the scores. It is taken for the call as well, because libraries dispatch the same
modules to it since (timm, transformers), but not where

- a bias with a value for every head is added (relative positions: Swin, LeViT, T5): no library that adds one by
  hand has moved to the call;
- the left operand is transposed by hand, which is attention over channels (XCiT, DaViT).

``attention = "fused"`` takes those with a bias too, ``attention = "eager"`` none: every operator is a kernel.
The call's fused kernels want four dimensions and as many heads of keys as of queries
(aten/src/ATen/native/transformers/sdp_utils_cpp.h, ``check_tensor_shapes``,
``check_batch_size_and_num_heads_dense``); anything else it composes of products and a softmax, all of it in half
precision under autocast (``_scaled_dot_product_attention_math``). Only products of rank 4 count where attention
is written by hand: authors of three-dimensional ones (bloom's baddbmm) call bmm, and xlnet's sums of two Einsum
products cannot be that call.
onnxruntime: its AttentionFusion knows only the graph of BERT exporters before opset 12 and found nothing in
current exports (verified on its CPU provider), so the pieces stay (FusedMatMul, BiasSoftmax, MatMul).

Whether a mask keeps queries from seeing keys behind them.

Addition of a mask and Softmax over the last axis: Add, Softmax -> BiasSoftmax.

onnxruntime on CUDA only (BiasSoftmaxFusion; from its sources, the kernel exists for CUDA alone, so its CPU
provider cannot show it): the bias broadcasts to the scores, over the batch dimensions either before or after
those it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Attribute, Tensor, Value
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.products import bare_factors, bare_operand, flattened_transpose
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch, Traced, require_last_axis
from gkestimator.operators.attention import COMPOSED, COPIES_KEYS
from gkestimator.operators.registry import LoweringOptions

_DEPTH = 10  # factors, masks and reshapes between the product and the softmax


@dataclass(slots=True)
class _Operands:
    """Hold queries and keys, both (..., S, D), and what prepares them for the first product.

    ``copied``: the keys lie (..., D, S) in memory, so that the call needs a copy. ``by_call``: the exporter wrote the
    call's own decomposition.
    """

    queries: Tensor
    keys: Tensor
    members: Indices
    copied: bool
    by_call: bool


def match_attention(view: GraphView, softmax: int, options: LoweringOptions) -> Match:
    """Return the attention around the Softmax at index ``softmax``."""
    scores = view.operand(softmax, 0)
    require_last_axis(view.operators[softmax], len(scores.shape))
    masks: list[Tensor] = []
    first, covered = _scores(view, scores, masks, _DEPTH)
    operands = _queries_and_keys(view, first)
    probabilities, after = _probabilities(view, view.result(softmax))
    second = view.reader(probabilities, "MatMul")
    if not view.reads(second, 0, probabilities):
        raise view.mismatch(second, "has the probabilities as its right operand")
    values = view.operand(second, 1)
    if not operands.by_call:
        _require_call_by_hand(view, first, values, masks, options)
    masks.sort(key=lambda mask: mask.nbytes, reverse=True)
    # A causal mask is an argument (is_causal), not a tensor: transformers passes none unless some input is padded.
    causal = bool(masks) and all(is_causal(view, mask) for mask in masks)
    tensors = masks[:1]
    attributes: dict[str, Attribute] = {}
    if causal:
        tensors = []
        attributes["is_causal"] = 1
    if operands.copied:
        attributes[COPIES_KEYS] = 1
    if not _kernels_exist(operands, values):
        attributes[COMPOSED] = 1
    return fused(
        view,
        "attention",
        [*operands.members, first, *covered, softmax, *after, second],
        op_type="Attention",
        version=23,
        attributes=attributes,
        inputs=(operands.queries, operands.keys, values, *tensors),
        also_reads=tuple(masks[len(tensors) :]),
    )


def _kernels_exist(operands: _Operands, values: Tensor) -> bool:
    """Return True where torch's fused kernels take the operands: four dimensions, heads not broadcast."""
    shapes = [operands.queries.shape, operands.keys.shape, values.shape]
    outer = {shape[:-2] for shape in shapes}
    return len(shapes[0]) == 4 and len(outer) == 1


def _require_call_by_hand(
    view: GraphView, first: int, values: Tensor, masks: list[Tensor], options: LoweringOptions
) -> None:
    """Raise Mismatch for attention that was written by hand and is not taken for the call."""
    left = view.operand(first, 0)
    ranks = [len(left.shape), len(view.operand(first, 1).shape), len(values.shape)]
    if ranks != [4, 4, 4]:
        raise view.mismatch(first, f"multiplies tensors of rank {ranks}, expected 4")
    if swaps_last_two(view, left):
        raise view.mismatch(first, "transposes its left operand")
    if options.attention == "fused":
        return
    for mask in masks:
        if len(mask.shape) > 2 and mask.shape[-3] > 1 and mask.shape[-1] > 1:
            raise view.mismatch(first, f"by hand, with a bias {list(mask.shape)} for every head")


def swaps_last_two(view: GraphView, value: Tensor) -> bool:
    """Return True where ``value``, up to constant factors, is another tensor with its last two dimensions swapped."""
    return bare_operand(view, value)[2] == 1


def _queries_and_keys(view: GraphView, product: int) -> _Operands:
    """Return queries and keys as they come into the first product, and what prepares them."""
    left = view.operand(product, 0)
    right = view.operand(product, 1)
    if min(len(left.shape), len(right.shape)) < 4:
        raise view.mismatch(
            product, f"multiplies tensors of rank {len(left.shape)} and {len(right.shape)}, expected 4"
        )
    # A transposition of the queries stays a view before the call, which copies them if it has to.
    q, factors = bare_factors(view, left)
    k, members, k_flipped = bare_operand(view, right)
    both = bool(factors) and any(not _is_transpose(view, member) for member in members)
    turning: Indices = []
    if not k_flipped:
        k, turning = flattened_transpose(view, k)
        members += turning
    copied = False
    if not k_flipped and not turning:
        *outer, size, length = k.shape
        keys_of_rows = _source_of_rows(view, k)
        if keys_of_rows is None:
            # Laid out (..., D, S) in memory, or by a transposition that is read elsewhere too.
            copied = True
        else:
            members.append(keys_of_rows)
            k = view.operand(keys_of_rows, 0)
        k = replace(k, shape=(*outer, length, size))
    return _Operands(queries=q, keys=k, members=[*factors, *members], copied=copied, by_call=both)


def _is_transpose(view: GraphView, index: int) -> bool:
    return view.operators[index].op_type == "Transpose"


def _source_of_rows(view: GraphView, keys: Tensor) -> int | None:
    """Return the transposition that only the product reads and that made ``keys`` (..., D, S) of a tensor whose last
    dimension is D; None where nothing did.
    """
    index = view.made_by(keys, "Transpose")
    if index is None or view.sole_reader(keys) is None:
        return None
    order = view.operators[index].attributes.get("perm")
    if isinstance(order, tuple) and order[-2] == len(keys.shape) - 1:
        return index
    return None


def _scores(view: GraphView, value: Tensor, masks: list[Tensor], depth: int) -> tuple[int, Indices]:
    """Return the product that ``value`` is made of and the operators between; what is added or selects goes to
    ``masks``.
    """
    if depth == 0:
        raise Mismatch(f"no product within {_DEPTH} operators before the softmax")
    index = view.source(
        value,
        *("MatMul", "Add", "Mul", "Div", "Max", "Where"),
        *("Reshape", "Squeeze", "Unsqueeze", "Cast", "CastLike", "Identity"),
    )
    op = view.operators[index]
    op_type = op.op_type
    if op_type == "MatMul":
        left, right = view.either_order(index)[0]
        if left.is_weight or right.is_weight:
            raise Mismatch(f"{op.name} multiplies by a weight, expected queries and keys")
        return index, [index]
    if op_type in ("Mul", "Div", "Max"):
        source, _ = view.split_scalar(index)
        if op_type == "Div" and source.name != view.operand(index, 0).name:
            raise Mismatch(f"{op.name} divides by the scores")
        product, covered = _scores(view, source, masks, depth - 1)
    elif op_type == "Add":
        product, covered = _either(view, index, (0, 1), masks, depth)
    elif op_type == "Where":
        product, covered = _either(view, index, (1, 2), masks, depth)
        masks.append(view.operand(index, 0))
    else:
        product, covered = _scores(view, view.operand(index, 0), masks, depth - 1)
    return product, [index, *covered]


def _either(
    view: GraphView, index: int, positions: tuple[int, int], masks: list[Tensor], depth: int
) -> tuple[int, Indices]:
    """Return the side of an Add or Where that holds the scores; the other side is a mask (or the value that fills
    in).
    """
    for here, there in (positions, positions[::-1]):
        scores = view.operand(index, here)
        mask = view.operand(index, there)
        if scores.elements != view.result(index).elements:
            continue
        if view.sole_reader(scores) is None:
            continue
        before = len(masks)
        try:
            product, covered = _scores(view, scores, masks, depth - 1)
        except Mismatch:
            del masks[before:]
            continue
        if mask.elements > 1:
            masks.append(mask)
        return product, covered
    raise Mismatch(f"no operand of {view.name(index)} comes from a product of queries and keys")


def _probabilities(view: GraphView, value: Tensor) -> Traced:
    """Return the probabilities after what stands between softmax and the second product, and those operators."""
    covered: Indices = []
    while True:
        following = view.optional_reader(value, "Dropout", "Cast", "CastLike", "Identity")
        if following is None:
            guard = _nan_guard(view, value)
            if guard is None:
                return value, covered
            covered += guard
            following = guard[-1]
        else:
            covered.append(following)
        value = view.result(following)


def _nan_guard(view: GraphView, value: Tensor) -> Indices | None:
    """Return IsNaN and Where that put zeros where a row has no key, else None."""
    readers = view.consumers.get(value.name, ())
    if len(readers) != 2 or value.name in view.outputs:
        return None
    by_key = {view.operators[reader].key: reader for reader in readers}
    guard = by_key.get(("", "IsNaN"))
    select = by_key.get(("", "Where"))
    if guard is None or select is None:
        return None
    if not view.reads(select, 0, view.result(guard)):
        return None
    return [guard, select]


_ORDERS = frozenset({"Trilu", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
_MASK_OPERATORS = 64


def is_causal(view: GraphView, mask: Tensor) -> bool:
    """Return whether positions are compared on the way to ``mask``, or a constant square of truth values leads
    there.

    A table looked up by such comparisons (T5's buckets of distances) is a bias, not a mask.
    """
    open_values: list[Value] = [mask]
    seen: set[int] = set()
    while open_values and len(seen) < _MASK_OPERATORS:
        value = open_values.pop()
        at = view.producer.get(value.name)
        if at is None:
            if isinstance(value, Tensor) and value.is_weight and _square_of_truths(value):
                return True
            continue
        if at in seen:
            continue
        seen.add(at)
        op = view.operators[at]
        if op.domain:
            continue
        if op.op_type in _ORDERS:
            return True
        if op.op_type == "Gather":
            table = op.inputs[0]
        else:
            table = None
        if isinstance(table, Tensor) and table.is_weight and table.dtype.is_floating:
            continue
        open_values += [v for v in op.inputs if v is not None]
    return False


def _square_of_truths(tensor: Tensor) -> bool:
    """Return True for a constant square matrix of truth values (further dimensions have size 1)."""
    if tensor.dtype not in (DType.BOOL, DType.UINT8) or len(tensor.shape) < 2:
        return False
    *outer, rows, columns = tensor.shape
    return rows == columns > 1 and set(outer) <= {1}


def match_bias_softmax(view: GraphView, softmax: int, options: LoweringOptions) -> Match:
    """Return the BiasSoftmax that ends at the Softmax at index ``softmax``."""
    scores = view.operand(softmax, 0)
    shape = scores.shape
    rank = len(shape)
    require_last_axis(view.operators[softmax], rank)
    add = view.source(scores, "Add")
    data = view.operand(add, 0)
    bias = view.operand(add, 1)
    if data.is_weight or data.shape != shape:
        data, bias = bias, data
    # A computed bias as large as the scores is no mask; a constant one merely meets a batch of one.
    mask = bias.shape
    computed = mask == shape and not bias.is_weight
    if data.shape != shape or len(mask) != rank or computed:
        raise view.mismatch(add, f"adds no mask that broadcasts to {list(shape)}")
    if mask[-1] != shape[-1]:
        raise Mismatch(f"{bias.name} has {mask[-1]} columns, expected {shape[-1]}")
    pattern = []
    for own, full in zip(mask, shape, strict=True):
        if full != 1:
            pattern.append(own == full)
    changes = 0
    for left, right in pairwise(pattern):
        changes += left != right
    if changes > 2 or (changes == 2 and not pattern[0]):
        raise Mismatch(f"{bias.name} {list(mask)} broadcasts along separated dimensions")
    inner = 0
    if pattern:
        inner = int(not pattern[0])
    return fused(
        view,
        "bias_softmax",
        (add, softmax),
        op_type="BiasSoftmax",
        domain="com.microsoft",
        inputs=(data, bias),
        attributes={"axis": rank - 1, "is_inner_broadcast": inner},
    )
