"""Elementwise operators: activations, arithmetic with and without broadcasting, comparisons, casts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import (
    CatalogueItem,
    chain,
    mask,
    operator,
    positive,
    scalar,
    weight,
    x,
)
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table

_POSITIVE = frozenset({"Log", "Sqrt", "Reciprocal"})
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "Equal"})


def unary(op_type: str, shape: Sequence[int]) -> Fragment:
    """Return a function of one tensor."""
    match op_type:
        case "Gelu":
            return operator("Gelu", x(*shape), opset=20)
        case "TanhGelu":
            return operator("Gelu", x(*shape), approximate="tanh", opset=20)
        case "Clip":
            return operator("Clip", x(*shape), scalar(0.0), scalar(6.0))
        case "CastHalf":
            return operator("Cast", x(*shape), to=10)
        case "LeakyRelu":
            return operator("LeakyRelu", x(*shape), alpha=0.1)
    # Of negative numbers these are NaN, which some kernels branch on.
    make = positive if op_type in _POSITIVE else x
    return operator(op_type, make(*shape))


def gate(shape: Sequence[int]) -> Fragment:
    """Return x * sigmoid(x), which torch calls silu."""
    return chain("silu", [x(*shape)], ("Sigmoid", ["x0"], "s", {}), ("Mul", ["x0", "s"], "y", {}))


def binary(op_type: str, first: Sequence[int], second: Sequence[int]) -> Fragment:
    """Return a function of two tensors that broadcast; denominators are positive."""
    make = positive if op_type == "Div" else x
    return operator(op_type, x(*first), make(*second))


def _made(kind: str, shape: Sequence[int]) -> Fragment:
    """Return an operator, or one of the words for an operator with a second operand of a special shape."""
    if kind.startswith("Channel"):
        channels = (*shape[:2], *(1 for _ in shape[2:]))
        return binary(kind.removeprefix("Channel"), shape, channels)
    if kind.startswith("Row"):
        return operator(kind.removeprefix("Row"), x(*shape), weight(shape[-1]))
    match kind:
        case "Silu":
            return gate(shape)
        case "ScalarMul":
            return operator("Mul", x(*shape), scalar(0.125))
        case "Pow":
            return operator("Pow", positive(*shape), scalar(2.0))
        case "PRelu":
            return operator("PRelu", x(*shape), weight(*(1 for _ in shape)))
        case "Where":
            return operator("Where", mask(*shape), x(*shape), x(*shape))
    if kind in _BINARY:
        return binary(kind, shape, shape)
    return unary(kind, shape)


def real() -> Iterator[CatalogueItem]:
    """Yield what follows convolutions and linear layers in known architectures."""
    frequent = table("elementwise", "frequent")
    for source, shapes in table("activation").items():
        kinds = frequent[source]
        for number, shape in enumerate(shapes):
            # The kinds take turns, so that every operator meets every size without their product.
            for step, batch in enumerate((1, 8, 32)):
                for turn in range(3):
                    kind = kinds[(number + 3 * step + turn) % len(kinds)]
                    yield CatalogueItem(_made(kind, (batch, *shape)), source)


def corners() -> Iterator[Fragment]:
    """Yield one element to a quarter of a billion; every rarer operator at three sizes; broadcasts both ways."""
    for elements in table("elementwise", "lengths"):
        for kind in ("Relu", "Add", "Gelu", "Mul", "Tanh", "Div"):
            yield _made(kind, (elements,))
    for kind in table("elementwise", "rare"):
        for shape in ((3, 1021), (16, 256, 256), (32, 512, 28, 28)):
            yield _made(kind, shape)
    for first, second in table("elementwise", "broadcasts"):
        for op_type in ("Add", "Mul"):
            yield binary(op_type, first, second)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield the frequent operators over 256 to 134 million elements."""
    frequent = table("elementwise", "frequent").values()
    kinds = sorted({"Div", "Exp", "Pow"}.union(*frequent))
    picked = sampler.pick(count, kinds)
    for n, (batch, rows, columns) in enumerate(sampler.sizes(count, table("elementwise", "between"))):
        kind = picked[n]
        shape = (batch, min(rows, 2048), columns)
        yield _made(kind, (*shape, 1) if kind.startswith("Channel") else shape)
