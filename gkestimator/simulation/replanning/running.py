"""From a plan, rows, a cluster and arrivals to the report of a run in which the policy runs again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError, one_line
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.documents.cluster import Cluster
from gkestimator.interference.registry import interference_between
from gkestimator.placement.building import build_problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.building import build_system
from gkestimator.simulation.network import read_network
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.control import control
from gkestimator.simulation.replanning.report import ReplanReport, report_of
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.system import System
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
    policy_options: Mapping[str, Any] | None = None,
    objective: str | None = None,
    creq: str | None = None,
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    arrivals_name: str = "arrivals",
    coefficients: Path | str | None = None,
    network: Path | str | None = None,
    max_wait_ms: float | None = None,
    admission: str = "plan",
    gpu_specs: Sequence[Path | str] = (),
    table: str = "table",
    notes: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> ReplanReport:
    """Serve ``arrivals`` (streams in the order of the workload: models, then applications), beginning with
    ``start`` (a plan; or a workload, for which the policy plans first), and let ``policy`` (None: the plan's) run
    again as ``replanning`` says on the GPUs of ``cluster``. ``replanning`` None: the first plan serves to the end.

    ``objective``, ``creq``, ``runtime``, ``dtype``, ``dims`` and ``policy_options`` as in
    :func:`gkestimator.placement.scheduling.schedule`; the rest as in
    :func:`gkestimator.simulation.running.simulate_plan`. The network, interference and time-outs hold for all plans.
    Raises UsageError: no policy, a plan that uses GPUs that the cluster does not have; and the errors of the policy
    for the first plan (later ones are part of the report), of tables and files.
    """
    name = policy or (start.policy if isinstance(start, PlacementPlan) else None)
    if name is None:
        raise UsageError("re-planning: no policy is named, expected one")
    chosen = make_policy(name, **(policy_options or {}))
    kept = tuple(rows)
    measure = creq or type(chosen).creq

    def plan_for(workload: Workload) -> PlacementPlan:
        problem = build_problem(
            kept,
            workload,
            cluster,
            objective=objective,
            creq=measure,
            seed=options.seed,
            runtime=runtime,
            dtype=dtype,
            dims=dims,
            table=table,
        )
        return place(chosen, problem)

    law = interference_between(options.interference, coefficients, cluster.types)
    wired = None if network is None else read_network(network)
    prices = {g.spec.name: g.spec.price_per_hour_usd for g in cluster.gpus}
    prices |= {e.spec.name: e.price_per_hour for e in cluster.elastic}

    def build(plan: PlacementPlan) -> System:
        return build_system(
            plan,
            kept,
            interference=law,
            network=wired,
            copy=options.copy,
            max_wait_ms=max_wait_ms,
            admission=admission,
            joined=True,
            gpu_specs=gpu_specs,
            table=table,
        )

    first = plan_for(start) if isinstance(start, Workload) else start
    streams = len(first.workload.models) + len(first.workload.applications)
    if arrivals.sources != streams:
        raise UsageError(
            f"{arrivals_name}: found {arrivals.sources} streams, expected {streams}: one for each model and "
            "application of the workload"
        )
    pool = None
    if cluster.gpus:
        pool = {g.spec.name: [f"{g.spec.name}-{i}" for i in range(g.count)] for g in cluster.gpus}
    first = _on_cluster(first, cluster, pool)
    run = control(
        first,
        plan_for,
        build,
        arrivals,
        options,
        replanning or _never(options),
        pool=pool,
        progress=None
        if progress is None
        else lambda now: progress("seconds simulated", int(now / 1e3), round(options.duration_ms / 1e3)),
    )
    return report_of(
        run,
        policy=name,
        arrivals=arrivals_name,
        options=options,
        replan=replanning,
        prices=prices,
        notes=[one_line(n, limit=2000) for n in (*run.system.notes, *notes, *_notes(replanning, first))],
    )


def _never(options: Options) -> Replanning:
    """Settings under which the first plan serves to the end: the first period is longer than the run."""
    return Replanning(kind="gpulet", control_ms=options.duration_ms, period_ms=2 * options.duration_ms)


def _on_cluster(plan: PlacementPlan, cluster: Cluster, pool: Mapping[str, list[str]] | None) -> PlacementPlan:
    """``plan`` on the cluster's GPUs: of other names those of their type, in order."""
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


def _notes(replanning: Replanning | None, plan: PlacementPlan) -> list[str]:
    found = []
    if replanning is not None:
        found.append(
            "the first plan is loaded before the start; each later one is for the rates that were counted"
        )
        if plan.workload.applications:
            found.append(
                "later plans split an application's SLO anew; a model's own on-time count goes by the first plan's"
            )
    return found
