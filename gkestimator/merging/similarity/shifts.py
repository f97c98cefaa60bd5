"""Every shift of one weight against the other: the search for small weights."""

from __future__ import annotations

import numpy as np

from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.equality import equal_in_all_taps, floats
from gkestimator.merging.similarity.rectangles import largest_rectangles

_AT_ONCE = 1 << 20  # comparisons held at a time


def cost_of_every_shift(a: np.ndarray, b: np.ndarray) -> int:
    """How many values :func:`by_every_shift` compares."""
    return int((a.shape[0] + b.shape[0] - 1) * (a.shape[1] + b.shape[1] - 1) * a.size)


def earlier(found: Rectangle, than: Rectangle | None) -> bool:
    """Whether ``found`` is the better of two: larger; else smaller offsets in a, then in b; else more rows."""
    if than is None:
        return True
    return _order(found) < _order(than)


def _order(r: Rectangle) -> tuple[int, ...]:
    return (-r.rows * r.columns, r.row_a, r.column_a, r.row_b, r.column_b, -r.rows)


def by_every_shift(a: np.ndarray, b: np.ndarray, *, tolerance: float) -> Rectangle | None:
    """The largest common rectangle of ``a`` and ``b`` [rows, columns, taps], or None where nothing is equal."""
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
        row, column, tall, wide = largest_rectangles(masks.reshape(-1, rows, columns))
        area = tall * wide
        most = int(area.max(initial=0))
        if most == 0:
            continue
        for k in np.flatnonzero(area == most).tolist():
            r, c = divmod(k, across)
            found = Rectangle(
                rows=int(tall[k]),
                columns=int(wide[k]),
                row_a=int(row[k]),
                column_a=int(column[k]),
                row_b=int(row[k]) + down + r - (rows - 1),
                column_b=int(column[k]) + c - (columns - 1),
            )
            if earlier(found, best):
                best = found
    return best
