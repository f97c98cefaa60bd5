"""A placement under construction: GPUs by what they hold, and what each model is served, kept up to date
change by change.

GPUs of one type that hold the same are one entry with a count, so 6,000 alike cost as much as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from gkestimator.placement.contention import slowdowns
from gkestimator.placement.expected import model_on_time
from gkestimator.placement.gkest.menu import MANY, WORK_FULL, WORK_LIGHT, Menus
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import FloatByIndex, FloatRow, Gpu, IntRow
from gkestimator.placement.spare import largest_batches


class PatternMember(NamedTuple):
    """Hold one replica: number of its way; the partition in which it takes turns (-1: none) and that
    partition's cycle (0: none)."""

    way: int
    turn: int = -1
    cycle_ms: float = 0.0


Members: TypeAlias = list[PatternMember]


class GpuPattern(NamedTuple):
    """Say what one GPU of a type (by number) holds."""

    type: int
    members: tuple[PatternMember, ...] = ()


Change: TypeAlias = Mapping[GpuPattern, int]
# (model, member, capacity in requests a second) of each replica on a GPU.
Content: TypeAlias = tuple[tuple[int, PatternMember, float], ...]
# Replicas of one model that are alike in (way, cycle, slowdown, largest batch), and how many there are.
Alike: TypeAlias = dict[tuple[int, float, float, int], int]
Changes: TypeAlias = Iterator[Change]
NeedByModel: TypeAlias = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """Say what a change would do: ``gain`` in worth, and the models' new requests on time."""

    gain: float
    served: NeedByModel


class Saved(NamedTuple):
    """Hold a state as it was."""

    counts: Change
    served: FloatRow
    guess: FloatRow
    capacity: FloatRow


def pattern(gpu_type: int, members: Iterable[PatternMember]) -> GpuPattern:
    """Return the pattern of ``members`` in their one order."""
    return GpuPattern(gpu_type, tuple(sorted(members)))


def groups_of(p: GpuPattern) -> list[Members]:
    """Return the replicas of ``p`` by partition: those that take turns with each other together, others
    alone."""
    groups: dict[int, Members] = {}
    for i, x in enumerate(p.members):
        key = x.turn if x.turn >= 0 else -1 - i
        groups.setdefault(key, []).append(x)
    return list(groups.values())


def allowed(menus: Menus, p: GpuPattern) -> bool:
    """Return whether a GPU may hold ``p``: memory, SM shares and (unless ``menus.oversubscribe``) Creq within
    100 %, turns that fit their cycle and the objectives. Confined and unconfined replicas are not mixed, and
    neighbours whose SM demand is unknown are not placed side by side."""
    memory = confined = creq = 0.0
    loose = unknown = False
    for member in p.members:
        way = menus.ways[member.way]
        memory += way.memory_pct
        loose |= way.share_pct >= 100
        unknown |= way.demand_pct is None
        if way.creq_pct is None:
            need = way.share_pct
        else:
            need = way.creq_pct
        if member.turn >= 0:
            need = way.latency_ms / member.cycle_ms * need
        creq += need
    if memory > 100:
        return False
    groups = groups_of(p)
    alone = unknown or (creq > 100 and not menus.oversubscribe)
    if alone and len(groups) > 1:
        return False
    for group in groups:
        share = menus.ways[group[0].way].share_pct
        if share < 100:
            confined += share
        if group[0].turn >= 0 and not _turns_fit(menus, group):
            return False
    return confined <= 100 + 1e-9 and not (confined > 0 and loose)


def _turns_fit(menus: Menus, group: Sequence[PatternMember]) -> bool:
    """Return whether one share holds all of ``group``, its turns fit the cycle and its waits the
    objectives."""
    cycle = group[0].cycle_ms
    ways = [menus.ways[x.way] for x in group]
    share = ways[0].share_pct
    for way in ways:
        if way.share_pct != share or way.latency_ms + cycle > menus.model(way.model).slo_ms:
            return False
    return math.fsum(w.latency_ms for w in ways) <= cycle * (1 + 1e-12)


class PlacementState:
    """Hold patterns with their counts, and by model: requests on time by the evaluator (``served``) and by
    the quicker estimate that sorts out moves (``guess``). ``worth(m, rate)`` is what serving a model so much
    is worth, ``value`` its sum."""

    def __init__(self, menus: Menus, counts: Change, worth: Callable[[int, float], float]) -> None:
        self.menus = menus
        self.worth = worth
        self._rates = [model.rate_rps for model in menus.problem.models]
        self._moments = menus.problem.factors
        # Larger batches are judged while they are worth their time: with many models they come after the search.
        self._caps_count = menus.problem.batching == "late" and len(self._rates) <= MANY
        size = len(self._rates)
        self.counts: dict[GpuPattern, int] = {}
        self.hosts: list[dict[GpuPattern, None]] = [{} for _ in range(size)]
        self.capacity = [0.0] * size
        self.served = [0.0] * size
        self.guess = [0.0] * size
        self._contents: dict[GpuPattern, Content] = {}
        self._factors: dict[tuple[GpuPattern, FloatRow, bool], FloatRow] = {}
        self._caps: dict[GpuPattern, IntRow] = {}
        self._exact: dict[object, float] = {}
        self._usage: dict[GpuPattern, float] = {}
        self.value = 0.0
        self.commit(counts)

    def content(self, p: GpuPattern) -> Content:
        """Return (model, member, capacity in requests a second) of each replica in ``p``."""
        content = self._contents.get(p)
        if content is None:
            content = tuple((self.menus.ways[x.way].model, x, self.capacity_rps(x)) for x in p.members)
            self._contents[p] = content
        return content

    def capacity_rps(self, x: PatternMember) -> float:
        """Return the requests a second that ``x`` can serve: a batch every cycle where it takes turns."""
        way = self.menus.ways[x.way]
        if x.cycle_ms:
            return 1e3 * way.batch / x.cycle_ms
        return way.capacity_rps

    def caps(self, p: GpuPattern) -> IntRow:
        """Return the largest batch of each replica in ``p`` (0: the planned one)."""
        if not self._caps_count:
            return (0,) * len(p.members)
        caps = self._caps.get(p)
        if caps is None:
            rows = largest_batches(self.menus.problem, self._placed(p))
            caps = tuple(0 if row is None else row.batch_size for row in rows)
            self._caps[p] = caps
        return caps

    def _placed(self, p: GpuPattern) -> list[Placed]:
        """Return the replicas in ``p`` on a GPU of its type."""
        gpu = Gpu(id="", type=self.menus.types[p.type])
        placed = []
        for m, x, _ in self.content(p):
            partition = None
            if x.turn >= 0:
                partition = str(x.turn)
            replica = Placed(
                gpu=gpu,
                model=self.menus.model(m).name,
                candidate=self.menus.ways[x.way].candidate,
                partition=partition,
                duty_cycle_ms=x.cycle_ms or None,
            )
            placed.append(replica)
        return placed

    def factors(self, p: GpuPattern, loads: FloatRow, *, full: bool = False) -> FloatRow:
        """Return the slowdown of each replica in ``p``, each asked ``loads`` of its capacity; with ``full`` at
        their largest batches."""
        if len(p.members) == 1:
            return (1.0,)
        key = (p, loads, full)
        factors = self._factors.get(key)
        if factors is None:
            placed = self._placed(p)
            if full:
                of_way = zip(placed, p.members, self.caps(p), strict=True)
                placed = [replace(r, candidate=self.menus.capped(x.way, cap)) for r, x, cap in of_way]
            rates = [load * r.capacity_rps for load, r in zip(loads, placed, strict=True)]
            # an unknown slowdown is kept out by `allowed`
            factors = tuple(round(f or 1.0, 4) for f in slowdowns(placed, rates))
            self._factors[key] = factors
        return factors

    def trial(self, change: Change, *, exact: bool) -> Trial:
        """Return what ``change`` (patterns with the counts to add) would gain."""
        capacity: FloatByIndex = {}
        changed: dict[int, dict[GpuPattern, None]] = {}
        for p, added in change.items():
            for m, _, own in self.content(p):
                capacity[m] = capacity.get(m, self.capacity[m]) + added * own
                changed.setdefault(m, {})[p] = None
        served: FloatByIndex = {}
        gain = 0.0
        if exact:
            now = self.served
            serve = self._on_time
        else:
            now = self.guess
            serve = self._estimate
        for m in self._touched(capacity):
            value = 0.0
            for moment, weight in self._moments:
                value += weight * serve(
                    m, self._alike(m, change, changed.get(m, {}), capacity, moment), moment
                )
            served[m] = value
            gain += self.worth(m, value) - self.worth(m, now[m])
        return Trial(gain, served)

    def _load(self, m: int, capacity: float) -> float:
        """Return the part of so much ``capacity`` that model ``m`` asks for."""
        rate = self._rates[m]
        if capacity <= rate:
            return 1.0
        return rate / capacity

    def _touched(self, capacity: NeedByModel) -> dict[int, None]:
        """Return the models of which a new ``capacity`` changes what is on time: their own, and those that
        run beside one whose load changes."""
        touched: dict[int, None] = dict.fromkeys(capacity)
        for m, after in capacity.items():
            if abs(self._load(m, after) - self._load(m, self.capacity[m])) > 1e-9:
                for p in self.hosts[m]:
                    if len(p.members) > 1:
                        for other, _, _ in self.content(p):
                            touched[other] = None
        return touched

    def _alike(
        self,
        m: int,
        change: Change,
        changed: Iterable[GpuPattern],
        capacity: NeedByModel,
        moment: float,
    ) -> Alike:
        """Return the replicas of ``m`` after ``change``, of which ``changed`` are the patterns that hold it, with
        which models have the new ``capacity``, while all are asked ``moment`` times their rates."""
        alike: Alike = {}
        now = self.capacity
        for p in dict.fromkeys((*self.hosts[m], *changed)):
            count = self.counts.get(p, 0) + change.get(p, 0)
            if count <= 0:
                continue
            content = self.content(p)
            loads = tuple([round(self._load(x, capacity.get(x, now[x]) / moment), 6) for x, _, _ in content])
            factors = self.factors(p, loads, full=moment > 1)
            for (model, x, _), factor, cap in zip(content, factors, self.caps(p), strict=True):
                if model == m:
                    key = (x.way, x.cycle_ms, factor, cap)
                    alike[key] = alike.get(key, 0) + count
        return alike

    def _on_time(self, m: int, alike: Alike, moment: float) -> float:
        """Return what the evaluator says that model ``m`` is served on time (requests a second) while it is
        asked ``moment`` times its rate."""
        if not alike:
            return 0.0
        groups = sorted((*key, count) for key, count in alike.items())
        key = (m, moment, tuple(groups))
        rate = self._exact.get(key)
        if rate is None:
            servers = []
            candidates = []
            for way, cycle, factor, cap, count in groups:
                server = self.menus.server(way, cycle or None, cap)
                servers.append(replace(server, slowdown=factor, count=count))
                candidates.append(self.menus.capped(way, cap))
            model = self.menus.model(m)
            if moment != 1.0:
                model = replace(model, rate_rps=moment * model.rate_rps)
            rate = model_on_time(model, servers, candidates).rate_rps
            if rate >= 0.999 * model.rate_rps or model.batching == "late":
                self.menus.work += WORK_LIGHT
            else:
                self.menus.work += WORK_FULL
            self._exact[key] = rate
        return rate

    def _estimate(self, m: int, alike: Alike, moment: float) -> float:
        """Return the same as :meth:`_on_time`, roughly and quickly."""
        asked = moment * self._rates[m]
        rate = 0.0
        admitted = 0.0
        ways = self.menus.ways
        widest = max((key[0] for key in alike), key=lambda w: (ways[w].width, w), default=None)
        for (way, cycle, factor, cap), count in alike.items():
            serves = self.menus.serves(way, cycle or None, factor, widest, cap)
            rate += count * serves.rate_rps
            admitted += count * serves.admitted_rps
        if admitted <= 0:
            return 0.0
        if asked >= admitted:
            return rate
        load = asked / admitted
        return asked * (1.0 - (1.0 - min(1.0, rate / admitted)) * load**4)

    def commit(self, change: Change) -> None:
        """Make ``change``."""
        self.apply(change, self.trial(change, exact=True), self.trial(change, exact=False))

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
        """Return the part of the GPU's compute that ``p`` keeps busy."""
        total = self._usage.get(p)
        if total is None:
            total = 0.0
            for m, x, capacity in self.content(p):
                way = self.menus.ways[x.way]
                busy = 1.0  # a share of the SMs is taken whether it is used or not
                if way.share_pct >= 100:
                    load = min(1.0, self._rates[m] / max(self.capacity[m], 1e-12))
                    busy = load * capacity / way.capacity_rps
                total += way.part * busy
            self._usage[p] = total
        return total

    def saved(self) -> Saved:
        """Return what :meth:`restore` goes back to."""
        return Saved(dict(self.counts), tuple(self.served), tuple(self.guess), tuple(self.capacity))

    def restore(self, saved: Saved) -> None:
        """Go back to a state that was."""
        self.counts = dict(saved.counts)
        self.served = list(saved.served)
        self.guess = list(saved.guess)
        self.capacity = list(saved.capacity)
        self.value = math.fsum(self.worth(m, v) for m, v in enumerate(self.served))
        self._usage = {}
        self.hosts = [{} for _ in self.served]
        for p in self.counts:
            for m, _, _ in self.content(p):
                self.hosts[m][p] = None
