"""Small constructors of fragments, in float32; :mod:`profiling.sweep.precision` makes the other element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor, JsonAttribute
from gkestimator.core.records import frozen

OPSET = 18
"""Opset of catalogue fragments that need no later one: what every ONNX Runtime since 1.14 runs."""
Link = tuple[str, Sequence[str], str, Mapping[str, JsonAttribute]]
"""A node of a chain: type, inputs, output, attributes."""


@frozen
class CatalogueItem:
    """A fragment of the catalogue. ``source``: ``vision``, ``language``, ``detection`` (shapes of architectures that
    people run), ``corner`` (the edges of a family's range) or ``sampled`` (between them)."""

    fragment: Fragment
    source: str


def item(fragment: Fragment, source: str) -> CatalogueItem:
    """An :class:`CatalogueItem`."""
    return CatalogueItem(fragment=fragment, source=source)


def x(*shape: int, dtype: DType = DType.FLOAT) -> FragmentTensor:
    """An activation of normal samples; :func:`operator` names it."""
    return FragmentTensor(name="x", dtype=dtype, shape=shape)


def positive(*shape: int) -> FragmentTensor:
    """An activation of samples from (0.5, 1.5)."""
    return FragmentTensor(name="x", dtype=DType.FLOAT, shape=shape, fill="positive")


def weight(*shape: int, fill: str = "normal") -> FragmentTensor:
    """A float parameter."""
    return FragmentTensor(name="w", dtype=DType.FLOAT, shape=shape, role="weight", fill=fill)


def index(shape: Sequence[int], below: int, dtype: DType = DType.INT64) -> FragmentTensor:
    """Whole numbers from 0 up to (not including) ``below``."""
    return FragmentTensor(name="i", dtype=dtype, shape=tuple(shape), fill="index", below=below)


def mask(*shape: int) -> FragmentTensor:
    """Truth values."""
    return FragmentTensor(name="m", dtype=DType.BOOL, shape=shape, fill="mask")


def constant(
    values: Sequence[float | int], *, dtype: DType = DType.INT64, shape: Sequence[int] | None = None
) -> FragmentTensor:
    """An initialiser whose values decide what is calculated; a vector unless ``shape`` says otherwise."""
    return FragmentTensor(
        name="c",
        dtype=dtype,
        shape=(len(values),) if shape is None else tuple(shape),
        role="constant",
        fill="value",
        values=tuple(values),
    )


def _named(tensors: Sequence[FragmentTensor | None]) -> list[FragmentTensor | None]:
    named: list[FragmentTensor | None] = []
    for number, t in enumerate(tensors):
        named.append(
            None
            if t is None
            else FragmentTensor(
                name=f"{t.name}{number}",
                dtype=t.dtype,
                shape=t.shape,
                role=t.role,
                fill=t.fill,
                below=t.below,
                values=t.values,
            )
        )
    return named


def operator(
    op_type: str,
    *tensors: FragmentTensor | None,
    attributes: Mapping[str, JsonAttribute] | None = None,
    outputs: int = 1,
    opset: int = OPSET,
    domain: str = "",
) -> Fragment:
    """One node that reads ``tensors`` in order (None: an omitted optional input) and writes ``outputs`` results."""
    named = _named(tensors)
    results = tuple("y" if outputs == 1 else f"y{i}" for i in range(outputs))
    node = FragmentNode(
        op_type=op_type,
        domain=domain,
        attributes=dict(attributes or {}),
        inputs=tuple("" if t is None else t.name for t in named),
        outputs=results,
    )
    return Fragment(
        opsets={"": OPSET, domain: 1} if domain else {"": opset},
        nodes=(node,),
        tensors=tuple(t for t in named if t is not None),
        outputs=results,
    )


def chain(
    pattern: str,
    tensors: Sequence[FragmentTensor],
    *nodes: Link,
    opset: int = OPSET,
) -> Fragment:
    """A pattern: ``nodes`` are (type, inputs, output, attributes); tensors are called by their kind's letter and their
    number (``x0``, ``w1``, ``c2``); the last node's output is the result."""
    named = [t for t in _named(tensors) if t is not None]
    return Fragment(
        opsets={"": opset},
        nodes=tuple(
            FragmentNode(
                op_type=op, domain="", attributes=dict(attributes), inputs=tuple(reads), outputs=(writes,)
            )
            for op, reads, writes, attributes in nodes
        ),
        tensors=tuple(named),
        outputs=(nodes[-1][2],),
        pattern=pattern,
    )
