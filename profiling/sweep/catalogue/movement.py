"""Data movement: transposes, concatenation, slices, splits, padding, tiling, casts and the copies of eager mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import (
    CatalogueItem,
    Link,
    chain,
    constant,
    item,
    operator,
    x,
)
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table

_BATCHES = (1, 8, 32)


def transpose(shape: Sequence[int], perm: Sequence[int]) -> Fragment:
    """Return a Transpose: a kernel in onnxruntime, a view in torch."""
    return operator("Transpose", x(*shape), attributes={"perm": tuple(perm)})


def transpose_copy(shape: Sequence[int], perm: Sequence[int]) -> Fragment:
    """Return a Transpose and a flattening Reshape: what torch's eager mode copies."""
    nodes: tuple[Link, ...] = (
        ("Transpose", ["x0"], "t", {"perm": tuple(perm)}),
        ("Reshape", ["t", "c1"], "y", {}),
    )
    return chain("contiguous_copy", [x(*shape), constant([-1])], *nodes)


def concat(shapes: Sequence[Sequence[int]], axis: int) -> Fragment:
    """Return a Concat of activations."""
    return operator("Concat", *(x(*s) for s in shapes), attributes={"axis": axis})


def _slice(shape: Sequence[int], axis: int, start: int, stop: int, step: int = 1) -> Fragment:
    bounds = [constant([n]) for n in (start, stop, axis, step)]
    return operator("Slice", x(*shape), *bounds)


def _split(shape: Sequence[int], axis: int, parts: int) -> Fragment:
    sizes = constant([shape[axis] // parts] * parts)
    return operator("Split", x(*shape), sizes, attributes={"axis": axis}, outputs=parts)


def _pad(shape: Sequence[int], pads: Sequence[int]) -> Fragment:
    return operator("Pad", x(*shape), constant(pads))


def _both(shape: Sequence[int], perm: Sequence[int]) -> tuple[Fragment, Fragment]:
    return transpose(shape, perm), transpose_copy(shape, perm)


def _attention(tokens: int, heads: int, size: int) -> Iterator[Fragment]:
    """Yield what moves around attention: heads apart, queries, keys and values apart, rotary halves, caches."""
    for batch in _BATCHES:
        yield from _both((batch, tokens, heads, size), (0, 2, 1, 3))
    yield from _both((8, tokens, heads, size), (0, 2, 3, 1))
    width = heads * size
    yield _split((8, tokens, 3 * width), 2, 3)
    yield _slice((8, heads, tokens, size), 3, 0, size // 2)
    yield concat([(8, heads, tokens, size // 2)] * 2, 3)
    yield concat([(8, 1, width), (8, tokens - 1, width)], 1)


def _images() -> Iterator[Fragment]:
    """Yield images that go to channels last and back, skip connections, dense blocks."""
    for channels, size in table("movement", "images"):
        for batch in (1, 16):
            yield from _both((batch, channels, size, size), (0, 2, 3, 1))
            yield from _both((batch, size, size, channels), (0, 3, 1, 2))
            yield concat([(batch, channels, size, size)] * 2, 1)
    for channels, size in table("movement", "dense_blocks"):
        for more in (1, 4):
            grown = [(8, 32, size, size)] * more
            yield concat([(8, channels, size, size), *grown], 1)


def _heads_of_detectors(batch: int) -> Iterator[Fragment]:
    yield concat([(batch, c, 80, 80) for c in (128, 256)], 1)
    yield concat([(batch, 85, n) for n in (6400, 1600, 400)], 2)
    yield from _both((batch, 3, 85, 80, 80), (0, 1, 3, 4, 2))


def real() -> Iterator[CatalogueItem]:
    """Yield heads of attention, channels-last and back, skip connections, detection heads, rotary halves."""
    for source, *row in table("movement", "heads"):
        for fragment in _attention(*row):
            yield item(fragment, source)
    for fragment in _images():
        yield item(fragment, "vision")
    for batch in (1, 8):
        for fragment in _heads_of_detectors(batch):
            yield item(fragment, "detection")
        yield item(_pad((batch, 3, 224, 224), (0, 0, 3, 3, 0, 0, 3, 3)), "vision")
        yield item(_pad((batch, 56, 56, 96), (0, 0, 0, 0, 0, 7, 7, 0)), "vision")
        yield item(operator("Tile", x(batch, 1, 256), constant([1, 100, 1])), "detection")
        blocks = {"blocksize": 2, "mode": "CRD"}
        yield item(operator("DepthToSpace", x(batch, 64, 128, 128), attributes=blocks), "vision")
        yield item(operator("Expand", x(batch, 1, 768), constant([batch, 197, 768])), "vision")


def corners() -> Iterator[Fragment]:
    """Yield matrices of odd and large sizes, thin ones, many axes, strided slices, one element."""
    for shape, perm in table("movement", "transposes"):
        yield from _both(shape, perm)
    for row in table("movement", "slices"):
        yield _slice(*row)
    for count, shape, axis in table("movement", "concats"):
        yield concat([shape] * count, axis)
    yield operator("Tile", x(1, 513), constant([1000, 1]))
    yield operator("Trilu", x(8, 1024, 1024), attributes={"upper": 0})


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield transposes (and their copies) of three and four axes, concatenations, slices."""
    kinds = ("heads", "heads_copy", "last", "last_copy", "concat", "concat_last", "slice", "pad")
    picked = sampler.pick(count, kinds)
    for n, (batch, a, b) in enumerate(sampler.sizes(count, table("movement", "between"))):
        kind, _, form = kinds[picked[n]].partition("_")
        turn = transpose_copy if form == "copy" else transpose
        match kind:
            case "heads":
                yield turn((batch, a, max(1, b // 64), 64), (0, 2, 1, 3))
            case "last":
                yield turn((batch, a, b), (0, 2, 1))
            case "concat":
                axis = 2 if form == "last" else 1
                yield concat([(batch, a, b)] * (2 + n % 3), axis)
            case "slice":
                yield _slice((batch, a, b), 1 + n % 2, 1, (a, b)[n % 2] - 1)
            case _:
                yield _pad((batch, a, b), (0, 1, 1, 0, 1, 1))
