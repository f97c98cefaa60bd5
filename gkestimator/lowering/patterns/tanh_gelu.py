"""GELU in its tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

Three ways of writing the polynomial are known: with Pow(x, 3), with x * x * x, and factored, x (1 + 0.044715
x x).

torch: F.gelu(approximate="tanh") is one kernel and exports with 0.5 outermost or with x * x * x. The form
with Pow and 0.5 * x first is transformers' NewGELUActivation (gpt2), the factored one BloomGelu: python
arithmetic, which eager mode launches operator by operator, so there is no match.
onnxruntime (FastGeluFusion, verified on its CPU provider, same pass for CUDA): the forms with 0.5 * x first
and either Pow or the factored polynomial, unless the result is an output of the graph. A one-dimensional bias
joins in.
"""

from __future__ import annotations

import math

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, is_scalar, require_value
from gkestimator.operators.registry import LoweringOptions

_KAPPA = 0.044715
_BETA = math.sqrt(2.0 / math.pi)


def match_tanh_gelu(view: GraphView, tanh: int, options: LoweringOptions) -> Match:
    """The GELU around the Tanh at index ``tanh``."""
    x, polynomial, form = _polynomial(view, view.operand(tanh, 0))
    plus = view.reader(view.result(tanh), "Add")
    require_value(view.split_scalar(plus)[1], 1.0)
    tail, half_first = _tail(view, x, plus)
    covered = [*polynomial, tanh, plus, *tail]
    if options.runtime == "onnxruntime":
        if not half_first or form == "cube":
            raise Mismatch("onnxruntime fuses only 0.5 * x first, with Pow or the factored polynomial")
        if view.result(max(covered)).name in view.outputs:
            raise Mismatch("onnxruntime does not fuse a GELU whose result is an output of the graph")
        return _fast_gelu(view, x, covered)
    if form == "factored" or (form == "pow" and half_first):
        raise Mismatch("this form is python arithmetic in transformers: eager mode launches each operator")
    return fused(
        view,
        "gelu_tanh",
        covered,
        op_type="Gelu",
        version=20,
        inputs=(x,),
        attributes={"approximate": "tanh"},
    )


def _tail(view: GraphView, x: Tensor, plus: int) -> tuple[list[int], bool]:
    """The multiplications after 1 + tanh, and whether 0.5 * x is made first."""
    product = view.reader(view.result(plus), "Mul")
    factor = view.other(product, view.result(plus))
    half = view.made_by(factor, "Mul")
    if factor.name != x.name and half is not None:
        halved, constant = view.split_scalar(half)
        require_value(constant, 0.5)
        if halved.name != x.name:
            raise Mismatch(f"{view.operators[half].name} halves {halved.name}, expected {x.name}")
        return [half, product], True
    last = view.reader(view.result(product), "Mul")
    rest = view.other(last, view.result(product))
    constant, other = (rest, factor) if factor.name == x.name else (factor, rest)
    require_value(constant, 0.5)
    if other.name != x.name:
        raise Mismatch(f"{view.operators[last].name} multiplies by {other.name}, expected {x.name}")
    return [product, last], False


def _polynomial(view: GraphView, argument: Tensor) -> tuple[Tensor, list[int], str]:
    """x, the operators of sqrt(2/pi) (x + 0.044715 x^3), and how it is written: pow, cube or factored."""
    outer = view.source(argument, "Mul")
    first = view.operand(outer, 0)
    second = view.operand(outer, 1)
    if not is_scalar(first) and not is_scalar(second):
        return _factored(view, outer)
    total, beta = view.split_scalar(outer)
    require_value(beta, _BETA)
    add = view.source(total, "Add")
    left = view.operand(add, 0)
    right = view.operand(add, 1)
    for x, term in ((left, right), (right, left)):
        scaled = view.made_by(term, "Mul")
        if scaled is None or not (is_scalar(view.operand(scaled, 0)) or is_scalar(view.operand(scaled, 1))):
            continue
        cube, kappa = view.split_scalar(scaled)
        power = view.made_by(cube, "Pow", "Mul")
        if power is None:
            continue
        members = _cube(view, power, x)
        if members is None:
            continue
        require_value(kappa, _KAPPA)
        form = "pow" if view.operators[power].op_type == "Pow" else "cube"
        return x, [outer, add, scaled, *members], form
    raise Mismatch(f"{view.operators[add].name} does not add x and 0.044715 x^3")


def _cube(view: GraphView, power: int, x: Tensor) -> list[int] | None:
    """The operators that make x^3 at index ``power``, None when it is something else."""
    if view.operators[power].op_type == "Pow":
        if view.operand(power, 0).name != x.name:
            return None
        require_value(view.operand(power, 1), 3.0)
        return [power]
    first = view.operand(power, 0)
    second = view.operand(power, 1)
    if x.name not in (first.name, second.name):
        return None
    square = view.made_by(second if first.name == x.name else first, "Mul")
    if square is None or {view.operand(square, 0).name, view.operand(square, 1).name} != {x.name}:
        return None
    return [power, square]


def _factored(view: GraphView, outer: int) -> tuple[Tensor, list[int], str]:
    """sqrt(2/pi) x * (1 + 0.044715 x x)."""
    left = view.operand(outer, 0)
    right = view.operand(outer, 1)
    for scaled_value, bracket_value in ((left, right), (right, left)):
        scaled = view.made_by(scaled_value, "Mul")
        bracket = view.made_by(bracket_value, "Add")
        if scaled is None or bracket is None:
            continue
        x, beta = view.split_scalar(scaled)
        require_value(beta, _BETA)
        term, one = view.split_scalar(bracket)
        require_value(one, 1.0)
        square = view.source(term, "Mul")
        kappa_x = view.source(view.other(square, x), "Mul")
        base, kappa = view.split_scalar(kappa_x)
        require_value(kappa, _KAPPA)
        if base.name != x.name:
            raise Mismatch(f"{view.operators[kappa_x].name} scales {base.name}, expected {x.name}")
        return x, [outer, scaled, bracket, square, kappa_x], "factored"
    raise Mismatch(f"{view.operators[outer].name} is no product of sqrt(2/pi) x and 1 + 0.044715 x x")


def _fast_gelu(view: GraphView, x: Tensor, covered: list[int]) -> Match:
    add = view.made_by(x, "Add")
    if add is not None:
        first = view.operand(add, 0)
        second = view.operand(add, 1)
        for source, bias in ((first, second), (second, first)):
            if bias.is_weight and bias.shape == x.shape[-1:] and source.shape == x.shape:
                try:
                    return fused(
                        view,
                        "fast_gelu",
                        [add, *covered],
                        op_type="FastGelu",
                        domain="com.microsoft",
                        inputs=(source, bias),
                    )
                except Mismatch:  # the sum is read elsewhere: GELU alone
                    break
    return fused(view, "fast_gelu", covered, op_type="FastGelu", domain="com.microsoft", inputs=(x,))
