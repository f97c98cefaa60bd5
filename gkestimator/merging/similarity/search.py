"""Find the largest block that two weights have in common, and which of many pairs have one that is large
enough.

In many pairs every weight is hashed once for all weights of one shape that it is compared with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.merging.operators import Pair, Rectangle, WeightMatrix, similarity
from gkestimator.merging.similarity.anchors import (
    Anchors,
    Buckets,
    Index,
    anchors_of,
    buckets,
    meeting,
    samples_of,
)
from gkestimator.merging.similarity.equality import Array, checked_tolerance, equal_everywhere
from gkestimator.merging.similarity.growing import Finding, Meetings, best_of, largest_at_shift
from gkestimator.merging.similarity.lattice import Lattice, Shape, lattices, slacks, with_fewer_values
from gkestimator.merging.similarity.reaching import Reach
from gkestimator.merging.similarity.rectangles import earlier

Matrices: TypeAlias = "Sequence[WeightMatrix]"
Findings: TypeAlias = "dict[Pair, Finding]"
ArrayOf: TypeAlias = "Mapping[int, Array]"

_FIRST_SLACK = next(slacks())
_MANY = 1 << 12  # meetings of a pair from which on it is worth looking for more telling places
_FEW = 1 << 18  # hashes of a weight up to which other places are tried
_HELD = 1 << 22
_MOST = 1 << 24  # meetings of a pair that are looked at
_AT_ONCE = 1 << 17


def _marked(best: Rectangle | None, certain: bool) -> Rectangle | None:
    if best is None or certain:
        return best
    return replace(best, exact=False)


def whole(rows: int, columns: int) -> Rectangle:
    """Return the rectangle of two equal weights."""
    return Rectangle(rows=rows, columns=columns, row_a=0, column_a=0, row_b=0, column_b=0)


def by_anchors_of_all(
    left: ArrayOf,
    right: ArrayOf,
    pairs: Sequence[Pair],
    *,
    tolerance: float,
    cells: int,
) -> Findings:
    """Return the same for many pairs: all of ``left`` are of one shape, all of ``right`` of one, and all of
    one type.

    Each weight is hashed once for all it is paired with, as long as :data:`_HELD` hashes hold those of
    ``left``.
    """
    shapes = (_shape(left), _shape(right))
    many = (len(left), len(right))
    bucket = buckets((*left.values(), *right.values()), tolerance=tolerance)
    findings: Findings = dict.fromkeys(pairs, (None, True))
    for plan in lattices(*shapes, cells=cells, many=many, values=bucket.values):
        waiting = list(left)
        while waiting:
            held: dict[int, Anchors] = {}
            while waiting and sum(anchors.keys.size for anchors in held.values()) < _HELD:
                made = anchors_of(left[waiting[0]], plan, bucket, _FIRST_SLACK)
                if made.crowded and plan.values > 1:
                    # Those held were made with the longer patterns: they are made again.
                    waiting[:0] = held
                    held = {}
                    plan = with_fewer_values(plan, *shapes, many=many)
                else:
                    held[waiting.pop(0)] = made
            search = _Search(plan, bucket, cells)
            search.improve(findings, left, right, held)
    return {pair: (_marked(best, certain), certain) for pair, (best, certain) in findings.items()}


class _Search:
    """Search pairs of weights by one lattice."""

    def __init__(self, plan: Lattice, bucket: Buckets, cells: int) -> None:
        self._plan = plan
        self._bucket = bucket
        self._cells = cells

    def improve(
        self,
        findings: Findings,
        left: ArrayOf,
        right: ArrayOf,
        held: dict[int, Anchors],
    ) -> None:
        """Put what the lattice finds in the pairs of ``held`` in the place of lesser findings."""
        index = Index(held)
        partners: dict[int, list[int]] = defaultdict(list)
        for i, j in findings:
            if i in held:
                partners[j].append(i)
        for j, lefts in partners.items():
            samples = samples_of(right[j], self._plan, self._bucket)
            for i in index.meets(samples, lefts):
                best, certain = findings[i, j]
                best, exact = self._best(left[i], right[j], held[i], samples, best)
                findings[i, j] = best, certain and exact

    def _best(
        self, a: Array, b: Array, anchors: Anchors, samples: Anchors, best: Rectangle | None
    ) -> Finding:
        """Return the better of ``best`` and what the lattice finds, and whether that is certain."""
        tolerance = self._bucket.tolerance
        low, count = meeting(anchors, samples)
        reach: Reach | None = None
        # many meetings mean few distinct values: other places may tell more, and shift 0 is the likeliest
        if int(count.sum()) > _MANY:
            if anchors.keys.size <= _FEW:
                anchors = self._telling(a, anchors, samples)
                low, count = meeting(anchors, samples)
            same = largest_at_shift(a, b, (0, 0), tolerance=tolerance)
            if same is not None and same.cells >= self._cells and earlier(same, best):
                best = same
            reach = Reach(a, b, anchors.lines(), samples.lines(), tolerance)
        entries, complete = _looked_at(count)
        met = _meetings(anchors, samples, low, count, entries)
        best, exact = best_of(
            a, b, met, self._plan, reach=reach, tolerance=tolerance, cells=self._cells, best=best
        )
        return best, exact and complete

    def _telling(self, a: Array, anchors: Anchors, samples: Anchors) -> Anchors:
        """Return the choice of places whose patterns meet least."""
        fewest = int(meeting(anchors, samples)[1].sum())
        for slack in slacks():
            if slack == _FIRST_SLACK or fewest <= _MANY:
                continue
            other = anchors_of(a, self._plan, self._bucket, slack)
            count = int(meeting(other, samples)[1].sum())
            if not other.crowded and count < fewest:
                anchors = other
                fewest = count
        return anchors


def _looked_at(count: Array) -> tuple[Array, bool]:
    """Return the samples whose meetings are looked at, and whether those are all: else those of the rarest
    hashes.
    """
    entries = np.flatnonzero(count)
    if int(count.sum()) <= _MOST:
        return entries, True
    entries = entries[np.argsort(count[entries], kind="stable")]
    return entries[np.cumsum(count[entries]) <= _MOST], False


def _meetings(a: Anchors, b: Anchors, low: Array, count: Array, entries: Array) -> Iterator[Meetings]:
    """Yield every meeting of the samples ``entries``, some at a time."""
    total = np.cumsum(count[entries])
    if total.size:
        last = int(total[-1])
    else:
        last = 0
    cuts = np.searchsorted(total, np.arange(_AT_ONCE, last, _AT_ONCE))
    for some in np.split(entries, np.unique(cuts)):
        times = count[some]
        before = np.cumsum(times) - times
        of_b = np.repeat(some, times)
        of_a = np.repeat(low[some] - before, times) + np.arange(of_b.size)
        places = (a.rows[of_a], a.columns[of_a], b.rows[of_b], b.columns[of_b])
        yield np.stack(places).astype(np.int64)


def _shape(weights: ArrayOf) -> Shape:
    rows, columns, taps = next(iter(weights.values())).shape
    return rows, columns, taps


def similar_pairs(
    left: Matrices,
    right: Matrices,
    pairs: Iterable[Pair],
    *,
    omega: float,
    tolerance: float,
    unsure: set[Pair] | None = None,
) -> dict[Pair, Rectangle]:
    """Return the pairs (index in ``left``, index in ``right``) of similarity at least ``omega``, with the
    largest block.

    In the order of ``pairs``. Weights of different types or taps have nothing in common. Equal weights are
    found by comparing them once; for all others see :mod:`~gkestimator.merging.similarity.lattice`. A pair
    whose search gave up without a find is not among them: so many places look alike (weights of few distinct
    values) that it stopped before it had seen all. All whose search gave up, with a find (whose ``exact`` is
    False then) or without, are added to ``unsure``.

    Raises UsageError for a tolerance that is negative or an omega that is not in (0, 1], ModelError where a
    file does not hold the values.
    """
    tolerance = checked_tolerance(tolerance)
    if not 0 < omega <= 1:
        raise UsageError(f"omega is {omega}: expected a number above 0 to 1")
    blocks: dict[Pair, Rectangle] = {}
    asked = list(dict.fromkeys(pairs))
    classes: dict[object, list[Pair]] = defaultdict(list)
    for i, j in asked:
        a = left[i]
        b = right[j]
        if a.dtype is not b.dtype:
            continue
        if a.taps != b.taps:
            continue
        if least_cells(a, b, omega) is None:
            continue
        shapes = ((a.rows, a.columns), (b.rows, b.columns))
        if shapes[0] == shapes[1] and equal_everywhere(a.array(), b.array(), tolerance):
            blocks[i, j] = whole(a.rows, a.columns)
        else:
            classes[shapes, a.taps, a.dtype].append((i, j))
    for some in classes.values():
        for pair, (block, certain) in _of_class(left, right, some, omega, tolerance).items():
            if block is not None:
                blocks[pair] = block
            if unsure is not None and not certain:
                unsure.add(pair)
    return {pair: blocks[pair] for pair in asked if pair in blocks}


def least_cells(a: WeightMatrix, b: WeightMatrix, omega: float) -> int | None:
    """Return rows x columns from which on a common block makes a similarity of at least ``omega``; None: none
    can.
    """
    most = min(a.rows, b.rows) * min(a.columns, b.columns)
    if most == 0 or a.taps == 0:
        return None
    share = omega * (a.elements + b.elements) / (2 * a.taps)
    cells = max(1, int(share) - 1)
    while similarity(a, b, whole(cells, 1)) < omega:  # twice or thrice: as similarity() rounds
        cells += 1
    if cells > most:
        return None
    return cells


def _of_class(
    left: Matrices,
    right: Matrices,
    pairs: Sequence[Pair],
    omega: float,
    tolerance: float,
) -> Findings:
    """Return what pairs of one shape on either side have in common, and whether that is certain."""
    i, j = pairs[0]
    cells = least_cells(left[i], right[j], omega)
    assert cells is not None
    lefts = {i: left[i].array() for i in sorted({i for i, _ in pairs})}
    rights = {j: right[j].array() for j in sorted({j for _, j in pairs})}
    return by_anchors_of_all(lefts, rights, pairs, tolerance=tolerance, cells=cells)
