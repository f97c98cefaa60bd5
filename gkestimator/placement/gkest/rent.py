"""The least cost at which every model is on time: rented GPUs, or the fewest of a fixed cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gkestimator.core.records import frozen
from gkestimator.placement.expected import model_on_time
from gkestimator.placement.gkest.fluid import Fluid, fluid, most_rps
from gkestimator.placement.gkest.menu import WORK_FULL, WORK_LIGHT, Menus, Way
from gkestimator.placement.gkest.search import Search
from gkestimator.placement.gkest.state import (
    Change,
    GpuPattern,
    PatternMember,
    PlacementState,
    allowed,
    pattern,
)

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
    """Of one way, alone on as many GPUs as its model's rate needs: the largest share of requests on time, and how
    many requests a second one replica may be asked for with the share that is aimed at."""

    share: float
    rate_rps: float = 0.0


def reach(menus: Menus, way: Way, aim: float) -> RentReach:
    """How far ``way`` comes at a share on time of at least ``aim``; ``rate_rps`` is 0 where no load reaches it."""
    model = menus.model(way.model)
    best = 0.0
    alone = menus.server(way.number, None)
    for load in _LOADS:
        count = max(1, math.ceil(model.rate_rps / (load * alone.capacity_rps)))
        found = model_on_time(model, [replace(alone, count=count)], [way.candidate]).rate_rps / model.rate_rps
        menus.work += WORK_LIGHT if found > 0.999 else WORK_FULL
        best = max(best, found)
        if found >= aim:
            return RentReach(share=best, rate_rps=load * alone.capacity_rps)
    return RentReach(share=best)


class Renting:
    """Start with the fluid optimum's GPUs; add the cheapest that helps until every model is on time; then give
    back, one by one, those whose replicas the others can take. ``gap_pct`` is against the fluid optimum
    (rounded up to whole GPUs where there is one type), None where that is too far off to say anything.
    ``notes`` say what could not be."""

    def __init__(self, menus: Menus, *, attainment: float, looks: int, seed: int) -> None:
        self.menus = menus
        self.looks = looks
        self.seed = seed
        self.notes: tuple[str, ...] = ()
        self.gap_pct: float | None = None
        problem = menus.problem
        self.wanted = []
        self.rates = [0.0] * len(menus.ways)
        for m, model in enumerate(problem.models):
            ways = [w for by_type in menus.of[m].values() for w in by_type]
            found = {w.number: reach(menus, w, attainment) for w in ways}
            aim = attainment
            most = max((r.share for r in found.values()), default=0.0)
            if ways and most < attainment:
                self.notes += (
                    f"{model.name}: at most {100 * most:.4g} % of its requests can be expected on time, whatever the "
                    f"GPUs: aimed at 99 % of that instead of {100 * attainment:g} %",
                )
                aim = 0.99 * most
                found = {w.number: reach(menus, w, aim) for w in ways if found[w.number].share >= aim}
            for number, r in found.items():
                self.rates[number] = r.rate_rps
            # only ways that come so far: one that does not spoils it for the others
            menus.of[m] = {
                t: kept
                for t, by_type in menus.of[m].items()
                if (kept := [w for w in by_type if self.rates[w.number] > 0])
            }
            self.wanted.append(aim * model.rate_rps if menus.of[m] else 0.0)
        self.prices = [_price(menus, t) for t in range(len(problem.types))]
        self.limits = problem.pools

    def run(self) -> Change | None:
        """GPUs by what they hold; None: the limits do not allow every model to be on time (then ``notes`` say
        so)."""
        aim = self._fluid(self.rates)
        if aim is not None:
            start = [math.ceil(n - 1e-6) for n in aim.gpus]
        else:
            start = [0 if math.isinf(n) else int(n) for n in self.limits]
        state = PlacementState(
            self.menus,
            {GpuPattern(t): int(min(n, self.limits[t])) for t, n in enumerate(start) if n},
            self._worth,
        )
        search = Search(state, budget=self.looks, seed=self.seed, wanted=self.wanted)
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
            name = self.menus.model(m).name
            asked = self.menus.model(m).rate_rps
            self.notes += (
                f"{name}: {100 * state.served[m] / asked:.4g} % of its requests can be expected on time",
            )
        search.budget = self.looks
        self._give_back(state, search)
        state = self._squeezed(state)
        Search(state, budget=self.looks, seed=self.seed, wanted=self.wanted).tidy(self._met)
        cost = self._cost(state.counts)
        bound = self._fluid([most_rps(self.menus, w) for w in self.menus.ways])
        if bound is not None:
            least = bound.value
            if len(self.prices) == 1:
                least = self.prices[0] * math.ceil(bound.gpus[0] - 1e-6)
            if least > 0:
                self.gap_pct = 100 * max(0.0, cost / least - 1)
            else:
                self.gap_pct = 0.0
            if self.gap_pct > _TELLING_PCT:
                self.gap_pct = None
        return state.counts

    def _fluid(self, rates: Sequence[float]) -> Fluid | None:
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
        return all(v >= w * (1 - 1e-9) for v, w in zip(state.served, self.wanted, strict=True))

    def _cost(self, counts: Change) -> float:
        return math.fsum(self.prices[p.type] * n for p, n in counts.items() if p.members)

    def _short(self, state: PlacementState) -> list[int]:
        """Models that are not on time, the shortest first."""
        short = [m for m, w in enumerate(self.wanted) if state.served[m] < w * (1 - 1e-9)]
        return sorted(short, key=lambda m: (self._worth(m, state.served[m]), m))

    def _cheapest(self, state: PlacementState, m: int) -> tuple[Way, int, int] | None:
        """The way of ``m`` that costs least for each request where GPUs may still be rented, how many of its
        replicas a GPU of its own holds, and how many GPUs may be had."""
        best: tuple[float, int] | None = None
        found = None
        for t, ways in sorted(self.menus.of[m].items()):
            used = sum(n for p, n in state.counts.items() if p.type == t)
            room = self.limits[t] - used
            for way in ways if room >= 1 else ():
                copies = 1
                while copies < _MOST_COPIES and allowed(
                    self.menus, pattern(t, [PatternMember(way.number)] * (copies + 1))
                ):
                    copies += 1
                if way.share_pct >= 100 and copies * max(way.demand_pct or 100.0, way.dram_pct or 0.0) > 100:
                    copies = 1
                elif copies * (way.dram_pct or 0.0) > 100:
                    copies = max(1, int(100 / (way.dram_pct or 100.0)))
                cost = (self.prices[t] / (copies * self.rates[way.number]), way.number)
                if best is None or cost < best:
                    best = cost
                    found = (way, copies, int(min(room, _MOST_AT_ONCE)))
        return found

    def _rent(self, state: PlacementState, search: Search, m: int) -> None:
        """Add the GPUs that ``m`` is short of, of the type that serves it cheapest, and use them."""
        found = self._cheapest(state, m)
        if found is None:
            return
        way, copies, room = found
        missing = self.wanted[m] - state.served[m]
        many = min(room, max(1, math.ceil(missing / (copies * self.rates[way.number]))))
        full = pattern(way.type, [PatternMember(way.number)] * copies)
        before = state.saved()
        state.commit({full: many})
        if state.served[m] <= before.served[m] * (1 + 1e-9):
            state.restore(before)
            state.commit({GpuPattern(way.type): 1})
            search.budget = self.looks
            if not search.serve(m, wide=2):
                state.restore(before)

    def _dedicate(self, state: PlacementState, search: Search, m: int) -> None:
        """GPUs for ``m`` alone, all by its cheapest way, in place of what it has: as :func:`reach` has it."""
        before = state.saved()
        search.without_model(m)
        for p in [q for q in state.counts if not q.members]:
            state.commit({p: -state.counts[p]})
        found = self._cheapest(state, m)
        if found is not None:
            way, copies, room = found
            many = min(room, math.ceil(self.menus.model(m).rate_rps / (copies * self.rates[way.number])))
            state.commit({pattern(way.type, [PatternMember(way.number)] * copies): many})
        if state.served[m] < before.served[m]:
            state.restore(before)

    def _give_back(self, state: PlacementState, search: Search) -> None:
        """Give back GPUs that the others can stand in for, the dearest and emptiest first."""
        for p in [q for q in state.counts if not q.members]:
            state.commit({p: -state.counts[p]})
        refused: set[GpuPattern] = set()
        while search.budget > 0:
            left = sorted(
                (p for p in state.counts if p not in refused),
                key=lambda p: (state.usage(p) / self.prices[p.type], p),
            )
            if not left:
                return
            p = left[0]
            kept = state.saved()
            cheaper = [
                t for t in range(len(self.prices)) if self.prices[t] < self.prices[p.type] * (1 - 1e-9)
            ]
            for t in [None, *sorted(cheaper, key=lambda t: self.prices[t])]:
                if t is not None and self._used(state, t) >= self.limits[t]:
                    continue
                state.commit({p: -1} if t is None else {p: -1, GpuPattern(t): 1})
                search.fill(wide=4)
                for _ in range(3):
                    if self._met(state) or search.budget <= 0 or not search.improve():
                        break
                if self._met(state):
                    break
                state.restore(kept)
            else:
                refused.add(p)
            for q in [q for q in state.counts if not q.members]:
                state.commit({q: -state.counts[q]})

    def _squeezed(self, state: PlacementState) -> PlacementState:
        """Placed anew on a GPU less (the dearest first), or a cheaper one instead, as long as every model is
        on time."""
        used = [self._used(state, t) for t in range(len(self.prices))]
        if sum(used) > _FEW_GPUS:
            return state
        enough = sum(w > 0 for w in self.wanted) - 1e-9
        tries = _SQUEEZES
        while tries > 0:
            options = []
            for t, n in enumerate(used):
                if n:
                    less = [u - (i == t) for i, u in enumerate(used)]
                    options.append((-self.prices[t], less))
                    for i, price in enumerate(self.prices):
                        if price < self.prices[t] * (1 - 1e-9) and used[i] < self.limits[i]:
                            options.append(
                                (price - self.prices[t], [u + (j == i) for j, u in enumerate(less)])
                            )
            for _, pools in sorted(options):
                tries -= 1
                if tries < 0 or not any(pools):
                    continue
                weights = [1 / w if w > 0 else 0.0 for w in self.wanted]
                aim = fluid(self.menus, self.rates, pools=pools, weights=weights)
                if aim is None or aim.value < 0.6 * enough:
                    continue
                new = PlacementState(
                    self.menus, {GpuPattern(t): n for t, n in enumerate(pools) if n}, self._worth
                )
                Search(new, budget=self.looks // 3, seed=self.seed, wanted=self.wanted, enough=enough).run(
                    [aim]
                )
                if self._met(new):
                    state = new
                    used = [self._used(new, t) for t in range(len(self.prices))]
                    break
            else:
                break
        return state

    def _used(self, state: PlacementState, t: int) -> int:
        return sum(n for p, n in state.counts.items() if p.type == t and p.members)


def _price(menus: Menus, t: int) -> float:
    problem = menus.problem
    price = problem.prices.get(problem.types[t])
    if problem.gpus:
        return 1.0 + _PRICE_AS_TIE * (price or 0.0)
    return max(price or 0.0, 1e-9)
