"""The largest block that two weights have in common, and which of many pairs have one that is large enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gkestimator.errors import UsageError
from gkestimator.merging.operators import Rectangle, WeightMatrix, similarity
from gkestimator.merging.similarity.equality import checked_tolerance, equal_cells, equal_everywhere
from gkestimator.merging.similarity.rectangles import largest_rectangles
from gkestimator.merging.similarity.shifts import by_every_shift, cost_of_every_shift

__all__ = ["largest_common_rectangle", "similar_pairs"]


def largest_common_rectangle(
    a: np.ndarray, b: np.ndarray, *, tolerance: float, least: int = 1
) -> Rectangle | None:
    """The largest block (contiguous rows and columns, all taps) that ``a`` and ``b`` have in common, at any offset."""
    tolerance = checked_tolerance(tolerance)
    if a.ndim != 3 or b.ndim != 3 or a.dtype != b.dtype or a.shape[2] != b.shape[2]:
        raise UsageError("two weights of one type and of as many taps are compared")
    if a.size == 0 or b.size == 0:
        return None
    if a.shape == b.shape and equal_everywhere(a, b, tolerance):
        found: Rectangle | None = _whole(a.shape[0], a.shape[1])
    elif cost_of_every_shift(a, b) <= 1 << 24:
        found = by_every_shift(a, b, tolerance=tolerance)
    else:
        found = _same_place(a, b, tolerance)
    return found if found and found.rows * found.columns * a.shape[2] >= least else None


def similar_pairs(
    left: Sequence[WeightMatrix],
    right: Sequence[WeightMatrix],
    pairs: Iterable[tuple[int, int]],
    *,
    omega: float,
    tolerance: float,
) -> dict[tuple[int, int], Rectangle]:
    """The pairs (index in ``left``, index in ``right``) of similarity at least ``omega``, and what they share."""
    found: dict[tuple[int, int], Rectangle] = {}
    for i, j in pairs:
        a, b = left[i], right[j]
        if a.dtype is not b.dtype or a.taps != b.taps:
            continue
        least = math.ceil(omega * (a.elements + b.elements) / 2 - 1e-9)
        if min(a.rows, b.rows) * min(a.columns, b.columns) * a.taps < least:
            continue
        r = largest_common_rectangle(a.array(), b.array(), tolerance=tolerance, least=least)
        if r is not None and similarity(a, b, r) >= omega:
            found[i, j] = r
    return found


def _same_place(a: np.ndarray, b: np.ndarray, tolerance: float) -> Rectangle | None:
    """The largest block at equal offsets: not known to be the largest of all."""
    rows, columns = min(a.shape[0], b.shape[0]), min(a.shape[1], b.shape[1])
    mask = equal_cells(a[:rows, :columns], b[:rows, :columns], tolerance).all(axis=-1)
    row, column, tall, wide = (int(v[0]) for v in largest_rectangles(mask[None]))
    if tall == 0:
        return None
    return Rectangle(
        rows=tall, columns=wide, row_a=row, column_a=column, row_b=row, column_b=column, exact=False
    )


def _whole(rows: int, columns: int) -> Rectangle:
    return Rectangle(rows=rows, columns=columns, row_a=0, column_a=0, row_b=0, column_b=0)
