"""Relations of plans and their simulation: what is placed fits, what arrives is answered or dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import Cluster, GpuCount, ModelLoad, PlacedGpu, PlacementPlan, Replica, Workload
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.library.relations.checking import Case, RelationCheck, Subject, apart, beyond, defect
from gkestimator.placement.building import build_problem
from gkestimator.placement.registry import POLICIES, make_policy
from gkestimator.placement.run import place
from gkestimator.simulation.running import FileRun, simulate_plan
from gkestimator.tables import Requirement

_GPUS = ("T4", "V100-SXM2-16GB")
_SHARES = (20.0, 50.0, 100.0)
_BATCHES = (1, 8, 64)
_SIMULATED = 6
_REQUESTS = 5000
Key: TypeAlias = tuple[str, str, int, float]


@frozen
class RandomQuestion:
    """Hold a random question to a policy: rows by what identifies them, rates with objectives, and GPUs."""

    rows: Mapping[Key, Requirement]
    workload: Workload
    cluster: Cluster

    def plan(self, policy: str, seed: int) -> PlacementPlan:
        """Return the answer of ``policy``. Raises UsageError where it has none, PolicyError where it does not stand."""
        problem = build_problem(self.rows.values(), self.workload, self.cluster, seed=seed)
        return place(make_policy(policy), problem)


def key_of(row: Requirement) -> Key:
    """Return what tells a row of a table from all others."""
    return row.model, row.gpu, row.batch_size or 1, row.sm_share_pct


@cache
def _specs() -> Sequence[GpuSpec]:
    return [gpu_catalogue().spec(name) for name in _GPUS]


def _rows(subject: Subject) -> dict[str, list[Requirement]]:
    rows_of = defaultdict(list)
    for row in subject.rows(subject.networks, gpus=_GPUS, batch_sizes=_BATCHES, sm_shares=_SHARES):
        rows_of[row.model].append(row)
    return rows_of


def _drawn(rng: np.random.Generator, rows_of: Mapping[str, list[Requirement]]) -> RandomQuestion:
    """Return one to four models of a memory and speed of their own, on one to four GPUs of two types."""
    rows = []
    loads = []
    for number in range(int(rng.integers(1, 5))):
        base = rows_of[str(rng.choice(list(rows_of)))]
        own = _changed(rng, base, f"model{number}")
        rows += own
        slo_ms = float(np.exp(rng.uniform(0, 3))) * min(row.latency_ms or 0.0 for row in own)
        rate = float(np.exp(rng.uniform(-3, 1))) * max(row.throughput_rps or 0.0 for row in own)
        loads.append(ModelLoad(name=f"model{number}", rate_rps=rate, slo_ms=slo_ms))
    counts = [int(rng.integers(1, 3)), int(rng.integers(0, 3))]
    gpus = [GpuCount(spec=spec, count=n) for spec, n in zip(_specs(), counts, strict=True) if n]
    workload = Workload(models=tuple(loads))
    by_key = {key_of(row): row for row in rows}
    return RandomQuestion(rows=by_key, workload=workload, cluster=Cluster(gpus=tuple(gpus)))


def _changed(rng: np.random.Generator, rows: Sequence[Requirement], name: str) -> list[Requirement]:
    memory = float(np.exp(rng.uniform(0, 3.5)))
    speed = float(np.exp(rng.uniform(-1, 1)))
    changed = []
    for row in rows:
        changed.append(
            replace(
                row,
                model=name,
                latency_ms=(row.latency_ms or 0.0) / speed,
                latency_low_ms=(row.latency_low_ms or 0.0) / speed,
                latency_high_ms=(row.latency_high_ms or 0.0) / speed,
                throughput_rps=(row.throughput_rps or 0.0) * speed,
                mreq_bytes=int((row.mreq_bytes or 0) * memory),
                mreq_pct=(row.mreq_pct or 0.0) * memory,
            )
        )
    return changed


def _capacity(subject: Subject) -> Iterator[Case]:
    rows_of = _rows(subject)
    for seed in range(subject.plans):
        drawn = _drawn(np.random.default_rng(seed), rows_of)
        for policy in POLICIES:
            where = f"{policy}, random plan {seed}"
            try:
                plan = drawn.plan(policy, seed)
            except UsageError:
                continue  # a question that the policy does not answer
            except GkestimatorError as e:
                yield defect(where, e)
                continue
            yield from _counted(drawn, plan, where)


def _counted(drawn: RandomQuestion, plan: PlacementPlan, where: str) -> Iterator[Case]:
    """Yield by how much the plan exceeds GPUs, memory, shares, time and objectives, counted from table and document
    alone: the judge of plans has no part in it.
    """
    there = {group.spec.name: group.count for group in drawn.cluster.gpus}
    used: dict[str, set[str]] = defaultdict(set)
    slo_ms = {load.name: load.slo_ms for load in drawn.workload.models}
    for gpu in plan.gpus:
        used[gpu.type].add(gpu.id)
        memory = sum(_row(drawn, gpu, replica, largest=True).mreq_pct or 0.0 for replica in gpu.replicas)
        yield Case(f"{where}, {gpu.id}: memory", beyond(memory, 100))
        yield Case(f"{where}, {gpu.id}: shares", beyond(_shares_pct(gpu), 100))
        for replica in gpu.replicas:
            row = _row(drawn, gpu, replica)
            response = (row.latency_ms or 0.0) + (replica.duty_cycle_ms or 0.0)
            yield Case(f"{where}, {replica.id}: objective", beyond(response, slo_ms[replica.model]))
        for cycle, busy in _turns(drawn, gpu):
            yield Case(f"{where}, {gpu.id}: turns", beyond(busy, cycle))
    for kind, names in used.items():
        yield Case(f"{where}: GPUs of {kind}", float(len(names) - there.get(kind, 0)))


def _row(drawn: RandomQuestion, gpu: PlacedGpu, replica: Replica, *, largest: bool = False) -> Requirement:
    batch = replica.batch_size
    if largest:
        batch = replica.max_batch_size or batch
    return drawn.rows[replica.model, gpu.type, batch, replica.sm_share_pct]


def _shares_pct(gpu: PlacedGpu) -> float:
    """Return the sum of the shares that are set aside; replicas that take turns in one share count once."""
    confined = {}
    for replica in gpu.replicas:
        if replica.sm_share_pct < 100:
            confined[replica.partition or replica.id] = replica.sm_share_pct
    return sum(confined.values())


def _turns(drawn: RandomQuestion, gpu: PlacedGpu) -> Iterator[tuple[float, float]]:
    """Yield cycle and busy time of the replicas that take turns, partition by partition."""
    groups: dict[str, list[Replica]] = defaultdict(list)
    for replica in gpu.replicas:
        if replica.partition is not None and replica.duty_cycle_ms is not None:
            groups[replica.partition].append(replica)
    for group in groups.values():
        busy = sum(_row(drawn, gpu, replica).latency_ms or 0.0 for replica in group)
        yield min(replica.duty_cycle_ms or 0.0 for replica in group), busy


def _conservation(subject: Subject) -> Iterator[Case]:
    rows_of = _rows(subject)
    for seed in range(min(subject.plans, _SIMULATED)):
        drawn = _drawn(np.random.default_rng(seed), rows_of)
        plan = drawn.plan("gkest", seed)
        for drop in ("none", "late"):
            asked_rps = sum(load.rate_rps for load in drawn.workload.models)
            run = FileRun(duration_s=_REQUESTS / asked_rps, seed=seed, drop=drop, rate_scale=1.5)
            ready = run.prepared(plan)
            rows = list(drawn.rows.values())
            result = simulate_plan(plan, rows, ready.arrivals, ready.options, **run.conditions(())).result
            where = f"random plan {seed}, drop {drop}"
            # Everything that came is served to the end, so that nothing waits when the run is over.
            ends = result.source_rejected + result.source_dropped + result.source_done
            yield Case(
                f"{where}: requests", apart(float(ends.sum()), max(1.0, float(result.source_arrived.sum())))
            )
            yield Case(
                f"{where}: of models", float(np.abs(result.arrived - result.done - result.dropped).sum())
            )
            length = result.until_ms - result.from_ms
            for busy in (result.busy_ms, result.gpu_busy_ms):
                yield Case(f"{where}: busy", beyond(float(busy.max(initial=0.0)), length))


CHECKS = (
    RelationCheck(name="capacity", holds="random plans of every policy fit their GPUs", cases=_capacity),
    RelationCheck(
        name="conservation",
        holds="simulated requests are answered or dropped, GPUs at most busy",
        cases=_conservation,
    ),
)
