"""Find the largest common block of two weights alone: by anchors, narrowing down, and by every shift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.equality import Array, equal_everywhere, equal_in_all_taps, floats
from gkestimator.merging.similarity.growing import Finding
from gkestimator.merging.similarity.rectangles import earlier, largest_rectangles
from gkestimator.merging.similarity.search import by_anchors_of_all, whole

_AT_ONCE = 1 << 20  # comparisons of shifts held at a time
_SMALL = 1 << 15  # comparisons that every shift may cost: beyond, anchors are faster
_NARROWER = 8  # how much smaller a rectangle is looked for when none was found


def largest_common_rectangle(a: Array, b: Array, *, tolerance: float, least: int = 1) -> Rectangle | None:
    """Return the largest block (contiguous rows and columns, all taps) that ``a`` and ``b`` share, at any
    offset.

    ``a`` and ``b``: [rows, columns, taps] of one type (float16, float32, float64, or uint16 for bfloat16) and
    as many taps. ``least``: values (rows x columns x taps) it must have, else None; the more, the faster. Of
    several largest ones: the smallest row, then column in ``a``, then in ``b``, then the one of more rows.
    Values are equal as in :mod:`gkestimator.merging.similarity.equality`.

    ``exact`` is False where so many places look alike (weights of few distinct values) that the search
    stopped before it had seen all. None is then no proof either.
    """
    if a.size == 0 or b.size == 0:
        return None
    rows, columns, taps = a.shape
    cells = max(1, -(-least // taps))
    if cells > _most_cells(a, b):
        return None
    if a.shape == b.shape and equal_everywhere(a, b, tolerance):
        return whole(rows, columns)
    if cost_of_every_shift(a, b) > _SMALL:
        return _by_narrowing(a, b, tolerance, cells)
    best = by_every_shift(a, b, tolerance=tolerance)
    if best is not None and best.cells >= cells:
        return best
    return None


def _most_cells(a: Array, b: Array) -> int:
    return int(min(a.shape[0], b.shape[0]) * min(a.shape[1], b.shape[1]))


def _by_narrowing(a: Array, b: Array, tolerance: float, smallest: int) -> Rectangle | None:
    """Look for large rectangles first: the fewer cells are asked for, the more anchors there are."""
    certain = True
    best: Rectangle | None = None
    cells = max(smallest, _most_cells(a, b) // 2)
    while True:
        candidate, exact = by_anchors(a, b, tolerance=tolerance, cells=cells)
        certain &= exact
        if candidate is not None and earlier(candidate, best):
            best = candidate
        enough = best is not None and best.cells >= cells
        if enough or cells == smallest:
            return best if best is None or certain else replace(best, exact=False)
        cells = max(smallest, cells // _NARROWER)


def by_anchors(a: Array, b: Array, *, tolerance: float, cells: int) -> Finding:
    """Return the largest common rectangle of ``a`` and ``b`` [rows, columns, taps] if it has at least
    ``cells`` cells.

    And whether that is certain. ``cells`` is at least 1.
    """
    if _most_cells(a, b) < cells:
        return None, True
    return by_anchors_of_all({0: a}, {0: b}, [(0, 0)], tolerance=tolerance, cells=cells)[0, 0]


def cost_of_every_shift(a: Array, b: Array) -> int:
    """Return how many values :func:`by_every_shift` compares."""
    shifts_down = a.shape[0] + b.shape[0] - 1
    shifts_right = a.shape[1] + b.shape[1] - 1
    return int(shifts_down * shifts_right * a.size)


def by_every_shift(a: Array, b: Array, *, tolerance: float) -> Rectangle | None:
    """Return the largest common rectangle of ``a`` and ``b`` [rows, columns, taps], or None where nothing is
    equal.
    """
    rows, columns, _ = a.shape
    a = floats(a)
    b = floats(b)
    # NaN equals nothing: what is outside b is no part of any rectangle.
    margin = ((rows - 1, rows - 1), (columns - 1, columns - 1), (0, 0))
    padded = np.pad(b, margin, constant_values=np.nan)
    best: Rectangle | None = None
    across = b.shape[1] + columns - 1
    step = max(1, _AT_ONCE // (across * a.size))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (rows, columns), axis=(0, 1))
    windows = windows.transpose(0, 1, 3, 4, 2)
    for down in range(0, windows.shape[0], step):
        masks = equal_in_all_taps(a, windows[down : down + step], tolerance)
        every = largest_rectangles(masks.reshape(-1, rows, columns))
        area = every[2] * every[3]
        most = int(area.max(initial=0))
        if most == 0:
            continue
        for place in np.flatnonzero(area == most).tolist():
            shift_down, shift_right = divmod(place, across)
            row, column, tall, wide = every[:, place].tolist()
            candidate = Rectangle(
                rows=tall,
                columns=wide,
                row_a=row,
                column_a=column,
                row_b=row + down + shift_down - (rows - 1),
                column_b=column + shift_right - (columns - 1),
            )
            if earlier(candidate, best):
                best = candidate
    return best
