"""The largest block that two weights have in common, and which of many pairs have one that is large enough."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.equality import checked_tolerance, equal_everywhere, floats
from gkestimator.merging.similarity.pair_search import by_anchors
from gkestimator.merging.similarity.shifts import by_every_shift, cost_of_every_shift, earlier

_SMALL = 1 << 15  # comparisons that every shift may cost: beyond, anchors are faster
_NARROWER = 8  # how much smaller a rectangle is looked for when none was found


def largest_common_rectangle(
    a: np.ndarray, b: np.ndarray, *, tolerance: float, least: int = 1
) -> Rectangle | None:
    """The largest block (contiguous rows and columns, all taps) that ``a`` and ``b`` have in common, at any offset.

    ``a`` and ``b``: [rows, columns, taps] of one type (float16, float32, float64, or uint16 for bfloat16) and as many
    taps. ``least``: values (rows x columns x taps) it must have, else None; the more, the faster. Of several largest
    ones: the smallest row, then column in ``a``, then in ``b``, then the one of more rows. Values are equal as in
    :mod:`gkestimator.merging.similarity.equality`.

    ``exact`` is False where so many places look alike (weights of few distinct values) that the search stopped before
    it had seen all. None is then no proof either.

    Raises UsageError for a negative or infinite tolerance and for weights that cannot be compared.
    """
    tolerance = checked_tolerance(tolerance)
    if a.ndim != 3 or b.ndim != 3 or a.dtype != b.dtype or a.shape[2] != b.shape[2]:
        raise UsageError(
            f"weights of shapes {list(a.shape)} ({a.dtype}) and {list(b.shape)} ({b.dtype}): expected rows, columns "
            "and taps of both, of one type and as many taps"
        )
    if a.size == 0 or b.size == 0:
        return None
    floats(a[:0])  # the type's error
    taps = a.shape[2]
    smallest = max(1, -(-least // taps))
    most = min(a.shape[0], b.shape[0]) * min(a.shape[1], b.shape[1])
    if smallest > most:
        return None
    if a.shape == b.shape and equal_everywhere(a, b, tolerance):
        return whole(a.shape[0], a.shape[1])
    if cost_of_every_shift(a, b) <= _SMALL:
        found = by_every_shift(a, b, tolerance=tolerance)
        if found is not None and found.rows * found.columns >= smallest:
            return found
        return None
    certain = True
    best = None
    cells = max(smallest, most // 2)
    while True:
        found, exact = by_anchors(a, b, tolerance=tolerance, cells=cells)
        certain &= exact
        if found is not None and earlier(found, best):
            best = found
        if cells == smallest or (best is not None and best.rows * best.columns >= cells):
            if best is None or certain:
                return best
            return replace(best, exact=False)
        cells = max(smallest, cells // _NARROWER)


def whole(rows: int, columns: int) -> Rectangle:
    """The rectangle of two equal weights."""
    return Rectangle(rows=rows, columns=columns, row_a=0, column_a=0, row_b=0, column_b=0)
