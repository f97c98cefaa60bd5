"""The least cost at which every model is on time: rented GPUs, or the fewest of a fixed cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gkestimator.core.records import frozen
from gkestimator.placement.expected import model_on_time
from gkestimator.placement.gkest.fluid import Fluid, fluid, most_rps
from gkestimator.placement.gkest.menu import WORK_FULL, WORK_LIGHT, Menus
from gkestimator.placement.gkest.search import Search
from gkestimator.placement.gkest.state import (
    Change,
    GpuPattern,
    PatternMember,
    PlacementState,
    allowed,
    pattern,
)
from gkestimator.placement.gkest.ways import Way, Ways
from gkestimator.placement.problem import Floats, Indices, Names

# On a fixed cluster every GPU counts 1; its price only decides between equal numbers.
_PRICE_AS_TIE = 1e-6
# A bound further off than this says nothing: models need whole GPUs and slack that the fluid optimum does not.
_TELLING_PCT = 50.0
# Loads of a replica at which the share on time is looked at; rounds of adding GPUs; replicas alike on one GPU.
_LOADS = (0.9, 0.75, 0.5, 0.25, 0.1)
_ROUNDS = 4
_MOST_COPIES = 8
_MOST_AT_ONCE = 100_000
# Up to so many GPUs, so many times, a cheaper cluster is tried from scratch.
_FEW_GPUS = 64
_SQUEEZES = 8


@frozen
class RentReach:
    """Say of one way, alone on as many GPUs as its model's rate needs, the largest share of requests on time,
    and how many requests a second one replica may be asked for with the share that is aimed at."""

    share: float
    rate_rps: float = 0.0


def reach(menus: Menus, way: Way, aim: float) -> RentReach:
    """Return how far ``way`` comes at a share on time of at least ``aim``; ``rate_rps`` is 0 where no load
    reaches it."""
    model = menus.model(way.model)
    best = 0.0
    alone = menus.server(way.number, None)
    for load in _LOADS:
        rate = load * alone.capacity_rps
        servers = [replace(alone, count=max(1, math.ceil(model.rate_rps / rate)))]
        share = model_on_time(model, servers, [way.candidate]).rate_rps / model.rate_rps
        if share > 0.999:
            menus.work += WORK_LIGHT
        else:
            menus.work += WORK_FULL
        best = max(best, share)
        if share >= aim:
            return RentReach(share=best, rate_rps=rate)
    return RentReach(share=best)


@frozen
class Cheapest:
    """Say by which way a model is served at the least cost for each request, how many of its replicas a GPU
    of its own holds, and how many GPUs may be had."""

    way: Way
    copies: int
    room: int

    def full(self) -> GpuPattern:
        """Return a GPU that is filled so."""
        return pattern(self.way.type, [PatternMember(self.way.number)] * self.copies)


class Renting:
    """Start with the fluid optimum's GPUs; add the cheapest that helps until every model is on time; then
    give back, one by one, those whose replicas the others can take. ``gap_pct`` is against the fluid optimum
    (rounded up to whole GPUs where there is one type), None where that is too far off to say anything.
    ``notes`` say what could not be."""

    def __init__(self, menus: Menus, *, attainment: float, looks: int, seed: int) -> None:
        self.menus = menus
        self.looks = looks
        self.seed = seed
        self.notes: Names = ()
        self.gap_pct: float | None = None
        problem = menus.problem
        self.rates = [0.0] * len(menus.ways)
        self.wanted = [self._aim(m, attainment) for m in range(len(problem.models))]
        self.prices = [_price(menus, t) for t in range(len(problem.types))]
        self.limits = problem.pools

    def _aim(self, m: int, attainment: float) -> float:
        """Return the requests a second of ``m`` that are wanted on time, and keep the ways alone that come so
        far: one that does not spoils it for the others."""
        menus = self.menus
        model = menus.model(m)
        ways = [w for by_type in menus.of[m].values() for w in by_type]
        reached = {w.number: reach(menus, w, attainment) for w in ways}
        aim = attainment
        most = max((r.share for r in reached.values()), default=0.0)
        if ways and most < attainment:
            self.notes += (
                f"{model.name}: at most {100 * most:.4g} % of its requests can be expected on time, whatever the "
                f"GPUs: aimed at 99 % of that instead of {100 * attainment:g} %",
            )
            aim = 0.99 * most
            reached = {w.number: reach(menus, w, aim) for w in ways if reached[w.number].share >= aim}
        for number, r in reached.items():
            self.rates[number] = r.rate_rps
        able: dict[int, Ways] = {}
        for way in ways:
            if self.rates[way.number] > 0:
                able.setdefault(way.type, []).append(way)
        menus.of[m] = able
        if able:
            return aim * model.rate_rps
        return 0.0

    def run(self) -> Change | None:
        """Return GPUs by what they hold; None: the limits do not allow every model to be on time (then
        ``notes`` say so)."""
        aim = self._fluid(self.rates)
        if aim is not None:
            start = [min(math.ceil(n - 1e-6), limit) for n, limit in zip(aim.gpus, self.limits, strict=True)]
        else:
            start = [0 if math.isinf(limit) else limit for limit in self.limits]
        state = self._empty(start)
        search = self._search(state)
        if aim is not None:
            search.construct(aim)
        for _ in range(_ROUNDS):
            for m in self._short(state):
                self._rent(state, search, m)
        for m in self._short(state):
            self._dedicate(state, search, m)
        left = self._short(state)
        if left and not any(math.isinf(n) for n in self.limits):
            self.notes += (
                "the GPUs do not suffice for every model to be on time: as much as can be is served",
            )
            return None
        for m in left:
            self.wanted[m] = state.served[m] * (1 - 1e-6)
            model = self.menus.model(m)
            part = 100 * state.served[m] / model.rate_rps
            self.notes += (f"{model.name}: {part:.4g} % of its requests can be expected on time",)
        search.budget = self.looks
        self._give_back(state, search)
        state = self._squeezed(state)
        self._search(state).tidy(self._met)
        self.gap_pct = self._gap_pct(state)
        return state.counts

    def _empty(self, gpus: Floats) -> PlacementState:
        counts = {GpuPattern(t): int(n) for t, n in enumerate(gpus) if n}
        return PlacementState(self.menus, counts, self._worth)

    def _search(self, state: PlacementState) -> Search:
        return Search(state, budget=self.looks, seed=self.seed, wanted=self.wanted)

    def _gap_pct(self, state: PlacementState) -> float | None:
        """Return how far the cost is above the fluid optimum's, percent; None where that says nothing."""
        bound = self._fluid([most_rps(self.menus, w) for w in self.menus.ways])
        if bound is None:
            return None
        least = bound.value
        if len(self.prices) == 1:
            least = self.prices[0] * math.ceil(bound.gpus[0] - 1e-6)
        if least <= 0:
            return 0.0
        cost = math.fsum(self.prices[p.type] * n for p, n in state.counts.items() if p.members)
        gap = 100 * max(0.0, cost / least - 1)
        if gap <= _TELLING_PCT:
            return gap
        return None

    def _fluid(self, rates: Floats) -> Fluid | None:
        return fluid(
            self.menus,
            rates,
            pools=self.limits,
            weights=[1.0] * len(self.wanted),
            prices=self.prices,
            needs=self.wanted,
        )

    def _worth(self, m: int, rate: float) -> float:
        want = self.wanted[m]
        if want > 0:
            return min(rate / want, 1.0)
        return 0.0

    def _met(self, state: PlacementState) -> bool:
        return not self._short(state)

    def _short(self, state: PlacementState) -> Indices:
        """Return the models that are not on time, the shortest first."""
        short = [m for m, w in enumerate(self.wanted) if state.served[m] < w * (1 - 1e-9)]
        return sorted(short, key=lambda m: (self._worth(m, state.served[m]), m))

    def _cheapest(self, state: PlacementState, m: int) -> Cheapest | None:
        """Return the way of ``m`` that costs least for each request where GPUs may still be rented."""
        best: tuple[float, int] | None = None
        cheapest = None
        for t, ways in sorted(self.menus.of[m].items()):
            room = self.limits[t] - sum(n for p, n in state.counts.items() if p.type == t)
            if room < 1:
                continue
            for way in ways:
                copies = self._copies(way)
                cost = (self.prices[t] / (copies * self.rates[way.number]), way.number)
                if best is None or cost < best:
                    best = cost
                    cheapest = Cheapest(way=way, copies=copies, room=int(min(room, _MOST_AT_ONCE)))
        return cheapest

    def _copies(self, way: Way) -> int:
        """Return how many replicas of ``way`` a GPU of its own holds without asking too much of it."""
        copies = 1
        while copies < _MOST_COPIES:
            if not allowed(self.menus, pattern(way.type, [PatternMember(way.number)] * (copies + 1))):
                break
            copies += 1
        dram = way.dram_pct or 0.0
        if way.share_pct >= 100 and copies * max(way.demand_pct or 100.0, dram) > 100:
            return 1
        if copies * dram > 100:
            return max(1, int(100 / dram))
        return copies

    def _rent(self, state: PlacementState, search: Search, m: int) -> None:
        """Add the GPUs that ``m`` is short of, of the type that serves it cheapest, and use them."""
        cheapest = self._cheapest(state, m)
        if cheapest is None:
            return
        before = state.saved()
        self._add(state, cheapest, self.wanted[m] - state.served[m])
        if state.served[m] <= before.served[m] * (1 + 1e-9):
            state.restore(before)
            state.commit({GpuPattern(cheapest.way.type): 1})
            search.budget = self.looks
            if not search.serve(m, wide=2):
                state.restore(before)

    def _add(self, state: PlacementState, cheapest: Cheapest, rate_rps: float) -> None:
        """Add as many GPUs as ``rate_rps`` take."""
        needed = math.ceil(rate_rps / (cheapest.copies * self.rates[cheapest.way.number]))
        state.commit({cheapest.full(): min(cheapest.room, max(1, needed))})

    def _dedicate(self, state: PlacementState, search: Search, m: int) -> None:
        """Give ``m`` GPUs for itself alone, all by its cheapest way, in place of what it has: as
        :func:`reach` has it."""
        before = state.saved()
        search.without_model(m)
        _drop_empty(state)
        cheapest = self._cheapest(state, m)
        if cheapest is not None:
            self._add(state, cheapest, self.menus.model(m).rate_rps)
        if state.served[m] < before.served[m]:
            state.restore(before)

    def _give_back(self, state: PlacementState, search: Search) -> None:
        """Give back GPUs that the others can stand in for, the dearest and emptiest first."""
        _drop_empty(state)
        refused: set[GpuPattern] = set()
        while search.budget > 0:
            left = [(state.usage(p) / self.prices[p.type], p) for p in state.counts if p not in refused]
            if not left:
                return
            _, p = min(left)
            if not self._done_without(p, state, search):
                refused.add(p)
            _drop_empty(state)

    def _done_without(self, p: GpuPattern, state: PlacementState, search: Search) -> bool:
        """Try to do with one GPU like ``p`` less, or with a cheaper one instead; return whether every model
        is still on time."""
        before = state.saved()
        changes: list[Change] = [{p: -1}]
        used = self._used(state)
        for t in sorted(self._cheaper(p.type), key=lambda t: self.prices[t]):
            if used[t] < self.limits[t]:
                changes.append({p: -1, GpuPattern(t): 1})
        for change in changes:
            state.commit(change)
            search.fill(wide=4)
            for _ in range(3):
                if self._met(state) or search.budget <= 0 or not search.improve():
                    break
            if self._met(state):
                return True
            state.restore(before)
        return False

    def _cheaper(self, t: int) -> Indices:
        """Return the types that cost less than type ``t``."""
        return [i for i, price in enumerate(self.prices) if price < self.prices[t] * (1 - 1e-9)]

    def _squeezed(self, state: PlacementState) -> PlacementState:
        """Return all models placed anew on a GPU less (the dearest first), or a cheaper one instead, as long
        as every model is on time."""
        if sum(self._used(state)) > _FEW_GPUS:
            return state
        tries = _SQUEEZES
        while tries > 0:
            for gpus in self._with_less(self._used(state)):
                tries -= 1
                if tries >= 0 and any(gpus):
                    smaller = self._placed_on(gpus)
                else:
                    smaller = None
                if smaller is not None:
                    state = smaller
                    break
            else:
                break
        return state

    def _with_less(self, used: Indices) -> list[Indices]:
        """Return GPUs by type with one less than ``used``, or a cheaper one in its place; the cheapest
        first."""
        options = []
        for t, count in enumerate(used):
            if not count:
                continue
            less = used.copy()
            less[t] -= 1
            options.append((-self.prices[t], less))
            for i in self._cheaper(t):
                if used[i] < self.limits[i]:
                    swapped = less.copy()
                    swapped[i] += 1
                    options.append((self.prices[i] - self.prices[t], swapped))
        return [gpus for _, gpus in sorted(options)]

    def _placed_on(self, gpus: Sequence[int]) -> PlacementState | None:
        """Return all models placed anew on so many GPUs by type; None where not every one is on time."""
        enough = sum(w > 0 for w in self.wanted) - 1e-9
        weights = [1 / w if w > 0 else 0.0 for w in self.wanted]
        aim = fluid(self.menus, self.rates, pools=gpus, weights=weights)
        if aim is None or aim.value < 0.6 * enough:
            return None
        state = self._empty(gpus)
        search = Search(state, budget=self.looks // 3, seed=self.seed, wanted=self.wanted, enough=enough)
        search.run([aim])
        if self._met(state):
            return state
        return None

    def _used(self, state: PlacementState) -> Indices:
        """Return how many GPUs of each type hold something."""
        used = [0] * len(self.prices)
        for p, n in state.counts.items():
            if p.members:
                used[p.type] += n
        return used


def _drop_empty(state: PlacementState) -> None:
    """Give back the GPUs that hold nothing."""
    for p in [p for p in state.counts if not p.members]:
        state.commit({p: -state.counts[p]})


def _price(menus: Menus, t: int) -> float:
    problem = menus.problem
    price = problem.prices.get(problem.types[t])
    if problem.gpus:
        return 1.0 + _PRICE_AS_TIE * (price or 0.0)
    return max(price or 0.0, 1e-9)
