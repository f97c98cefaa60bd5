"""One pair of weights: the largest rectangle of at least so many cells, by anchors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.anchors import Anchors, Buckets, anchors_of, buckets, meeting, samples_of
from gkestimator.merging.similarity.growing import Meetings, best_of, largest_at_shift
from gkestimator.merging.similarity.lattice import VALUES, Lattice, lattice, slacks
from gkestimator.merging.similarity.reaching import Reach

__all__ = ["FIRST_SLACK", "by_anchors", "by_plan", "plan_of"]

FIRST_SLACK = next(slacks())
_MANY = 1 << 12  # meetings of a pair from which on it is worth looking for more telling places
_MOST = 1 << 24  # meetings of a pair that are looked at
_AT_ONCE = 1 << 17

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
    reach: Reach | None = None
    if int(count.sum()) > _MANY:
        for slack in slacks():
            other = anchors if slack == FIRST_SLACK else anchors_of(a, plan, bucket, slack)
            there = meeting(other, samples)
            if not other.crowded and int(there[1].sum()) < int(count.sum()):
                anchors, (low, count) = other, there
        best = largest_at_shift(a, b, (0, 0), tolerance=bucket.tolerance)
        if best is not None and best.rows * best.columns < cells:
            best = None
        lines_a = np.unique(anchors.rows).astype(np.int64), np.unique(anchors.columns).astype(np.int64)
        lines_b = np.unique(samples.rows).astype(np.int64), np.unique(samples.columns).astype(np.int64)
        reach = Reach(a, b, lines_a, lines_b, bucket.tolerance)
    entries, complete = _looked_at(count)
    met = _meetings(anchors, samples, low, count, entries)
    found, exact = best_of(a, b, met, plan, reach=reach, tolerance=bucket.tolerance, cells=cells, best=best)
    exact &= complete
    return found if found is None or exact else replace(found, exact=False), exact


def _looked_at(count: np.ndarray) -> tuple[np.ndarray, bool]:
    """The samples whose meetings are looked at, and whether those are all: else those of the rarest hashes."""
    entries = np.flatnonzero(count)
    if int(count.sum()) <= _MOST:
        return entries, True
    entries = entries[np.argsort(count[entries], kind="stable")]
    return entries[np.cumsum(count[entries]) <= _MOST], False


def _meetings(
    a: Anchors, b: Anchors, low: np.ndarray, count: np.ndarray, entries: np.ndarray
) -> Iterator[Meetings]:
    """Every meeting of the samples ``entries``, some at a time."""
    total = np.cumsum(count[entries])
    cuts = np.searchsorted(total, np.arange(_AT_ONCE, int(total[-1]) if total.size else 0, _AT_ONCE))
    for some in np.split(entries, np.unique(cuts)):
        times = count[some]
        of_b = np.repeat(some, times)
        of_a = np.repeat(low[some] - (np.cumsum(times) - times), times) + np.arange(of_b.size)
        yield Meetings(
            row_a=a.rows[of_a].astype(np.int64),
            column_a=a.columns[of_a].astype(np.int64),
            row_b=b.rows[of_b].astype(np.int64),
            column_b=b.columns[of_b].astype(np.int64),
        )


def _shape(a: np.ndarray) -> _Shape:
    rows, columns, taps = a.shape
    return rows, columns, taps
