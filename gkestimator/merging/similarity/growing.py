"""From places where two anchors meet to the largest rectangle: what a place can hold at most, best first.

Every rectangle that is searched for holds a tile, so one of the meetings lies in it. From there it reaches at most as
far as the meeting's row is equal to both sides and the meeting's column up and down: a box, whose area bounds the
rectangle's. Meetings are looked at in descending order of a cheaper bound (what the shift leaves of the two weights,
and where there are many meetings :mod:`~gkestimator.merging.similarity.reaching`'s), boxes only where they can beat
the best rectangle so far, and a mask only of a box.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.operators import Pair, Rectangle
from gkestimator.merging.similarity.equality import Array, Flags, Ints, equal_cells, equal_in_all_taps
from gkestimator.merging.similarity.lattice import Lattice
from gkestimator.merging.similarity.reaching import Reach
from gkestimator.merging.similarity.rectangles import earlier, largest_rectangles

Box: TypeAlias = "tuple[int, int, int, int]"

WORK = 1 << 28  # values compared for one pair, after which the search gives up
_BOX = 1 << 12  # what looking at one box costs besides, in values compared
_AT_ONCE = 1 << 18


@frozen
class Meetings:
    """Where the same hash is: places (row, column) in both weights."""

    row_a: Ints
    column_a: Ints
    row_b: Ints
    column_b: Ints

    def some(self, which: Flags | Ints) -> Meetings:
        """Those that ``which`` chooses."""
        return Meetings(
            row_a=self.row_a[which],
            column_a=self.column_a[which],
            row_b=self.row_b[which],
            column_b=self.column_b[which],
        )


def best_of(
    a: Array,
    b: Array,
    meetings: Iterable[Meetings],
    plan: Lattice,
    *,
    reach: Reach | None,
    tolerance: float,
    cells: int,
    best: Rectangle | None = None,
) -> tuple[Rectangle | None, bool]:
    """The largest common rectangle of at least ``cells`` cells that holds a meeting, or ``best`` if none is better.

    And whether that is certain: not where the work came to :data:`WORK`. ``reach``, where given, must know the places
    of all meetings: it is asked before a place is looked at alone.
    """
    met, bound = _promising(a, b, meetings, plan, reach, tolerance, max(cells, _area(best)))
    work = 0
    seen: dict[Pair, list[Box]] = {}
    for n in range(bound.size):
        least = max(cells, _area(best))
        if bound[n] < least:
            break
        if work > WORK:
            return best, False
        place = int(met.row_a[n]), int(met.column_a[n]), int(met.row_b[n]), int(met.column_b[n])
        shift = place[2] - place[0], place[3] - place[1]
        work += _BOX + (sum(a.shape[:2]) + sum(b.shape[:2])) * a.shape[2]
        top, bottom, first, last = box = _box(a, b, place, tolerance)
        boxes = seen.setdefault(shift, [])
        if (bottom - top) * (last - first) < least:
            continue
        if any(_holds(other, box) for other in boxes):
            continue
        boxes.append(box)
        # A rectangle as large as the best one would have to fill the box.
        if earlier(_rectangle(top, first, bottom - top, last - first, shift), best):
            work += 2 * (bottom - top) * (last - first) * a.shape[2]
            found = _in_box(a, b, box, shift, tolerance)
            if _area(found) >= cells and found is not None and earlier(found, best):
                best = found
    return best, True


def largest_at_shift(a: Array, b: Array, shift: Pair, *, tolerance: float) -> Rectangle | None:
    """The largest common rectangle of cells of ``a`` and the cells ``shift`` (rows, columns) further in ``b``."""
    top = max(0, -shift[0])
    first = max(0, -shift[1])
    bottom = min(a.shape[0], b.shape[0] - shift[0])
    last = min(a.shape[1], b.shape[1] - shift[1])
    return _in_box(a, b, (top, bottom, first, last), shift, tolerance)


def _area(found: Rectangle | None) -> int:
    if found is None:
        return 0
    return found.rows * found.columns


def _holds(outer: Box, box: Box) -> bool:
    return outer[0] <= box[0] and box[1] <= outer[1] and outer[2] <= box[2] and box[3] <= outer[3]


def _promising(
    a: Array,
    b: Array,
    meetings: Iterable[Meetings],
    plan: Lattice,
    reach: Reach | None,
    tolerance: float,
    cells: int,
) -> tuple[Meetings, Ints]:
    """Meetings around which a rectangle of ``cells`` cells may lie, and how many cells it has at most: most first."""
    nowhere = np.empty(0, np.int64)
    kept = [Meetings(row_a=nowhere, column_a=nowhere, row_b=nowhere, column_b=nowhere)]
    bounds = [nowhere]
    for met in meetings:
        met, bound = _reachable(a, b, met, cells)
        if reach is not None:
            bound = np.minimum(bound, reach.most(met.row_a, met.column_a, met.row_b, met.column_b))
            met = met.some(bound >= cells)
            bound = bound[bound >= cells]
        met, bound = _equal_patterns(a, b, met, bound, plan, tolerance)
        kept.append(met)
        bounds.append(bound)
    every = np.concatenate(bounds)
    order = np.argsort(-every, kind="stable")
    joined = Meetings(
        row_a=np.concatenate([m.row_a for m in kept]),
        column_a=np.concatenate([m.column_a for m in kept]),
        row_b=np.concatenate([m.row_b for m in kept]),
        column_b=np.concatenate([m.column_b for m in kept]),
    )
    return joined.some(order), every[order]


def _reachable(a: Array, b: Array, met: Meetings, cells: int) -> tuple[Meetings, Ints]:
    """The meetings whose shift leaves ``cells`` cells in common, and how many it leaves."""
    down = met.row_b - met.row_a
    right = met.column_b - met.column_a
    high = np.minimum(a.shape[0], b.shape[0] - down) - np.maximum(0, -down)
    wide = np.minimum(a.shape[1], b.shape[1] - right) - np.maximum(0, -right)
    area = high * wide
    kept = area >= cells
    return met.some(kept), area[kept]


def _equal_patterns(
    a: Array, b: Array, met: Meetings, bound: Ints, plan: Lattice, tolerance: float
) -> tuple[Meetings, Ints]:
    """The meetings whose patterns are equal indeed, value by value."""
    for r in range(plan.pattern[0]):
        for c in range(plan.pattern[1]):
            for t in range(plan.pattern[2]):
                same = equal_cells(
                    a[met.row_a + r, met.column_a + c, t], b[met.row_b + r, met.column_b + c, t], tolerance
                )
                if not same.all():
                    met = met.some(same)
                    bound = bound[same]
    return met, bound


def _box(a: Array, b: Array, place: Box, tolerance: float) -> Box:
    """First row, row after the last, first column, column after the last in ``a`` of the box around a meeting."""
    ra, ca, rb, cb = place
    up = min(ra, rb)
    down = min(a.shape[0] - ra, b.shape[0] - rb)
    column = equal_in_all_taps(a[ra - up : ra + down, ca], b[rb - up : rb + down, cb], tolerance)
    left = min(ca, cb)
    right = min(a.shape[1] - ca, b.shape[1] - cb)
    row = equal_in_all_taps(a[ra, ca - left : ca + right], b[rb, cb - left : cb + right], tolerance)
    if not row[left]:  # of more taps than the pattern has
        return ra, ra, ca, ca
    before, after = _run(column, up)
    first, last = _run(row, left)
    return ra - up + before, ra - up + after, ca - left + first, ca - left + last


def _run(same: Flags, at: int) -> Pair:
    """The ends of the run of ones around ``at`` (which is one)."""
    gaps = np.flatnonzero(~same)
    k = int(np.searchsorted(gaps, at))
    return int(gaps[k - 1]) + 1 if k else 0, int(gaps[k]) if k < gaps.size else same.size


def _in_box(a: Array, b: Array, box: Box, shift: Pair, tolerance: float) -> Rectangle | None:
    top, bottom, first, last = box
    mask = np.empty((bottom - top, last - first), np.bool_)
    step = max(1, _AT_ONCE // max(1, (last - first) * a.shape[2]))
    for r in range(top, bottom, step):
        end = min(bottom, r + step)
        x = a[r:end, first:last]
        y = b[r + shift[0] : end + shift[0], first + shift[1] : last + shift[1]]
        mask[r - top : end - top] = equal_in_all_taps(x, y, tolerance)
    if mask.all():
        return _rectangle(top, first, bottom - top, last - first, shift)
    row, column, rows, columns = (int(v[0]) for v in largest_rectangles(mask[None]))
    if rows:
        return _rectangle(top + row, first + column, rows, columns, shift)
    return None


def _rectangle(row: int, column: int, rows: int, columns: int, shift: Pair) -> Rectangle:
    return Rectangle(
        rows=rows,
        columns=columns,
        row_a=row,
        column_a=column,
        row_b=row + shift[0],
        column_b=column + shift[1],
    )
