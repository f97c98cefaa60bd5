"""Copies that become one: transpositions with nothing but views between them.

Developer Guide, "Types of Fusions": shuffle and shuffle.
"""

from __future__ import annotations

from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Indices
from gkestimator.operators.registry import LoweringOptions

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def match_shuffle(view: GraphView, last: int, options: LoweringOptions) -> Match:
    """Return the transpositions that end at index ``last``, with the views between them."""
    covered: Indices = [last]
    passed: Indices = []
    value = view.operand(last, 0)
    source = value
    while view.sole_reader(value) is not None:
        index = view.made_by(value, "Transpose", *_VIEWS)
        if index is None or not view.free(index):
            break
        passed.append(index)
        value = view.operand(index, 0)
        if view.operators[index].op_type == "Transpose":
            covered += passed
            passed = []
            source = value
    if len(covered) == 1:
        raise view.mismatch(last, "follows no other transposition")
    op = view.operators[last]
    return fused(
        view,
        "shuffle",
        covered,
        op_type="Transpose",
        version=op.version,
        inputs=(source,),
        attributes=op.attributes,
    )
