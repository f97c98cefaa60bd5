"""The largest rectangle of ones in a mask, and in many masks at once.

Dynamic programming row by row, a row as one array: ``height`` is the number of ones above and at a cell, ``left``
and ``right`` how far all these rows are ones to both sides. Every rectangle that cannot be made larger is
``height`` x (``right`` - ``left``) of some cell of its last row, so the largest is among them. The loop is over the
shorter axis. Neighbouring rows that are alike are one row of their joint height, columns likewise: no rectangle that
cannot be made larger ends between them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gkestimator.merging.editing import Numbers
from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.equality import Array, Flags, Ints, equal_in_all_taps, floats

_LARGE = 1 << 12  # cells of a mask from which on a look for rows that are alike pays


def largest_rectangles(masks: Flags) -> tuple[Ints, Ints, Ints, Ints]:
    """Row, column, rows and columns of the largest rectangle of ones in each mask; masks [S, R, C].

    Of several: the smallest row, then the smallest column, then the most rows. All 0 where a mask has no ones.
    """
    rows = np.arange(masks.shape[1] + 1, dtype=np.int32)
    columns = np.arange(masks.shape[2] + 1, dtype=np.int32)
    if masks.shape[0] == 1 and masks.size > _LARGE:
        changes = (masks[0, 1:] != masks[0, :-1]).any(axis=1)
        rows = rows[np.concatenate([[True], changes, [True]])]
        masks = masks[:, rows[:-1]]
        changes = (masks[0, :, 1:] != masks[0, :, :-1]).any(axis=0)
        columns = columns[np.concatenate([[True], changes, [True]])]
        masks = masks[:, :, columns[:-1]]
    if masks.shape[1] > masks.shape[2]:
        left, top, width, height = _by_rows(masks.transpose(0, 2, 1), columns, rows, transposed=True)
        return top, left, height, width
    return _by_rows(masks, rows, columns, transposed=False)


def _by_rows(
    masks: Flags,
    edges: npt.NDArray[np.int32],
    across: npt.NDArray[np.int32],
    *,
    transposed: bool,
) -> tuple[Ints, Ints, Ints, Ints]:
    """The same with row i from ``edges[i]`` to ``edges[i + 1]``, column j from ``across[j]`` to ``across[j + 1]``."""
    count, rows, columns = masks.shape
    width = across[-1]
    height = np.zeros((count, columns), np.int32)
    left = np.zeros((count, columns), np.int32)
    right = np.full((count, columns), width, np.int32)
    best = np.zeros((5, count), np.int64)  # area, row, column, rows, columns
    for i in range(rows):
        here = masks[:, i, :]
        height += edges[i + 1] - edges[i]
        height *= here
        stop = np.maximum.accumulate(np.where(here, 0, across[1:]), axis=1)
        left = np.where(here, np.maximum(left, stop), 0)
        stop = np.minimum.accumulate(np.where(here, width, across[:-1])[:, ::-1], axis=1)[:, ::-1]
        right = np.where(here, np.minimum(right, stop), width)
        area = height.astype(np.int64) * (right - left)
        most = area.max(axis=1, initial=0)
        chosen = np.flatnonzero((most >= best[0]) & (most > 0))
        if chosen.size:
            _update(best, chosen, int(edges[i + 1]), area, most, height, left, right, transposed)
    return best[1], best[2], best[3], best[4]


def _update(
    best: Ints,
    chosen: Ints,
    bottom: int,
    area: Ints,
    most: Ints,
    height: npt.NDArray[np.int32],
    left: npt.NDArray[np.int32],
    right: npt.NDArray[np.int32],
    transposed: bool,
) -> None:
    """Take the rectangles that end before row ``bottom`` where they are larger, or as large and earlier."""
    where, cell = np.nonzero(area[chosen] == most[chosen, None])
    mask = chosen[where]
    tall = height[mask, cell].astype(np.int64)
    first = left[mask, cell].astype(np.int64)
    wide = right[mask, cell] - first
    top = bottom - tall
    # The order is that of the mask as it was given.
    if transposed:
        keys = (-wide, top, first)
    else:
        keys = (-tall, first, top)
    order = np.lexsort((*keys, mask))
    lead = order[np.unique(mask[order], return_index=True)[1]]
    mask = mask[lead]
    new = np.stack([most[mask], top[lead], first[lead], tall[lead], wide[lead]])
    old = best[:, mask]
    if transposed:
        row, column, size = (2, 1, 4)
    else:
        row, column, size = (1, 2, 3)
    better = new[size] > old[size]
    better = (new[column] < old[column]) | ((new[column] == old[column]) & better)
    better = (new[row] < old[row]) | ((new[row] == old[row]) & better)
    better = (new[0] > old[0]) | ((new[0] == old[0]) & better)
    best[:, mask[better]] = new[:, better]


_AT_ONCE = 1 << 20  # comparisons held at a time


def cost_of_every_shift(a: Array, b: Array) -> int:
    """How many values :func:`by_every_shift` compares."""
    return int((a.shape[0] + b.shape[0] - 1) * (a.shape[1] + b.shape[1] - 1) * a.size)


def earlier(found: Rectangle, than: Rectangle | None) -> bool:
    """Whether ``found`` is the better of two: larger; else smaller offsets in a, then in b; else more rows."""
    if than is None:
        return True
    return _order(found) < _order(than)


def _order(r: Rectangle) -> Numbers:
    return (-r.rows * r.columns, r.row_a, r.column_a, r.row_b, r.column_b, -r.rows)


def by_every_shift(a: Array, b: Array, *, tolerance: float) -> Rectangle | None:
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
