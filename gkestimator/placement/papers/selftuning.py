"""Guided self-tuning of SM shares, as GSLICE does, from the table's rows instead of trials."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from gkestimator.placement.patterns import ROOM_PCT
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import (
    Candidates,
    Gpu,
    Indices,
    IndicesByName,
    Names,
    PlacementModel,
    Problem,
)
from gkestimator.tables.candidate import Candidate

_ENOUGH = 1 - 1e-9


class SelfTuningPolicy(Policy):
    """Give each model a share of the SMs and tune it step by step; no two models take turns.

    Source: A. Dhakal, S. G. Kulkarni, K. K. Ramakrishnan, GSLICE, SoCC 2020 (spatial sharing by MPS shares
    that follow the observed load, batches sized to the SLO); *guided* is the name that gpulet (S. Choi et
    al., USENIX ATC 2022) gives it when profiles say what a step would bring, here the table's rows at
    several ``sm_share_pct``. What one step does, is ours to define:

    - the batch at a share is the largest whose latency, after filling at the model's rate, is within the
      SLO (where none fills in time: the smallest within it);
    - fixed cluster: model by model onto the GPUs in turn, each at an equal share; then, round by round, a
      model that does not keep up takes the next larger share if that is free, one that would keep up with
      the next smaller share gives the difference back; models that still lack add replicas on the GPU with
      the most free;
    - rented GPUs, or the fewest of a fixed cluster: model by model, on the first GPUs in use with room, then
      on new ones of the type that serves a request at the least cost.

    A model has one share on a GPU, as in GSLICE.
    """

    name = "selftuning"
    summary = "guided self-tuning of SM shares (GSLICE): no turns, batch sized to the objective"
    needs = ("memory",)

    def place(self, problem: Problem) -> Placement:
        """Return the placement; see the class."""
        ladders = _Ladders(problem)
        # A fixed order, whatever the workload's: who asks for most of a GPU first.
        models = sorted(problem.models, key=lambda m: (-ladders.demand(m), m.name))
        problem = problem.with_models(tuple(models))
        tuning = _Tuning(problem, ladders)
        if problem.elastic or problem.objective == "cost":
            tuning.pack()
        else:
            tuning.tune()
        notes: Names = ()
        if models and all(c.sm_share_pct >= 100 for m in models for c in m.candidates):
            notes = ("the table has no SM share below 100 %: every replica takes a whole GPU",)
        reasons = {}
        for m in models:
            if not any(ladders.of(m, t) for t in problem.types):
                reasons[m.name] = (
                    f"no row is within its SLO of {m.slo_ms:g} ms and the memory at any SM share"
                )
        return Placement(placed=tuple(tuning.placed()), reasons=reasons, notes=notes)


class _Ladders:
    """Hold the candidates of each model on each GPU type that a share is tuned along, by ascending share."""

    def __init__(self, problem: Problem) -> None:
        self._types = problem.types
        self._ladders = {(m.name, t): _ladder(m, t) for m in problem.models for t in problem.types}

    def of(self, model: PlacementModel, gpu_type: str) -> Candidates:
        """Return the candidates of ``model`` on ``gpu_type``; empty: it cannot run there."""
        return self._ladders[model.name, gpu_type]

    def demand(self, model: PlacementModel) -> float:
        """Return how many GPUs the whole rate takes on the type where that is least."""
        ladders = [self.of(model, t) for t in self._types]
        return min((model.rate_rps / ladder[-1].throughput_rps for ladder in ladders if ladder), default=0.0)


@dataclass(slots=True, kw_only=True)
class _Replica:
    """Run ``model`` on GPU number ``host`` by one ``rung`` of its ladder."""

    model: PlacementModel
    host: int
    ladder: Candidates
    rung: int

    @property
    def candidate(self) -> Candidate:
        return self.ladder[self.rung]


class _Hosts:
    """Hold GPUs with what is free on each; rented ones are added as they are taken."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.gpus: list[Gpu] = list(problem.gpus)
        self.share = [100.0] * len(self.gpus)
        self.memory = [100.0] * len(self.gpus)
        self._rented = dict.fromkeys(problem.types, 0)
        self._limits = {o.type: o.limit for o in problem.offers}

    def fits(self, host: int, candidate: Candidate, instead: Candidate | None = None) -> bool:
        """Return whether ``candidate`` fits on ``host``, after ``instead`` has left it."""
        share = self.share[host]
        memory = self.memory[host]
        if instead is not None:
            share += instead.sm_share_pct
            memory += _memory(instead)
        return candidate.sm_share_pct <= share + 1e-9 and _memory(candidate) <= memory + 1e-9

    def take(self, host: int, candidate: Candidate, sign: int = 1) -> None:
        """Let ``candidate`` arrive on ``host`` (``sign`` -1: leave it)."""
        self.share[host] -= sign * candidate.sm_share_pct
        self.memory[host] -= sign * _memory(candidate)

    def rent(self, gpu_type: str) -> int | None:
        """Return one more GPU of ``gpu_type``; None: no more are offered."""
        limit = self._limits.get(gpu_type, 0)
        number = self._rented[gpu_type]
        if limit is not None and number >= limit:
            return None
        self._rented[gpu_type] += 1
        self.gpus.append(self._problem.rented(gpu_type, number))
        self.share.append(100.0)
        self.memory.append(100.0)
        return len(self.gpus) - 1


def _memory(candidate: Candidate) -> float:
    assert candidate.memory_pct is not None
    return candidate.memory_pct


def _ladder(model: PlacementModel, gpu_type: str) -> Candidates:
    """Return the candidate at each SM share, ascending; shares that bring no more throughput than a smaller
    one are no step."""
    ladder: list[Candidate] = []
    for share in sorted({c.sm_share_pct for c in model.on(gpu_type, sm_share_pct=None)}):
        able = [c for c in model.feasible(gpu_type, sm_share_pct=share) if _memory(c) <= ROOM_PCT]
        if not able:
            continue
        chosen = able[0]
        for c in able[1:]:
            fill_ms = 1e3 * (c.batch_size - 1) / model.rate_rps
            if c.latency_ms + fill_ms <= model.slo_ms and c.batch_size > chosen.batch_size:
                chosen = c
        if not ladder or chosen.throughput_rps > ladder[-1].throughput_rps:
            ladder.append(chosen)
    return tuple(ladder)


class _Tuning:
    """Hold the replicas while their shares are tuned, and the ``capacity`` of each model (requests a
    second)."""

    def __init__(self, problem: Problem, ladders: _Ladders) -> None:
        self.problem = problem
        self.ladders = ladders
        self.hosts = _Hosts(problem)
        self.replicas: list[_Replica] = []
        self.capacity = dict.fromkeys((m.name for m in problem.models), 0.0)

    def placed(self) -> list[Placed]:
        """Return the replicas, GPU by GPU."""
        gpus = self.hosts.gpus
        replicas = sorted(self.replicas, key=lambda r: r.host)
        return [Placed(gpu=gpus[r.host], model=r.model.name, candidate=r.candidate) for r in replicas]

    def _add(self, model: PlacementModel, host: int, rung: int) -> None:
        ladder = self._ladder(model, host)
        self.hosts.take(host, ladder[rung])
        self.replicas.append(_Replica(model=model, host=host, ladder=ladder, rung=rung))
        self.capacity[model.name] += ladder[rung].throughput_rps

    def _ladder(self, model: PlacementModel, host: int) -> Candidates:
        return self.ladders.of(model, self.hosts.gpus[host].type)

    def _missing(self, model: PlacementModel) -> float:
        """Return the requests a second of ``model`` that its replicas cannot serve."""
        return model.rate_rps - self.capacity[model.name]

    def _keeps_up(self, model: PlacementModel) -> bool:
        return self.capacity[model.name] >= model.rate_rps * _ENOUGH

    def tune(self) -> None:
        """Share a fixed cluster: equal shares first, then steps up and down, then further replicas."""
        self._equal_shares()
        self._steps()
        # Nobody can grow where he is: whoever lacks looks for a further GPU, in turn, most free share first.
        lacking = [m for m in self.problem.models if not self._keeps_up(m)]
        looking = {m.name: self._others(m) for m in lacking}
        while lacking:
            still = []
            for model in lacking:
                if self._one_more(model, looking[model.name]) and not self._keeps_up(model):
                    still.append(model)
            lacking = still
        self._steps()

    def _equal_shares(self) -> None:
        """Put each model onto the next GPU in turn that has room, at the largest share that is no more than
        equal."""
        models = self.problem.models
        count = len(self.hosts.gpus)
        equal = 100 / max(1, -(-len(models) // count))
        for number, model in enumerate(models):
            for i in range(number, number + count):
                host = i % count
                ladder = self._ladder(model, host)
                # Not even the smallest share is as small as an equal one: the smallest.
                rung = max(0, sum(c.sm_share_pct <= equal + 1e-9 for c in ladder) - 1)
                if ladder and self.hosts.fits(host, ladder[rung]):
                    self._add(model, host, rung)
                    break

    def _steps(self) -> None:
        """Step up and down until no step changes anything. It ends: only a model that does not keep up steps
        up, and whoever steps down still keeps up and never steps up again."""
        changed = True
        while changed:
            changed = False
            for r in self.replicas:
                changed |= self._step(r)

    def _step(self, r: _Replica) -> bool:
        here = r.candidate
        name = r.model.name
        others = self.capacity[name] - here.throughput_rps
        rate = r.model.rate_rps * _ENOUGH
        if self.capacity[name] < rate and r.rung + 1 < len(r.ladder):
            step = 1
        elif r.rung > 0 and others + r.ladder[r.rung - 1].throughput_rps >= rate:
            step = -1
        else:
            return False
        there = r.ladder[r.rung + step]
        if not self.hosts.fits(r.host, there, instead=here):
            return False
        self.hosts.take(r.host, here, -1)
        self.hosts.take(r.host, there)
        r.rung += step
        self.capacity[name] = others + there.throughput_rps
        return True

    def _others(self, model: PlacementModel) -> list[tuple[float, int]]:
        """Return a heap of (minus free share, GPU) of the GPUs that ``model`` does not run on."""
        own = {r.host for r in self.replicas if r.model is model}
        heap = [(-share, host) for host, share in enumerate(self.hosts.share) if host not in own]
        heapq.heapify(heap)
        return heap

    def _one_more(self, model: PlacementModel, looking: list[tuple[float, int]]) -> bool:
        """Add a replica on a further GPU, the one with the most free share that can hold it; return whether
        there was one. GPUs only fill up, so one that cannot is not asked again."""
        while looking:
            free, host = heapq.heappop(looking)
            share = self.hosts.share[host]
            if -free > share:  # others came since
                heapq.heappush(looking, (-share, host))
                continue
            rung = self._rung(model, host, self._missing(model))
            if rung is not None:
                self._add(model, host, rung)
                return True
        return False

    def _rung(self, model: PlacementModel, host: int, missing_rps: float) -> int | None:
        """Return, of the shares that fit on ``host``, the smallest that serves what is missing, else the
        largest."""
        largest = None
        for rung, candidate in enumerate(self._ladder(model, host)):
            if self.hosts.fits(host, candidate):
                largest = rung
                if candidate.throughput_rps >= missing_rps * _ENOUGH:
                    break
        return largest

    def pack(self) -> None:
        """Place model by model: one replica after the other on the first GPU in use that can hold one, then
        on new GPUs of the type that serves a request at the least cost."""
        hosts = self.hosts
        in_use: Indices = []
        unused: IndicesByName = {t: [] for t in self.problem.types}
        for host in reversed(range(len(hosts.gpus))):
            unused[hosts.gpus[host].type].append(host)
        for model in self.problem.models:
            missing = model.rate_rps
            new: Indices = []
            before = iter(in_use)
            while missing > model.rate_rps * (1 - _ENOUGH):
                gpu = next(before, None)
                if gpu is None:
                    gpu = self._new_host(model, unused, missing)
                    if gpu is None:
                        break
                    new.append(gpu)
                rung = self._rung(model, gpu, missing)
                if rung is not None:
                    self._add(model, gpu, rung)
                    missing -= self.replicas[-1].candidate.throughput_rps
            in_use = [h for h in (*in_use, *new) if hosts.share[h] > 1e-9]

    def _new_host(self, model: PlacementModel, unused: IndicesByName, missing_rps: float) -> int | None:
        """Return a GPU that nobody uses yet, of the type on which a served request costs least; None: there
        is none."""
        # Where a price is unknown all count alike: the share of a GPU is the cost.
        prices = self.problem.known_prices or dict.fromkeys(self.problem.types, 1.0)
        ways = []
        for number, gpu_type in enumerate(self.problem.types):
            ladder = self.ladders.of(model, gpu_type)
            if ladder:
                enough = (c for c in ladder if c.throughput_rps >= missing_rps * _ENOUGH)
                way = next(enough, ladder[-1])
                cost = prices[gpu_type] * way.sm_share_pct / min(missing_rps, way.throughput_rps)
                ways.append((cost, number, gpu_type))
        for _, _, gpu_type in sorted(ways):
            if unused[gpu_type]:
                return unused[gpu_type].pop()
            host = self.hosts.rent(gpu_type)
            if host is not None:
                return host
        return None
