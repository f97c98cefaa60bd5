"""Guided self-tuning of SM shares, as GSLICE does, from the table's rows instead of trials."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from gkestimator.placement.patterns import ROOM_PCT
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import Gpu, PlacementModel, Problem
from gkestimator.tables.candidate import Candidate

_ENOUGH = 1 - 1e-9


class SelfTuningPolicy(Policy):
    """Each model has a share of the SMs that is tuned step by step; no two models take turns.

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
    - rented GPUs, or the fewest of a fixed cluster: model by model, on the first GPUs in use with room, then on
      new ones of the type that serves a request at the least cost.

    A model has one share on a GPU, as in GSLICE.
    """

    name = "selftuning"
    summary = "guided self-tuning of SM shares (GSLICE): no turns, batch sized to the objective"
    needs = ("memory",)

    def place(self, problem: Problem) -> Placement:
        """The placement; see the class."""
        ladders = {
            (m.name, t): found for m in problem.models for t in problem.types if (found := _ladder(m, t))
        }
        # A fixed order, whatever the workload's: who asks for most of a GPU first.
        demand = {m.name: _demand(m, problem.types, ladders) for m in problem.models}
        problem = problem.with_models(tuple(sorted(problem.models, key=lambda m: (-demand[m.name], m.name))))
        hosts = _Hosts(problem)
        if problem.elastic or problem.objective == "cost":
            replicas = _packed(problem, ladders, hosts)
        else:
            replicas = _tuned(problem, ladders, hosts)
        placed = [Placed(gpu=hosts.gpus[r.host], model=r.model.name, candidate=r.candidate) for r in replicas]
        order = {g.id: i for i, g in enumerate(hosts.gpus)}
        placed.sort(key=lambda p: order[p.gpu.id])
        notes = []
        if all(c.sm_share_pct >= 100 for m in problem.models for c in m.candidates) and problem.models:
            notes.append("the table has no SM share below 100 %: every replica takes a whole GPU")
        able = {name for name, _ in ladders}
        return Placement(
            placed=tuple(placed),
            reasons={
                m.name: f"no row is within its SLO of {m.slo_ms:g} ms and the memory at any SM share"
                for m in problem.models
                if m.name not in able
            },
            notes=tuple(notes),
        )


@dataclass(slots=True, kw_only=True)
class _Replica:
    model: PlacementModel
    host: int
    ladder: tuple[Candidate, ...]
    rung: int

    @property
    def candidate(self) -> Candidate:
        return self.ladder[self.rung]


class _Hosts:
    """GPUs with what is free on each; rented ones are added as they are taken."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.gpus: list[Gpu] = list(problem.gpus)
        self.share = [100.0] * len(self.gpus)
        self.memory = [100.0] * len(self.gpus)
        self._rented = dict.fromkeys(problem.types, 0)
        self._limits = {o.type: o.limit for o in problem.offers}

    def fits(self, host: int, candidate: Candidate, instead: Candidate | None = None) -> bool:
        """Whether ``candidate`` fits on ``host``, after ``instead`` has left it."""
        share = self.share[host] + (instead.sm_share_pct if instead else 0.0)
        memory = self.memory[host] + (_memory(instead) if instead else 0.0)
        return candidate.sm_share_pct <= share + 1e-9 and _memory(candidate) <= memory + 1e-9

    def take(self, host: int, candidate: Candidate, sign: int = 1) -> None:
        """``candidate`` arrives on ``host`` (``sign`` -1: leaves it)."""
        self.share[host] -= sign * candidate.sm_share_pct
        self.memory[host] -= sign * _memory(candidate)

    def rent(self, gpu_type: str) -> int | None:
        """One more GPU of ``gpu_type``; None: no more are offered."""
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


def _ladder(model: PlacementModel, gpu_type: str) -> tuple[Candidate, ...]:
    """The candidate at each SM share, ascending; shares that bring no more throughput than a smaller one
    are no step."""
    ladder: list[Candidate] = []
    for share in sorted({c.sm_share_pct for c in model.on(gpu_type, sm_share_pct=None)}):
        able = [c for c in model.feasible(gpu_type, sm_share_pct=share) if _memory(c) <= ROOM_PCT]
        if not able:
            continue
        filling = [
            c for c in able if c.latency_ms + 1e3 * (c.batch_size - 1) / model.rate_rps <= model.slo_ms
        ]
        if filling:
            chosen = max(filling, key=lambda c: c.batch_size)
        else:
            chosen = able[0]
        if not ladder or chosen.throughput_rps > ladder[-1].throughput_rps:
            ladder.append(chosen)
    return tuple(ladder)


def _demand(
    model: PlacementModel, types: tuple[str, ...], ladders: dict[tuple[str, str], tuple[Candidate, ...]]
) -> float:
    """GPUs that the whole rate takes on the type where that is least."""
    found = [
        model.rate_rps / ladder[-1].throughput_rps for t in types if (ladder := ladders.get((model.name, t)))
    ]
    return min(found, default=0.0)


def _tuned(
    problem: Problem, ladders: dict[tuple[str, str], tuple[Candidate, ...]], hosts: _Hosts
) -> list[_Replica]:
    replicas = _equal_shares(problem, ladders, hosts)
    capacity = dict.fromkeys((m.name for m in problem.models), 0.0)
    for r in replicas:
        capacity[r.model.name] += r.candidate.throughput_rps
    _tune(replicas, capacity, hosts)
    # Nobody can grow where he is: whoever lacks looks for a further GPU, in turn, most free share first.
    lacking = [m for m in problem.models if capacity[m.name] < m.rate_rps * _ENOUGH]
    looking = {m.name: _others(m, replicas, hosts) for m in lacking}
    while lacking:
        still = []
        for model in lacking:
            missing = model.rate_rps - capacity[model.name]
            added = _one_more(model, ladders, hosts, looking[model.name], missing)
            if added is not None:
                replicas.append(added)
                capacity[model.name] += added.candidate.throughput_rps
                if capacity[model.name] < model.rate_rps * _ENOUGH:
                    still.append(model)
        lacking = still
    _tune(replicas, capacity, hosts)
    return replicas


def _equal_shares(
    problem: Problem, ladders: dict[tuple[str, str], tuple[Candidate, ...]], hosts: _Hosts
) -> list[_Replica]:
    replicas: list[_Replica] = []
    count = len(hosts.gpus)
    equal = 100 / max(1, -(-len(problem.models) // count))
    for number, model in enumerate(problem.models):
        for host in ((number + i) % count for i in range(count)):
            ladder = ladders.get((model.name, hosts.gpus[host].type), ())
            below = [i for i, c in enumerate(ladder) if c.sm_share_pct <= equal + 1e-9]
            # Not even the smallest share is as small as an equal one: the smallest.
            rung = below[-1] if below else 0
            if ladder and hosts.fits(host, ladder[rung]):
                hosts.take(host, ladder[rung])
                replicas.append(_Replica(model=model, host=host, ladder=ladder, rung=rung))
                break
    return replicas


def _tune(replicas: list[_Replica], capacity: dict[str, float], hosts: _Hosts) -> None:
    """Steps up and down until none changes anything. It ends: only a model that does not keep up steps up,
    and whoever steps down still keeps up and never steps up again."""
    changed = True
    while changed:
        changed = False
        for r in replicas:
            here = r.candidate
            name = r.model.name
            others = capacity[name] - here.throughput_rps
            rate = r.model.rate_rps * _ENOUGH
            if capacity[name] < rate and r.rung + 1 < len(r.ladder):
                step = 1
            elif r.rung > 0 and others + r.ladder[r.rung - 1].throughput_rps >= rate:
                step = -1
            else:
                continue
            there = r.ladder[r.rung + step]
            if hosts.fits(r.host, there, instead=here):
                hosts.take(r.host, here, -1)
                hosts.take(r.host, there)
                r.rung += step
                capacity[name] = others + there.throughput_rps
                changed = True


def _others(model: PlacementModel, replicas: list[_Replica], hosts: _Hosts) -> list[tuple[float, int]]:
    """Heap of (minus free share, GPU) of the GPUs that ``model`` does not run on."""
    own = {r.host for r in replicas if r.model is model}
    heap = [(-hosts.share[i], i) for i in range(len(hosts.gpus)) if i not in own]
    heapq.heapify(heap)
    return heap


def _one_more(
    model: PlacementModel,
    ladders: dict[tuple[str, str], tuple[Candidate, ...]],
    hosts: _Hosts,
    looking: list[tuple[float, int]],
    missing_rps: float,
) -> _Replica | None:
    """A replica on a further GPU, the one with the most free share that can hold it. GPUs only fill up, so one that
    cannot is not asked again."""
    while looking:
        free, host = heapq.heappop(looking)
        if -free > hosts.share[host]:  # others came since
            heapq.heappush(looking, (-hosts.share[host], host))
            continue
        ladder = ladders.get((model.name, hosts.gpus[host].type), ())
        rung = _rung(ladder, hosts, host, missing_rps)
        if rung is not None:
            hosts.take(host, ladder[rung])
            return _Replica(model=model, host=host, ladder=ladder, rung=rung)
    return None


def _rung(ladder: tuple[Candidate, ...], hosts: _Hosts, host: int, missing_rps: float) -> int | None:
    """Of the shares that fit on ``host``: the smallest that serves what is missing, else the largest."""
    fitting = [i for i, c in enumerate(ladder) if hosts.fits(host, c)]
    enough = [i for i in fitting if ladder[i].throughput_rps >= missing_rps * _ENOUGH]
    if enough:
        return enough[0]
    if fitting:
        return fitting[-1]
    return None


def _packed(
    problem: Problem, ladders: dict[tuple[str, str], tuple[Candidate, ...]], hosts: _Hosts
) -> list[_Replica]:
    """Model by model: one replica after the other on the first GPU in use that can hold one, then on new GPUs of
    the type that serves a request at the least cost."""
    replicas: list[_Replica] = []
    known = {t: p for t in problem.types if (p := problem.prices.get(t)) is not None}
    # Where a price is unknown all count alike: the share of a GPU is the cost.
    if len(known) == len(problem.types):
        price = known
    else:
        price = dict.fromkeys(problem.types, 1.0)
    in_use: list[int] = []
    unused: dict[str, list[int]] = {t: [] for t in problem.types}
    for i in reversed(range(len(hosts.gpus))):
        unused[hosts.gpus[i].type].append(i)
    for model in problem.models:
        missing = model.rate_rps
        new: list[int] = []
        before = iter(in_use)
        while missing > model.rate_rps * (1 - _ENOUGH):
            host = next(before, None)
            if host is None:
                host = _new_host(model, problem.types, ladders, price, hosts, unused, missing)
                if host is None:
                    break
                new.append(host)
            ladder = ladders.get((model.name, hosts.gpus[host].type), ())
            rung = _rung(ladder, hosts, host, missing)
            if rung is not None:
                hosts.take(host, ladder[rung])
                replicas.append(_Replica(model=model, host=host, ladder=ladder, rung=rung))
                missing -= ladder[rung].throughput_rps
        in_use = [h for h in (*in_use, *new) if hosts.share[h] > 1e-9]
    return replicas


def _new_host(
    model: PlacementModel,
    types: tuple[str, ...],
    ladders: dict[tuple[str, str], tuple[Candidate, ...]],
    price: dict[str, float],
    hosts: _Hosts,
    unused: dict[str, list[int]],
    missing_rps: float,
) -> int | None:
    """A GPU that nobody uses yet, of the type on which a served request costs least; None: there is none."""
    ways = []
    for number, gpu_type in enumerate(types):
        ladder = ladders.get((model.name, gpu_type))
        if ladder:
            enough = [c for c in ladder if c.throughput_rps >= missing_rps * _ENOUGH]
            taken = enough[0] if enough else ladder[-1]
            cost = price[gpu_type] * taken.sm_share_pct / min(missing_rps, taken.throughput_rps)
            ways.append((cost, number, gpu_type))
    for _, _, gpu_type in sorted(ways):
        if unused[gpu_type]:
            host = unused[gpu_type].pop()
        else:
            host = hosts.rent(gpu_type)
        if host is not None:
            return host
    return None
