"""Ways to run a model that the `gkest` policy chooses from, and what one replica of each can serve on
time."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from operator import gt

from gkestimator.core.records import frozen
from gkestimator.placement.contention import MEMORY_COLUMNS, compute_demand_pct
from gkestimator.placement.expected import model_on_time, server_of
from gkestimator.placement.gkest.rates import ManyRates
from gkestimator.placement.gkest.ways import Way, Ways
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import FloatByIndex, FloatPair, FloatRow, Gpu, PlacementModel, Problem
from gkestimator.placement.queueing import Server
from gkestimator.tables.candidate import Candidate

# Slowdowns at which a replica's rate is worked out; between them it is linear.
_SLOWDOWNS = (1.0, 1.12, 1.3, 1.6, 2.0, 2.6, 3.5, 5.0)
_MOST_POOLED = 64
_AS_WIDE = 1.05  # intervals as wide as another, but for this factor
# With more ways than this, those for a try are picked by a rough rate; what a try is worth is worked out as ever.
_MANY_WAYS = 300
MANY = 64  # models
# What a batch's turn is counted on for, where the next turn would still be in time and where not.
_TURN_LOADS = (0.95, 0.8)
_MOST_LOAD = 0.95  # of capacity that a replica is counted on for
# What a call of the queueing model takes, in looks at a change by estimate: all on time, or the admitted rate
# looked for.
WORK_LIGHT = 2
WORK_FULL = 8


@frozen
class Serves:
    """Say how many requests a second one replica answers on time at most, and how many it admits for that."""

    rate_rps: float
    admitted_rps: float


class Menus:
    """Hold every way of every model that can keep the objective and fits the GPU's memory, less those that
    another way of the same share matches or betters in capacity, latency, SM demand and memory at once. Ways
    are numbered; equal input, equal numbers.

    ``oversubscribe``: the sum of Creq on a GPU may pass 100 %. ``turns``: replicas may take turns. ``work``
    counts what the queueing model was asked."""

    def __init__(self, problem: Problem, *, oversubscribe: bool = False, turns: bool = True) -> None:
        self.problem = problem
        self.oversubscribe = oversubscribe
        self.turns = turns
        self.work = 0
        self.many = len(problem.models) > MANY
        self._rates = ManyRates()
        self._alone: FloatByIndex = {}
        self.types = problem.types
        self.ways: Ways = []
        self.of: list[dict[int, Ways]] = []
        self._serves: dict[tuple[int, int, int, int], Serves] = {}
        self._narrowest: FloatByIndex = {}
        self._by_candidate: dict[int, Way] = {}
        self._servers: dict[tuple[int, float | None, int], Server] = {}
        for m, model in enumerate(problem.models):
            self.of.append(self._by_type(m, model))

    def asked(self, problem: Problem) -> Menus:
        """Return the same menus for ``problem``, which differs in how its rates vary alone."""
        other = copy.copy(self)
        other.problem = problem
        return other

    def _by_type(self, m: int, model: PlacementModel) -> dict[int, Ways]:
        """Return the ways of the ``m``-th model by GPU type, each with its number."""
        groups: dict[tuple[str, float], list[Candidate]] = {}
        for candidate in model.candidates:
            memory = candidate.memory_pct
            if candidate.latency_ms <= model.slo_ms and (memory is None or memory <= 100):
                groups.setdefault((candidate.gpu, candidate.sm_share_pct), []).append(candidate)
        by_type: dict[int, Ways] = {}
        for (gpu, _), group in groups.items():
            t = self.types.index(gpu)
            for candidate in _unbettered(group):
                way = _way(len(self.ways), m, t, candidate)
                self.ways.append(way)
                by_type.setdefault(t, []).append(way)
        return by_type

    def way_of(self, m: int, candidate: Candidate) -> Way:
        """Return the way of model ``m`` by ``candidate``; one that another betters is a way of its own, which no menu
        offers."""
        if not self._by_candidate:
            self._by_candidate = {id(w.candidate): w for w in self.ways}
        way = self._by_candidate.get(id(candidate))
        if way is None:
            way = _way(len(self.ways), m, self.types.index(candidate.gpu), candidate)
            self.ways.append(way)
            self._by_candidate[id(candidate)] = way
        return way

    def model(self, m: int) -> PlacementModel:
        """Return the ``m``-th model."""
        return self.problem.models[m]

    def narrowest(self, m: int) -> float:
        """Return the smallest :attr:`Way.width` of model ``m``."""
        if m not in self._narrowest:
            self._narrowest[m] = min(w.width for ways in self.of[m].values() for w in ways)
        return self._narrowest[m]

    def rate(self, way: Way) -> float:
        """Return the requests a second that one replica without neighbours serves on time; roughly, where
        there are many ways."""
        if self.many:
            rate = self._alone.get(way.number)
            if rate is None:
                model = self.model(way.model)
                rate = way.capacity_rps * self._rates.parts(way, model, 1.0, way.width)[0]
                self._alone[way.number] = rate
            return rate
        if len(self.ways) <= _MANY_WAYS:
            return self.serves(way.number, None, 1.0).rate_rps
        # half of the time is lost where the upper end of the latency reaches the objective, all where the latency does
        slo = self.model(way.model).slo_ms
        highest = min(1.0, way.candidate.latency_high_ms / slo)
        slack = 1.0 - 0.5 * (way.latency_ms / slo) ** 2 - 0.5 * highest**2
        return way.capacity_rps * min(_MOST_LOAD, max(slack, 0.02)) / math.sqrt(way.width)

    def server(self, way: int, cycle_ms: float | None, cap: int = 0) -> Server:
        """Return one replica alone, as the queueing model sees it; ``cap``: its largest batch (0: its own)."""
        key = (way, cycle_ms, cap)
        server = self._servers.get(key)
        if server is None:
            candidate = self.capped(way, cap)
            model = self.model(self.ways[way].model)
            # our cycles are the sum of their turns
            if cycle_ms is None:
                busy = None
            else:
                busy = round(cycle_ms, 9)
            server = server_of(model, candidate, duty_cycle_ms=cycle_ms, cycle_busy_ms=busy)
            self._servers[key] = server
        return server

    def capped(self, way: int, cap: int) -> Candidate:
        """Return the candidate of ``way`` with the largest batch ``cap`` in place of its own (0: its own)."""
        own = self.ways[way].candidate
        if not cap:
            return own
        rows = self.model(self.ways[way].model).on(own.gpu, sm_share_pct=own.sm_share_pct)
        return next(c for c in rows if c.batch_size == cap)

    def serves(
        self, way: int, cycle_ms: float | None, slowdown: float, widest: int | None = None, cap: int = 0
    ) -> Serves:
        """Return what one of as many replicas as the model's rate needs can serve on time at ``slowdown``,
        however much is asked for. ``widest``: the way of its model whose interval is the widest in use, and
        holds for all. ``cap`` as of :meth:`server`."""
        if cycle_ms is not None:
            return self._in_turn(self.ways[way], cycle_ms, slowdown)
        if self.many:
            return self._of_many(self.ways[way], slowdown, widest)
        at = bisect_right(_SLOWDOWNS, slowdown) - 1
        low = self._at(way, at, widest, cap)
        if at + 1 >= len(_SLOWDOWNS):
            scale = _SLOWDOWNS[-1] / slowdown
            return Serves(rate_rps=low.rate_rps * scale, admitted_rps=low.admitted_rps * scale)
        part = (slowdown - _SLOWDOWNS[at]) / (_SLOWDOWNS[at + 1] - _SLOWDOWNS[at])
        if part < 1e-6:
            return low
        high = self._at(way, at + 1, widest, cap)
        return Serves(
            rate_rps=low.rate_rps + part * (high.rate_rps - low.rate_rps),
            admitted_rps=low.admitted_rps + part * (high.admitted_rps - low.admitted_rps),
        )

    def _of_many(self, way: Way, slowdown: float, widest: int | None) -> Serves:
        width = way.width
        if widest is not None:
            width = max(width, self.ways[widest].width)
        served, admitted = self._rates.parts(way, self.model(way.model), slowdown, width)
        capacity = way.capacity_rps / slowdown
        return Serves(rate_rps=served * capacity, admitted_rps=admitted * capacity)

    def _in_turn(self, way: Way, cycle_ms: float, slowdown: float) -> Serves:
        """Return the same, roughly: cycles are many, and what a try is worth is worked out before it is
        kept."""
        slack = self.model(way.model).slo_ms - way.latency_ms * slowdown
        again, once = _TURN_LOADS
        if slack >= 2 * cycle_ms * slowdown:
            load = again
        else:
            load = once
        rate = 1e3 * way.batch / cycle_ms * load / (slowdown * math.sqrt(way.width))
        return Serves(rate_rps=rate, admitted_rps=rate)

    def _at(self, way: int, at: int, widest: int | None, cap: int) -> Serves:
        """Return what :meth:`serves` says at the ``at``-th of the slowdowns, without turns."""
        w = self.ways[way]
        if widest is None or self.ways[widest].width <= w.width * _AS_WIDE:
            widest = way
        key = (way, at, widest, cap)
        serves = self._serves.get(key)
        if serves is None:
            model = self.model(w.model)
            alone = self.server(way, None, cap)
            pooled = min(_MOST_POOLED, max(1, math.ceil(model.rate_rps / alone.capacity_rps)))
            server = replace(alone, slowdown=_SLOWDOWNS[at], count=pooled)
            rate = _MOST_LOAD * pooled * server.capacity_rps
            candidates = [w.candidate, self.ways[widest].candidate]
            answer = model_on_time(replace(model, rate_rps=rate), [server], candidates)
            if answer.rate_rps >= 0.999 * rate or model.batching == "late":
                self.work += WORK_LIGHT
            else:
                self.work += WORK_FULL
            admitted = max(answer.admitted_rps, answer.rate_rps, 1e-12)
            serves = Serves(rate_rps=answer.rate_rps / pooled, admitted_rps=admitted / pooled)
            self._serves[key] = serves
        return serves

    def best(self, m: int, t: int, need_rps: float, *, most_share: float, confined: bool) -> Ways:
        """Return a few ways of ``m`` on type ``t`` worth trying where ``need_rps`` are wanted: the smallest
        that serves them, the one that serves most, the one that asks least of the GPU for each request, and
        the one between."""
        ways = self.of[m].get(t, ())
        if confined:
            ways = [w for w in ways if w.share_pct < 100 and w.share_pct <= most_share + 1e-9]
        else:
            ways = [w for w in ways if w.share_pct >= 100]
        if len(ways) <= 2:
            return ways
        if self.many:
            rates = {w.number: self.rate(w) for w in ways}
        else:
            rates = {w.number: self.serves(w.number, None, 1.0).rate_rps for w in ways}

        def for_its_part(w: Way) -> FloatPair:
            return rates[w.number] / w.part, -w.batch

        enough = [w for w in ways if rates[w.number] >= need_rps]
        picks = []
        if enough:
            picks.append(min(enough, key=lambda w: (w.part, w.batch)))
            picks.append(min(enough, key=lambda w: (w.part / w.capacity_rps, w.batch)))
        picks.append(max(ways, key=lambda w: (rates[w.number], -w.batch)))
        picks.append(max(ways, key=for_its_part))
        narrow = min(w.width for w in ways) * _AS_WIDE
        sure = [w for w in ways if w.width <= narrow]
        picks.append(max(sure, key=for_its_part))
        return list({w.number: w for w in picks}.values())


def _way(number: int, model: int, gpu_type: int, candidate: Candidate) -> Way:
    probe = Placed(gpu=Gpu(id="", type=candidate.gpu), model="", candidate=candidate)
    return Way(
        number=number,
        model=model,
        type=gpu_type,
        candidate=candidate,
        capacity_rps=candidate.throughput_rps,
        latency_ms=candidate.latency_ms,
        demand_pct=compute_demand_pct(probe),
        creq_pct=candidate.creq_pct,
        dram_pct=candidate.row.dram_util_mean_pct,
        memory_pct=candidate.memory_pct or 0.0,
        share_pct=candidate.sm_share_pct,
        batch=candidate.batch_size,
    )


def _unbettered(group: Sequence[Candidate]) -> list[Candidate]:
    """Return those of ``group`` that no other betters: is at least as good in all that a placement can feel, and the
    smaller batch or better somewhere."""
    costs = [_costs(c) for c in group]
    best = []
    for i, candidate in enumerate(group):
        for j, other in enumerate(group):
            if i == j or any(map(gt, costs[j], costs[i])):
                continue
            if costs[j] != costs[i] or other.batch_size < candidate.batch_size:
                break
        else:
            best.append(candidate)
    return best


def _costs(candidate: Candidate) -> FloatRow:
    """Return what a placement can feel of ``candidate``, less being better; an unknown demand counts as
    all."""
    creq = _or_all(candidate.creq_pct)
    sm_util = candidate.row.sm_util_mean_pct
    return (
        -candidate.throughput_rps,
        candidate.latency_ms,
        creq if sm_util is None else sm_util,
        creq,
        *(_or_all(getattr(candidate.row, column)) for column in MEMORY_COLUMNS),
        candidate.memory_pct or 0.0,
    )


def _or_all(percent: float | None) -> float:
    if percent is None:
        return 100.0
    return percent
