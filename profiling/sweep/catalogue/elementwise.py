"""Elementwise operators: activations, arithmetic with and without broadcasting, comparisons, casts."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import ACTIVATIONS
from gkestimator.profiling.sweep.catalogue.making import (
    CatalogueItem,
    Link,
    chain,
    constant,
    item,
    mask,
    operator,
    positive,
    weight,
    x,
)
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

FREQUENT = {
    "vision": ("Relu", "HardSwish", "Silu", "Add", "Sigmoid", "Clip", "Gelu", "ChannelMul", "ChannelAdd"),
    "detection": ("Relu", "Silu", "Sigmoid", "Add", "LeakyRelu", "Exp", "Where"),
    "language": ("Gelu", "TanhGelu", "Silu", "Add", "Mul", "RowAdd", "RowMul", "Tanh", "ScalarMul", "Neg"),
}
RARE = (
    "Sub",
    "Div",
    "Max",
    "Min",
    "Pow",
    "Erf",
    "Exp",
    "Log",
    "Sqrt",
    "Reciprocal",
    "Abs",
    "Neg",
    "Elu",
    "Selu",
    "Softplus",
    "HardSigmoid",
    "LeakyRelu",
    "PRelu",
    "Mish",
    "Sin",
    "Cos",
    "Floor",
    "Round",
    "Greater",
    "Equal",
    "Where",
    "CastHalf",
    "Softsign",
    "Sign",
)
_POSITIVE = frozenset({"Log", "Sqrt", "Reciprocal"})
_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "Equal"})


def unary(op_type: str, shape: tuple[int, ...]) -> Fragment:
    """A function of one tensor."""
    if op_type == "Gelu":
        return operator("Gelu", x(*shape), opset=20)
    if op_type == "TanhGelu":
        return operator("Gelu", x(*shape), attributes={"approximate": "tanh"}, opset=20)
    if op_type == "Clip":
        low, high = (constant([v], dtype=DType.FLOAT, shape=()) for v in (0.0, 6.0))
        return operator("Clip", x(*shape), low, high)
    if op_type == "CastHalf":
        return operator("Cast", x(*shape), attributes={"to": 10})
    if op_type == "LeakyRelu":
        return operator("LeakyRelu", x(*shape), attributes={"alpha": 0.1})
    return operator(op_type, positive(*shape) if op_type in _POSITIVE else x(*shape))


def gate(shape: tuple[int, ...]) -> Fragment:
    """x * sigmoid(x), which torch calls silu."""
    nodes: tuple[Link, ...] = (("Sigmoid", ["x0"], "s", {}), ("Mul", ["x0", "s"], "y", {}))
    return chain("silu", [x(*shape)], *nodes)


def binary(op_type: str, first: tuple[int, ...], second: tuple[int, ...]) -> Fragment:
    """A function of two tensors that broadcast; denominators are positive."""
    if op_type == "Div":
        right = positive(*second)
    else:
        right = x(*second)
    return operator(op_type, x(*first), right)


def _made(kind: str, shape: tuple[int, ...]) -> Fragment:
    if kind == "Silu":
        return gate(shape)
    if kind in ("ChannelMul", "ChannelAdd"):
        channels = (*shape[:2], *(1 for _ in shape[2:]))
        return binary(kind.removeprefix("Channel"), shape, channels)
    if kind in ("RowAdd", "RowMul"):
        return operator(kind.removeprefix("Row"), x(*shape), weight(shape[-1]))
    if kind == "ScalarMul":
        return operator("Mul", x(*shape), constant([0.125], dtype=DType.FLOAT, shape=()))
    if kind == "Pow":
        return operator("Pow", positive(*shape), constant([2.0], dtype=DType.FLOAT, shape=()))
    if kind == "PRelu":
        return operator("PRelu", x(*shape), weight(*(1 for _ in shape)))
    if kind == "Where":
        return operator("Where", mask(*shape), x(*shape), x(*shape))
    if kind in _BINARY:
        return binary(kind, shape, shape)
    return unary(kind, shape)


def real() -> Iterator[CatalogueItem]:
    """What follows convolutions and linear layers in known architectures."""
    for source, shapes in ACTIVATIONS.items():
        kinds = FREQUENT[source]
        for number, shape in enumerate(shapes):
            for step, batch in enumerate((1, 8, 32)):
                for turn in range(3):
                    kind = kinds[(number + 3 * step + turn) % len(kinds)]
                    yield item(_made(kind, (batch, *shape)), source)


def corners() -> Iterator[CatalogueItem]:
    """From one element to a quarter of a billion; every rarer operator at three sizes; broadcasts both ways."""
    for elements in (1, 7, 32, 513, 4096, 65537, 2**20, 2**24, 2**26, 200_000_001):
        for kind in ("Relu", "Add", "Gelu", "Mul", "Tanh", "Div"):
            yield item(_made(kind, (elements,)), "corner")
    for kind in RARE:
        for shape in ((3, 1021), (16, 256, 256), (32, 512, 28, 28)):
            yield item(_made(kind, shape), "corner")
    for first, second in (
        ((1024, 1), (1, 1024)),
        ((1, 8192, 1024), (1024,)),
        ((64, 1, 1, 513), (1, 12, 513, 1)),
        ((32, 12, 128, 128), (32, 1, 1, 128)),
        ((8, 512, 768), (1, 512, 768)),
        ((16, 64, 57, 57), (64, 1, 1)),
    ):
        for op in ("Add", "Mul"):
            yield item(binary(op, first, second), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """The frequent operators over 256 to 134 million elements."""
    kinds = sorted({kind for group in FREQUENT.values() for kind in group} | {"Div", "Exp", "Pow"})
    picked = sampler.pick(count, kinds)
    for n, (batch, rows, columns) in enumerate(sampler.sizes(count, ((1, 128), (16, 4096), (16, 4096)))):
        kind = kinds[picked[n]]
        shape = (batch, min(rows, 2048), columns)
        yield item(_made(kind, (*shape, 1) if kind.startswith("Channel") else shape), "sampled")
