"""Run a policy on a problem and write down what it answers as a plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from gkestimator.core.errors import one_line
from gkestimator.documents import ModelOutlook, PlacedGpu, PlacementPlan, PlanTotals, Replica, Unserved
from gkestimator.placement.building import impossible
from gkestimator.placement.expected import Expected, assigned_rps, expect, goodput_rps
from gkestimator.placement.policy import (
    Placed,
    PlacedReplicas,
    Placement,
    Policy,
    checked_problem,
    compute_pct,
    verify,
)
from gkestimator.placement.problem import FloatByName, PlacementModel, Problem
from gkestimator.placement.spare import with_caps


def place(policy: Policy, problem: Problem) -> PlacementPlan:
    """Return the plan of ``policy`` for ``problem``. Raises UsageError where the policy cannot answer (a
    column it needs is null), PolicyError where its answer does not stand."""
    usable = checked_problem(policy, problem)
    answer = policy.place(usable)
    if usable.batching == "late":
        answer = replace(answer, placed=with_caps(usable, answer.placed))
    verify(policy, usable, answer)
    return plan_of(policy.name, usable, answer)


def plan_of(policy: str, problem: Problem, answer: Placement) -> PlacementPlan:
    """Return ``answer`` as a plan: GPUs in the cluster's order, replicas named ``<model>-<number>``, totals,
    and what is not served."""
    rates = assigned_rps(problem, answer.placed)
    expected = expect(problem, answer.placed)
    order = {g.id: i for i, g in enumerate(problem.gpus)}
    by_gpu: dict[str, list[tuple[Placed, float, float | None]]] = defaultdict(list)
    for i, placed in enumerate(answer.placed):
        by_gpu[placed.gpu.id].append((placed, rates[i], expected.max_wait_ms[i]))
    ids = sorted(by_gpu, key=lambda g: (order.get(g, 0), _number(g)))
    numbers: dict[str, int] = defaultdict(int)
    gpus = []
    for name in ids:
        replicas = []
        for placed, rate, wait in by_gpu[name]:
            number = numbers[placed.model]
            numbers[placed.model] += 1
            replicas.append(_replica(placed, f"{placed.model}-{number}", rate, wait, problem))
        here = [placed for placed, _, _ in by_gpu[name]]
        gpu = PlacedGpu(
            id=name,
            type=here[0].gpu.type,
            cuti_pct=compute_pct(here),
            muti_pct=_memory_pct(here),
            replicas=tuple(replicas),
        )
        gpus.append(gpu)
    goodput = goodput_rps(problem, answer.placed)
    cost: float | None = 0
    for gpu in gpus:
        price = problem.prices.get(gpu.type)
        if cost is None or price is None:
            cost = None
        else:
            cost = cost + price
    totals = PlanTotals(
        goodput_rps=sum(goodput.values()),
        expected_goodput_rps=expected.goodput_rps,
        gpus_used=len(gpus),
        cost_per_hour=cost,
        gap_pct=answer.gap_pct,
    )
    return PlacementPlan(
        policy=policy,
        creq=problem.creq,
        objective=problem.objective,
        seed=problem.seed,
        workload=problem.workload,
        gpus=tuple(gpus),
        totals=totals,
        unserved=_unserved(problem, answer, goodput),
        notes=tuple(one_line(n) for n in (*problem.notes, *answer.notes, *expected.notes)),
        batching=problem.batching,
        models=tuple(_planned(m, goodput, expected) for m in problem.models),
    )


def _planned(model: PlacementModel, goodput: FloatByName, expected: Expected) -> ModelOutlook:
    return ModelOutlook(
        model=model.name,
        rate_rps=model.rate_rps,
        slo_ms=model.slo_ms,
        goodput_rps=goodput[model.name],
        expected_rps=expected.by_model[model.name],
    )


def _number(gpu: str) -> tuple[str, int]:
    head, _, tail = gpu.rpartition("-")
    if tail.isdigit():
        return (head, int(tail))
    return (gpu, 0)


def _memory_pct(here: PlacedReplicas) -> float | None:
    total = 0.0
    for placed in here:
        memory = placed.largest.memory_pct
        if memory is None:
            return None
        total += memory
    return total


def _replica(placed: Placed, name: str, rate: float, wait: float | None, problem: Problem) -> Replica:
    candidate = placed.candidate
    return Replica(
        id=name,
        model=placed.model,
        runtime=candidate.row.runtime,
        dtype=candidate.row.dtype,
        dims=candidate.row.dims,
        batch_size=candidate.batch_size,
        sm_share_pct=candidate.sm_share_pct,
        partition=placed.partition,
        duty_cycle_ms=placed.duty_cycle_ms,
        latency_ms=candidate.latency_ms,
        goodput_rps=rate,
        slo_ms=problem.by_name[placed.model].slo_ms,
        throughput_rps=placed.capacity_rps,
        max_wait_ms=wait,
        latency_low_ms=candidate.row.latency_low_ms,
        latency_high_ms=candidate.row.latency_high_ms,
        creq_pct=candidate.creq_pct,
        mreq_bytes=placed.largest.memory_bytes,
        mreq_pct=placed.largest.memory_pct,
        max_batch_size=None if placed.cap is None else placed.cap.batch_size,
    )


def _unserved(problem: Problem, answer: Placement, goodput: FloatByName) -> tuple[Unserved, ...]:
    hopeless = impossible(problem)
    placed = {p.model for p in answer.placed}
    unserved = []
    for model in problem.models:
        name = model.name
        rate = model.rate_rps
        served = goodput[name]
        missing = rate - served
        if missing <= 1e-9 * rate:
            continue
        reason = hopeless.get(name) or answer.reasons.get(name)
        if reason is None:
            if name in placed:
                reason = f"its replicas serve {served:.6g} of {rate:g} req/s: no room for more"
            else:
                reason = "no room on the GPUs beside what is placed"
        unserved.append(Unserved(model=name, rate_rps=missing, reason=one_line(reason)))
    return tuple(unserved)
