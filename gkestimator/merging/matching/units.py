"""Hold what stands in the merged graph while it grows, and tell which of it may be merged before weights are
compared.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.editing import ValueBlock
from gkestimator.merging.matching.assignment import best_assignment
from gkestimator.merging.operators import (
    PRODUCTS,
    MergedMember,
    Pair,
    Rectangle,
    SuperOperator,
    WeightMatrix,
    WeightOperator,
)
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.similarity.equality import floats
from gkestimator.merging.similarity.search import whole

Units: TypeAlias = "Sequence[Unit]"

_ROUNDING = 1e-9  # of a start: sums of the same durations in another order are the same time
_SAMPLES = 16


@frozen
class Unit:
    """Hold operators that are one by now, and the block (of the first one's weight) that they share.

    ``keys``: by member its model and its index among the model's operators. A single operator's block is its
    weight.
    """

    members: tuple[MergedMember, ...]
    keys: tuple[Pair, ...]
    block: WeightMatrix

    @classmethod
    def single(cls, operator: WeightOperator, key: Pair) -> Unit:
        """Return one operator that nobody has joined."""
        return cls(
            members=(MergedMember(operator=operator, row=0, column=0),), keys=(key,), block=operator.matrix
        )

    @property
    def place(self) -> int:
        """Return where it stands among its (first member's) model's operators."""
        return self.keys[0][1]

    def start_within(self, tau_ms: float) -> float | None:
        """Return when the first member starts, 0 where any start is near enough; None where it is not known."""
        if math.isinf(tau_ms):
            return 0.0
        start = self.members[0].operator.start_ms
        if math.isnan(start):
            return None
        return start

    def as_super(self) -> SuperOperator:
        """Return it as emission takes it. Its similarity is that of the two members that are least similar."""
        sizes = sorted(member.operator.matrix.elements for member in self.members)
        return SuperOperator(
            members=self.members,
            rows=self.block.rows,
            columns=self.block.columns,
            similarity=2 * self.block.elements / (sizes[-1] + sizes[-2]),
        )

    def similarity_of_last(self) -> float:
        """Return the similarity of the last member to the one it is least similar to."""
        *others, last = (member.operator.matrix.elements for member in self.members)
        return 2 * self.block.elements / (max(others) + last)


def joined(unit: Unit, other: Unit, shared: Rectangle, *, omega: float) -> Unit | None:
    """Return ``unit`` with the single operator ``other`` in it; ``shared``: what its block and ``other``'s
    weight share.

    A super-operator's block shrinks to what is shared. That is refused (None) where two members would be
    similar by less than ``omega``, and where less is read once than before: n members read a block once
    instead of n times, so n x ``shared`` must be more than (n - 1) x block.
    """
    before = len(unit.members)
    block = unit.block
    row = shared.row_a
    column = shared.column_a
    start = (row, column, 0)
    stop = (row + shared.rows, column + shared.columns, block.taps)
    values = ValueBlock(base=block.values, start=start, stop=stop)
    cut = replace(block, rows=shared.rows, columns=shared.columns, values=values)
    # what n members read once must be more than what n - 1 of them shared before
    if before > 1 and before * cut.elements <= (before - 1) * block.elements:
        return None
    moved = [replace(member, row=member.row + row, column=member.column + column) for member in unit.members]
    last = replace(other.members[0], row=shared.row_b, column=shared.column_b)
    grown = Unit(members=(*moved, last), keys=(*unit.keys, *other.keys), block=cut)
    if grown.as_super().similarity >= omega:
        return grown
    return None


def together(a: Unit, b: Unit, tau_ms: float) -> bool:
    """Return True where all members of ``a`` and ``b`` start within ``tau_ms`` of each other.

    A start is counted from the beginning of the operator's own model, alone on the GPU (the estimator's
    timeline). One that is not known (NaN) is together with others only where tau is infinite.
    """
    if math.isinf(tau_ms):
        return True
    starts = [member.operator.start_ms for member in (*a.members, *b.members)]
    if any(map(math.isnan, starts)):
        return False
    high = max(starts)
    return high - min(starts) <= tau_ms + _ROUNDING * abs(high)


def pairs_to_compare(units: Units, own: Units, options: MergeOptions) -> list[Pair]:
    """Return the places (in ``units``, in ``own``) of pairs whose weights are to be compared, sorted.

    Of one kind, start together, and not so different in size that no common block could be enough.
    """
    buckets: dict[Hashable, list[tuple[float, int]]] = defaultdict(list)
    for i, unit in enumerate(units):
        start = unit.start_within(options.tau_ms)
        if start is not None:
            buckets[_kind(unit)].append((start, i))
    for bucket in buckets.values():
        bucket.sort()
    pairs = []
    for j, other in enumerate(own):
        start = other.start_within(options.tau_ms)
        if start is None:
            continue
        bucket = buckets[_kind(other)]
        reach = options.tau_ms + 2 * _ROUNDING * (abs(start) + options.tau_ms)
        first = bisect_left(bucket, (start - reach, -1))
        behind = bisect_right(bucket, (start + reach, len(units)))
        for _, i in bucket[first:behind]:
            unit = units[i]
            if together(unit, other, options.tau_ms) and _could_share(unit, other) >= options.omega:
                pairs.append((i, j))
    return sorted(pairs)


def equal_but_for_start(
    units: Units,
    own: Units,
    options: MergeOptions,
    *,
    apart: Callable[[Pair, Pair], bool],
) -> Iterator[Unit]:
    """Yield what would be one if it started together: of one kind, the weight equal to the whole block of the
    other.

    Each operator at most once (the best assignment); not what ``apart`` says would make a cycle. Only equal
    weights are looked for: the search for shifted blocks in all pairs would cost more than it tells.
    """
    if math.isinf(options.tau_ms):
        return
    sides: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, every in enumerate((units, own)):
        for place, unit in enumerate(every):
            sides[_kind(unit), unit.block.rows, unit.block.columns][side].append(place)
    possible: dict[Pair, Unit] = {}
    for lefts, rights in sides.values():
        for i, j in _alike(units, own, lefts, rights, options.tolerance):
            unit = units[i]
            other = own[j]
            if together(unit, other, options.tau_ms):
                continue
            if apart(unit.keys[0], other.keys[0]):
                continue
            block = unit.block
            if not equal_values(block.values, other.block.values, options.tolerance, dtype=block.dtype):
                continue
            grown = joined(unit, other, whole(block.rows, block.columns), omega=options.omega)
            if grown is not None:
                possible[i, j] = grown
    places = [unit.place for unit in units], [unit.place for unit in own]
    weights = {pair: unit.similarity_of_last() for pair, unit in possible.items()}
    for pair in best_assignment(weights, places):
        yield possible[pair]


def _alike(units: Units, own: Units, lefts: list[int], rights: list[int], tolerance: float) -> Iterator[Pair]:
    """Yield the pairs whose weights agree in a few places."""
    if not lefts or not rights:
        return
    samples = np.stack([_sample(own[j].block) for j in rights])
    for i in lefts:
        sample = _sample(units[i].block)
        with np.errstate(invalid="ignore"):  # equal infinities
            alike = (np.abs(sample - samples) <= tolerance) | (sample == samples)
        for n in np.flatnonzero(alike.all(axis=1)).tolist():
            yield i, rights[n]


def _kind(unit: Unit) -> Hashable:
    """Return what operators that are merged must have in common besides the weights."""
    operator = unit.members[0].operator
    kind: str = operator.kind
    if operator.kind in PRODUCTS:
        kind = "product"
    return kind, unit.block.dtype, unit.block.taps, operator.geometry


def _could_share(unit: Unit, other: Unit) -> float:
    """Return the similarity of ``other`` to the largest member if all were shared that fits."""
    a = unit.block
    b = other.block
    most = min(a.rows, b.rows) * min(a.columns, b.columns) * a.taps
    largest = max(member.operator.matrix.elements for member in unit.members)
    return 2 * most / (largest + b.elements)


def _sample(block: WeightMatrix) -> np.ndarray:
    """Return a few values from all over a weight, in float64."""
    array = block.array()
    at = np.linspace(0, array.size - 1, _SAMPLES).astype(np.int64)
    places = np.unravel_index(at, array.shape)
    return np.asarray(floats(array[places]), dtype=np.float64)
