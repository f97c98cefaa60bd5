"""Simulate a plan while the policy that made it runs again, on the GPUs of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Unpack

from gkestimator.core.errors import UsageError, one_line
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.documents.cluster import Cluster
from gkestimator.placement.building import build_problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.simulation.arrays import AnyByName, Texts
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.making import sources_of
from gkestimator.simulation.conditions import Conditions, Progress, answerable, check_streams, system_builder
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.control import control
from gkestimator.simulation.replanning.report import ReplanReport, report_of
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.tables import Requirement


def simulate_replanned(
    start: PlacementPlan | Workload,
    rows: Iterable[Requirement],
    cluster: Cluster,
    arrivals: Arrivals,
    options: Options,
    replanning: Replanning | None,
    *,
    policy: str | None = None,
    policy_options: AnyByName | None = None,
    objective: str | None = None,
    creq: str | None = None,
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    arrivals_name: str = "arrivals",
    notes: Texts = (),
    progress: Progress | None = None,
    **conditions: Unpack[Conditions],
) -> ReplanReport:
    """Serve ``arrivals``, beginning with ``start``, and let ``policy`` (None: the plan's) run again
    meanwhile.

    ``start`` is a plan, or a workload for which the policy plans first. The arrivals' streams are in the
    order of the workload: models, then applications. The policy plans as ``replanning`` says on the GPUs of
    ``cluster``; ``replanning`` None: the first plan serves to the end.

    ``objective``, ``creq``, ``runtime``, ``dtype``, ``dims`` and ``policy_options`` as in
    :func:`gkestimator.placement.scheduling.schedule`; the rest as in
    :func:`gkestimator.simulation.running.simulate_plan`. The network, interference and time-outs hold for all
    plans. Raises UsageError: no policy, a plan that uses GPUs that the cluster does not have; and the errors
    of the policy for the first plan (later ones are part of the report), of tables and files.
    """
    if policy is None and isinstance(start, PlacementPlan):
        policy = start.policy
    if policy is None:
        raise UsageError("re-planning: no policy is named, expected one")
    chosen = make_policy(policy, **(policy_options or {}))
    batching = start.batching if isinstance(start, PlacementPlan) else "early"
    table_rows = tuple(rows)

    def plan_for(workload: Workload) -> PlacementPlan:
        problem = build_problem(
            table_rows,
            workload,
            cluster,
            objective=objective,
            creq=creq or type(chosen).creq,
            seed=options.seed,
            runtime=runtime,
            dtype=dtype,
            dims=dims,
            table=conditions.get("table", "table"),
            batching=batching,
        )
        return place(chosen, problem)

    def report_progress(now_ms: float) -> None:
        if progress is not None:
            progress("seconds simulated", int(now_ms / 1e3), round(options.duration_ms / 1e3))

    options, unanswered = answerable(options, table_rows, conditions.get("coefficients"))
    build = system_builder(table_rows, options, cluster.types, joined=True, **conditions)
    prices = {g.spec.name: g.spec.price_per_hour_usd for g in cluster.gpus}
    prices |= {e.spec.name: e.price_per_hour for e in cluster.elastic}
    if isinstance(start, Workload):
        start = plan_for(start)
    _check_arrivals(arrivals, start.workload, arrivals_name)
    pool = _pool(cluster)
    start = _on_cluster(start, cluster, pool)
    run = control(
        start,
        plan_for,
        build,
        arrivals,
        options,
        replanning or _never(options),
        pool=pool,
        progress=report_progress,
    )
    lines = [*run.system.notes, *unanswered, *notes, *_notes(replanning, start)]
    return report_of(
        run,
        policy=policy,
        arrivals=arrivals_name,
        options=options,
        replan=replanning,
        prices=prices,
        notes=[one_line(line, limit=2000) for line in lines],
    )


def _check_arrivals(arrivals: Arrivals, workload: Workload, name: str) -> None:
    if arrivals.closed:
        raise UsageError(
            f"{name}: re-planning follows rates, and clients that wait for their answers have none"
        )
    check_streams(arrivals, len(sources_of(workload)), name, "the workload")


def _never(options: Options) -> Replanning:
    """Return settings under which the first plan serves to the end: the first period is longer than the run."""
    return Replanning(kind="gpulet", control_ms=options.duration_ms, period_ms=2 * options.duration_ms)


def _pool(cluster: Cluster) -> dict[str, list[str]] | None:
    """Return the ids of the GPUs of a fixed cluster by type; None where GPUs are rented."""
    if not cluster.gpus:
        return None
    return {g.spec.name: [f"{g.spec.name}-{i}" for i in range(g.count)] for g in cluster.gpus}


def _on_cluster(plan: PlacementPlan, cluster: Cluster, pool: Mapping[str, list[str]] | None) -> PlacementPlan:
    """Return ``plan`` on the cluster's GPUs: those of other names become GPUs of their type, in order."""
    types = {spec.name for spec in cluster.types}
    free = {t: list(ids) for t, ids in (pool or {}).items()}
    own = {g.id for g in plan.gpus if g.id in free.get(g.type, ())}
    for gpu in plan.gpus:
        if gpu.type not in types:
            raise UsageError(
                f"the plan uses {gpu.type}, expected GPUs of the cluster: {', '.join(sorted(types))}"
            )
        if gpu.id in own:
            free[gpu.type].remove(gpu.id)
    if pool is None:
        return plan
    gpus = []
    for gpu in plan.gpus:
        if gpu.id not in own:
            if not free[gpu.type]:
                raise UsageError(
                    f"the plan uses more {gpu.type} than the cluster has, {len(pool[gpu.type])} of them"
                )
            gpu = replace(gpu, id=free[gpu.type].pop(0))
        gpus.append(gpu)
    return replace(plan, gpus=tuple(gpus))


def _notes(replanning: Replanning | None, plan: PlacementPlan) -> Iterator[str]:
    if replanning is None:
        return
    yield "the first plan is loaded before the start; each later one is for the rates that were counted"
    if plan.workload.applications:
        yield "later plans split an application's SLO anew; a model's own on-time count goes by the first plan's"
