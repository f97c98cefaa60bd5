"""Compute one job: the policy places, every cell of the plan is simulated."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.documents import PlacementPlan
from gkestimator.documents.simulation import SimulationReport
from gkestimator.placement.building import build_problem
from gkestimator.placement.policy import PolicyError
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.simulation.arrays import AnyByName, ValuesByName
from gkestimator.simulation.comparing.cells import Cell, CellJob
from gkestimator.tables import REQUIREMENTS, Requirement, read_table

Cells: TypeAlias = Mapping[str, AnyByName]
"""Results of cells by key: ``status`` (``ok``, ``refused``: policy or simulator cannot, ``failed``: a defect or a
process that died), ``reason`` or ``plan`` and ``simulation``; ``decision_ms``: the time that placing took here."""


def compute(job: CellJob) -> Cells:
    """Return the cells of ``job``.

    What a policy or the simulator refuses, and a defect of either, is an answer of its cells: one policy must
    not end the comparison of the others.
    """
    rows: Sequence[Requirement] = ()
    try:
        rows = rows_of_tables(job.tables, frozenset(job.workload.names()))
        plan, decision_ms = _placed(job, rows)
    except Exception as e:  # noqa: BLE001  (a third party's policy may raise anything)
        answer = _answer(e)
        return {cell.key: answer for cell in job.cells}
    placed = {"plan": _plan(plan), "decision_ms": decision_ms}
    results: dict[str, AnyByName] = {}
    for cell in job.cells:
        try:
            report = _simulated(job, cell, plan, rows)
        except Exception as e:  # noqa: BLE001  (it is counted and shown)
            results[cell.key] = {**_answer(e), **placed}
        else:
            results[cell.key] = {"status": "ok", **placed, "simulation": _simulation(report)}
    return results


def lost_cells(job: CellJob, reason: str) -> Cells:
    """Return what the cells of a job come to whose process or node died."""
    return {cell.key: {"status": "failed", "reason": reason} for cell in job.cells}


def _answer(error: Exception) -> dict[str, str]:
    if isinstance(error, GkestimatorError) and not isinstance(error, PolicyError):
        return {"status": "refused", "reason": one_line(error)}
    kind = f"{type(error).__name__}: "
    if isinstance(error, PolicyError):
        kind = ""
    return {"status": "failed", "reason": one_line(f"{kind}{error}")}


def _placed(job: CellJob, rows: Sequence[Requirement]) -> tuple[PlacementPlan, float]:
    """Return the policy's plan, and the milliseconds that it took."""
    policy = make_policy(job.policy.name, **job.policy.options)
    problem = build_problem(
        rows,
        job.workload,
        job.cluster,
        objective=job.settings["objective"],
        creq=job.policy.creq or type(policy).creq,
        seed=0,
        runtime=job.settings["runtime"],
        dtype=job.settings["dtype"],
        dims=job.settings["dims"],
        table=", ".join(t.name for t in job.tables),
        batching="late" if job.settings["batching"] == "late" else "early",
    )
    asked = time.perf_counter()
    plan = place(policy, problem)
    return plan, 1e3 * (time.perf_counter() - asked)


@lru_cache(maxsize=8)
def rows_of_tables(tables: tuple[Path, ...], names: frozenset[str]) -> tuple[Requirement, ...]:
    """Return the rows of the models ``names``; the next job of this process asks for the same. Raises TableError."""
    return tuple(r for t in tables for r in read_table(t, REQUIREMENTS, where={"model": names}))


def _simulated(
    job: CellJob, cell: Cell, plan: PlacementPlan, rows: Sequence[Requirement]
) -> SimulationReport:
    from gkestimator.simulation.comparing.arriving import made
    from gkestimator.simulation.options import OPTION_WORDS, Options, batching_for
    from gkestimator.simulation.running import simulate_plan

    settings = job.settings
    arrivals = made(cell.arrivals, job.workload, cell.seed)
    words = {name: settings[name] for name in OPTION_WORDS}
    words["batching"] = batching_for(settings["batching"], plan)
    options = Options(
        duration_ms=1e3 * settings["duration_s"],
        warmup_ms=1e3 * settings["warmup_s"],
        **words,
        seed=cell.seed,
    )
    return simulate_plan(
        plan,
        rows,
        arrivals,
        options,
        arrivals_name=cell.arrivals.label,
        coefficients=settings["coefficients"],
        network=settings["network"],
        max_wait_ms=settings["max_wait_ms"],
        admission=settings["admission"],
        gpu_specs=settings["gpu_specs"],
        table=", ".join(t.name for t in job.tables),
    ).report


def _plan(plan: PlacementPlan) -> ValuesByName:
    asked_rps = sum(m.rate_rps for m in plan.workload.models)
    asked_rps += sum(sum(a.rates_rps().values()) for a in plan.workload.applications)
    return {
        **dataclasses.asdict(plan.totals),
        "asked_rps": asked_rps,
        "unserved": {u.model: {"rate_rps": u.rate_rps, "reason": u.reason} for u in plan.unserved},
        "notes": list(plan.notes),
    }


def _simulation(report: SimulationReport) -> ValuesByName:
    """Return what the tables and pictures of a comparison need; the timeline would be most of the file."""
    return {
        "totals": dataclasses.asdict(report.totals),
        "models": [dataclasses.asdict(m) for m in report.models],
        "notes": list(report.notes),
    }
