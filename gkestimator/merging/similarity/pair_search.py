"""The largest rectangle of at least so many cells that two weights have in common, by anchors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.merging.operators import Rectangle
from gkestimator.merging.similarity.anchors import (
    Anchors,
    Buckets,
    Index,
    anchors_of,
    buckets,
    meeting,
    samples_of,
)
from gkestimator.merging.similarity.growing import Meetings, best_of, largest_at_shift
from gkestimator.merging.similarity.lattice import Lattice, Shape, lattices, slacks, with_fewer_values
from gkestimator.merging.similarity.reaching import Reach
from gkestimator.merging.similarity.shifts import earlier

_FIRST_SLACK = next(slacks())
_MANY = 1 << 12  # meetings of a pair from which on it is worth looking for more telling places
_FEW = 1 << 18  # hashes of a weight up to which other places are tried
_HELD = 1 << 22
_MOST = 1 << 24  # meetings of a pair that are looked at
_AT_ONCE = 1 << 17


def by_anchors(
    a: np.ndarray, b: np.ndarray, *, tolerance: float, cells: int
) -> tuple[Rectangle | None, bool]:
    """The largest common rectangle of ``a`` and ``b`` [rows, columns, taps] if it has at least ``cells`` cells.

    And whether that is certain. ``cells`` is at least 1.
    """
    if min(a.shape[0], b.shape[0]) * min(a.shape[1], b.shape[1]) < cells:
        return None, True
    return by_anchors_of_all({0: a}, {0: b}, [(0, 0)], tolerance=tolerance, cells=cells)[0, 0]


def by_anchors_of_all(
    left: Mapping[int, np.ndarray],
    right: Mapping[int, np.ndarray],
    pairs: Sequence[tuple[int, int]],
    *,
    tolerance: float,
    cells: int,
) -> dict[tuple[int, int], tuple[Rectangle | None, bool]]:
    """The same for many pairs: all of ``left`` are of one shape, all of ``right`` of one, and all of one type.

    Each weight is hashed once for all it is paired with, as long as :data:`_HELD` hashes hold those of ``left``.
    """
    shapes = _shape(next(iter(left.values()))), _shape(next(iter(right.values())))
    many = len(left), len(right)
    bucket = buckets((*left.values(), *right.values()), tolerance=tolerance)
    found: dict[tuple[int, int], tuple[Rectangle | None, bool]] = dict.fromkeys(pairs, (None, True))
    for plan in lattices(*shapes, cells=cells, many=many, values=bucket.values):
        waiting = list(left)
        while waiting:
            held: dict[int, Anchors] = {}
            while waiting and sum(k.keys.size for k in held.values()) < _HELD:
                made = anchors_of(left[waiting[0]], plan, bucket, _FIRST_SLACK)
                if made.crowded and plan.values > 1:
                    # Those held were made with the longer patterns: they are made again.
                    held, waiting = {}, [*held, *waiting]
                    plan = with_fewer_values(plan, *shapes, many=many)
                else:
                    held[waiting.pop(0)] = made
            index = Index(held)
            wanted: dict[int, list[int]] = {}
            for i, j in found:
                if i in held:
                    wanted.setdefault(j, []).append(i)
            for j, lefts in wanted.items():
                samples = samples_of(right[j], plan, bucket)
                for i in index.meets(samples, lefts):
                    best, certain = found[i, j]
                    best, now = _by_plan(
                        left[i], right[j], held[i], samples, plan, bucket, cells=cells, best=best
                    )
                    found[i, j] = best, certain and now
    return {
        pair: (best if best is None or certain else replace(best, exact=False), certain)
        for pair, (best, certain) in found.items()
    }


def _by_plan(
    a: np.ndarray,
    b: np.ndarray,
    anchors: Anchors,
    samples: Anchors,
    plan: Lattice,
    bucket: Buckets,
    *,
    cells: int,
    best: Rectangle | None,
) -> tuple[Rectangle | None, bool]:
    """The better of ``best`` and what one lattice finds, and whether that is certain."""
    low, count = meeting(anchors, samples)
    reach: Reach | None = None
    if int(count.sum()) > _MANY:
        if anchors.keys.size <= _FEW:
            anchors, (low, count) = _telling(a, anchors, samples, plan, bucket, (low, count))
        same = largest_at_shift(a, b, (0, 0), tolerance=bucket.tolerance)
        if same is not None and same.rows * same.columns >= cells and earlier(same, best):
            best = same
        lines_a = np.unique(anchors.rows).astype(np.int64), np.unique(anchors.columns).astype(np.int64)
        lines_b = np.unique(samples.rows).astype(np.int64), np.unique(samples.columns).astype(np.int64)
        reach = Reach(a, b, lines_a, lines_b, bucket.tolerance)
    entries, complete = _looked_at(count)
    met = _meetings(anchors, samples, low, count, entries)
    best, exact = best_of(a, b, met, plan, reach=reach, tolerance=bucket.tolerance, cells=cells, best=best)
    return best, exact and complete


def _telling(
    a: np.ndarray,
    anchors: Anchors,
    samples: Anchors,
    plan: Lattice,
    bucket: Buckets,
    met: tuple[np.ndarray, np.ndarray],
) -> tuple[Anchors, tuple[np.ndarray, np.ndarray]]:
    """The choice of places whose patterns meet least, and where they do."""
    for slack in slacks():
        if slack != _FIRST_SLACK and int(met[1].sum()) > _MANY:
            other = anchors_of(a, plan, bucket, slack)
            there = meeting(other, samples)
            if not other.crowded and int(there[1].sum()) < int(met[1].sum()):
                anchors = other
                met = there
    return anchors, met


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


def _shape(a: np.ndarray) -> Shape:
    rows, columns, taps = a.shape
    return rows, columns, taps
