"""One pair of weights: the largest rectangle of at least so many cells, by anchors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.anchors import Anchors, Buckets, anchors_of, buckets, meeting, samples_of
from gkestimator.merging.similarity.growing import Meetings, best_of, largest_at_shift
from gkestimator.merging.similarity.lattice import VALUES, Lattice, lattice, slacks
from gkestimator.merging.similarity.shifts import earlier

__all__ = ["FIRST_SLACK", "by_anchors", "by_plan", "plan_of"]

FIRST_SLACK = next(slacks())
_MANY = 1 << 12  # meetings of a pair from which on it is worth looking for more telling places
_MOST = 1 << 20  # meetings of a pair that are looked at

_Shape = tuple[int, int, int]


def plan_of(
    a: list[np.ndarray], b: list[np.ndarray], *, cells: int, tolerance: float, values: int = VALUES
) -> tuple[Lattice, Buckets]:
    """The lattice and the buckets for all pairs of ``a`` (one shape) and ``b`` (one shape)."""
    shape_a, shape_b = _shape(a[0]), _shape(b[0])
    bucket = buckets((*a, *b), tolerance=tolerance)
    many = len(a), len(b)
    return lattice(shape_a, shape_b, cells=cells, many=many, values=min(values, bucket.values)), bucket


def by_anchors(
    a: np.ndarray, b: np.ndarray, *, tolerance: float, cells: int
) -> tuple[Rectangle | None, bool]:
    """The largest common rectangle of ``a`` and ``b`` [rows, columns, taps] if it has at least ``cells`` cells.

    And whether that is certain. ``cells`` is at least 1.
    """
    if min(a.shape[0], b.shape[0]) * min(a.shape[1], b.shape[1]) < cells:
        return None, True
    values = VALUES
    while True:
        plan, bucket = plan_of([a], [b], cells=cells, tolerance=tolerance, values=values)
        found = anchors_of(a, plan, bucket, FIRST_SLACK)
        if not found.crowded or plan.values == 1:
            break
        values = plan.values // 2
    return by_plan(a, b, found, samples_of(b, plan, bucket), plan, bucket, cells=cells)


def by_plan(
    a: np.ndarray,
    b: np.ndarray,
    anchors: Anchors,
    samples: Anchors,
    plan: Lattice,
    bucket: Buckets,
    *,
    cells: int,
) -> tuple[Rectangle | None, bool]:
    """The same with the anchors of ``a`` and the samples of ``b`` that are known already."""
    low, count = meeting(anchors, samples)
    best: Rectangle | None = None
    if int(count.sum()) > _MANY:
        for slack in slacks():
            other = anchors if slack == FIRST_SLACK else anchors_of(a, plan, bucket, slack)
            there = meeting(other, samples)
            if not other.crowded and int(there[1].sum()) < int(count.sum()):
                anchors, (low, count) = other, there
        best = largest_at_shift(a, b, (0, 0), tolerance=bucket.tolerance)
        if best is not None and best.rows * best.columns < cells:
            best = None
    met = _expanded(anchors, samples, low, count)
    found, exact = best_of(a, b, met, plan, tolerance=bucket.tolerance, cells=cells, best=best)
    if found is not None and earlier(found, best):
        best = found
    return best if best is None or exact else replace(best, exact=False), exact


def _expanded(a: Anchors, b: Anchors, low: np.ndarray, count: np.ndarray) -> Meetings:
    """Every meeting; beyond :data:`_MOST` those of the rarest hashes."""
    entry = np.flatnonzero(count)
    complete = int(count.sum()) <= _MOST
    if not complete:
        entry = entry[np.argsort(count[entry], kind="stable")]
        entry = entry[np.cumsum(count[entry]) <= _MOST]
    times = count[entry]
    of_b = np.repeat(entry, times)
    starts = np.cumsum(times) - times
    of_a = np.repeat(low[entry] - starts, times) + np.arange(of_b.size)
    return Meetings(
        row_a=a.rows[of_a].astype(np.int64),
        column_a=a.columns[of_a].astype(np.int64),
        row_b=b.rows[of_b].astype(np.int64),
        column_b=b.columns[of_b].astype(np.int64),
        complete=complete,
    )


def _shape(a: np.ndarray) -> _Shape:
    rows, columns, taps = a.shape
    return rows, columns, taps
