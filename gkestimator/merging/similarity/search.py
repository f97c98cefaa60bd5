"""The largest block that two weights have in common, and which of many pairs have one that is large enough."""

from __future__ import annotations

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
from gkestimator.merging.similarity.equality import Array, checked_tolerance, equal_everywhere, floats
from gkestimator.merging.similarity.growing import Meetings, best_of, largest_at_shift
from gkestimator.merging.similarity.lattice import Lattice, Shape, lattices, slacks, with_fewer_values
from gkestimator.merging.similarity.reaching import Reach
from gkestimator.merging.similarity.rectangles import by_every_shift, cost_of_every_shift, earlier

Finding: TypeAlias = "tuple[Rectangle | None, bool]"

_SMALL = 1 << 15  # comparisons that every shift may cost: beyond, anchors are faster
_NARROWER = 8  # how much smaller a rectangle is looked for when none was found


def largest_common_rectangle(a: Array, b: Array, *, tolerance: float, least: int = 1) -> Rectangle | None:
    """The largest block (contiguous rows and columns, all taps) that ``a`` and ``b`` have in common, at any offset.

    ``a`` and ``b``: [rows, columns, taps] of one type (float16, float32, float64, or uint16 for bfloat16) and as many
    taps. ``least``: values (rows x columns x taps) it must have, else None; the more, the faster. Of several largest
    ones: the smallest row, then column in ``a``, then in ``b``, then the one of more rows. Values are equal as in
    :mod:`gkestimator.merging.similarity.equality`.

    ``exact`` is False where so many places look alike (weights of few distinct values) that the search stopped before
    it had seen all. None is then no proof either.

    Raises UsageError for a negative or infinite tolerance and for weights that cannot be compared.
    """
    tolerance = checked_tolerance(tolerance)
    if a.ndim != 3 or b.ndim != 3 or a.dtype != b.dtype or a.shape[2] != b.shape[2]:
        raise UsageError(
            f"weights of shapes {list(a.shape)} ({a.dtype}) and {list(b.shape)} ({b.dtype}): expected rows, columns "
            "and taps of both, of one type and as many taps"
        )
    if a.size == 0 or b.size == 0:
        return None
    floats(a[:0])  # the type's error
    taps = a.shape[2]
    smallest = max(1, -(-least // taps))
    most = min(a.shape[0], b.shape[0]) * min(a.shape[1], b.shape[1])
    if smallest > most:
        return None
    if a.shape == b.shape and equal_everywhere(a, b, tolerance):
        return whole(a.shape[0], a.shape[1])
    if cost_of_every_shift(a, b) <= _SMALL:
        found = by_every_shift(a, b, tolerance=tolerance)
        if found is not None and found.rows * found.columns >= smallest:
            return found
        return None
    certain = True
    best = None
    cells = max(smallest, most // 2)
    while True:
        found, exact = by_anchors(a, b, tolerance=tolerance, cells=cells)
        certain &= exact
        if found is not None and earlier(found, best):
            best = found
        if cells == smallest or (best is not None and best.rows * best.columns >= cells):
            if best is None or certain:
                return best
            return replace(best, exact=False)
        cells = max(smallest, cells // _NARROWER)


def whole(rows: int, columns: int) -> Rectangle:
    """The rectangle of two equal weights."""
    return Rectangle(rows=rows, columns=columns, row_a=0, column_a=0, row_b=0, column_b=0)


_FIRST_SLACK = next(slacks())
_MANY = 1 << 12  # meetings of a pair from which on it is worth looking for more telling places
_FEW = 1 << 18  # hashes of a weight up to which other places are tried
_HELD = 1 << 22
_MOST = 1 << 24  # meetings of a pair that are looked at
_AT_ONCE = 1 << 17


def by_anchors(a: Array, b: Array, *, tolerance: float, cells: int) -> Finding:
    """The largest common rectangle of ``a`` and ``b`` [rows, columns, taps] if it has at least ``cells`` cells.

    And whether that is certain. ``cells`` is at least 1.
    """
    if min(a.shape[0], b.shape[0]) * min(a.shape[1], b.shape[1]) < cells:
        return None, True
    return by_anchors_of_all({0: a}, {0: b}, [(0, 0)], tolerance=tolerance, cells=cells)[0, 0]


def by_anchors_of_all(
    left: Mapping[int, Array],
    right: Mapping[int, Array],
    pairs: Sequence[Pair],
    *,
    tolerance: float,
    cells: int,
) -> dict[Pair, Finding]:
    """The same for many pairs: all of ``left`` are of one shape, all of ``right`` of one, and all of one type.

    Each weight is hashed once for all it is paired with, as long as :data:`_HELD` hashes hold those of ``left``.
    """
    shapes = _shape(next(iter(left.values()))), _shape(next(iter(right.values())))
    many = len(left), len(right)
    bucket = buckets((*left.values(), *right.values()), tolerance=tolerance)
    found: dict[Pair, Finding] = dict.fromkeys(pairs, (None, True))
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
    a: Array,
    b: Array,
    anchors: Anchors,
    samples: Anchors,
    plan: Lattice,
    bucket: Buckets,
    *,
    cells: int,
    best: Rectangle | None,
) -> Finding:
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
    a: Array,
    anchors: Anchors,
    samples: Anchors,
    plan: Lattice,
    bucket: Buckets,
    met: tuple[Array, Array],
) -> tuple[Anchors, tuple[Array, Array]]:
    """The choice of places whose patterns meet least, and where they do."""
    for slack in slacks():
        if slack != _FIRST_SLACK and int(met[1].sum()) > _MANY:
            other = anchors_of(a, plan, bucket, slack)
            there = meeting(other, samples)
            if not other.crowded and int(there[1].sum()) < int(met[1].sum()):
                anchors = other
                met = there
    return anchors, met


def _looked_at(count: Array) -> tuple[Array, bool]:
    """The samples whose meetings are looked at, and whether those are all: else those of the rarest hashes."""
    entries = np.flatnonzero(count)
    if int(count.sum()) <= _MOST:
        return entries, True
    entries = entries[np.argsort(count[entries], kind="stable")]
    return entries[np.cumsum(count[entries]) <= _MOST], False


def _meetings(a: Anchors, b: Anchors, low: Array, count: Array, entries: Array) -> Iterator[Meetings]:
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


def _shape(a: Array) -> Shape:
    rows, columns, taps = a.shape
    return rows, columns, taps


_Class: TypeAlias = tuple[int, int, int, int, int, str]


def similar_pairs(
    left: Sequence[WeightMatrix],
    right: Sequence[WeightMatrix],
    pairs: Iterable[Pair],
    *,
    omega: float,
    tolerance: float,
    unsure: set[Pair] | None = None,
) -> dict[Pair, Rectangle]:
    """The pairs (index in ``left``, index in ``right``) of similarity at least ``omega``, with the largest block.

    In the order of ``pairs``. Weights of different types or taps have nothing in common. Equal weights are found by
    comparing them once; for all others see :mod:`~gkestimator.merging.similarity.lattice`. A pair whose search gave
    up without a find is not among them (see :func:`~gkestimator.merging.similarity.largest_common_rectangle`); all
    whose search gave up, with a find or without, are added to ``unsure``.

    Raises UsageError for a tolerance that is negative or an omega that is not in (0, 1], ModelError where a file does
    not hold the values.
    """
    tolerance = checked_tolerance(tolerance)
    if not 0 < omega <= 1:
        raise UsageError(f"omega is {omega}: expected a number above 0 to 1")
    found: dict[Pair, Rectangle] = {}
    asked = list(dict.fromkeys(pairs))
    classes: dict[_Class, list[Pair]] = {}
    for i, j in asked:
        a = left[i]
        b = right[j]
        if a.dtype is not b.dtype:
            continue
        if a.taps != b.taps:
            continue
        if least_cells(a, b, omega) is None:
            continue
        if (a.rows, a.columns) == (b.rows, b.columns) and equal_everywhere(a.array(), b.array(), tolerance):
            found[i, j] = whole(a.rows, a.columns)
            continue
        kind = (a.rows, a.columns, b.rows, b.columns, a.taps, str(a.dtype))
        classes.setdefault(kind, []).append((i, j))
    for some in classes.values():
        searched = _of_class(left, right, some, omega=omega, tolerance=tolerance)
        found.update({pair: block for pair, (block, _) in searched.items() if block is not None})
        if unsure is not None:
            unsure.update(pair for pair, (_, certain) in searched.items() if not certain)
    return {pair: found[pair] for pair in asked if pair in found}


def least_cells(a: WeightMatrix, b: WeightMatrix, omega: float) -> int | None:
    """Rows x columns from which on a common block makes a similarity of at least ``omega``; None: none can."""
    most = min(a.rows, b.rows) * min(a.columns, b.columns)
    if most == 0 or a.taps == 0:
        return None
    cells = max(1, int(omega * (a.elements + b.elements) / (2 * a.taps)) - 1)
    while _similarity_of(a, b, cells) < omega:  # twice or thrice: as similarity() rounds
        cells += 1
    if cells <= most:
        return cells
    return None


def _similarity_of(a: WeightMatrix, b: WeightMatrix, cells: int) -> float:
    block = Rectangle(rows=cells, columns=1, row_a=0, column_a=0, row_b=0, column_b=0)
    return similarity(a, b, block)


def _of_class(
    left: Sequence[WeightMatrix],
    right: Sequence[WeightMatrix],
    pairs: Sequence[Pair],
    *,
    omega: float,
    tolerance: float,
) -> dict[Pair, Finding]:
    """Pairs of one shape on either side: what was found, and whether that is certain."""
    cells = least_cells(left[pairs[0][0]], right[pairs[0][1]], omega)
    assert cells is not None
    return by_anchors_of_all(
        {i: left[i].array() for i in sorted({i for i, _ in pairs})},
        {j: right[j].array() for j in sorted({j for _, j in pairs})},
        pairs,
        tolerance=tolerance,
        cells=cells,
    )
