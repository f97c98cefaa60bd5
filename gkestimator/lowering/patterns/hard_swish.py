"""HardSwish x * clip(x + 3, 0, 6) / 6, and x * HardSigmoid(x), which is the same.

torch: F.hardswish, one kernel. onnxruntime fuses neither (verified on its CPU provider).
"""

from __future__ import annotations

from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, require_value, scalar_value
from gkestimator.operators.registry import LoweringOptions


def match_hard_sigmoid_swish(view: GraphView, gate: int, options: LoweringOptions) -> Match:
    """x * HardSigmoid(x) with slope 1/6 around the HardSigmoid at index ``gate``."""
    op = view.operators[gate]
    alpha = op.attributes.get("alpha", 0.2)
    beta = op.attributes.get("beta", 0.5)
    if not isinstance(alpha, float) or abs(alpha - 1 / 6) > 1e-4 or beta != 0.5:
        raise Mismatch(f"{op.name} has slope {alpha} and offset {beta}, expected 1/6 and 0.5")
    product = view.reader(view.result(gate), "Mul")
    x = view.operand(gate, 0)
    if view.other(product, view.result(gate)).name != x.name:
        raise Mismatch(f"{op.name} gates another tensor than {x.name}")
    return fused(view, "hard_swish", [gate, product], op_type="HardSwish", version=14, inputs=(x,))


def match_clip_swish(view: GraphView, clip: int, options: LoweringOptions) -> Match:
    """x * clip(x + 3, 0, 6) / 6 (or times 1/6, before or after the product) around the Clip at index
    ``clip``.
    """
    _bounds(view, clip)
    shift = view.source(view.operand(clip, 0), "Add")
    x, three = view.split_scalar(shift)
    require_value(three, 3.0)
    first = view.reader(view.result(clip), "Mul", "Div")
    second = view.reader(view.result(first), "Mul", "Div")
    seen_x = False
    for index, value in ((first, view.result(clip)), (second, view.result(first))):
        rest = view.other(index, value)
        op = view.operators[index]
        if rest.name == x.name and op.op_type == "Mul":
            seen_x = True
        elif op.op_type == "Div" and view.operand(index, 0).name == value.name:
            require_value(rest, 6.0)
        else:
            require_value(rest, 1 / 6)
    if not seen_x:
        raise Mismatch(f"{view.operators[second].name} does not multiply by {x.name}")
    return fused(
        view, "hard_swish", [shift, clip, first, second], op_type="HardSwish", version=14, inputs=(x,)
    )


def _bounds(view: GraphView, clip: int) -> None:
    op = view.operators[clip]
    bounds: list[object] = [op.attributes.get("min"), op.attributes.get("max")]
    for position in (1, 2):
        if position < len(op.inputs) and op.inputs[position] is not None:
            bounds[position - 1] = scalar_value(view.operand(clip, position))
    if bounds != [0.0, 6.0]:
        raise Mismatch(f"{op.name} clips to {bounds[0]}..{bounds[1]}, expected 0..6")
