"""USHER's groups: models whose demands balance each other, found by exact minimum-weight maximum matching.

Source: USHER (Shubha, Shen, Iyer, OSDI 2024), grouping: D = |sum Creq - sum Mreq| of a group, groups double
in size by matching until they hold up to four models. Derivation of the matching used here: with a = sum Creq
- sum Mreq of a group, the weight of a pair is |a_i + a_j|, a convex function of the sum. Of two pairs among
  four values v1 <= v2 <= v3 <= v4, both sums of {v1+v4, v2+v3} lie between those of either other pairing;
  exchanging pairs so turns any matching into smallest with largest, whose sums are therefore majorised by those
  of every other matching: it has at once the least total and the least largest weight. That answers in prefix
  sums whether a partial matching can still be completed to a best one, and the matching that comes first by
  names is built pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gkestimator.core.records import frozen
from gkestimator.placement.problem import Floats, FloatsOrNone, Names

Matching: TypeAlias = list[tuple[int, int | None]]

TIE = 1e-9  # relative; totals and largest weights this close are equal
# Of the sum of |a|: what rounding makes of values that cancel.
_ROUNDING = 1e-12
MAX_ROUNDS = 2  # pairs, then pairs of pairs: up to four models

_Floats = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]


@frozen
class ModelGroup:
    """Hold models placed together: their names in order, and the sums of their mean Creq and mean Mreq in
    percent."""

    names: Names
    creq_pct: float
    mreq_pct: float

    @property
    def balance(self) -> float:
        """Return sum Creq - sum Mreq; its absolute value is D."""
        return self.creq_pct - self.mreq_pct

    def joined(self, other: ModelGroup) -> ModelGroup:
        """Return both together."""
        return ModelGroup(
            names=tuple(sorted((*self.names, *other.names))),
            creq_pct=self.creq_pct + other.creq_pct,
            mreq_pct=self.mreq_pct + other.mreq_pct,
        )


def group(models: Sequence[ModelGroup], *, rounds: int = MAX_ROUNDS) -> tuple[ModelGroup, ...]:
    """Return the groups of ``models`` (each alone) after ``rounds`` of matching, in descending order of sum
    Creq + sum Mreq, then by names."""
    groups = list(models)
    for _ in range(rounds):
        joined = []
        for i, j in match([g.balance for g in groups], [g.names for g in groups]):
            joined.append(groups[i] if j is None else groups[i].joined(groups[j]))
        if len(joined) == len(groups):
            break
        groups = joined
    return tuple(sorted(groups, key=lambda g: (-(g.creq_pct + g.mreq_pct), g.names)))


def match(balances: Floats, names: Sequence[Names]) -> Matching:
    """Return the minimum-weight maximum matching on |a_i + a_j|: index pairs, (i, None) for the one left out
    of an odd number.

    Of all matchings whose total is within a relative 1e-9 of the least, those whose largest weight is the
    least (within the same), and of those the one whose sorted list of pairs, each a sorted tuple of names,
    comes first. ``names`` are disjoint sorted tuples. O(n) vectorised steps of O(n) each.
    """
    a = np.asarray(balances, dtype=np.float64)
    if len(a) < 2:
        return [(i, None) for i in range(len(a))]
    return _Matcher(a, names).pairs()


class _Matcher:
    """Hold what is fixed so far, and what a completion may cost."""

    def __init__(self, a: _Floats, names: Sequence[Names]) -> None:
        self.a = a
        self.names = names
        order = sorted(range(len(a)), key=lambda i: (a[i], names[i]))
        self.open = np.array(order)  # indices not yet matched, by value, then names
        self.rank = np.empty(len(a), dtype=np.int64)  # by names
        self.rank[sorted(range(len(a)), key=lambda i: names[i])] = np.arange(len(a))
        self.spent = 0.0
        slack = _ROUNDING * float(np.abs(a).sum())
        # Values whose holder may be the one that is left out; None: an even number, nobody is.
        if len(a) % 2 == 0:
            self.left: FloatsOrNone = [None]
        else:
            self.left = list(dict.fromkeys(a.tolist()))
        totals = [_weights(self._without(v)) for v in self.left]
        self.budget = min(float(w.sum()) for w in totals) * (1 + TIE) + slack
        largest = [float(w.max(initial=0.0)) for w in totals if w.sum() <= self.budget]
        self.limit = min(largest) * (1 + TIE) + slack
        # A weight above the limit counts as this much: beyond the budget, yet small enough to leave the sums exact.
        self.refused = 4 * self.budget + 1e9 * slack
        self.left = [
            v
            for v, w in zip(self.left, totals, strict=True)
            if w.sum() <= self.budget and w.max(initial=0.0) <= self.limit
        ]

    def _without(self, value: float | None) -> _Floats:
        """Return the open values, sorted, less one ``value``."""
        values: _Floats = self.a[self.open]
        if value is None:
            return values
        return np.delete(values, int(np.searchsorted(values, value)))

    def pairs(self) -> Matching:
        pairs: Matching = []
        done: set[int] = set()
        for i in sorted(range(len(self.a)), key=lambda i: self.names[i]):
            if i in done:
                continue
            partner, left = self._partner(i)
            pairs.append((i, partner))
            keep = self.open != i
            if partner is not None:
                done.add(partner)
                keep &= self.open != partner
                self.spent += abs(float(self.a[i] + self.a[partner]))
            self.open = self.open[keep]
            self.left = left
        return pairs

    def _partner(self, i: int) -> tuple[int | None, FloatsOrNone]:
        """Return whom ``i`` is matched with (None: nobody), and who may be left out after that."""
        value = float(self.a[i])
        others = self.open[self.open != i]
        allowed = np.zeros((len(self.left), len(others)), dtype=bool)
        for row, left in enumerate(self.left):
            allowed[row] = self._allowed(i, others, left)
        possible = np.flatnonzero(allowed.any(axis=0))
        if not len(possible):
            assert value in self.left, "a best matching is always within reach"
            return None, [None]
        best = int(possible[np.argmin(self.rank[others[possible]])])
        return int(others[best]), [v for v, ok in zip(self.left, allowed[:, best], strict=True) if ok]

    def _allowed(self, i: int, others: npt.NDArray[Any], left: float | None) -> _Flags:
        """Return whether a best matching pairs ``i`` with each of ``others`` (sorted by value) while a holder
        of ``left`` is left out."""
        drop = None
        a = self.a
        if left is not None:
            holders = np.flatnonzero(a[others] == left)
            if not len(holders):
                return np.zeros(len(others), dtype=bool)
            drop = int(holders[-1])  # of equal holders the last by names; pairing it instead changes nothing
        if drop is None:
            kept = others
        else:
            kept = np.delete(others, drop)
        value = a[i]
        partners = a[kept]
        weight = np.abs(value + partners)
        p = int(np.searchsorted(partners, value))
        together = np.insert(partners, p, value)
        total = _completions(together, p, self.limit, self.refused)
        fits: _Flags = (self.spent + weight + total <= self.budget) & (weight <= self.limit)
        if drop is None:
            return fits
        return np.insert(fits, drop, False)


def _weights(values: _Floats) -> _Floats:
    """Return the weights of the best matching of an even number of sorted ``values``: smallest with
    largest."""
    half = len(values) // 2
    return np.abs(values[:half] + values[::-1][:half])


def _completions(b: _Floats, p: int, limit: float, refused: float) -> _Floats:
    """Return for each position q != p of the sorted, even ``b``: total weight of the best matching of the
    rest without b[p] and b[q]; weights above ``limit`` count as ``refused``.

    Without two values, the k-th smallest of the rest is b[k], b[k+1] or b[k+2], the k-th largest likewise;
    where each begins depends on p and q alone, so that prefix sums over their combinations answer every q at
    once."""
    m = len(b)
    pairs = m // 2 - 1
    total = np.zeros(m - 1)
    if pairs == 0:
        return total
    q = np.delete(np.arange(m), p)
    low = np.minimum(p, q)
    high = np.maximum(p, q)
    zero = np.zeros_like(low)
    end = np.full_like(low, pairs)
    # From which k to which the k-th smallest and the k-th largest are shifted by 0, 1 and 2.
    first = np.minimum(low, pairs)
    second = np.minimum(high - 1, pairs)
    third = np.clip(m - 1 - high, 0, pairs)
    fourth = np.clip(m - 2 - low, 0, pairs)
    left = ((zero, first), (first, second), (second, end))
    right = ((fourth, end), (third, fourth), (zero, third))
    for dl in range(3):
        for dr in range(dl, 3):  # what lies above in value is shifted no less
            weight = np.abs(b[dl : dl + pairs] + b[m - 2 - pairs + dr : m - 2 + dr][::-1])
            weight[weight > limit] = refused
            sums = np.empty(pairs + 1)
            sums[0] = 0.0
            np.cumsum(weight, out=sums[1:])
            start = np.maximum(left[dl][0], right[dr][0])
            stop = np.maximum(np.minimum(left[dl][1], right[dr][1]), start)
            total += sums[stop] - sums[start]
    return total
