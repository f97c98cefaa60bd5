"""Reciprocal square root: Sqrt, Reciprocal, or 1 / Sqrt. torch.rsqrt is one kernel; onnxruntime has no such
operator.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, require_value
from gkestimator.operators.builders import elementwise_kernel, input_at, output_at
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule


def match_rsqrt(view: GraphView, root: int, options: LoweringOptions) -> Match:
    """The reciprocal root that starts at the Sqrt at index ``root``."""
    last = view.reader(view.result(root), "Reciprocal", "Div")
    if view.operators[last].op_type == "Div":
        if view.operand(last, 1).name != view.result(root).name or view.operand(last, 0).value is None:
            raise Mismatch(f"{view.operators[last].name} does not divide 1 by the root")
        require_value(view.operand(last, 0), 1.0)
    return fused(
        view, "rsqrt", (root, last), op_type="Rsqrt", domain=FUSED_DOMAIN, inputs=(view.operand(root, 0),)
    )


@lowering_rule("Rsqrt", domain=FUSED_DOMAIN, kind="elementwise", autocast="fp32")
def lower_rsqrt(op: Operator, options: LoweringOptions) -> Lowered:
    """Two FLOPs per element: a root and a division."""
    kernel = elementwise_kernel("rsqrt", (input_at(op, 0),), (output_at(op),), flops_per_element=2)
    return Lowered(kernels=(kernel,), host_calls=1)
