"""GELU in its error-function form: x * 0.5 * (1 + erf(x / sqrt 2)), exported as Div (or Mul), Erf, Add, Mul,
Mul.

torch: F.gelu, one kernel, whatever the operand order (no author writes it out by hand often enough to tell).
onnxruntime (GeluFusion, verified on its CPU provider, same pass for CUDA): only with a Div, and with the
factor 0.5 applied last or to x first, never to (1 + erf). A one-dimensional bias added just before joins in
(BiasGeluFusion).
"""

from __future__ import annotations

import math

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, require_value
from gkestimator.operators.registry import LoweringOptions


def match_gelu(view: GraphView, erf: int, options: LoweringOptions) -> Match:
    """The GELU around the Erf at index ``erf``."""
    x, scaled, divides = _argument(view, erf)
    plus = view.reader(view.result(erf), "Add")
    require_value(view.split_scalar(plus)[1], 1.0)
    product = view.reader(view.result(plus), "Mul")
    covered = [scaled, erf, plus, product]
    factor = view.other(product, view.result(plus))
    if factor.name == x.name:  # x * (1 + erf), then 0.5
        half = view.reader(view.result(product), "Mul")
        require_value(view.split_scalar(half)[1], 0.5)
        covered.append(half)
        inner = False
    elif factor.elements == 1 and view.producer.get(factor.name) is None:  # 0.5 * (1 + erf), then x
        require_value(factor, 0.5)
        outer = view.reader(view.result(product), "Mul")
        if view.other(outer, view.result(product)).name != x.name:
            raise Mismatch(f"{view.operators[outer].name} does not multiply by {x.name}")
        covered.append(outer)
        inner = True
    else:  # 0.5 * x first
        half = view.source(factor, "Mul")
        halved, constant = view.split_scalar(half)
        require_value(constant, 0.5)
        if halved.name != x.name:
            raise Mismatch(f"{view.operators[half].name} halves {halved.name}, expected {x.name}")
        covered.append(half)
        inner = False
    if options.runtime == "onnxruntime":
        if inner or not divides:
            raise Mismatch("onnxruntime fuses only x / sqrt(2) with 0.5 applied last or to x")
        biased = _bias(view, x, covered)
        if biased is not None:
            return biased
    return fused(
        view, "gelu", covered, op_type="Gelu", version=20, inputs=(x,), attributes={"approximate": "none"}
    )


def _argument(view: GraphView, erf: int) -> tuple[Tensor, int, bool]:
    """x, the operator that scales it for the Erf, and whether it divides by sqrt(2)."""
    scaled = view.source(view.operand(erf, 0), "Div", "Mul")
    divides = view.operators[scaled].op_type == "Div"
    x, constant = view.split_scalar(scaled)
    if divides and view.operand(scaled, 1).name != constant.name:
        raise Mismatch(f"{view.operators[scaled].name} divides a constant by {x.name}")
    require_value(constant, math.sqrt(2.0) if divides else math.sqrt(0.5))
    return x, scaled, divides


def _bias(view: GraphView, x: Tensor, covered: list[int]) -> Match | None:
    """The same GELU with the bias addition that makes ``x``, or None where there is none to take along."""
    add = view.made_by(x, "Add")
    if add is None:
        return None
    first = view.operand(add, 0)
    second = view.operand(add, 1)
    for source, bias in ((first, second), (second, first)):
        if (
            bias.is_weight
            and len(bias.shape) == 1
            and bias.shape[0] == x.shape[-1]
            and source.shape == x.shape
        ):
            try:
                return fused(
                    view,
                    "bias_gelu",
                    [add, *covered],
                    op_type="BiasGelu",
                    domain="com.microsoft",
                    inputs=(source, bias),
                )
            except Mismatch:  # the sum is read elsewhere: GELU alone
                return None
    return None
