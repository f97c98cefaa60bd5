"""Resizing, sampling of regions, recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, constant, operator, weight, x
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table
from gkestimator.profiling.type_names import Fields

_GATES = {"LSTM": 4, "GRU": 3}


def resize(shape: Sequence[int], factor: float, mode: str) -> Fragment:
    """Return both image sides times ``factor``."""
    scales = constant([1.0, 1.0, factor, factor], dtype=DType.FLOAT)
    attributes: Fields = {"mode": mode, "coordinate_transformation_mode": "half_pixel"}
    if mode == "nearest":
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return operator("Resize", x(*shape), None, scales, **attributes)


def _regions(channels: int, height: int, width: int, regions: int, size: int) -> Fragment:
    """Return a RoIAlign over boxes on a grid, a quarter of the image wide and high."""
    # Primes spread the corners over the image, the same on every machine.
    boxes: list[float] = []
    for n in range(regions):
        left = (n * 7919) % max(1, 3 * width // 4)
        top = (n * 104729) % max(1, 3 * height // 4)
        right = left + width // 4
        bottom = top + height // 4
        boxes += map(float, (left, top, right, bottom))
    return operator(
        "RoiAlign",
        x(1, channels, height, width),
        constant(boxes, dtype=DType.FLOAT, shape=(regions, 4)),
        constant([0] * regions),
        output_height=size,
        output_width=size,
        sampling_ratio=2,
        mode="avg",
    )


def recurrent(
    op_type: str, length: int, batch: int, width: int, hidden: int, *, both: bool = False
) -> Fragment:
    """Return one recurrent layer over (length, batch, width), forwards or in both directions."""
    directions = 2 if both else 1
    rows = _GATES[op_type] * hidden
    attributes: Fields = {
        "direction": "bidirectional" if both else "forward",
        "hidden_size": hidden,
    }
    if op_type == "GRU":
        attributes["linear_before_reset"] = 1
    return operator(
        op_type,
        x(length, batch, width),
        weight(directions, rows, width),
        weight(directions, rows, hidden),
        weight(directions, 2 * rows),
        **attributes,
    )


def real() -> Iterator[CatalogueItem]:
    """Yield necks of detectors, decoders of segmentation, RoIAlign of two-stage detectors."""
    for source, shapes in table("resampling").items():
        for shape in shapes:
            for batch in (1, 8, 32):
                yield CatalogueItem(resize((batch, *shape), 2.0, "nearest"), source)
                yield CatalogueItem(resize((batch, *shape), 2.0, "linear"), source)
    for batch in (1, 8):
        yield CatalogueItem(resize((batch, 21, 65, 65), 8.0, "linear"), "vision")
        yield CatalogueItem(resize((batch, 3, 256, 256), 0.875, "linear"), "vision")
    for row in table("resampling", "regions"):
        yield CatalogueItem(_regions(256, *row), "detection")


def corners() -> Iterator[Fragment]:
    """Yield one channel, odd sides, large factors, cubic, sampling by a grid."""
    for shape in table("resampling", "corners"):
        for factor, mode in table("resampling", "corner_kinds"):
            yield resize(shape, factor, mode)
    for batch, channels, size in table("resampling", "grids"):
        yield operator("GridSample", x(batch, channels, size, size), x(batch, size, size, 2))


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield nearest and linear, by 2 and by a half."""
    kinds = ((2.0, "nearest"), (2.0, "linear"), (0.5, "linear"))
    picked = sampler.pick(count, kinds)
    for n, (batch, channels, size) in enumerate(sampler.sizes(count, table("resampling", "between"))):
        factor, mode = picked[n]
        yield resize((batch, channels, size, size), factor, mode)


def recurrent_real() -> Iterator[CatalogueItem]:
    """Yield speech and text models of one to two layers."""
    for op_type in _GATES:
        for length, width, hidden, both in table("recurrent", "layers"):
            for batch in (1, 16):
                yield CatalogueItem(recurrent(op_type, length, batch, width, hidden, both=both), "language")


def recurrent_corners() -> Iterator[Fragment]:
    """Yield one step, small and odd states."""
    for op_type in _GATES:
        for row in table("recurrent", "corners"):
            yield recurrent(op_type, *row)


def recurrent_sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield lengths 1 to 256, widths 16 to 1,024."""
    for n, row in enumerate(sampler.sizes(count, table("recurrent", "between"))):
        yield recurrent(("LSTM", "GRU")[n % 2], *row, both=n % 4 == 0)
