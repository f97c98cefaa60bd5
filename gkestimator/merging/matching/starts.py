"""Which operators may be merged by what they are and when they start, before their weights are compared."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from gkestimator.merging.matching.assignment import best_assignment
from gkestimator.merging.matching.units import Unit, joined
from gkestimator.merging.operators import PRODUCTS, WeightMatrix
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.similarity.equality import floats
from gkestimator.merging.similarity.search import whole

_ROUNDING = 1e-9  # of a start: sums of the same durations in another order are the same time
_SAMPLES = 16


def together(a: Unit, b: Unit, tau_ms: float) -> bool:
    """Whether all members of ``a`` and ``b`` start within ``tau_ms`` of each other.

    A start is counted from the beginning of the operator's own model, alone on the GPU (the estimator's timeline).
    One that is not known (NaN) is together with others only where tau is infinite.
    """
    if math.isinf(tau_ms):
        return True
    starts = [m.operator.start_ms for m in (*a.members, *b.members)]
    low = min(starts)
    high = max(starts)
    return not any(map(math.isnan, starts)) and high - low <= tau_ms + _ROUNDING * abs(high)


def pairs_to_compare(
    units: Sequence[Unit], own: Sequence[Unit], options: MergeOptions
) -> list[tuple[int, int]]:
    """The places (in ``units``, in ``own``) of pairs whose weights are to be compared, sorted.

    Of one kind, start together, and not so different in size that no common block could be enough.
    """
    tau = options.tau_ms
    buckets: dict[Hashable, list[tuple[float, int]]] = defaultdict(list)
    for i, unit in enumerate(units):
        start = unit.members[0].operator.start_ms
        if math.isinf(tau) or not math.isnan(start):
            buckets[_kind(unit)].append((0.0 if math.isinf(tau) else start, i))
    for bucket in buckets.values():
        bucket.sort()
    found = []
    for j, other in enumerate(own):
        start = other.members[0].operator.start_ms
        bucket = buckets.get(_kind(other), [])
        if not math.isinf(tau):
            if math.isnan(start):
                continue
            reach = tau + 2 * _ROUNDING * (abs(start) + tau)
            first = bisect_left(bucket, (start - reach, -1))
            bucket = bucket[first : bisect_right(bucket, (start + reach, len(units)))]
        found += [
            (i, j)
            for _, i in bucket
            if together(units[i], other, tau) and _could_share(units[i], other) >= options.omega
        ]
    return sorted(found)


def equal_but_for_start(
    units: Sequence[Unit],
    own: Sequence[Unit],
    options: MergeOptions,
    *,
    apart: Callable[[tuple[int, int], tuple[int, int]], bool],
) -> Iterator[Unit]:
    """What would be one if it started together: of one kind, the weight equal to the whole block of the other.

    Each operator at most once (the best assignment); not what ``apart`` says would make a cycle. Only equal weights
    are looked for: the search for shifted blocks in all pairs would cost more than it tells.
    """
    if math.isinf(options.tau_ms):
        return
    sides: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, all_of in enumerate((units, own)):
        for place, unit in enumerate(all_of):
            sides[_kind(unit), unit.block.rows, unit.block.columns][side].append(place)
    possible: dict[tuple[int, int], Unit] = {}
    for lefts, rights in sides.values():
        if not lefts or not rights:
            continue
        a = np.stack([_sample(units[i].block) for i in lefts])
        b = np.stack([_sample(own[j].block) for j in rights])
        all_of_it = whole(own[rights[0]].block.rows, own[rights[0]].block.columns)
        for k, row in enumerate(a):
            with np.errstate(invalid="ignore"):  # equal infinities
                alike = (np.abs(row - b) <= options.tolerance) | (row == b)
            for n in np.flatnonzero(alike.all(axis=1)):
                i = lefts[k]
                j = rights[n]
                one = units[i]
                other = own[j]
                if together(one, other, options.tau_ms) or apart(one.keys[0], other.keys[0]):
                    continue
                if not equal_values(
                    one.block.values, other.block.values, options.tolerance, dtype=one.block.dtype
                ):
                    continue
                grown = joined(one, other, all_of_it, omega=options.omega)
                if grown is not None:
                    possible[i, j] = grown
    places = [u.place for u in units], [u.place for u in own]
    weights = {pair: unit.similarity_of_last() for pair, unit in possible.items()}
    for pair in best_assignment(weights, places):
        yield possible[pair]


def _kind(unit: Unit) -> Hashable:
    """What operators that are merged must have in common besides the weights."""
    operator = unit.members[0].operator
    kind = "product" if operator.kind in PRODUCTS else operator.kind
    return kind, unit.block.dtype, unit.block.taps, operator.geometry


def _could_share(unit: Unit, other: Unit) -> float:
    """The similarity of ``other`` to the largest member if all were shared that fits."""
    a = unit.block
    b = other.block
    most = min(a.rows, b.rows) * min(a.columns, b.columns) * a.taps
    return 2 * most / (max(m.operator.matrix.elements for m in unit.members) + b.elements)


def _sample(block: WeightMatrix) -> np.ndarray:
    """A few values from all over a weight, in float64."""
    array = block.array()
    places = np.unravel_index(np.linspace(0, array.size - 1, _SAMPLES).astype(np.int64), array.shape)
    return np.asarray(floats(array[places]), dtype=np.float64)
