"""Scaled dot-product attention: MatMul(q, k'), scale, mask, Softmax, MatMul with v.

torch with ``attention = "fused"``: one call of F.scaled_dot_product_attention, the scale wherever the
exporter put it (on q, on both, on the scores), masks added or selected, the guard against rows without a key
(IsNaN, Where), dropout. Only products of rank 4 count: authors of three-dimensional ones (bloom's baddbmm)
call bmm, and xlnet's sums of two Einsum products cannot be that call. With ``attention = "eager"`` every
operator is a kernel.
onnxruntime: its AttentionFusion knows only the graph of BERT exporters before opset 12 and found nothing in
current exports (verified on its CPU provider), so the pieces stay (FusedMatMul, BiasSoftmax, MatMul).
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.causal import is_causal
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.products import bare_operand, flattened_transpose
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions

_DEPTH = 10  # factors, masks and reshapes between the product and the softmax


def match_attention(view: GraphView, softmax: int, options: LoweringOptions) -> Match:
    """The attention around the Softmax at index ``softmax``."""
    op = view.operators[softmax]
    scores = view.operand(softmax, 0)
    rank = len(scores.shape)
    axis = op.attributes.get("axis", -1 if op.version >= 13 else 1)
    if not isinstance(axis, int) or rank == 0 or axis % rank != rank - 1:
        raise Mismatch(f"{op.name} runs along axis {axis}, expected the last")
    masks: list[Tensor] = []
    first, covered = _scores(view, scores, masks, _DEPTH)
    if not len(view.operand(first, 0).shape) == len(view.operand(first, 1).shape) == 4:
        raise Mismatch(
            f"{view.operators[first].name} multiplies tensors of rank {len(view.operand(first, 0).shape)} "
            f"and {len(view.operand(first, 1).shape)}, expected 4"
        )
    q, q_members, q_flipped = bare_operand(view, view.operand(first, 0))
    k, k_members, k_flipped = bare_operand(view, view.operand(first, 1))
    if q_flipped:
        raise Mismatch(f"{view.operators[first].name} transposes its left operand")
    if not k_flipped:
        k, turning = flattened_transpose(view, k)
        k_members = [*k_members, *turning]
        k_flipped = 1 if turning else 0
    if not k_flipped:  # laid out (..., D, S) by a transposition that does more, or is read elsewhere too
        k = replace(k, shape=(*k.shape[:-2], k.shape[-1], k.shape[-2]))
    probabilities, after = _probabilities(view, view.result(softmax))
    second = view.reader(probabilities, "MatMul")
    if view.operand(second, 0).name != probabilities.name:
        raise Mismatch(f"{view.operators[second].name} has the probabilities as its right operand")
    v = view.operand(second, 1)
    if len(v.shape) != 4:
        raise Mismatch(f"{view.operators[second].name} multiplies by rank {len(v.shape)}, expected 4")
    masks.sort(key=lambda mask: mask.nbytes, reverse=True)
    # A causal mask is an argument (is_causal), not a tensor: transformers passes none unless some input is padded.
    causal = bool(masks) and all(is_causal(view, mask) for mask in masks)
    return fused(
        view,
        "attention",
        [*q_members, *k_members, first, *covered, softmax, *after, second],
        op_type="Attention",
        version=23,
        attributes={"is_causal": 1} if causal else None,
        inputs=(q, k, v) if causal else (q, k, v, *masks[:1]),
        also_reads=tuple(masks if causal else masks[1:]),
    )


def _scores(view: GraphView, value: Tensor, masks: list[Tensor], depth: int) -> tuple[int, list[int]]:
    """The product that ``value`` is made of and the operators between; what is added or selects goes to
    ``masks``.
    """
    if depth == 0:
        raise Mismatch(f"no product within {_DEPTH} operators before the softmax")
    index = view.source(
        value, "MatMul", "Add", "Mul", "Div", "Where", "Reshape", "Cast", "CastLike", "Identity"
    )
    op = view.operators[index]
    if op.op_type == "MatMul":
        if view.operand(index, 0).is_weight or view.operand(index, 1).is_weight:
            raise Mismatch(f"{op.name} multiplies by a weight, expected queries and keys")
        return index, [index]
    if op.op_type in ("Mul", "Div"):
        source, _ = view.split_scalar(index)
        if op.op_type == "Div" and source.name != view.operand(index, 0).name:
            raise Mismatch(f"{op.name} divides by the scores")
        product, covered = _scores(view, source, masks, depth - 1)
    elif op.op_type == "Add":
        product, covered = _either(view, index, (0, 1), masks, depth)
    elif op.op_type == "Where":
        product, covered = _either(view, index, (1, 2), masks, depth)
        masks.append(view.operand(index, 0))
    else:
        product, covered = _scores(view, view.operand(index, 0), masks, depth - 1)
    return product, [index, *covered]


def _either(
    view: GraphView, index: int, positions: tuple[int, int], masks: list[Tensor], depth: int
) -> tuple[int, list[int]]:
    """The side of an Add or Where that holds the scores; the other side is a mask (or the value that fills
    in).
    """
    for here, there in (positions, positions[::-1]):
        scores = view.operand(index, here)
        mask = view.operand(index, there)
        if scores.elements != view.result(index).elements or view.sole_reader(scores) is None:
            continue
        kept = len(masks)
        try:
            product, covered = _scores(view, scores, masks, depth - 1)
        except Mismatch:
            del masks[kept:]
            continue
        if mask.elements > 1:
            masks.append(mask)
        return product, covered
    raise Mismatch(f"no operand of {view.operators[index].name} comes from a product of queries and keys")


def _probabilities(view: GraphView, value: Tensor) -> tuple[Tensor, list[int]]:
    """The probabilities after what stands between softmax and the second product, and those operators."""
    covered: list[int] = []
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


def _nan_guard(view: GraphView, value: Tensor) -> list[int] | None:
    """IsNaN and Where that put zeros where a row has no key, else None."""
    readers = view.consumers.get(value.name, ())
    if len(readers) != 2 or value.name in view.outputs:
        return None
    guard = next((i for i in readers if view.operators[i].key == ("", "IsNaN")), None)
    select = next((i for i in readers if view.operators[i].key == ("", "Where")), None)
    if guard is None or select is None or view.operand(select, 0).name != view.result(guard).name:
        return None
    return [guard, select]
