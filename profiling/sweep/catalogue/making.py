"""Small constructors of fragments, in float32; :mod:`profiling.sweep.precision` makes the other element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor, JsonAttribute

OPSET = 18
"""Opset of catalogue fragments that need no later one: what every ONNX Runtime since 1.14 runs."""
Link = tuple[str, Sequence[str], str, Mapping[str, JsonAttribute]]
"""A node of a chain: type, inputs, output, attributes."""


class CatalogueItem(NamedTuple):
    """Hold a fragment of the catalogue. ``source``: ``vision``, ``language``, ``detection`` (shapes of architectures
    that people run), ``corner`` (the edges of a family's range) or ``sampled`` (between them)."""

    fragment: Fragment
    source: str


def x(*shape: int) -> FragmentTensor:
    """Return an activation of normal samples; :func:`operator` names it."""
    return FragmentTensor(name="x", dtype=DType.FLOAT, shape=shape)


def positive(*shape: int) -> FragmentTensor:
    """Return an activation of samples from (0.5, 1.5)."""
    return replace(x(*shape), fill="positive")


def weight(*shape: int, fill: str = "normal") -> FragmentTensor:
    """Return a float parameter."""
    return FragmentTensor(name="w", dtype=DType.FLOAT, shape=shape, role="weight", fill=fill)


def index(shape: Sequence[int], below: int) -> FragmentTensor:
    """Return whole numbers from 0 up to (not including) ``below``."""
    return FragmentTensor(name="i", dtype=DType.INT64, shape=tuple(shape), fill="index", below=below)


def mask(*shape: int) -> FragmentTensor:
    """Return truth values."""
    return FragmentTensor(name="m", dtype=DType.BOOL, shape=shape, fill="mask")


def constant(
    values: Sequence[float | int], *, dtype: DType = DType.INT64, shape: Sequence[int] | None = None
) -> FragmentTensor:
    """Return an initialiser whose values decide what is calculated; a vector unless ``shape`` says otherwise."""
    extent = (len(values),) if shape is None else tuple(shape)
    return FragmentTensor(
        name="c", dtype=dtype, shape=extent, role="constant", fill="value", values=tuple(values)
    )


def scalar(value: float) -> FragmentTensor:
    """Return a float of no dimensions."""
    return constant([value], dtype=DType.FLOAT, shape=())


def _named(tensors: Sequence[FragmentTensor | None]) -> dict[int, FragmentTensor]:
    """Return the tensors that are there by their position, named by their kind's letter and that position."""
    named = {}
    for position, tensor in enumerate(tensors):
        if tensor is not None:
            named[position] = replace(tensor, name=f"{tensor.name}{position}")
    return named


def operator(
    op_type: str,
    *tensors: FragmentTensor | None,
    outputs: int = 1,
    opset: int = OPSET,
    **attributes: JsonAttribute,
) -> Fragment:
    """Return one node that reads ``tensors`` in order (None: an omitted optional input) and writes ``outputs``
    results."""
    named = _named(tensors)
    reads = [""] * len(tensors)
    for position, tensor in named.items():
        reads[position] = tensor.name
    # Names are part of the entry's id: one result has the shortest.
    results = ("y",) if outputs == 1 else tuple(f"y{i}" for i in range(outputs))
    node = FragmentNode(
        op_type=op_type, domain="", attributes=attributes, inputs=tuple(reads), outputs=results
    )
    return Fragment(opsets={"": opset}, nodes=(node,), tensors=tuple(named.values()), outputs=results)


def chain(pattern: str, tensors: Sequence[FragmentTensor], *links: Link) -> Fragment:
    """Return a pattern: ``links`` are (type, inputs, output, attributes); tensors are called by their kind's letter and
    their number (``x0``, ``w1``, ``c2``); the last node's output is the result."""
    nodes = []
    for op_type, reads, result, attributes in links:
        node = FragmentNode(
            op_type=op_type,
            domain="",
            attributes=dict(attributes),
            inputs=tuple(reads),
            outputs=(result,),
        )
        nodes.append(node)
    return Fragment(
        opsets={"": OPSET},
        nodes=tuple(nodes),
        tensors=tuple(_named(tensors).values()),
        outputs=nodes[-1].outputs,
        pattern=pattern,
    )
