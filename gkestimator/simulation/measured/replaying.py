"""Serve the very requests of a log by a plan, in simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan
from gkestimator.simulation.arrivals.streams import TimesInMemory
from gkestimator.simulation.conditions import Progress, rows_of_models
from gkestimator.simulation.measured.log import OK, ServingLog
from gkestimator.simulation.measured.options import AgainstOptions
from gkestimator.simulation.running import simulate_plan
from gkestimator.tables import TableSource, table_label


def served_again(
    log: ServingLog,
    plan: PlacementPlan,
    tables: Sequence[TableSource],
    options: AgainstOptions,
    *,
    progress: Progress | None = None,
) -> ServingLog:
    """Return the log that a simulated server writes of the requests of ``log``, served by ``plan``: those answered.

    Its models are those of the plan's workload, in order. Raises UsageError for a model that the plan does not serve by
    itself, and what a simulation raises.
    """
    workload = plan.workload
    names = [m.name for m in workload.models]
    if workload.applications or workload.languages:
        problem = "applications" if workload.applications else "language models"
        raise UsageError(
            f"plan: found {problem}, expected models by themselves: a log of those can be compared"
        )
    for name in log.models:
        if name not in names:
            raise UsageError(f"{log.name}: found model {name}, expected one of the plan: {', '.join(names)}")
    streams = []
    for name in names:
        mine = np.zeros(len(log.model), bool)
        if name in log.models:
            mine = log.model == log.models.index(name)
        streams.append(log.arrived_ms[mine])
    network = None
    if options.network != "none":
        network = options.network
    made = simulate_plan(
        plan,
        rows_of_models(tables, names, progress),
        TimesInMemory(streams),
        options.engine_options(plan, log.length_ms),
        arrivals_name=log.name,
        progress=progress,
        coefficients=options.coefficients,
        network=network,
        max_wait_ms=options.max_wait_ms,
        admission=options.admission,
        gpu_specs=options.gpu_specs,
        table=", ".join(map(table_label, tables)),
    )
    kept = made.result.requests
    assert kept is not None  # the options ask for them
    order = np.argsort(kept.arrived_ms, kind="stable")
    total = kept.router_ms + kept.network_ms + kept.queue_ms + kept.gpu_ms
    return ServingLog(
        name=f"{log.name}, simulated",
        models=tuple(names),
        replicas=tuple(r.id for r in made.system.replicas),
        model=kept.model[order],
        replica=kept.replica[order],
        batch=kept.batch[order],
        arrived_ms=kept.arrived_ms[order],
        router_ms=kept.router_ms[order],
        queue_ms=kept.queue_ms[order],
        gpu_ms=kept.gpu_ms[order],
        total_ms=total[order],
        status=np.full(len(order), OK),
        on_time=np.full(len(order), -1),
        notes=tuple(made.report.notes),
    )
