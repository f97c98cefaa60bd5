"""Grow the largest rectangle from places where two anchors meet: what a place can hold at most, best first.

Every rectangle that is searched for holds a tile, so one of the meetings lies in it. From there it reaches at
most as far as the meeting's row is equal to both sides and the meeting's column up and down: a box, whose
area bounds the rectangle's. Meetings are looked at in descending order of a cheaper bound (what the shift
leaves of the two weights, and where there are many meetings
:mod:`~gkestimator.merging.similarity.reaching`'s), boxes only where they can beat the best rectangle so far,
and a mask only of a box.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gkestimator.merging.operators import Pair, Rectangle
from gkestimator.merging.similarity.equality import Array, Flags, Ints, equal_cells, equal_in_all_taps
from gkestimator.merging.similarity.lattice import Lattice
from gkestimator.merging.similarity.reaching import Reach
from gkestimator.merging.similarity.rectangles import earlier, largest_rectangles

#: Meetings, and at most how many cells each can grow to.
Bounded: TypeAlias = "tuple[Meetings, Ints]"

WORK = 1 << 28  # values compared for one pair, after which the search gives up
_BOX = 1 << 12  # what looking at one box costs besides, in values compared
_AT_ONCE = 1 << 18

#: Where the same hash is: [4, n], row and column in the first weight, row and column in the second.
Meetings: TypeAlias = Ints
#: The best rectangle, and whether none better can be there.
Finding: TypeAlias = "tuple[Rectangle | None, bool]"


class Box(NamedTuple):
    """Hold rows ``top`` to ``bottom`` and columns ``first`` to ``last`` of a weight, the ends not included."""

    top: int
    bottom: int
    first: int
    last: int

    @property
    def cells(self) -> int:
        """Return how many cells it has."""
        return (self.bottom - self.top) * (self.last - self.first)

    def holds(self, box: Box) -> bool:
        """Return True where ``box`` lies in it."""
        if box.top < self.top or box.bottom > self.bottom:
            return False
        return self.first <= box.first and box.last <= self.last

    def rectangle(self, shift: Pair) -> Rectangle:
        """Return it as a common rectangle that is ``shift`` further in the second weight."""
        return Rectangle(
            rows=self.bottom - self.top,
            columns=self.last - self.first,
            row_a=self.top,
            column_a=self.first,
            row_b=self.top + shift[0],
            column_b=self.first + shift[1],
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
) -> Finding:
    """Return the largest common rectangle of at least ``cells`` cells that holds a meeting, or ``best`` if
    none is better.

    And whether that is certain: not where the work came to :data:`WORK`. ``reach``, where given, must know
    the places of all meetings: it is asked before a place is looked at alone.
    """
    least = max(cells, _area(best))
    met, bound = _promising(a, b, meetings, plan, reach, tolerance, least)
    taps = a.shape[2]
    cost = _BOX + (sum(a.shape[:2]) + sum(b.shape[:2])) * taps
    work = 0
    seen: dict[Pair, list[Box]] = defaultdict(list)
    for n in range(bound.size):
        least = max(cells, _area(best))
        # in descending order: no later meeting can do better
        if bound[n] < least:
            break
        if work > WORK:
            return best, False
        place = met[:, n].tolist()
        row_a, column_a, row_b, column_b = place
        shift = (row_b - row_a, column_b - column_a)
        work += cost
        box = _box(a, b, place, tolerance)
        # a box inside one that was looked at holds no other rectangle at this shift
        if box.cells < least:
            continue
        if any(other.holds(box) for other in seen[shift]):
            continue
        seen[shift].append(box)
        # A rectangle as large as the best one would have to fill the box.
        if not earlier(box.rectangle(shift), best):
            continue
        work += 2 * box.cells * taps
        candidate = _in_box(a, b, box, shift, tolerance)
        if candidate is not None and candidate.cells >= cells and earlier(candidate, best):
            best = candidate
    return best, True


def largest_at_shift(a: Array, b: Array, shift: Pair, *, tolerance: float) -> Rectangle | None:
    """Return the largest common rectangle of cells of ``a`` and the cells ``shift`` (rows, columns) further
    in ``b``.
    """
    down, right = shift
    both = Box(
        top=max(0, -down),
        bottom=min(a.shape[0], b.shape[0] - down),
        first=max(0, -right),
        last=min(a.shape[1], b.shape[1] - right),
    )
    return _in_box(a, b, both, shift, tolerance)


def _area(rectangle: Rectangle | None) -> int:
    if rectangle is None:
        return 0
    return rectangle.cells


def _promising(
    a: Array,
    b: Array,
    meetings: Iterable[Meetings],
    plan: Lattice,
    reach: Reach | None,
    tolerance: float,
    cells: int,
) -> Bounded:
    """Return meetings around which a rectangle of ``cells`` cells may lie, and its cells at most: most first."""
    every = [np.empty((4, 0), np.int64)]
    bounds = [np.empty(0, np.int64)]
    for met in meetings:
        bound = _left_by_shift(a, b, met)
        met, bound = _some(met, bound, bound >= cells)
        if reach is not None:
            bound = np.minimum(bound, reach.most(*met))
            met, bound = _some(met, bound, bound >= cells)
        met, bound = _equal_patterns(a, b, met, bound, plan, tolerance)
        every.append(met)
        bounds.append(bound)
    joined = np.concatenate(bounds)
    order = np.argsort(-joined, kind="stable")
    return np.concatenate(every, axis=1)[:, order], joined[order]


def _some(met: Meetings, bound: Ints, chosen: Flags) -> Bounded:
    return met[:, chosen], bound[chosen]


def _left_by_shift(a: Array, b: Array, met: Meetings) -> Ints:
    """Return how many cells each meeting's shift leaves in common."""
    row_a, column_a, row_b, column_b = met
    down = row_b - row_a
    right = column_b - column_a
    high = np.minimum(a.shape[0], b.shape[0] - down) - np.maximum(0, -down)
    wide = np.minimum(a.shape[1], b.shape[1] - right) - np.maximum(0, -right)
    area: Ints = high * wide
    return area


def _equal_patterns(
    a: Array, b: Array, met: Meetings, bound: Ints, plan: Lattice, tolerance: float
) -> Bounded:
    """Return the meetings whose patterns are equal indeed, value by value."""
    for row, column, tap in itertools.product(*map(range, plan.pattern)):
        row_a, column_a, row_b, column_b = met
        in_a = a[row_a + row, column_a + column, tap]
        in_b = b[row_b + row, column_b + column, tap]
        same = equal_cells(in_a, in_b, tolerance)
        if not same.all():
            met, bound = _some(met, bound, same)
    return met, bound


def _box(a: Array, b: Array, place: Sequence[int], tolerance: float) -> Box:
    """Return the box around a meeting."""
    row_a, column_a, row_b, column_b = place
    up = min(row_a, row_b)
    down = min(a.shape[0] - row_a, b.shape[0] - row_b)
    line_a = a[row_a - up : row_a + down, column_a]
    line_b = b[row_b - up : row_b + down, column_b]
    column = equal_in_all_taps(line_a, line_b, tolerance)
    left = min(column_a, column_b)
    right = min(a.shape[1] - column_a, b.shape[1] - column_b)
    line_a = a[row_a, column_a - left : column_a + right]
    line_b = b[row_b, column_b - left : column_b + right]
    row = equal_in_all_taps(line_a, line_b, tolerance)
    if not row[left]:  # of more taps than the pattern has
        return Box(row_a, row_a, column_a, column_a)
    top, bottom = _run(column, up)
    first, last = _run(row, left)
    corner_row = row_a - up
    corner_column = column_a - left
    return Box(corner_row + top, corner_row + bottom, corner_column + first, corner_column + last)


def _run(same: Flags, at: int) -> Pair:
    """Return the ends of the run of ones around ``at`` (which is one)."""
    gaps = np.flatnonzero(~same)
    after = int(np.searchsorted(gaps, at))
    begin = 0
    end = same.size
    if after > 0:
        begin = int(gaps[after - 1]) + 1
    if after < gaps.size:
        end = int(gaps[after])
    return begin, end


def _in_box(a: Array, b: Array, box: Box, shift: Pair, tolerance: float) -> Rectangle | None:
    """Return the largest common rectangle of the cells of ``box`` and those ``shift`` further in ``b``."""
    top, bottom, first, last = box
    down, right = shift
    mask = np.empty((bottom - top, last - first), np.bool_)
    step = max(1, _AT_ONCE // max(1, (last - first) * a.shape[2]))
    for start in range(top, bottom, step):
        end = min(bottom, start + step)
        in_a = a[start:end, first:last]
        in_b = b[start + down : end + down, first + right : last + right]
        mask[start - top : end - top] = equal_in_all_taps(in_a, in_b, tolerance)
    if mask.all():
        return box.rectangle(shift)
    row, column, rows, columns = largest_rectangles(mask[None])[:, 0].tolist()
    if not rows:
        return None
    row += top
    column += first
    return Box(row, row + rows, column, column + columns).rectangle(shift)
