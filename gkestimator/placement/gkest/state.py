"""A placement under construction: GPUs by what they hold, and what each model is served, kept up to date
change by change.

GPUs of one type that hold the same are one entry with a count, so 6,000 alike cost as much as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.expected import model_on_time
from gkestimator.placement.gkest.menu import WORK_FULL, WORK_LIGHT, Menus
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu


class PatternMember(NamedTuple):
    """One replica: number of its way; the partition in which it takes turns (-1: none) and that partition's
    cycle (0: none)."""

    way: int
    turn: int = -1
    cycle_ms: float = 0.0


class GpuPattern(NamedTuple):
    """What one GPU of a type (by number) holds."""

    type: int
    members: tuple[PatternMember, ...] = ()


Change: TypeAlias = Mapping[GpuPattern, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """What a change would do: ``gain`` in worth, and the models' new requests on time."""

    gain: float
    served: Mapping[int, float]


class Saved(NamedTuple):
    """A state as it was."""

    counts: Change
    served: tuple[float, ...]
    guess: tuple[float, ...]
    capacity: tuple[float, ...]


def pattern(gpu_type: int, members: Iterable[PatternMember]) -> GpuPattern:
    """The pattern of ``members`` in their one order."""
    return GpuPattern(gpu_type, tuple(sorted(members)))


def allowed(menus: Menus, p: GpuPattern) -> bool:
    """Whether a GPU may hold ``p``: memory, SM shares and (unless ``menus.oversubscribe``) Creq within 100 %,
    turns that fit their cycle and the objectives. Confined and unconfined replicas are not mixed, and
    neighbours whose SM demand is unknown are not placed side by side."""
    memory = confined = creq = 0.0
    free = unknown = False
    groups: dict[int, list[PatternMember]] = {}
    for i, member in enumerate(p.members):
        way = menus.ways[member.way]
        memory += way.memory_pct
        free |= way.share_pct >= 100
        unknown |= way.demand_pct is None
        if member.turn >= 0:
            part = way.latency_ms / member.cycle_ms
        else:
            part = 1.0
        creq += part * (way.share_pct if way.creq_pct is None else way.creq_pct)
        groups.setdefault(-1 - i if member.turn < 0 else member.turn, []).append(member)
    if memory > 100:
        return False
    if len(groups) > 1 and (unknown or (creq > 100 and not menus.oversubscribe)):
        return False
    for group in groups.values():
        share = menus.ways[group[0].way].share_pct
        confined += share if share < 100 else 0.0
        if group[0].turn >= 0:
            cycle = group[0].cycle_ms
            ways = [menus.ways[x.way] for x in group]
            if any(w.share_pct != share or w.latency_ms + cycle > menus.model(w.model).slo_ms for w in ways):
                return False
            if math.fsum(w.latency_ms for w in ways) > cycle * (1 + 1e-12):
                return False
    return confined <= 100 + 1e-9 and not (confined > 0 and free)


class PlacementState:
    """Patterns with their counts, and by model: requests on time by the evaluator (``served``) and by the
    quicker estimate that sorts out moves (``guess``). ``worth(m, rate)`` is what serving a model so much is
    worth, ``value`` its sum."""

    def __init__(self, menus: Menus, counts: Change, worth: Callable[[int, float], float]) -> None:
        self.menus = menus
        self.worth = worth
        size = len(menus.problem.models)
        self.counts: dict[GpuPattern, int] = {}
        self.hosts: list[dict[GpuPattern, None]] = [{} for _ in range(size)]
        self.capacity = [0.0] * size
        self.served = [0.0] * size
        self.guess = [0.0] * size
        self._contents: dict[GpuPattern, tuple[tuple[int, PatternMember, float], ...]] = {}
        self._factors: dict[tuple[GpuPattern, tuple[float, ...]], tuple[float, ...]] = {}
        self._exact: dict[tuple[int, tuple[tuple[int, float, float, int], ...]], float] = {}
        self._usage: dict[GpuPattern, float] = {}
        self.value = 0.0
        self.commit(counts)

    def content(self, p: GpuPattern) -> tuple[tuple[int, PatternMember, float], ...]:
        """(model, member, capacity in req/s) of each replica in ``p``."""
        found = self._contents.get(p)
        if found is None:
            found = tuple((self.menus.ways[x.way].model, x, self.capacity_rps(x)) for x in p.members)
            self._contents[p] = found
        return found

    def capacity_rps(self, x: PatternMember) -> float:
        """Requests a second that ``x`` can serve: a batch every cycle where it takes turns."""
        way = self.menus.ways[x.way]
        if x.cycle_ms:
            return 1e3 * way.batch / x.cycle_ms
        return way.capacity_rps

    def factors(self, p: GpuPattern, loads: tuple[float, ...]) -> tuple[float, ...]:
        """Slowdown of each replica in ``p``, each asked ``loads`` of its capacity."""
        if len(p.members) == 1:
            return (1.0,)
        key = (p, loads)
        found = self._factors.get(key)
        if found is None:
            gpu = Gpu(id="", type=self.menus.types[p.type])
            content = self.content(p)
            placed = [
                Placed(
                    gpu=gpu,
                    model=str(m),
                    candidate=self.menus.ways[x.way].candidate,
                    partition=None if x.turn < 0 else str(x.turn),
                    duty_cycle_ms=x.cycle_ms or None,
                )
                for m, x, _ in content
            ]
            rates = [load * c for load, (_, _, c) in zip(loads, content, strict=True)]
            # an unknown slowdown is kept out by `allowed`
            found = tuple(round(f or 1.0, 4) for f in slowdowns(placed, rates))
            self._factors[key] = found
        return found

    def trial(self, change: Change, *, exact: bool) -> Trial:
        """What ``change`` (patterns with the counts to add) would gain."""
        counts = self.counts
        after = {p: counts.get(p, 0) + d for p, d in change.items() if d}
        first: dict[int, float] = {}
        for p, d in change.items():
            for m, _, capacity in self.content(p):
                first[m] = first.get(m, self.capacity[m]) + d * capacity
        models = self.menus.problem.models

        def load(m: int) -> float:
            capacity = first.get(m, self.capacity[m])
            if capacity <= models[m].rate_rps:
                return 1.0
            return models[m].rate_rps / capacity

        touched = dict.fromkeys(first)
        for m in first:
            old = self.capacity[m]
            if old <= models[m].rate_rps:
                was = 1.0
            else:
                was = models[m].rate_rps / old
            if abs(load(m) - was) > 1e-9:
                for p in self.hosts[m]:
                    if len(p.members) > 1:
                        for other, _, _ in self.content(p):
                            touched[other] = None
        served: dict[int, float] = {}
        gain = 0.0
        now = self.served if exact else self.guess
        for m in touched:
            held = dict.fromkeys(self.hosts[m])
            for p in change:
                held[p] = None
            groups: dict[tuple[int, float, float], int] = {}
            for p in held:
                n = after.get(p, counts.get(p, 0))
                if n <= 0:
                    continue
                content = self.content(p)
                if not any(x[0] == m for x in content):
                    continue
                found = self.factors(p, tuple(round(load(x[0]), 6) for x in content))
                for (model, x, _), factor in zip(content, found, strict=True):
                    if model == m:
                        key = (x.way, x.cycle_ms, factor)
                        groups[key] = groups.get(key, 0) + n
            if exact:
                value = self._on_time(m, groups)
            else:
                value = self._estimate(m, groups)
            served[m] = value
            gain += self.worth(m, value) - self.worth(m, now[m])
        return Trial(gain, served)

    def _on_time(self, m: int, groups: Mapping[tuple[int, float, float], int]) -> float:
        if not groups:
            return 0.0
        key = (m, tuple(sorted((*k, n) for k, n in groups.items())))
        found = self._exact.get(key)
        if found is None:
            servers = [
                replace(self.menus.server(way, cycle or None), slowdown=factor, count=n)
                for way, cycle, factor, n in key[1]
            ]
            candidates = [self.menus.ways[k[0]].candidate for k in key[1]]
            model = self.menus.model(m)
            found = model_on_time(model, servers, candidates).rate_rps
            self.menus.work += WORK_LIGHT if found >= 0.999 * model.rate_rps else WORK_FULL
            self._exact[key] = found
        return found

    def _estimate(self, m: int, groups: Mapping[tuple[int, float, float], int]) -> float:
        rate = 0.0
        admitted = 0.0
        ways = self.menus.ways
        widest = max((key[0] for key in groups), key=lambda w: (ways[w].width, w), default=None)
        for (way, cycle, factor), n in groups.items():
            serves = self.menus.serves(way, cycle or None, factor, widest)
            rate += n * serves.rate_rps
            admitted += n * serves.admitted_rps
        asked = self.menus.model(m).rate_rps
        if admitted <= 0:
            return 0.0
        if asked >= admitted:
            return rate
        load = asked / admitted
        return asked * (1.0 - (1.0 - min(1.0, rate / admitted)) * load**4)

    def commit(self, change: Change) -> None:
        """Make ``change``."""
        exact = self.trial(change, exact=True)
        guess = self.trial(change, exact=False)
        self.apply(change, exact, guess)

    def apply(self, change: Change, exact: Trial, guess: Trial) -> None:
        """Make ``change``, whose trials are at hand."""
        for p, d in change.items():
            n = self.counts.get(p, 0) + d
            if n < 0:
                raise ValueError(f"{-d} of a pattern that is there {n - d} times")
            if n:
                self.counts[p] = n
            else:
                self.counts.pop(p, None)
            for m, _, capacity in self.content(p):
                self.capacity[m] += d * capacity
                if n:
                    self.hosts[m][p] = None
                else:
                    self.hosts[m].pop(p, None)
        for p in change:
            for m, _, _ in self.content(p):
                for q in self.hosts[m]:
                    self._usage.pop(q, None)
        for m in exact.served:
            if not self.hosts[m]:
                self.capacity[m] = 0.0
        for m, v in exact.served.items():
            self.value += self.worth(m, v) - self.worth(m, self.served[m])
            self.served[m] = v
        for m, v in guess.served.items():
            self.guess[m] = v

    def usage(self, p: GpuPattern) -> float:
        """Part of the GPU's compute that ``p`` keeps busy."""
        total = self._usage.get(p)
        if total is None:
            total = 0.0
            models = self.menus.problem.models
            for m, x, capacity in self.content(p):
                way = self.menus.ways[x.way]
                load = min(1.0, models[m].rate_rps / max(self.capacity[m], 1e-12))
                total += way.part * (1.0 if way.share_pct < 100 else load * capacity / way.capacity_rps)
            self._usage[p] = total
        return total

    def saved(self) -> Saved:
        """What :meth:`restore` goes back to."""
        return Saved(dict(self.counts), tuple(self.served), tuple(self.guess), tuple(self.capacity))

    def restore(self, saved: Saved) -> None:
        """Go back to a state that was."""
        self.counts = dict(saved.counts)
        self.served, self.guess, self.capacity = list(saved.served), list(saved.guess), list(saved.capacity)
        self.value = math.fsum(self.worth(m, v) for m, v in enumerate(self.served))
        self._usage = {}
        self.hosts = [{} for _ in self.served]
        for p in self.counts:
            for m, _, _ in self.content(p):
                self.hosts[m][p] = None
