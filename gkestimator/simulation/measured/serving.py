"""Tell from a server's log what requests take beyond queue and service, and how far its service is from the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import Names, frozen
from gkestimator.documents import PlacementPlan, read_plan
from gkestimator.simulation.arrays import Files, Floats
from gkestimator.simulation.conditions import Progress, rows_of_models
from gkestimator.simulation.measured.law import Beyond, LawFit, fit_law
from gkestimator.simulation.measured.log import ServingLog
from gkestimator.simulation.measured.options import AgainstOptions
from gkestimator.simulation.measured.reading import read_serving_log
from gkestimator.simulation.measured.replaying import served_again
from gkestimator.simulation.measured.rows import LogCurves
from gkestimator.tables import TableSource, table_label

# Where a log does not say where the time went, latencies are compared at these places of their distribution.
_PLACES = np.linspace(0.1, 0.9, 17)


@frozen
class ServiceRatio:
    """Hold how long batches of one model and size ran: median measured over the table's, of so many ``rows``."""

    model: str
    batch: int
    rows: int
    measured_ms: float
    table_ms: float

    @property
    def ratio(self) -> float:
        """Return measured over table."""
        return self.measured_ms / self.table_ms


@frozen
class ServingFit:
    """Hold what a log tells: counts, the law of network and host, and the service beside the table's.

    ``in_parts``: the log says where each request's time went. ``service`` is empty where it does not.
    """

    log: str
    requests: int
    answered: int
    in_parts: bool
    law: LawFit
    service: tuple[ServiceRatio, ...]
    notes: Names


def fit_serving(
    log: Path | str | ServingLog,
    tables: Sequence[TableSource],
    plan: Path | str | PlacementPlan | None = None,
    *,
    gpu_specs: Files = (),
    progress: Progress | None = None,
) -> ServingFit:
    """Return what the log of a server tells of network, host and service times.

    ``plan`` says which row of the tables each replica runs by, and by which law batches form; without one each model
    must have one kind of row, and batches form late. A log that says no times in queue and service needs the plan: the
    same requests are simulated without a network, and what is left over is fitted.

    Raises TableError or DocumentError for what is wrong with a file, UsageError for the rest.
    """
    real = log if isinstance(log, ServingLog) else read_serving_log(log)
    placed = plan if plan is None or isinstance(plan, PlacementPlan) else read_plan(Path(plan))
    rows = rows_of_models(tables, real.models, progress)
    table = ", ".join(map(table_label, tables))
    curves = LogCurves(real, rows, placed, table=table, gpu_specs=gpu_specs)
    in_parts = bool(real.in_parts.any())
    notes = list(real.notes)
    if in_parts:
        beyond = _beyond_in_parts(real, curves, placed)
        aside = int(real.answered.sum() - real.in_parts.sum())
        if aside:
            notes.append(f"{aside:,} answered requests do not say where their time went: not counted")
    elif placed is None:
        raise UsageError(
            f"{real.name}: no times in queue and service (queue_ms, gpu_ms, batch): expected these, or the plan by "
            f"which it was served, with {spelled('plan', '--plan')}"
        )
    else:
        beyond = _beyond_by_simulation(real, curves, placed, tables, gpu_specs)
        notes.append("no times in queue and service in the log: taken from a simulation of the same requests")
    if not np.isfinite(beyond.sent_bytes).all():
        notes.append(f"{table}: input_bytes or output_bytes are null: no time per byte was fitted")
    return ServingFit(
        log=real.name,
        requests=len(real.model),
        answered=int(real.answered.sum()),
        in_parts=in_parts,
        law=fit_law(beyond, real.name),
        service=tuple(_service(real, curves)),
        notes=tuple(notes),
    )


def _together(log: ServingLog, plan: PlacementPlan | None, batches: Floats) -> tuple[Floats, Floats]:
    """Return with how many each request goes to its replica, and its answer back, as the simulator has it.

    By late batching each goes and comes by itself; batches that form at a router travel whole; those of replicas that
    take turns form there and come back whole.
    """
    if plan is None or plan.batching == "late":
        return np.ones_like(batches), np.ones_like(batches)
    in_turns = {r.model for gpu in plan.gpus for r in gpu.replicas if r.duty_cycle_ms is not None}
    turns = np.array([name in in_turns for name in log.models])
    return np.where(turns[log.model], 1.0, batches), batches


def _beyond_in_parts(log: ServingLog, curves: LogCurves, plan: PlacementPlan | None) -> Beyond:
    batches = log.batch.astype(np.float64)
    beyond = log.total_ms - log.queue_ms - log.gpu_ms
    there, back = _together(log, plan, batches)
    if plan is not None and plan.batching == "early":
        # The time in which a batch fills at the router is the simulator's own; a single request's there is the host's.
        beyond -= np.where(there > 1, np.nan_to_num(log.router_ms), 0.0)
    sent_bytes = curves.each("input_bytes", there) + curves.each("output_bytes", back)
    # A batch beyond the table's largest has no bytes that are known.
    mine = np.flatnonzero(log.in_parts & (np.isfinite(sent_bytes) | ~np.isfinite(sent_bytes).any()))
    return Beyond(
        beyond_ms=np.maximum(beyond[mine], 0.0),
        sent_bytes=sent_bytes[mine],
        sent_requests=(there + back)[mine],
        model=log.model[mine],
        models=log.models,
        came_ms=log.arrived_ms,
        at=mine,
    )


def _beyond_by_simulation(
    log: ServingLog,
    curves: LogCurves,
    plan: PlacementPlan,
    tables: Sequence[TableSource],
    gpu_specs: Files,
) -> Beyond:
    """Return what is between real and simulated latencies at the same places of their distributions, by model."""
    simulated = served_again(log, plan, tables, AgainstOptions(gpu_specs=gpu_specs))
    beyond = []
    models = []
    for m, name in enumerate(log.models):
        real_ms = log.total_ms[(log.model == m) & log.answered]
        its_ms = simulated.total_ms[simulated.model == simulated.models.index(name)]
        if len(real_ms) >= len(_PLACES) and len(its_ms) >= len(_PLACES):
            beyond.append(np.quantile(real_ms, _PLACES) - np.quantile(its_ms, _PLACES))
            models.append(m)
    if not beyond:
        raise UsageError(f"{log.name}: found too few answered requests, expected {len(_PLACES)} of a model")
    model = np.repeat(np.array(models), len(_PLACES))
    first = np.array([np.flatnonzero(log.model == m)[0] for m in models])
    single = np.ones(len(log.model))  # how large their batches were, nobody says
    sent_bytes = curves.each("input_bytes", single) + curves.each("output_bytes", single)
    each = np.repeat(first, len(_PLACES))
    return Beyond(
        beyond_ms=np.maximum(np.concatenate(beyond), 0.0),
        sent_bytes=sent_bytes[each],
        sent_requests=2 * single[each],
        model=model,
        models=log.models,
        came_ms=np.zeros(1),  # places have no arrivals: no time of the host can be told
        at=np.zeros(len(model), np.int64),
    )


def _service(log: ServingLog, curves: LogCurves) -> list[ServiceRatio]:
    table_ms = curves.each("latencies_ms", log.batch.astype(np.float64))
    known = log.in_parts & np.isfinite(table_ms)
    ratios = []
    for m, name in enumerate(log.models):
        mine = known & (log.model == m)
        for batch in np.unique(log.batch[mine]).tolist():
            here = mine & (log.batch == batch)
            ratios.append(
                ServiceRatio(
                    model=name,
                    batch=batch,
                    rows=int(here.sum()),
                    measured_ms=float(np.median(log.gpu_ms[here])),
                    table_ms=float(np.median(table_ms[here])),
                )
            )
    return ratios
