"""Scalar factors and transpositions around a MatMul: onnxruntime's FusedMatMul.

onnxruntime only (MatMulScaleFusion, MatmulTransposeFusion, verified on its CPU provider, same passes for
CUDA): a Mul or Div by a one-element constant before either operand or after the product, and a Transpose of
an operand's last two dimensions, become attributes of the product. cuBLAS reads transposed operands and
scales for nothing.
"""

from __future__ import annotations

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.products import bare_operand, scaling_after
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions


def match_scaled_matmul(view: GraphView, product: int, options: LoweringOptions) -> Match:
    """The FusedMatMul around the MatMul at index ``product``."""
    covered = [product]
    operands: list[Tensor] = []
    transposed: list[int] = []
    for position in (0, 1):
        value, members, flipped = bare_operand(view, view.operand(product, position))
        covered += members
        operands.append(value)
        transposed.append(flipped)
    following = scaling_after(view, view.result(product))
    if following is not None:
        covered.append(following)
    if len(covered) == 1:
        raise Mismatch(f"{view.operators[product].name} has no constant factor and no transposed operand")
    return fused(
        view,
        "fused_matmul",
        covered,
        op_type="FusedMatMul",
        domain="com.microsoft",
        inputs=tuple(operands),
        attributes={"transA": transposed[0], "transB": transposed[1], "alpha": 1.0},
    )
