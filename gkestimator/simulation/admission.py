"""Which part of the requests is let in at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, Replica
from gkestimator.placement.expected import expect
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu, PlacementModel, Problem
from gkestimator.simulation.options import ADMISSIONS
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import Candidate

__all__ = ["ADMISSIONS", "admitted_parts"]

# What the plan serves of a rate within this of all of it is all of it: the rest is rounding.
_ALL = 1e-9


def admitted_parts(
    plan: PlacementPlan,
    admission: str,
    objectives: Mapping[str, float],
    curves: Mapping[str, Sequence[tuple[Requirement, float]]],
) -> dict[str, float]:
    """By model: the part (0 to 1) of its requests that is let in.

    ``none``: all that some replica can serve. ``plan``: what the plan's replicas are to serve (``goodput_rps``) of
    the rate that it was asked. ``expected``: the rate at which most requests are expected on time
    (:func:`gkestimator.placement.expected.expect`); a model that is not served wholly is then not held at the
    edge of what its replicas can do, where queues grow without end. ``objectives`` by model, ``curves`` by
    replica: rows and latencies (ms), ascending in batch. Raises UsageError for another admission, or where the table
    lacks what ``expected`` needs.
    """
    if admission not in ADMISSIONS:
        raise UsageError(f"admission {admission!r} is not known, expected one of {', '.join(ADMISSIONS)}")
    served = dict.fromkeys(plan.workload.names(), 0.0)
    placed = set()
    for gpu in plan.gpus:
        for r in gpu.replicas:
            served[r.model] += r.goodput_rps
            placed.add(r.model)
    if admission == "none":
        return {name: float(name in placed) for name in served}
    asked = plan.workload.model_rates_rps()
    if admission == "expected":
        served = _expected(plan, asked, objectives, curves)
    parts = {name: rate / asked[name] for name, rate in served.items()}
    return {name: 1.0 if part >= 1 - _ALL else part for name, part in parts.items()}


def _expected(
    plan: PlacementPlan,
    asked: Mapping[str, float],
    objectives: Mapping[str, float],
    curves: Mapping[str, Sequence[tuple[Requirement, float]]],
) -> dict[str, float]:
    """The rate of each model that is let in for the most requests on time: placement's own figure, of the plan's
    replicas and the table's rows."""
    made: dict[int, Candidate] = {}
    candidates: dict[str, dict[int, Candidate]] = {name: {} for name in asked}
    placed = []
    for gpu in plan.gpus:
        for r in gpu.replicas:
            for row, latency in curves[r.id]:
                if id(row) not in made:
                    made[id(row)] = _candidate(row, latency, gpu.type, r)
                candidates[r.model][id(row)] = made[id(row)]
            placed.append(
                Placed(
                    gpu=Gpu(id=gpu.id, type=gpu.type),
                    model=r.model,
                    candidate=made[id(curves[r.id][-1][0])],
                    partition=r.partition,
                    duty_cycle_ms=r.duty_cycle_ms,
                )
            )
    models = tuple(
        PlacementModel(
            name=name, rate_rps=rate, slo_ms=objectives[name], candidates=tuple(candidates[name].values())
        )
        for name, rate in asked.items()
    )
    found = expect(Problem(models=models, specs={}, prices={}, workload=plan.workload), placed)
    for name, rate in found.admitted_rps.items():
        if rate is None:
            raise UsageError(
                f"admission expected: the table has no sm_util_mean_pct for {name} or a neighbour, which it needs; "
                "expected a number, or --admission plan"
            )
    return {name: rate or 0.0 for name, rate in found.admitted_rps.items()}


def _candidate(row: Requirement, latency_ms: float, gpu: str, replica: Replica) -> Candidate:
    batch = row.batch_size or 1
    return Candidate(
        row=row if row.gpu == gpu else replace(row, gpu=gpu),
        latency_ms=latency_ms,
        throughput_rps=row.throughput_rps or 1e3 * batch / latency_ms,
        creq_pct=replica.creq_pct if batch == replica.batch_size else None,
        memory_pct=None,
        memory_bytes=None,
    )
