"""Decide which part of the requests is let in at the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, Replica
from gkestimator.placement.expected import expect
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Gpu, PlacementModel, Problem
from gkestimator.simulation.curves import CurveOf, CurvePoint
from gkestimator.simulation.options import ADMISSIONS, check_known
from gkestimator.tables.candidate import Candidate

__all__ = ["ADMISSIONS", "admitted_parts"]

# What the plan serves of a rate within this of all of it is all of it: the rest is rounding.
_ALL = 1e-9


def admitted_parts(
    plan: PlacementPlan,
    admission: str,
    objectives: Mapping[str, float],
    curve_of: CurveOf,
) -> dict[str, float]:
    """Return, by model, the part (0 to 1) of its requests that is let in.

    ``none``: all that some replica can serve. ``plan``: what the plan's replicas are to serve
    (``goodput_rps``) of the rate that it was asked. ``expected``: the rate at which most requests are
    expected on time (:func:`gkestimator.placement.expected.expect`); a model that is not served wholly is
    then not held at the edge of what its replicas can do, where queues grow without end (where batches are formed
    late all are let in: what would be late is refused at its replica). ``objectives`` (ms)
    by model; ``curve_of`` gives a replica's rows.

    Raises UsageError for another admission, or where the table lacks what ``expected`` needs.
    """
    check_known("admission", admission, ADMISSIONS)
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
        served = _expected(plan, asked, objectives, curve_of)
    parts = {name: rate / asked[name] for name, rate in served.items()}
    return {name: 1.0 if part >= 1 - _ALL else part for name, part in parts.items()}


def _expected(
    plan: PlacementPlan,
    asked: Mapping[str, float],
    objectives: Mapping[str, float],
    curve_of: CurveOf,
) -> dict[str, float]:
    """Return the rate of each model that is let in for the most requests on time.

    It is placement's own figure, of the plan's replicas and the table's rows.
    """
    made: dict[int, Candidate] = {}
    candidates: dict[str, dict[int, Candidate]] = {name: {} for name in asked}
    placed = []
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            for point in curve_of(replica, gpu):
                # Replicas that share rows must share candidates too: placement tells these apart by identity.
                candidate = made.setdefault(id(point.row), _candidate(point, gpu.type, replica))
                candidates[replica.model][id(point.row)] = candidate
            placed.append(
                Placed(
                    gpu=Gpu(id=gpu.id, type=gpu.type),
                    model=replica.model,
                    candidate=candidate,
                    partition=replica.partition,
                    duty_cycle_ms=replica.duty_cycle_ms,
                )
            )
    models = []
    for name, rate in asked.items():
        choices = tuple(candidates[name].values())
        model = PlacementModel(
            name=name,
            rate_rps=rate,
            slo_ms=objectives[name],
            candidates=choices,
            batching=plan.batching,
        )
        models.append(model)
    problem = Problem(models=tuple(models), specs={}, prices={}, workload=plan.workload)
    admitted = {}
    for name, admitted_rps in expect(problem, placed).admitted_rps.items():
        if admitted_rps is None:
            raise UsageError(
                f"admission expected: the table has no sm_util_mean_pct for {name} or a neighbour, which it needs; "
                "expected a number, or admission plan"
            )
        admitted[name] = admitted_rps
    return admitted


def _candidate(point: CurvePoint, gpu: str, replica: Replica) -> Candidate:
    row = point.row
    creq = None
    if point.batch == replica.batch_size:
        creq = replica.creq_pct
    throughput = row.throughput_rps or 1e3 * point.batch / point.latency_ms
    if row.gpu != gpu:
        row = replace(row, gpu=gpu)
    return Candidate(
        row=row,
        latency_ms=point.latency_ms,
        throughput_rps=throughput,
        creq_pct=creq,
        memory_pct=None,
        memory_bytes=None,
    )
