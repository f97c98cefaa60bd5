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
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

_BATCHES = (1, 8, 32)


def transpose(shape: Sequence[int], perm: Sequence[int]) -> Fragment:
    """A Transpose: a kernel in onnxruntime, a view in torch."""
    return operator("Transpose", x(*shape), attributes={"perm": tuple(perm)})


def transpose_copy(shape: Sequence[int], perm: Sequence[int]) -> Fragment:
    """A Transpose and a flattening Reshape: what torch's eager mode copies."""
    nodes: tuple[Link, ...] = (
        ("Transpose", ["x0"], "t", {"perm": tuple(perm)}),
        ("Reshape", ["t", "c1"], "y", {}),
    )
    return chain("contiguous_copy", [x(*shape), constant([-1])], *nodes)


def concat(shapes: Sequence[Sequence[int]], axis: int) -> Fragment:
    """A Concat of activations."""
    return operator("Concat", *(x(*s) for s in shapes), attributes={"axis": axis})


def _slice(shape: Sequence[int], axis: int, start: int, stop: int, step: int = 1) -> Fragment:
    return operator(
        "Slice", x(*shape), constant([start]), constant([stop]), constant([axis]), constant([step])
    )


def _split(shape: Sequence[int], axis: int, parts: int) -> Fragment:
    each = constant([shape[axis] // parts] * parts)
    return operator("Split", x(*shape), each, attributes={"axis": axis}, outputs=parts)


def _both(shape: Sequence[int], perm: Sequence[int], source: str) -> Iterator[CatalogueItem]:
    yield item(transpose(shape, perm), source)
    yield item(transpose_copy(shape, perm), source)


def real() -> Iterator[CatalogueItem]:
    """Heads of attention, channels-last and back, skip connections, detection heads, rotary halves."""
    for tokens, heads, size, source in (
        (128, 12, 64, "language"),
        (512, 12, 64, "language"),
        (512, 32, 128, "language"),
        (197, 12, 64, "vision"),
        (2048, 32, 128, "language"),
        (577, 16, 64, "vision"),
    ):
        for batch in _BATCHES:
            yield from _both((batch, tokens, heads, size), (0, 2, 1, 3), source)
        yield from _both((8, tokens, heads, size), (0, 2, 3, 1), source)
        width = heads * size
        yield item(_split((8, tokens, 3 * width), 2, 3), source)
        yield item(_slice((8, heads, tokens, size), 3, 0, size // 2), source)
        yield item(concat([(8, heads, tokens, size // 2)] * 2, 3), source)
        yield item(concat([(8, 1, width), (8, tokens - 1, width)], 1), source)
    for channels, size in ((96, 56), (192, 28), (384, 14), (768, 7), (256, 56)):
        for batch in (1, 16):
            yield from _both((batch, channels, size, size), (0, 2, 3, 1), "vision")
            yield from _both((batch, size, size, channels), (0, 3, 1, 2), "vision")
            yield item(concat([(batch, channels, size, size)] * 2, 1), "vision")
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):  # dense blocks
        for more in (1, 4):
            parts = [(8, channels, size, size), *[(8, 32, size, size)] * more]
            yield item(concat(parts, 1), "vision")
    for batch in (1, 8):
        yield item(concat([(batch, c, 80, 80) for c in (128, 256)], 1), "detection")
        yield item(concat([(batch, 85, n) for n in (6400, 1600, 400)], 2), "detection")
        yield from _both((batch, 3, 85, 80, 80), (0, 1, 3, 4, 2), "detection")
        for op, shape, pads in (
            ("Pad", (batch, 3, 224, 224), (0, 0, 3, 3, 0, 0, 3, 3)),
            ("Pad", (batch, 56, 56, 96), (0, 0, 0, 0, 0, 7, 7, 0)),
        ):
            yield item(operator(op, x(*shape), constant(pads)), "vision")
        yield item(operator("Tile", x(batch, 1, 256), constant([1, 100, 1])), "detection")
        yield item(
            operator("DepthToSpace", x(batch, 64, 128, 128), attributes={"blocksize": 2, "mode": "CRD"}),
            "vision",
        )
        yield item(operator("Expand", x(batch, 1, 768), constant([batch, 197, 768])), "vision")


def corners() -> Iterator[CatalogueItem]:
    """Matrices of odd and large sizes, thin ones, many axes, strided slices, one element."""
    for shape, perm in (
        ((1, 7), (1, 0)),
        ((513, 511), (1, 0)),
        ((4096, 4096), (1, 0)),
        ((16384, 4096), (1, 0)),
        ((100000, 3), (1, 0)),
        ((3, 100000), (1, 0)),
        ((32, 64, 128), (2, 1, 0)),
        ((8, 16, 32, 64), (3, 2, 1, 0)),
        ((2, 7, 2, 7, 2, 96), (0, 2, 4, 1, 3, 5)),
        ((64, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)),
    ):
        yield from _both(shape, perm, "corner")
    for shape, axis, start, stop, step in (
        ((1, 7), 1, 0, 1, 1),
        ((4096, 4096), 1, 0, 4096, 2),
        ((4096, 4096), 0, 1, 4095, 1),
        ((64, 513, 513), 2, 1, 512, 3),
    ):
        yield item(_slice(shape, axis, start, stop, step), "corner")
    for count, shape, axis in ((2, (1, 1), 0), (8, (1, 513, 57), 1), (32, (64, 64), 0), (2, (4096, 8192), 1)):
        yield item(concat([shape] * count, axis), "corner")
    yield item(operator("Tile", x(1, 513), constant([1000, 1])), "corner")
    yield item(operator("Trilu", x(8, 1024, 1024), attributes={"upper": 0}), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Transposes (and their copies) of three and four axes, concatenations, slices."""
    kinds = ("heads", "heads_copy", "last", "last_copy", "concat", "concat_last", "slice", "pad")
    picked = sampler.pick(count, kinds)
    for n, (batch, a, b) in enumerate(sampler.sizes(count, ((1, 128), (8, 2048), (8, 4096)))):
        kind = kinds[picked[n]]
        heads = max(1, b // 64)
        if kind.startswith("heads"):
            make = transpose_copy if kind.endswith("copy") else transpose
            fragment = make((batch, a, heads, 64), (0, 2, 1, 3))
        elif kind.startswith("last"):
            make = transpose_copy if kind.endswith("copy") else transpose
            fragment = make((batch, a, b), (0, 2, 1))
        elif kind.startswith("concat"):
            axis = 2 if kind.endswith("last") else 1
            fragment = concat([(batch, a, b)] * (2 + n % 3), axis)
        elif kind == "slice":
            fragment = _slice((batch, a, b), 1 + n % 2, 1, (a, b)[n % 2] - 1)
        else:
            fragment = operator("Pad", x(batch, a, b), constant([0, 1, 1, 0, 1, 1]))
        yield item(fragment, "sampled")
