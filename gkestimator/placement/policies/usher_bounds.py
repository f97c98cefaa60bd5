"""Bounds of USHER's search: the most goodput that models can still reach, and the least that the GPUs for it cost.

Every bound holds for all packings, greedy or not: demands and room are summed as areas (percent of Creq, of
Mreq, of GPUs weighted by what a GPU counts), as slots (a GPU holds at most one replica of a model, and so many
of the smallest demand), and as slots for replicas above half a GPU (at most one of them on a GPU).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gkestimator.placement.policies.usher_configurations import Choice
from gkestimator.placement.policies.usher_packing import EPSILON, Garage, Packing, Run

__all__ = ["Bounds", "Open"]

_Rest = Mapping[int, Sequence[Choice]]


@dataclass(frozen=True, slots=True)
class Open:
    """Room of the GPUs that only other groups use: weighted Creq and Mreq, slots, GPUs more than half free in
    Creq and in Mreq, GPUs."""

    creq: float = 0.0
    mreq: float = 0.0
    slots: float = 0.0
    half_creq: float = 0.0
    half_mreq: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class _Needs:
    """Of one choice that serves as much as it can: ``most`` that is, replicas that ``enough`` and the least
    ``degree`` for them, their weighted ``area`` of Creq and Mreq; goodput per area and per replica; the least
    demands on any type."""

    most: float
    enough: int
    degree: int
    creq: float
    mreq: float
    per_creq: float
    per_mreq: float
    rps: float
    least_creq: float
    least_mreq: float


class Bounds:
    """Bounds for one group. ``unit``: goodput this close is equal."""

    def __init__(
        self, choices: Sequence[Sequence[Choice]], garage: Garage, *, rented: bool, opened: Sequence[int]
    ) -> None:
        self.garage = garage
        self.weights = garage.prices if rented else (1.0,) * len(garage.limits)
        self.one_type = len(garage.limits) == 1
        self.finite = all(math.isfinite(limit) for limit in garage.limits)
        self.opened = opened
        self.needs = {id(c): self._needs(c) for of_model in choices for c in of_model}
        self.size = len(choices)
        needs = self.needs.values()
        self.least_creq = min((n.least_creq for n in needs), default=0.0)
        self.least_mreq = min((n.least_mreq for n in needs), default=0.0)
        self.choices = choices
        self.unit = 1e-12 * sum(c[0].rate_rps for c in choices) if choices else 1.0

    def _needs(self, choice: Choice) -> _Needs:
        rps = max(choice.rps)
        most = min(choice.rate_rps, choice.degrees[-1] * rps)
        enough = math.ceil(most / rps * (1 - 1e-12))
        degree = next(d for d in choice.degrees if d >= enough)
        # A degree is cut short only where the GPUs run out. With several types of them that says little: count replicas then.
        count = degree if self.one_type or not self.finite else enough
        if not self.one_type and any(math.isfinite(limit) for limit in self.garage.limits):
            count = enough
        types = [t for t, r in enumerate(choice.rps) if r > 0]
        weights = self.weights

        def area(demand: Sequence[float]) -> float:
            by_count = count * min(weights[t] * demand[t] for t in types)
            return max(by_count, most * min(weights[t] * demand[t] / choice.rps[t] for t in types))

        def per(demand: Sequence[float]) -> float:
            return max(
                choice.rps[t] / (weights[t] * demand[t]) if weights[t] * demand[t] > 0 else math.inf
                for t in types
            )

        return _Needs(
            most,
            enough,
            count,
            area(choice.creq),
            area(choice.mreq),
            per(choice.creq),
            per(choice.mreq),
            rps,
            min(choice.creq),
            min(choice.mreq),
        )

    def enough(self, choice: Choice) -> int:
        """Replicas of ``choice`` that serve as much as it can serve."""
        return self.needs[id(choice)].enough

    def promise(self, choice: Choice) -> tuple[float, float, int, int]:
        """Sort key of what to try first: most goodput, least room, first number."""
        n = self.needs[id(choice)]
        return (-n.most, max(n.creq, n.mreq), choice.model, choice.number)

    def most(self, rest: _Rest) -> float:
        """Goodput of ``rest`` with all the room there could be."""
        needs = self.needs
        return sum(max(needs[id(c)].most for c in choices) for choices in rest.values())

    def usable(self, runs: Sequence[Run]) -> list[Run]:
        """The runs on which some choice of the group fits."""
        low_c, low_m = self.least_creq - EPSILON, self.least_mreq - EPSILON
        every = [c for of_model in self.choices for c in of_model]
        return [
            run
            for run in runs
            if run[1] >= low_c
            and run[2] >= low_m
            and any(run[1] >= c.creq[run[0]] - EPSILON and run[2] >= c.mreq[run[0]] - EPSILON for c in every)
        ]

    def root(self, packing: Packing) -> Open:
        """Room of the outside of ``packing``."""
        return self._sum(packing.outside, self.size, self.least_creq, self.least_mreq)

    def after(self, room: Open, before: Packing, packed: Packing) -> Open:
        """Room of the outside of ``packed``, from that of ``before``."""
        if packed.outside is before.outside or len(before.outside) == 0:
            return room
        return self._sum(packed.outside, self.size, self.least_creq, self.least_mreq)

    def _sum(self, runs: Sequence[Run], size: int, low_c: float, low_m: float) -> Open:
        creq = mreq = slots = half_c = half_m = gpus = 0.0
        for t, c, m, count, _, _ in runs:
            if c < low_c - EPSILON or m < low_m - EPSILON:
                continue
            weight = self.weights[t] * count
            creq += weight * c
            mreq += weight * m
            slots += count * _slots(c, m, size, low_c, low_m)
            half_c += count if c > 50 - EPSILON else 0
            half_m += count if m > 50 - EPSILON else 0
            gpus += count
        return Open(creq, mreq, slots, half_c, half_m, gpus)

    def _low(self, rest: _Rest) -> tuple[float, float]:
        needs = self.needs
        found = [needs[id(c)] for choices in rest.values() for c in choices]
        return min(n.least_creq for n in found), min(n.least_mreq for n in found)

    def _open(self, rest: _Rest, packing: Packing, room: Open) -> tuple[Open, float]:
        """Room of all used GPUs for ``rest``, and slots of a new one."""
        low_c, low_m = self._low(rest)
        inside = self._sum(packing.inside, len(rest), low_c, low_m)
        both = Open(
            inside.creq + room.creq,
            inside.mreq + room.mreq,
            inside.slots + room.slots,
            inside.half_creq + room.half_creq,
            inside.half_mreq + room.half_mreq,
            inside.gpus + room.gpus,
        )
        return both, _slots(100.0, 100.0, len(rest), low_c, low_m)

    def most_in(self, rest: _Rest, packing: Packing, room: Open) -> float:
        """Goodput of ``rest`` in the room there is."""
        upper = self.most(rest)
        if not self.finite:
            return upper
        have, per_new = self._open(rest, packing, room)
        free = [limit - n for limit, n in zip(self.garage.limits, packing.opened, strict=True)]
        new = sum(free)
        weighted = 100.0 * sum(f * w for f, w in zip(free, self.weights, strict=True))
        models = [[self.needs[id(c)] for c in choices] for choices in rest.values()]
        upper = min(
            upper,
            _knapsack(
                [(max(n.per_creq for n in m), max(n.most for n in m)) for m in models], have.creq + weighted
            ),
            _knapsack(
                [(max(n.per_mreq for n in m), max(n.most for n in m)) for m in models], have.mreq + weighted
            ),
            _slotted(
                [(max(n.rps for n in m), max(n.most for n in m)) for m in models], have.slots + new * per_new
            ),
        )
        for large, slots in (
            ([m for m in models if min(n.least_creq for n in m) > 50 + EPSILON], have.half_creq + new),
            ([m for m in models if min(n.least_mreq for n in m) > 50 + EPSILON], have.half_mreq + new),
        ):
            if len(large) > 1:
                others = sum(max(n.most for n in m) for m in models if not any(m is x for x in large))
                goods = [(max(n.rps for n in m), max(n.most for n in m)) for m in large]
                upper = min(upper, others + _slotted(goods, slots))
        return upper

    def least(self, rest: _Rest, packing: Packing, room: Open) -> float:
        """What the new GPUs count at least with which each of ``rest`` serves the most it can (number, or cost
        where rented)."""
        have, per_new = self._open(rest, packing, room)
        creq = mreq = 0.0
        total = single = large_c = large_m = 0.0
        for choices in rest.values():
            needs = [self.needs[id(c)] for c in choices]
            most = max(n.most for n in needs) * (1 - 1e-12)
            full = [n for n in needs if n.most >= most]
            replicas = min(n.degree for n in full)
            creq += min(n.creq for n in full)
            mreq += min(n.mreq for n in full)
            total += replicas
            single = max(single, replicas)
            large_c += replicas if min(n.least_creq for n in full) > 50 + EPSILON else 0
            large_m += replicas if min(n.least_mreq for n in full) > 50 + EPSILON else 0
        area = max(creq - have.creq, mreq - have.mreq) / 100.0 - 1e-9
        lightest = min(self.weights)
        new = max(
            single - have.gpus,
            math.ceil((total - have.slots) / per_new) if per_new else 0.0,
            large_c - have.half_creq,
            large_m - have.half_mreq,
            math.ceil(area / max(self.weights)) if area > 0 and max(self.weights) > 0 else 0.0,
            0.0,
        )
        if self.one_type:
            # A degree that is cut short has used every GPU there is.
            return min(new, self.garage.limits[0] - packing.opened[0]) * lightest
        return max(new * lightest, area, 0.0)


def _slots(creq: float, mreq: float, size: int, low_c: float, low_m: float) -> float:
    """Replicas that a GPU with so much room holds at most: one of each model, none smaller than the least
    demands."""
    found = float(size)
    if low_c > 0:
        found = min(found, math.floor((creq + 1e-6) / low_c))
    if low_m > 0:
        found = min(found, math.floor((mreq + 1e-6) / low_m))
    return found


def _knapsack(goods: Sequence[tuple[float, float]], room: float) -> float:
    """The most value of (value per room, most) goods, divisible at will."""
    total = 0.0
    for per, most in sorted(goods, reverse=True):
        if room <= 0:
            break
        take = min(most, per * room) if per < math.inf else most
        total += take
        room -= take / per
    return total * (1 + 1e-12)


def _slotted(goods: Sequence[tuple[float, float]], slots: float) -> float:
    """The most value of (value of a replica, most) goods with so many replicas: the last replica of a good may
    be worth less than the others."""
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
    return total * (1 + 1e-12)
