"""The least cost at which every model is on time: rented GPUs, or the fewest of a fixed cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gkestimator.placement.expected import model_on_time
from gkestimator.placement.policies.gkest_fluid import Fluid, fluid, most_rps
from gkestimator.placement.policies.gkest_menu import Menus
from gkestimator.placement.policies.gkest_search import Search
from gkestimator.placement.policies.gkest_state import Change, Pattern, State
from gkestimator.placement.queueing import Server

__all__ = ["Renting", "reachable_rps"]

# On a fixed cluster every GPU counts 1; its price only decides between equal numbers.
_PRICE_AS_TIE = 1e-6
# A bound further off than this says nothing: models need whole GPUs and slack that the fluid optimum does not.
_TELLING_PCT = 50.0


def reachable_rps(menus: Menus, m: int) -> float:
    """Requests a second of model ``m`` that are on time however many GPUs it has to itself: twice its rate in
    replicas of its best way, and one more."""
    model, best = menus.model(m), 0.0
    for ways in menus.of[m].values():
        for way in ways:
            alone = menus.server(way.number, None)
            count = 1 + math.ceil(2 * model.rate_rps / alone.capacity_rps)
            server = Server(
                batch_size=alone.batch_size,
                batches=alone.batches,
                latencies_ms=alone.latencies_ms,
                count=count,
            )
            best = max(best, model_on_time(model, [server], [way.candidate]).rate_rps)
            if best >= model.rate_rps * (1 - 1e-9):
                return best
    return best


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
        for m, model in enumerate(problem.models):
            most = reachable_rps(menus, m)
            need = attainment * model.rate_rps
            if menus.of[m] and most < need:
                self.notes += (
                    f"{model.name}: at most {100 * most / model.rate_rps:.4g} % of its requests can be expected "
                    f"on time, whatever the GPUs: aimed at that instead of {100 * attainment:g} %",
                )
                need = 0.995 * most
            self.wanted.append(need if menus.of[m] else 0.0)
        self.prices = [_price(menus, t) for t in range(len(problem.types))]
        if problem.gpus:
            self.limits = [float(problem.counts[t]) for t in problem.types]
        else:
            self.limits = [math.inf if o.limit is None else float(o.limit) for o in problem.offers]

    def run(self) -> Change | None:
        """GPUs by what they hold; None: the limits do not allow every model to be on time (then ``notes`` say
        so)."""
        aim = self._fluid([self.menus.serves(w.number, None, 1.0).rate_rps for w in self.menus.ways])
        start = (
            [math.ceil(n - 1e-6) for n in aim.gpus]
            if aim is not None
            else [0 if math.isinf(n) else int(n) for n in self.limits]
        )
        state = State(
            self.menus,
            {Pattern(t): int(min(n, self.limits[t])) for t, n in enumerate(start) if n},
            self._worth,
        )
        search = Search(state, budget=self.looks, seed=self.seed, wanted=self.wanted)
        self.state = state
        if aim is not None:
            search.construct(aim)
        while not self._met(state):
            while search.budget > 0 and search.improve():
                if self._met(state):
                    break
            if self._met(state) or self._rent(state, search):
                continue
            if any(math.isinf(n) for n in self.limits):
                self._give_up(state)
            else:
                self.notes += (
                    "the GPUs do not suffice for every model to be on time: as much as can be is served",
                )
                return None
        self._give_back(state, search)
        search.tidy(self._met)
        cost = self._cost(state.counts)
        bound = self._fluid([most_rps(self.menus, w) for w in self.menus.ways])
        if bound is not None:
            least = bound.value
            if len(self.prices) == 1:
                least = self.prices[0] * math.ceil(bound.gpus[0] - 1e-6)
            self.gap_pct = 100 * max(0.0, cost / least - 1) if least > 0 else 0.0
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
        return min(rate / want, 1.0) if want > 0 else 0.0

    def _met(self, state: State) -> bool:
        return all(v >= w * (1 - 1e-9) for v, w in zip(state.served, self.wanted, strict=True))

    def _cost(self, counts: Change) -> float:
        return math.fsum(self.prices[p.type] * n for p, n in counts.items() if p.members)

    def _rent(self, state: State, search: Search) -> bool:
        """Add a GPU of the type that serves the shortest model cheapest, and use it; whether one could be added."""
        used = [0] * len(self.limits)
        for p, n in state.counts.items():
            used[p.type] += n
        short = sorted(
            range(len(self.wanted)), key=lambda m: (self._worth(m, state.served[m]) - (self.wanted[m] > 0), m)
        )
        for m in short:
            if state.served[m] >= self.wanted[m] * (1 - 1e-9):
                break
            options = sorted(
                (
                    self.prices[t]
                    * min(w.part / max(self.menus.serves(w.number, None, 1.0).rate_rps, 1e-12) for w in ways),
                    t,
                )
                for t, ways in self.menus.of[m].items()
                if used[t] < self.limits[t]
            )
            for _, t in options:
                state.commit({Pattern(t): 1})
                search.budget = max(search.budget, 200)
                if search.serve(m, wide=2):
                    return True
                state.commit({Pattern(t): -1})
        return False

    def _give_up(self, state: State) -> None:
        """Another GPU does not help who is short: ask for what they have."""
        for m, want in enumerate(self.wanted):
            if state.served[m] < want * (1 - 1e-9):
                self.wanted[m] = state.served[m] * (1 - 1e-6)
                self.notes += (
                    f"{self.menus.model(m).name}: {100 * state.served[m] / self.menus.model(m).rate_rps:.4g} % of its "
                    "requests can be expected on time, another GPU does not raise that",
                )

    def _give_back(self, state: State, search: Search) -> None:
        """Give back GPUs that the others can stand in for, the dearest and emptiest first."""
        for p in [q for q in state.counts if not q.members]:
            state.commit({p: -state.counts[p]})
        refused: set[Pattern] = set()
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
                state.commit({p: -1} if t is None else {p: -1, Pattern(t): 1})
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

    def _used(self, state: State, t: int) -> int:
        return sum(n for p, n in state.counts.items() if p.type == t and p.members)


def _price(menus: Menus, t: int) -> float:
    problem = menus.problem
    price = problem.prices.get(problem.types[t])
    if problem.gpus:
        return 1.0 + _PRICE_AS_TIE * (price or 0.0)
    return max(price or 0.0, 1e-9)
