"""How far two weights are equal from many places at once: bounds that tell places of few distinct values apart.

Where a weight repeats a value along a line (zeros of pruned channels), a step goes to the end of the shorter of both
runs, since nothing changes before it; elsewhere a step is one cell. After :data:`_STEPS` steps what is still equal
counts as equal to the line's end: a bound from above.
"""

from __future__ import annotations

import numpy as np

from gkestimator.merging.similarity.equality import Array, Flags, Ints, equal_in_all_taps, floats

_STEPS = 12

_Places = tuple[Ints, Ints]


class _Lines:
    """Chosen rows (axis 0) or columns (axis 1) of a weight, and where runs of one value end and begin on them."""

    def __init__(self, w: Array, axis: int, chosen: Ints) -> None:
        self._line = np.full(w.shape[axis], -1, np.int64)
        self._line[chosen] = np.arange(chosen.size)
        if axis == 0:
            taken = w[chosen]
        else:
            taken = w[:, chosen].swapaxes(0, 1)
        self.values = np.ascontiguousarray(floats(taken))
        self.size = self.values.shape[1]
        change = (self.values[:, 1:] != self.values[:, :-1]).any(axis=-1)
        at = np.arange(1, self.size, dtype=np.int32)
        self.first = np.zeros(self.values.shape[:2], np.int32)
        self.first[:, 1:] = np.maximum.accumulate(np.where(change, at, 0), axis=1)
        self.after = np.full(self.values.shape[:2], self.size, np.int32)
        ends = np.where(change, at, self.size)[:, ::-1]
        self.after[:, :-1] = np.minimum.accumulate(ends, axis=1)[:, ::-1]

    def of(self, index: Ints) -> Ints:
        """The lines' numbers here."""
        return self._line[index]


class Reach:
    """Bounds for places of ``a`` and of ``b``: ``places`` are the distinct rows and the distinct columns they have."""

    def __init__(
        self,
        a: Array,
        b: Array,
        places_a: tuple[Ints, Ints],
        places_b: tuple[Ints, Ints],
        tolerance: float,
    ) -> None:
        self._along = [(_Lines(a, axis, places_a[axis]), _Lines(b, axis, places_b[axis])) for axis in (0, 1)]
        self._tolerance = tolerance

    def most(self, row_a: Ints, column_a: Ints, row_b: Ints, column_b: Ints) -> Ints:
        """At least as many cells as the largest common rectangle around each place has; 0 where the cell differs."""
        rows, columns = self._along
        wide = self._extent(*rows, rows[0].of(row_a), column_a, rows[1].of(row_b), column_b)
        high = self._extent(*columns, columns[0].of(column_a), row_a, columns[1].of(column_b), row_b)
        return wide * high

    def _extent(self, a: _Lines, b: _Lines, line_a: Ints, at_a: Ints, line_b: Ints, at_b: Ints) -> Ints:
        """Cells of the line that are equal to both sides of each place, its own included."""
        same = self._same(a, b, line_a, at_a, line_b, at_b)
        found = np.zeros(at_a.size, np.int64)
        some = np.flatnonzero(same)
        places = line_a[some], at_a[some], line_b[some], at_b[some]
        found[some] = self._forwards(a, b, *places) + self._backwards(a, b, *places) + 1
        return found

    def _forwards(self, a: _Lines, b: _Lines, line_a: Ints, at_a: Ints, line_b: Ints, at_b: Ints) -> Ints:
        """How many cells after each place are equal."""
        limit = np.minimum(a.size - at_a, b.size - at_b)
        done: Ints = limit.copy()
        index = np.arange(at_a.size)
        step = np.zeros(at_a.size, np.int64)
        for _ in range(_STEPS):
            step = step + np.minimum(
                a.after[line_a, at_a + step] - (at_a + step), b.after[line_b, at_b + step] - (at_b + step)
            )
            inside = step < limit[index]
            same = np.zeros(step.size, np.bool_)
            same[inside] = self._same(
                a, b, line_a[inside], (at_a + step)[inside], line_b[inside], (at_b + step)[inside]
            )
            done[index[~same]] = step[~same]
            index = index[same]
            step = step[same]
            line_a = line_a[same]
            at_a = at_a[same]
            line_b = line_b[same]
            at_b = at_b[same]
        return np.subtract(done, 1)

    def _backwards(self, a: _Lines, b: _Lines, line_a: Ints, at_a: Ints, line_b: Ints, at_b: Ints) -> Ints:
        """How many cells before each place are equal."""
        limit = np.minimum(at_a, at_b)
        done: Ints = limit.copy()
        index = np.arange(at_a.size)
        step = np.zeros(at_a.size, np.int64)
        for _ in range(_STEPS):
            step = step + np.minimum(
                at_a - step - a.first[line_a, at_a - step], at_b - step - b.first[line_b, at_b - step]
            )
            inside = step < limit[index]
            same = np.zeros(step.size, np.bool_)
            same[inside] = self._same(
                a, b, line_a[inside], (at_a - step)[inside] - 1, line_b[inside], (at_b - step)[inside] - 1
            )
            done[index[~same]] = step[~same]
            index = index[same]
            step = step[same] + 1
            line_a = line_a[same]
            at_a = at_a[same]
            line_b = line_b[same]
            at_b = at_b[same]
        return done

    def _same(self, a: _Lines, b: _Lines, line_a: Ints, at_a: Ints, line_b: Ints, at_b: Ints) -> Flags:
        return equal_in_all_taps(a.values[line_a, at_a], b.values[line_b, at_b], self._tolerance)
