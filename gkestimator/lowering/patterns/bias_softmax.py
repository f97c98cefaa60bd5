"""Addition of a mask and Softmax over the last axis: Add, Softmax -> BiasSoftmax.

onnxruntime on CUDA only (BiasSoftmaxFusion; from its sources, the kernel exists for CUDA alone, so its CPU
provider cannot show it): the bias broadcasts to the scores, over the batch dimensions either before or after
those it has.
"""

from __future__ import annotations

from itertools import pairwise

from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions


def match_bias_softmax(view: GraphView, softmax: int, options: LoweringOptions) -> Match:
    """The BiasSoftmax that ends at the Softmax at index ``softmax``."""
    op = view.operators[softmax]
    scores = view.operand(softmax, 0)
    rank = len(scores.shape)
    axis = op.attributes.get("axis", -1 if op.version >= 13 else 1)
    if not isinstance(axis, int) or axis % max(1, rank) != rank - 1:
        raise Mismatch(f"{op.name} runs along axis {axis}, expected the last")
    add = view.source(scores, "Add")
    left = view.operand(add, 0)
    right = view.operand(add, 1)
    data, bias = (right, left) if left.is_weight or left.shape != scores.shape else (left, right)
    # A computed bias as large as the scores is no mask; a constant one merely meets a batch of one.
    if (
        data.shape != scores.shape
        or len(bias.shape) != rank
        or (bias.shape == scores.shape and not bias.is_weight)
    ):
        raise Mismatch(f"{view.operators[add].name} adds no mask that broadcasts to {list(scores.shape)}")
    if bias.shape[-1] != scores.shape[-1]:
        raise Mismatch(f"{bias.name} has {bias.shape[-1]} columns, expected {scores.shape[-1]}")
    pattern = [b == s for b, s in zip(bias.shape, scores.shape, strict=True) if s != 1]
    changes = sum(1 for a, b in pairwise(pattern) if a != b)
    if changes > 2 or (changes == 2 and not pattern[0]):
        raise Mismatch(f"{bias.name} {list(bias.shape)} broadcasts along separated dimensions")
    return fused(
        view,
        "bias_softmax",
        (add, softmax),
        op_type="BiasSoftmax",
        domain="com.microsoft",
        inputs=(data, bias),
        attributes={"axis": rank - 1, "is_inner_broadcast": int(not pattern[0]) if pattern else 0},
    )
