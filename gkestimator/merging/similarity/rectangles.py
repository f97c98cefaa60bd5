"""Find the largest rectangle of ones in a mask, and in many masks at once.

Dynamic programming row by row, a row as one array: ``height`` is the number of ones above and at a cell,
``left`` and ``right`` how far all these rows are ones to both sides. Every rectangle that cannot be made
larger is ``height`` x (``right`` - ``left``) of some cell of its last row, so the largest is among them. The
loop is over the shorter axis. Neighbouring rows that are alike are one row of their joint height, columns
likewise: no rectangle that cannot be made larger ends between them.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gkestimator.merging.editing import Numbers
from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.equality import Array, Flags, Ints, equal_in_all_taps, floats

_LARGE = 1 << 12  # cells of a mask from which on a look for rows that are alike pays
_AT_ONCE = 1 << 20  # comparisons of shifts held at a time

Edges: TypeAlias = "npt.NDArray[np.int32]"


def largest_rectangles(masks: Flags) -> Ints:
    """Return row, column, rows and columns [4, S] of the largest rectangle of ones in each mask; masks [S, R,
    C].

    Of several: the smallest row, then the smallest column, then the most rows. All 0 where a mask has no
    ones.
    """
    rows = np.arange(masks.shape[1] + 1, dtype=np.int32)
    columns = np.arange(masks.shape[2] + 1, dtype=np.int32)
    if masks.shape[0] == 1 and masks.size > _LARGE:
        rows = _edges(masks[0])
        masks = masks[:, rows[:-1]]
        columns = _edges(masks[0].T)
        masks = masks[:, :, columns[:-1]]
    if masks.shape[1] <= masks.shape[2]:
        return _by_rows(masks, rows, columns, transposed=False)
    turned = _by_rows(masks.transpose(0, 2, 1), columns, rows, transposed=True)
    return turned[[1, 0, 3, 2]]


def _edges(mask: Flags) -> Edges:
    """Return where rows begin that differ from the one before, and the number of rows."""
    changes = (mask[1:] != mask[:-1]).any(axis=1)
    begins = np.concatenate([[True], changes, [True]])
    return np.flatnonzero(begins).astype(np.int32)


def _by_rows(masks: Flags, edges: Edges, across: Edges, *, transposed: bool) -> Ints:
    """Return the same with row i from ``edges[i]`` to ``edges[i + 1]``, column j from ``across[j]`` on
    likewise.
    """
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
        gaps = np.where(here, 0, across[1:])
        begin = np.maximum.accumulate(gaps, axis=1)
        left = np.where(here, np.maximum(left, begin), 0)
        gaps = np.where(here, width, across[:-1])
        end = np.minimum.accumulate(gaps[:, ::-1], axis=1)[:, ::-1]
        right = np.where(here, np.minimum(right, end), width)
        wide = right - left
        area = height.astype(np.int64) * wide
        most = area.max(axis=1, initial=0)
        chosen = np.flatnonzero((most >= best[0]) & (most > 0))
        if chosen.size:
            where, cell = np.nonzero(area[chosen] == most[chosen, None])
            mask = chosen[where]
            tall = height[mask, cell].astype(np.int64)
            top = int(edges[i + 1]) - tall
            sides = (top, left[mask, cell], tall, wide[mask, cell])
            _update(best, mask, np.array((most[mask], *sides), np.int64), transposed)
    return best[1:]


def _update(best: Ints, mask: Ints, new: Ints, transposed: bool) -> None:
    """Take the rectangles ``new`` [5, n] of the masks ``mask`` [n] where they are larger, or as large and
    earlier.
    """
    area, row, column, rows, columns = range(5)
    # The order is that of the mask as it was given.
    if transposed:
        row, column, rows = column, row, columns
    order = np.lexsort((-new[rows], new[column], new[row], mask))
    lead = order[np.unique(mask[order], return_index=True)[1]]
    mask = mask[lead]
    new = new[:, lead]
    better = np.zeros(mask.size, np.bool_)
    for key, sign in ((rows, -1), (column, 1), (row, 1), (area, -1)):
        mine = sign * new[key]
        its = sign * best[key, mask]
        better = (mine < its) | ((mine == its) & better)
    best[:, mask[better]] = new[:, better]


def cost_of_every_shift(a: Array, b: Array) -> int:
    """Return how many values :func:`by_every_shift` compares."""
    shifts_down = a.shape[0] + b.shape[0] - 1
    shifts_right = a.shape[1] + b.shape[1] - 1
    return int(shifts_down * shifts_right * a.size)


def earlier(rectangle: Rectangle, than: Rectangle | None) -> bool:
    """Return True for the better of two: larger; else smaller offsets in a, then in b; else more rows."""
    if than is None:
        return True
    return _order(rectangle) < _order(than)


def _order(r: Rectangle) -> Numbers:
    return (-r.rows * r.columns, r.row_a, r.column_a, r.row_b, r.column_b, -r.rows)


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
