"""Gathers, scatters, top-k, resizing, sampling of regions, recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import VOCABULARIES
from gkestimator.profiling.sweep.catalogue.making import (
    CatalogueItem,
    constant,
    index,
    item,
    operator,
    weight,
    x,
)
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler


def embedding(entries: int, width: int, ids: Sequence[int]) -> Fragment:
    """Rows of a table by index."""
    return operator("Gather", weight(entries, width), index(ids, entries))


def topk(shape: Sequence[int], k: int) -> Fragment:
    """The k largest along the last axis, with their positions."""
    return operator("TopK", x(*shape), constant([k]), attributes={"axis": -1}, outputs=2)


def resize(shape: Sequence[int], factor: float, mode: str) -> Fragment:
    """Both image sides times ``factor``."""
    scales = constant([1.0, 1.0, factor, factor], dtype=DType.FLOAT)
    how = "asymmetric" if mode == "nearest" else "half_pixel"
    attributes = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    return operator("Resize", x(*shape), None, scales, attributes=attributes)


def _elements(op_type: str, shape: Sequence[int], axis: int, taken: int) -> Fragment:
    places = [*shape]
    places[axis] = taken
    ids = index(places, shape[axis])
    updates = [x(*places)] if op_type == "ScatterElements" else []
    return operator(op_type, x(*shape), ids, *updates, attributes={"axis": axis})


def _scatter_nd(shape: Sequence[int], rows: int) -> Fragment:
    return operator("ScatterND", x(*shape), index((rows, 1), shape[0]), x(rows, *shape[1:]))


def _regions(channels: int, height: int, width: int, regions: int, size: int) -> Fragment:
    """RoIAlign over boxes on a grid, a quarter of the image wide and high."""
    boxes = []
    for n in range(regions):
        left = (n * 7919) % max(1, 3 * width // 4)
        top = (n * 104729) % max(1, 3 * height // 4)
        boxes += [float(left), float(top), float(left + width // 4), float(top + height // 4)]
    return operator(
        "RoiAlign",
        x(1, channels, height, width),
        constant(boxes, dtype=DType.FLOAT, shape=(regions, 4)),
        constant([0] * regions),
        attributes={"output_height": size, "output_width": size, "sampling_ratio": 2, "mode": "avg"},
    )


def recurrent(op_type: str, length: int, batch: int, width: int, hidden: int, *, both: bool) -> Fragment:
    """One recurrent layer over (length, batch, width); gates 4 for LSTM, 3 for GRU."""
    gates = {"LSTM": 4, "GRU": 3}[op_type]
    ways = 2 if both else 1
    attributes: dict[str, int | str] = {
        "direction": "bidirectional" if both else "forward",
        "hidden_size": hidden,
    }
    if op_type == "GRU":
        attributes["linear_before_reset"] = 1
    return operator(
        op_type,
        x(length, batch, width),
        weight(ways, gates * hidden, width),
        weight(ways, gates * hidden, hidden),
        weight(ways, 2 * gates * hidden),
        attributes=attributes,
    )


def real() -> Iterator[CatalogueItem]:
    """Token and position embeddings, relative positions, proposals of detectors."""
    for entries, width in VOCABULARIES:
        for batch, tokens in ((1, 1), (1, 128), (8, 128), (8, 512), (32, 512)):
            if entries > 512 or tokens <= 512:
                yield item(embedding(entries, width, (batch, tokens)), "language")
    for heads in (3, 12):
        yield item(embedding(169, heads, (2401,)), "vision")
    for batch in (1, 8):
        yield item(topk((batch, 8400), 300), "detection")
        yield item(topk((batch, 242991), 1000), "detection")
        yield item(topk((batch, 50257), 50), "language")
        yield item(_elements("GatherElements", (batch, 8400, 4), 1, 300), "detection")
        yield item(_elements("GatherElements", (batch, 8400, 80), 1, 300), "detection")
    yield item(_scatter_nd((1024, 768), 128), "language")


def corners() -> Iterator[CatalogueItem]:
    """Tiny and huge tables, one row, columns, other axes, scatters."""
    for entries, width, ids in (
        (2, 1, 1),
        (1000000, 16, 65536),
        (1000000, 128, 1024),
        (50257, 1, 4096),
        (7, 513, 7000),
        (128, 4096, 8192),
    ):
        yield item(embedding(entries, width, (ids,)), "corner")
    looked: tuple[tuple[tuple[int, ...], int, int], ...] = (
        ((64, 512, 768), 1, 1),
        ((64, 768, 512), 2, 100),
        ((8, 256, 56, 56), 1, 128),
    )
    for shape, axis, taken in looked:
        places = index((taken,), shape[axis])
        yield item(operator("Gather", x(*shape), places, attributes={"axis": axis}), "corner")
    for sides, k in (((1, 1000003), 1), ((4096, 64), 8), ((1024, 1000), 5), ((3, 513), 513)):
        yield item(topk(sides, k), "corner")
    picked: tuple[tuple[tuple[int, ...], int, int], ...] = (
        ((1000, 1000), 0, 500),
        ((64, 4096), 1, 64),
        ((7, 513, 33), 2, 9),
    )
    for shape, axis, taken in picked:
        yield item(_elements("GatherElements", shape, axis, taken), "corner")
        yield item(_elements("ScatterElements", shape, axis, taken), "corner")
    for sides, rows in (((16, 7), 3), ((65536, 64), 8192), ((512, 4096), 512)):
        yield item(_scatter_nd(sides, rows), "corner")
        yield item(operator("GatherND", x(*sides), index((rows, 1), sides[0])), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Tables of 64 to 262,144 rows of 8 to 8,192, up to 65,536 indices; some top-k."""
    for n, (entries, width, ids) in enumerate(sampler.sizes(count, ((64, 262144), (8, 8192), (1, 65536)))):
        if n % 4 == 0:
            yield item(topk((max(1, ids // 256), min(entries, 65536)), min(entries, 16)), "sampled")
        else:
            yield item(embedding(entries, width, (ids,)), "sampled")


def resample_real() -> Iterator[CatalogueItem]:
    """Necks of detectors, decoders of segmentation, RoIAlign of two-stage detectors."""
    for shape, source in (
        ((256, 20, 20), "detection"),
        ((128, 40, 40), "detection"),
        ((256, 100, 152), "detection"),
        ((512, 16, 16), "vision"),
        ((256, 32, 32), "vision"),
        ((64, 128, 128), "vision"),
        ((1280, 8, 8), "vision"),
    ):
        for batch in (1, 8, 32):
            yield item(resize((batch, *shape), 2.0, "nearest"), source)
            yield item(resize((batch, *shape), 2.0, "linear"), source)
    for batch in (1, 8):
        yield item(resize((batch, 21, 65, 65), 8.0, "linear"), "vision")
        yield item(resize((batch, 3, 256, 256), 0.875, "linear"), "vision")
    for height, width, regions, size in ((200, 304, 512, 7), (100, 152, 1000, 7), (50, 76, 100, 14)):
        yield item(_regions(256, height, width, regions, size), "detection")


def resample_corners() -> Iterator[CatalogueItem]:
    """One channel, odd sides, large factors, cubic, sampling by a grid."""
    for shape in ((1, 1, 7, 7), (1, 3, 513, 513), (128, 64, 14, 14), (1, 2048, 7, 7)):
        for factor, mode in (
            (2.0, "nearest"),
            (3.0, "linear"),
            (2.0, "cubic"),
            (0.5, "linear"),
            (0.5, "nearest"),
        ):
            yield item(resize(shape, factor, mode), "corner")
    for batch, channels, size in ((1, 256, 64), (8, 32, 33)):
        yield item(operator("GridSample", x(batch, channels, size, size), x(batch, size, size, 2)), "corner")


def resample_sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Nearest and linear, by 2 and by a half."""
    kinds = ((2.0, "nearest"), (2.0, "linear"), (0.5, "linear"))
    picked = sampler.pick(count, kinds)
    for n, (batch, channels, size) in enumerate(sampler.sizes(count, ((1, 64), (1, 1024), (7, 256)))):
        factor, mode = kinds[picked[n]]
        yield item(resize((batch, channels, size, size), factor, mode), "sampled")


def recurrent_real() -> Iterator[CatalogueItem]:
    """Speech and text models of one to two layers."""
    for op in ("LSTM", "GRU"):
        for length, width, hidden, both in (
            (128, 256, 256, True),
            (128, 512, 512, False),
            (512, 128, 128, True),
            (64, 1024, 1024, False),
        ):
            for batch in (1, 16):
                yield item(recurrent(op, length, batch, width, hidden, both=both), "language")


def recurrent_corners() -> Iterator[CatalogueItem]:
    """One step, small and odd states."""
    for op in ("LSTM", "GRU"):
        for length, batch, width, hidden in ((1, 1, 16, 16), (1, 64, 1024, 1024), (33, 3, 57, 57)):
            yield item(recurrent(op, length, batch, width, hidden, both=False), "corner")


def recurrent_sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Lengths 1 to 256, widths 16 to 1,024."""
    for n, (length, batch, width, hidden) in enumerate(
        sampler.sizes(count, ((1, 256), (1, 64), (16, 1024), (16, 1024)))
    ):
        yield item(
            recurrent(("LSTM", "GRU")[n % 2], length, batch, width, hidden, both=n % 4 == 0), "sampled"
        )
