"""Bounds of USHER's search: the most goodput that models can still reach, and the least that the GPUs for it
cost.

Every bound holds for all packings, greedy or not: demands and room are summed as areas (percent of Creq, of
Mreq, of GPUs weighted by what a GPU counts), as slots (a GPU holds at most one replica of a model, and so
many of the smallest demand), and as slots for replicas above half a GPU (at most one of them on a GPU)."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.placement.papers.usher.configurations import Choices, UsherChoice
from gkestimator.placement.papers.usher.packing import EPSILON, Garage, Packing, Run, Runs
from gkestimator.placement.problem import FloatPair, Floats

Goods: TypeAlias = tuple[tuple[float, float], ...]

_HALF = 50.0
# Creq and Mreq of free room (weighted), slots, GPUs more than half free in Creq and in Mreq, GPUs.
_Room = tuple[float, float, float, float, float, float]


@frozen
class _Needs:
    """Say of one choice that serves as much as it can: ``most`` that is, replicas that are ``enough``,
    replicas that are placed for that at least (``count``), their weighted areas of Creq and Mreq; goodput per
    weighted area and per replica; the least weighted demands of a replica and the least demands, on any
    type."""

    most: float
    enough: int
    count: int
    creq: float
    mreq: float
    per_creq: float
    per_mreq: float
    rps: float
    unit_creq: float
    unit_mreq: float
    least_creq: float
    least_mreq: float


@frozen
class Demand:
    """Sum up models that are still to be placed with the choices that remain: the ``most`` they can serve,
    the least demands of a replica, slots of a new GPU; the least weighted areas, ``replicas`` (of all, and of
    the model with the most) and replicas above half a GPU with which each serves the most it can; and by
    model what bounds goodput in scarce room: (goodput per area or per replica, most), the last two for models
    that are always above half a GPU."""

    most: float
    least_creq: float
    least_mreq: float
    slots: float
    creq: float
    mreq: float
    replicas: float
    single: float
    half_creq: float
    half_mreq: float
    by_creq: Goods
    by_mreq: Goods
    by_replica: Goods
    large_creq: Goods
    large_mreq: Goods


@frozen
class _ModelSum:
    """Say of one model, whatever of its choices is taken, the ``most`` it can serve, and what that takes at
    least: the weighted areas, replicas (``count``), and whether they are above half a GPU; and of all its
    choices the best goodput per area and per replica, whether every one is above half a GPU, and the least
    demands."""

    most: float
    count: int
    creq: float
    mreq: float
    half_creq: bool
    half_mreq: bool
    rps: float
    per_creq: float
    per_mreq: float
    always_half_creq: bool
    always_half_mreq: bool
    least_creq: float
    least_mreq: float

    @classmethod
    def of(cls, needs: Sequence[_Needs]) -> _ModelSum:
        """Return the sum over the ``needs`` of one model's choices."""
        most = max(n.most for n in needs)
        full = [n for n in needs if n.most >= most * (1 - 1e-12)]
        half = _HALF + EPSILON
        least_creq = min(n.least_creq for n in needs)
        least_mreq = min(n.least_mreq for n in needs)
        return cls(
            most=most,
            count=min(n.count for n in full),
            creq=min(n.creq for n in full),
            mreq=min(n.mreq for n in full),
            half_creq=min(n.least_creq for n in full) > half,
            half_mreq=min(n.least_mreq for n in full) > half,
            rps=max(n.rps for n in needs),
            per_creq=max(n.per_creq for n in needs),
            per_mreq=max(n.per_mreq for n in needs),
            always_half_creq=least_creq > half,
            always_half_mreq=least_mreq > half,
            least_creq=least_creq,
            least_mreq=least_mreq,
        )


class Bounds:
    """Hold bounds for one group. ``unit``: goodput this close is equal."""

    def __init__(self, choices: Sequence[Choices], garage: Garage, *, rented: bool) -> None:
        self.garage = garage
        if rented:
            self.weights = garage.prices
        else:
            self.weights = (1.0,) * len(garage.limits)
        self.one_type = len(garage.limits) == 1
        self.finite = all(math.isfinite(limit) for limit in garage.limits)
        # A degree is cut short only where GPUs run out; with several types of which some can, that bounds nothing.
        self.whole_degrees = self.one_type or all(math.isinf(limit) for limit in garage.limits)
        self.choices = [c for of_model in choices for c in of_model]
        self.needs = {id(c): self._needs(c) for c in self.choices}
        self.unit = 1e-12 * sum(of_model[0].rate_rps for of_model in choices)
        self.all = self.demand(dict(enumerate(choices)))

    def _needs(self, choice: UsherChoice) -> _Needs:
        rps = max(choice.rps)
        most = min(choice.rate_rps, choice.degrees[-1] * rps)
        enough = math.ceil(most / rps * (1 - 1e-12))
        if self.whole_degrees:
            count = next(d for d in choice.degrees if d >= enough)
        else:
            count = enough
        unit_creq, each_creq = self._unit(choice, choice.creq)
        unit_mreq, each_mreq = self._unit(choice, choice.mreq)
        return _Needs(
            most=most,
            enough=enough,
            count=count,
            creq=max(count * unit_creq, most * min(each_creq)),
            mreq=max(count * unit_mreq, most * min(each_mreq)),
            per_creq=_best_per_area(choice, self.weights, choice.creq),
            per_mreq=_best_per_area(choice, self.weights, choice.mreq),
            rps=rps,
            unit_creq=unit_creq,
            unit_mreq=unit_mreq,
            least_creq=min(choice.creq),
            least_mreq=min(choice.mreq),
        )

    def _unit(self, choice: UsherChoice, demand: Floats) -> tuple[float, list[float]]:
        """Return the least weighted area of a replica, and that of a request by GPU type that it can run
        on."""
        areas = []
        each = []
        for weight, percent, rps in zip(self.weights, demand, choice.rps, strict=True):
            if rps > 0:
                areas.append(weight * percent)
                each.append(weight * percent / rps)
        return min(areas), each

    def enough(self, choice: UsherChoice) -> int:
        """Return the replicas of ``choice`` that serve as much as it can serve."""
        return self.needs[id(choice)].enough

    def most(self, choice: UsherChoice) -> float:
        """Return the most that ``choice`` can serve."""
        return self.needs[id(choice)].most

    def promise(self, choice: UsherChoice) -> tuple[float, float, int, int]:
        """Return the sort key of what to try first: most goodput, least room, first number."""
        n = self.needs[id(choice)]
        return (-n.most, max(n.creq, n.mreq), choice.model, choice.number)

    def demand(self, rest: Mapping[int, Choices]) -> Demand:
        """Return what bounds the models of ``rest``."""
        sums = [self._sum_of(choices) for choices in rest.values()]
        counts = [s.count for s in sums]
        goods = tuple([(s.rps, s.most) for s in sums])
        low_c = min((s.least_creq for s in sums), default=0.0)
        low_m = min((s.least_mreq for s in sums), default=0.0)
        return Demand(
            most=_total(s.most for s in sums),
            least_creq=low_c,
            least_mreq=low_m,
            slots=_slots(100.0, 100.0, len(sums), low_c, low_m),
            creq=_total(s.creq for s in sums),
            mreq=_total(s.mreq for s in sums),
            replicas=_total(counts),
            single=max(counts, default=0.0),
            half_creq=_total(s.count * s.half_creq for s in sums),
            half_mreq=_total(s.count * s.half_mreq for s in sums),
            by_creq=_best_first((s.per_creq, s.most) for s in sums),
            by_mreq=_best_first((s.per_mreq, s.most) for s in sums),
            by_replica=goods,
            large_creq=tuple(compress(goods, [s.always_half_creq for s in sums])),
            large_mreq=tuple(compress(goods, [s.always_half_mreq for s in sums])),
        )

    def _sum_of(self, choices: Choices) -> _ModelSum:
        return _ModelSum.of([self.needs[id(c)] for c in choices])

    def usable(self, runs: Sequence[Run]) -> Runs:
        """Return the runs on which some choice of the group fits."""
        types = range(len(self.weights))
        least = [_least({(c.creq[t], c.mreq[t]) for c in self.choices}) for t in types]
        usable = []
        for run in runs:
            t, creq, mreq = run[:3]
            if any(creq >= c - EPSILON and mreq >= m - EPSILON for c, m in least[t]):
                usable.append(run)
        return usable

    def room(self, demand: Demand, packing: Packing) -> _Room:
        """Return the room of all used GPUs on which a replica of ``demand`` may fit."""
        if packing.room is None:
            packing.room = self._sum(packing.outside, self.all)
        inside = self._sum(packing.inside, demand)
        return tuple(map(operator.add, packing.room, inside))

    def _sum(self, runs: Sequence[Run], demand: Demand) -> _Room:
        low_c = demand.least_creq
        low_m = demand.least_mreq
        most = len(demand.by_creq)
        creq = mreq = slots = half_c = half_m = gpus = 0.0
        for t, c, m, count, _, _ in runs:
            if c < low_c - EPSILON or m < low_m - EPSILON:
                continue
            weight = self.weights[t] * count
            creq += weight * c
            mreq += weight * m
            slots += count * _slots(c, m, most, low_c, low_m)
            if c > _HALF - EPSILON:
                half_c += count
            if m > _HALF - EPSILON:
                half_m += count
            gpus += count
        return (creq, mreq, slots, half_c, half_m, gpus)

    def most_in(self, demand: Demand, packing: Packing) -> float:
        """Return the goodput of ``demand`` in the room there is."""
        if not self.finite:
            return demand.most
        creq, mreq, slots, half_c, half_m, _ = self.room(demand, packing)
        free = [limit - n for limit, n in zip(self.garage.limits, packing.opened, strict=True)]
        new = sum(free)
        weighted = 100.0 * sum(f * w for f, w in zip(free, self.weights, strict=True))
        upper = min(
            demand.most,
            _knapsack(demand.by_creq, creq + weighted),
            _knapsack(demand.by_mreq, mreq + weighted),
            _slotted(demand.by_replica, slots + new * demand.slots),
        )
        for large, room in ((demand.large_creq, half_c + new), (demand.large_mreq, half_m + new)):
            if len(large) > 1:
                others = demand.most - sum(most for _, most in large)
                upper = min(upper, others + _slotted(large, room))
        return upper * (1 + 1e-12)

    def least(
        self,
        demand: Demand,
        room: _Room,
        opened: Sequence[int],
        choice: UsherChoice | None = None,
        number: int = 0,
    ) -> float:
        """Return what the new GPUs count at least with which each model of ``demand`` serves the most it can
        (their number, or cost where rented), with ``number`` replicas of ``choice`` besides."""
        free_creq, free_mreq, free_slots, free_half_creq, free_half_mreq, gpus = room
        creq = demand.creq - free_creq
        mreq = demand.mreq - free_mreq
        replicas = demand.replicas - free_slots
        single = demand.single - gpus
        half_c = demand.half_creq - free_half_creq
        half_m = demand.half_mreq - free_half_mreq
        slots = demand.slots
        if choice is not None:
            needs = self.needs[id(choice)]
            creq += number * needs.unit_creq
            mreq += number * needs.unit_mreq
            replicas += number
            slots = math.inf  # of demand alone: its smallest replica may be larger than the choice's
            single = max(single, number - gpus)
            if needs.least_creq > _HALF + EPSILON:
                half_c += number
            if needs.least_mreq > _HALF + EPSILON:
                half_m += number
        area = max(creq, mreq) / 100.0 - 1e-9
        heaviest = max(self.weights)
        lightest = min(self.weights)
        new = max(single, half_c, half_m, 0.0)
        if 0 < slots < math.inf:
            new = max(new, math.ceil(replicas / slots))
        if area > 0 and heaviest > 0:
            new = max(new, math.ceil(area / heaviest))
        if self.one_type:
            # A degree that is cut short has used every GPU there is.
            return min(new, self.garage.limits[0] - opened[0]) * lightest
        return max(new * lightest, area, 0.0)


def _best_first(goods: Iterable[FloatPair]) -> Goods:
    return tuple(sorted(goods, reverse=True))


def _total(values: Iterable[float]) -> float:
    return sum(values, 0.0)


def _best_per_area(choice: UsherChoice, weights: Floats, demand: Floats) -> float:
    """Return the most requests a second for a weighted area of ``demand``, infinite where it asks for
    none."""
    best = 0.0
    for weight, percent, rps in zip(weights, demand, choice.rps, strict=True):
        if rps > 0:
            area = weight * percent
            best = max(best, rps / area if area > 0 else math.inf)
    return best


def _least(pairs: set[FloatPair]) -> list[FloatPair]:
    """Return the pairs of which no other is smaller in both."""
    least: list[FloatPair] = []
    for c, m in sorted(pairs):
        if not least or m < least[-1][1]:
            least.append((c, m))
    return least


def _slots(creq: float, mreq: float, size: float, low_c: float, low_m: float) -> float:
    """Return the replicas that a GPU with so much room holds at most: one of each model, none smaller than
    the least demands."""
    slots = size
    if low_c * slots > creq:
        slots = (creq + 1e-6) // low_c
    if low_m * slots > mreq:
        slots = (mreq + 1e-6) // low_m
    return slots


def _knapsack(goods: Sequence[FloatPair], room: float) -> float:
    """Return the most value of (value per room, most) goods, best first, divisible at will."""
    total = 0.0
    for per, most in goods:
        if room <= 0:
            break
        if per < math.inf:
            take = min(most, per * room)
        else:
            take = most
        total += take
        room -= take / per
    return total


def _slotted(goods: Sequence[FloatPair], slots: float) -> float:
    """Return the most value of (value of a replica, most) goods with so many replicas: the last replica of a
    good may be worth less than the others."""
    parts = []
    for rps, most in goods:
        whole = math.floor(most / rps)
        parts += [(rps, float(whole)), (most - whole * rps, 1.0)]
    total = 0.0
    for value, count in sorted(parts, reverse=True):
        if slots <= 0:
            break
        total += value * min(count, slots)
        slots -= count
    return total
