"""Relu followed by Clip from zero: onnxruntime keeps the Clip alone (FuseReluClip: provider-independent,
verified).
"""

from __future__ import annotations

from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, scalar_value
from gkestimator.operators.registry import LoweringOptions


def match_relu_clip(view: GraphView, relu: int, options: LoweringOptions) -> Match:
    """The Clip that swallows the Relu at index ``relu``."""
    clip = view.reader(view.result(relu), "Clip")
    op = view.operators[clip]
    if "min" in op.attributes:
        lower = op.attributes["min"]
    else:
        if len(op.inputs) > 1 and op.inputs[1] is not None:
            lower = scalar_value(view.operand(clip, 1))
        else:
            lower = None
    if not isinstance(lower, (int, float)):
        raise Mismatch(f"{op.name} has no constant lower bound")
    return fused(
        view,
        "relu_clip",
        (relu, clip),
        op_type="Clip",
        version=op.version,
        inputs=(view.operand(relu, 0), *op.inputs[1:]),
        attributes=op.attributes,
    )
