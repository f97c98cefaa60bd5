"""Mish: x * tanh(softplus(x)).

torch: F.mish, one kernel. onnxruntime fuses nothing here (verified on its CPU provider).
"""

from __future__ import annotations

from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions


def match_mish(view: GraphView, softplus: int, options: LoweringOptions) -> Match:
    """The Mish that starts at the Softplus at index ``softplus``."""
    x = view.operand(softplus, 0)
    tanh = view.reader(view.result(softplus), "Tanh")
    product = view.reader(view.result(tanh), "Mul")
    if view.other(product, view.result(tanh)).name != x.name:
        raise Mismatch(f"{view.operators[product].name} does not multiply by {x.name}")
    return fused(view, "mish", [softplus, tanh, product], op_type="Mish", version=18, inputs=(x,))
