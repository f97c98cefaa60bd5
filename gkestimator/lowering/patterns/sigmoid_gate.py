"""x * sigmoid(x) (SiLU, Swish) and x * sigmoid(1.702 x) (QuickGELU).

torch: F.silu is one kernel. QuickGELU is python arithmetic (CLIP's QuickGELUActivation): no match.
onnxruntime (QuickGeluFusion, verified on its CPU provider, same pass for CUDA): both become QuickGelu, any
alpha. A gate on another tensor (squeeze and excitation) is two operators in both.
"""

from __future__ import annotations

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, scalar_value
from gkestimator.operators.registry import LoweringOptions


def match_sigmoid_gate(view: GraphView, sigmoid: int, options: LoweringOptions) -> Match:
    """The SiLU or QuickGELU around the Sigmoid at index ``sigmoid``."""
    argument = view.operand(sigmoid, 0)
    gated = view.reader(view.result(sigmoid), "Mul")
    x = view.other(gated, view.result(sigmoid))
    if x.name == argument.name:
        if options.runtime == "onnxruntime":
            return _quick_gelu(view, [sigmoid, gated], x, 1.0)
        return fused(
            view,
            "silu",
            [sigmoid, gated],
            op_type="Swish",
            version=24,
            inputs=(x,),
            attributes={"alpha": 1.0},
        )
    scaled = view.made_by(argument, "Mul")
    if scaled is None:
        raise Mismatch(f"the sigmoid of {argument.name} gates another tensor, {x.name}")
    base, constant = view.split_scalar(scaled)
    if base.name != x.name:
        raise Mismatch(f"the sigmoid of {base.name} gates another tensor, {x.name}")
    if options.runtime != "onnxruntime":
        raise Mismatch("x * sigmoid(alpha x) is python arithmetic: eager mode launches each operator")
    alpha = scalar_value(constant)
    if alpha is None:
        raise Mismatch(f"{constant.name} has no known value, expected a constant alpha")
    return _quick_gelu(view, [scaled, sigmoid, gated], x, alpha)


def _quick_gelu(view: GraphView, covered: list[int], x: Tensor, alpha: float) -> Match:
    return fused(
        view,
        "quick_gelu",
        covered,
        op_type="QuickGelu",
        domain="com.microsoft",
        inputs=(x,),
        attributes={"alpha": alpha},
    )
