"""Bound how far two weights are equal from many places at once: bounds that tell places of few distinct
values apart.

Where a weight repeats a value along a line (zeros of pruned channels), a step goes to the end of the shorter
of both runs, since nothing changes before it; elsewhere a step is one cell. After :data:`_STEPS` steps what
is still equal counts as equal to the line's end: a bound from above.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from gkestimator.merging.similarity.equality import Array, Flags, Ints, equal_in_all_taps, floats

_STEPS = 12

#: The distinct rows and the distinct columns of places.
RowsAndColumns: TypeAlias = "tuple[Ints, Ints]"


class _Lines:
    """Hold chosen lines [lines, cells, taps] of a weight, and where the run of one value ends that a cell is
    in.
    """

    def __init__(self, lines: Array) -> None:
        self.values = np.ascontiguousarray(lines)
        self.size = self.values.shape[1]
        change = (self.values[:, 1:] != self.values[:, :-1]).any(axis=-1)
        at = np.arange(1, self.size, dtype=np.int32)
        ends = np.where(change, at, self.size)
        self.after = np.full(self.values.shape[:2], self.size, np.int32)
        self.after[:, :-1] = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]


class _Along:
    """Hold the chosen rows (axis 0) or columns (axis 1) of two weights, forwards and backwards."""

    def __init__(self, a: Array, b: Array, axis: int, chosen: tuple[Ints, Ints]) -> None:
        self._number = []
        self._lines = []
        for weight, lines in zip((a, b), chosen, strict=True):
            number = np.full(weight.shape[axis], -1, np.int64)
            number[lines] = np.arange(lines.size)
            self._number.append(number)
            taken = floats(weight.take(lines, axis=axis))
            if axis == 1:
                taken = taken.swapaxes(0, 1)
            self._lines.append((_Lines(taken), _Lines(taken[:, ::-1])))

    def extent(self, line_a: Ints, at_a: Ints, line_b: Ints, at_b: Ints, tolerance: float) -> Ints:
        """Return cells of the line that are equal to both sides of each place, its own included."""
        (a, a_back), (b, b_back) = self._lines
        places = np.stack([self._number[0][line_a], at_a, self._number[1][line_b], at_b])
        cells = np.zeros(at_a.size, np.int64)
        same = np.flatnonzero(_same(a, b, places, tolerance))
        places = places[:, same]
        mirrored = places.copy()
        mirrored[1] = a.size - 1 - places[1]
        mirrored[3] = b.size - 1 - places[3]
        cells[same] = _following(a, b, places, tolerance) + 1
        cells[same] += _following(a_back, b_back, mirrored, tolerance)
        return cells


class Reach:
    """Bound what places of ``a`` and of ``b`` hold: ``places`` are the distinct rows and columns they have."""

    def __init__(
        self, a: Array, b: Array, places_a: RowsAndColumns, places_b: RowsAndColumns, tolerance: float
    ) -> None:
        self._rows = _Along(a, b, 0, (places_a[0], places_b[0]))
        self._columns = _Along(a, b, 1, (places_a[1], places_b[1]))
        self._tolerance = tolerance

    def most(self, row_a: Ints, column_a: Ints, row_b: Ints, column_b: Ints) -> Ints:
        """Return at least as many cells as the largest common rectangle around each place; 0 where the cell
        differs.
        """
        wide = self._rows.extent(row_a, column_a, row_b, column_b, self._tolerance)
        high = self._columns.extent(column_a, row_a, column_b, row_b, self._tolerance)
        return wide * high


def _following(a: _Lines, b: _Lines, places: Ints, tolerance: float) -> Ints:
    """Return how many cells after each place are equal; ``places`` [4, n]: line and cell of a, line and cell
    of b.
    """
    # the shorter of both lines ends the walk
    limit = np.minimum(a.size - places[1], b.size - places[3])
    done = limit.copy()
    index = np.arange(limit.size)
    step = np.zeros(limit.size, np.int64)
    for _ in range(_STEPS):
        line_a, at_a, line_b, at_b = places
        to_end_of_a = a.after[line_a, at_a] - at_a
        to_end_of_b = b.after[line_b, at_b] - at_b
        further = np.minimum(to_end_of_a, to_end_of_b)
        step = step + further
        inside = step < limit[index]
        places = places.copy()
        places[1] += further
        places[3] += further
        same = np.zeros(step.size, np.bool_)
        same[inside] = _same(a, b, places[:, inside], tolerance)
        done[index[~same]] = step[~same]
        index = index[same]
        step = step[same]
        places = places[:, same]
    behind: Ints = done - 1
    return behind


def _same(a: _Lines, b: _Lines, places: Ints, tolerance: float) -> Flags:
    line_a, at_a, line_b, at_b = places
    return equal_in_all_taps(a.values[line_a, at_a], b.values[line_b, at_b], tolerance)
