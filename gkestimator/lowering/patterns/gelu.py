"""GELU in its error-function form: x * 0.5 * (1 + erf(x / sqrt 2)), exported as Div (or Mul), Erf, Add, Mul,
Mul.

torch: F.gelu, one kernel, whatever the operand order (no author writes it out by hand often enough to tell).
onnxruntime (GeluFusion, verified on its CPU provider, same pass for CUDA): only with a Div, and with the
factor 0.5 applied last or to x first, never to (1 + erf). A one-dimensional bias added just before joins in
(BiasGeluFusion).

GELU in its tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).

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
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch, is_scalar, require_value
from gkestimator.operators.registry import LoweringOptions


def match_gelu(view: GraphView, erf: int, options: LoweringOptions) -> Match:
    """Return the GELU around the Erf at index ``erf``."""
    x, scaled, divides = _argument(view, erf)
    plus = view.next(erf, "Add")
    require_value(view.split_scalar(plus)[1], 1.0)
    product = view.next(plus, "Mul")
    covered = [scaled, erf, plus, product]
    factor = view.partner(product, plus)
    if factor.name == x.name:  # x * (1 + erf), then 0.5
        half = view.next(product, "Mul")
        require_value(view.split_scalar(half)[1], 0.5)
        covered.append(half)
        inner = False
    elif factor.elements == 1 and view.producer.get(factor.name) is None:  # 0.5 * (1 + erf), then x
        require_value(factor, 0.5)
        outer = view.next(product, "Mul")
        if view.partner(outer, product).name != x.name:
            raise view.mismatch(outer, f"does not multiply by {x.name}")
        covered.append(outer)
        inner = True
    else:  # 0.5 * x first
        half = view.source(factor, "Mul")
        halved, constant = view.split_scalar(half)
        require_value(constant, 0.5)
        _require_same(view, half, "halves", halved, x)
        covered.append(half)
        inner = False
    if options.runtime == "onnxruntime":
        if inner or not divides:
            raise Mismatch("onnxruntime fuses only x / sqrt(2) with 0.5 applied last or to x")
        biased = _with_bias(view, "bias_gelu", x, covered, "BiasGelu")
        if biased is not None:
            return biased
    return fused(
        view, "gelu", covered, op_type="Gelu", version=20, inputs=(x,), attributes={"approximate": "none"}
    )


def _argument(view: GraphView, erf: int) -> tuple[Tensor, int, bool]:
    """Return x, the operator that scales it for the Erf, and whether it divides by sqrt(2)."""
    scaled = view.source(view.operand(erf, 0), "Div", "Mul")
    divides = view.operators[scaled].op_type == "Div"
    x, constant = view.split_scalar(scaled)
    if divides and not view.reads(scaled, 1, constant):
        raise view.mismatch(scaled, f"divides a constant by {x.name}")
    expected = 0.5
    if divides:
        expected = 2.0
    require_value(constant, math.sqrt(expected))
    return x, scaled, divides


def _with_bias(view: GraphView, name: str, x: Tensor, covered: Indices, biased_type: str) -> Match | None:
    """Return the GELU of ``covered`` with the bias addition that makes ``x``; None where there is none."""
    added = view.added_bias(x)
    if added is None:
        return None
    add, source, bias = added
    try:
        return fused(
            view,
            name,
            [add, *covered],
            op_type=biased_type,
            domain="com.microsoft",
            inputs=(source, bias),
        )
    except Mismatch:  # the sum is read elsewhere: GELU alone
        return None


_KAPPA = 0.044715
_BETA = math.sqrt(2.0 / math.pi)


def match_tanh_gelu(view: GraphView, tanh: int, options: LoweringOptions) -> Match:
    """Return the GELU around the Tanh at index ``tanh``."""
    x, polynomial, form = _polynomial(view, view.operand(tanh, 0))
    plus = view.next(tanh, "Add")
    require_value(view.split_scalar(plus)[1], 1.0)
    tail, half_first = _tail(view, x, plus)
    covered = [*polynomial, tanh, plus, *tail]
    if options.runtime == "onnxruntime":
        if not half_first or form == "cube":
            raise Mismatch("onnxruntime fuses only 0.5 * x first, with Pow or the factored polynomial")
        if view.result(max(covered)).name in view.outputs:
            raise Mismatch("onnxruntime does not fuse a GELU whose result is an output of the graph")
        biased = _with_bias(view, "fast_gelu", x, covered, "FastGelu")
        if biased is not None:
            return biased
        return fused(view, "fast_gelu", covered, op_type="FastGelu", domain="com.microsoft", inputs=(x,))
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


def _tail(view: GraphView, x: Tensor, plus: int) -> tuple[Indices, bool]:
    """Return the multiplications after 1 + tanh, and whether 0.5 * x is made first."""
    product = view.next(plus, "Mul")
    factor = view.partner(product, plus)
    half = view.made_by(factor, "Mul")
    if factor.name != x.name and half is not None:
        halved, constant = view.split_scalar(half)
        require_value(constant, 0.5)
        _require_same(view, half, "halves", halved, x)
        return [half, product], True
    last = view.next(product, "Mul")
    constant = factor
    other = view.partner(last, product)
    if factor.name == x.name:
        constant, other = other, factor
    require_value(constant, 0.5)
    _require_same(view, last, "multiplies by", other, x)
    return [product, last], False


def _polynomial(view: GraphView, argument: Tensor) -> tuple[Tensor, Indices, str]:
    """Return x, the operators of sqrt(2/pi) (x + 0.044715 x^3), and how it is written: pow, cube or factored."""
    outer = view.source(argument, "Mul")
    if not _has_scalar(view, outer):
        return _factored(view, outer)
    total, beta = view.split_scalar(outer)
    require_value(beta, _BETA)
    add = view.source(total, "Add")
    for x, term in view.either_order(add):
        scaled = view.made_by(term, "Mul")
        if scaled is None or not _has_scalar(view, scaled):
            continue
        cube, kappa = view.split_scalar(scaled)
        power = view.made_by(cube, "Pow", "Mul")
        if power is None:
            continue
        members = _cube(view, power, x)
        if members is None:
            continue
        require_value(kappa, _KAPPA)
        form = "cube"
        if view.operators[power].op_type == "Pow":
            form = "pow"
        return x, [outer, add, scaled, *members], form
    raise view.mismatch(add, "does not add x and 0.044715 x^3")


def _require_same(view: GraphView, index: int, verb: str, value: Tensor, expected: Tensor) -> None:
    """Raise Mismatch unless ``value``, which an operator reads, is ``expected``."""
    if value.name != expected.name:
        raise view.mismatch(index, f"{verb} {value.name}, expected {expected.name}")


def _has_scalar(view: GraphView, index: int) -> bool:
    first, second = view.either_order(index)[0]
    return is_scalar(first) or is_scalar(second)


def _cube(view: GraphView, power: int, x: Tensor) -> Indices | None:
    """Return the operators that make x^3 at index ``power``, None when it is something else."""
    if view.operators[power].op_type == "Pow":
        if not view.reads(power, 0, x):
            return None
        require_value(view.operand(power, 1), 3.0)
        return [power]
    for operand, squared in view.either_order(power):
        square = view.made_by(squared, "Mul")
        if operand.name != x.name or square is None:
            continue
        if not view.reads(square, 0, x):
            continue
        if view.reads(square, 1, x):
            return [power, square]
    return None


def _factored(view: GraphView, outer: int) -> tuple[Tensor, Indices, str]:
    """Return sqrt(2/pi) x * (1 + 0.044715 x x)."""
    for scaled_value, bracket_value in view.either_order(outer):
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
        _require_same(view, kappa_x, "scales", base, x)
        return x, [outer, scaled, bracket, square, kappa_x], "factored"
    raise view.mismatch(outer, "is no product of sqrt(2/pi) x and 1 + 0.044715 x x")
