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
from gkestimator.merging.similarity.equality import Flags, Ints

_LARGE = 1 << 12  # cells of a mask from which on a look for rows that are alike pays

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
    left = np.zeros_like(height)
    right = np.full_like(height, width)
    best = np.zeros((5, count), np.int64)  # area, row, column, rows, columns
    for i in range(rows):
        here = masks[:, i, :]
        height += edges[i + 1] - edges[i]
        # a zero ends the column: the height starts anew below it
        height *= here
        gaps = np.where(here, 0, across[1:])
        begin = np.maximum.accumulate(gaps, axis=1)
        left = np.where(here, np.maximum(left, begin), 0)
        gaps = np.where(here, width, across[:-1])
        end = np.minimum.accumulate(gaps[:, ::-1], axis=1)[:, ::-1]
        right = np.where(here, np.minimum(right, end), width)
        # of the rectangle as high as the ones above the cell reach
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


def earlier(rectangle: Rectangle, than: Rectangle | None) -> bool:
    """Return True for the better of two: larger; else smaller offsets in a, then in b; else more rows."""
    if than is None:
        return True
    return _order(rectangle) < _order(than)


def _order(r: Rectangle) -> Numbers:
    return (-r.rows * r.columns, r.row_a, r.column_a, r.row_b, r.column_b, -r.rows)
