"""Gathers, scatters and top-k."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import (
    CatalogueItem,
    constant,
    index,
    operator,
    weight,
    x,
)
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table


def embedding(entries: int, width: int, ids: Sequence[int]) -> Fragment:
    """Return a look-up of a table's rows by index."""
    return operator("Gather", weight(entries, width), index(ids, entries))


def topk(shape: Sequence[int], k: int) -> Fragment:
    """Return the k largest along the last axis, with their positions."""
    return operator("TopK", x(*shape), constant([k]), axis=-1, outputs=2)


def _elements(op_type: str, shape: Sequence[int], axis: int, count: int) -> Fragment:
    places = [*shape]
    places[axis] = count
    operands = [x(*shape), index(places, shape[axis])]
    if op_type == "ScatterElements":
        operands.append(x(*places))
    return operator(op_type, *operands, axis=axis)


def _scatter_nd(shape: Sequence[int], rows: int) -> Fragment:
    return operator("ScatterND", x(*shape), index((rows, 1), shape[0]), x(rows, *shape[1:]))


_MAKERS: Mapping[str, Callable[..., Fragment]] = {
    "embedding": embedding,
    "topk": topk,
    "elements": partial(_elements, "GatherElements"),
    "scatter_nd": _scatter_nd,
}
"""What the kinds of ``shapes.toml`` are measured as."""


def real() -> Iterator[CatalogueItem]:
    """Yield token and position embeddings, relative positions, proposals of detectors."""
    for entries, width in table("indexing", "vocabularies"):
        for batch, tokens in table("indexing", "lookups"):
            yield CatalogueItem(embedding(entries, width, (batch, tokens)), "language")
    for source, kind, *arguments in table("indexing", "real"):
        yield CatalogueItem(_MAKERS[kind](*arguments), source)


def corners() -> Iterator[Fragment]:
    """Yield tiny and huge tables, one row, columns, other axes, scatters."""
    for entries, width, ids in table("indexing", "table_corners"):
        yield embedding(entries, width, (ids,))
    for shape, axis, count in table("indexing", "axis_corners"):
        places = index((count,), shape[axis])
        yield operator("Gather", x(*shape), places, axis=axis)
    for row in table("indexing", "topk_corners"):
        yield topk(*row)
    for row in table("indexing", "element_corners"):
        yield _elements("GatherElements", *row)
        yield _elements("ScatterElements", *row)
    for shape, rows in table("indexing", "row_corners"):
        yield _scatter_nd(shape, rows)
        yield operator("GatherND", x(*shape), index((rows, 1), shape[0]))


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield tables of 64 to 262,144 rows of 8 to 8,192, up to 65,536 indices; some top-k."""
    for n, (entries, width, ids) in enumerate(sampler.sizes(count, table("indexing", "between"))):
        if n % 4 == 0:
            yield topk((max(1, ids // 256), min(entries, 65536)), min(entries, 16))
        else:
            yield embedding(entries, width, (ids,))
