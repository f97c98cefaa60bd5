"""Compare what a server did with what the simulation of the same requests says that it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.documents import PlacementPlan, read_plan
from gkestimator.simulation.arrays import Flags, NumberOrNone
from gkestimator.simulation.conditions import Progress
from gkestimator.simulation.measured.log import ServingLog
from gkestimator.simulation.measured.options import AgainstOptions
from gkestimator.simulation.measured.reading import read_serving_log
from gkestimator.simulation.measured.replaying import served_again
from gkestimator.simulation.options import batching_for
from gkestimator.tables import TableSource

ALL = "all"


@frozen
class ServedMeasures:
    """Hold what was made of the requests to one model, or to all.

    ``on_time_pct``: answered within the model's objective, in percent of those that came, the refused included;
    ``refused_pct``: not answered for whatever reason. Percentiles of the time to the answer. ``throughput_rps``:
    answers given before the last request came. ``batch_mean``: requests over batches. Null: there was none, or the
    log does not say.
    """

    on_time_pct: NumberOrNone
    p50_ms: NumberOrNone
    p90_ms: NumberOrNone
    p99_ms: NumberOrNone
    throughput_rps: float
    batch_mean: NumberOrNone
    refused_pct: NumberOrNone


MEASURES = tuple(f.name for f in fields(ServedMeasures))
"""The measures in order; those in percent differ by points, the others by percent of the real one."""


@frozen
class ServedBeside:
    """Hold one model (or ALL) as it was served and as it is simulated. ``requests``: how many came."""

    model: str
    slo_ms: NumberOrNone
    requests: int
    real: ServedMeasures
    simulated: ServedMeasures

    def difference(self, measure: str) -> NumberOrNone:
        """Return simulated less real: in points where the measure is in percent, else in percent of the real one."""
        real = getattr(self.real, measure)
        simulated = getattr(self.simulated, measure)
        if real is None or simulated is None:
            return None
        if measure.endswith("_pct"):
            return float(simulated - real)
        if real == 0:
            return None
        return float(100 * (simulated / real - 1))


@frozen
class AgainstReport:
    """Hold a log beside its simulation: each model of the log, then all."""

    log: str
    seconds: float
    settings: NamedValues
    models: tuple[ServedBeside, ...]
    quantiles: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...]
    notes: Names

    @property
    def whole(self) -> ServedBeside:
        """Return all models together."""
        return self.models[-1]


def compare_with_log(
    log: Path | str | ServingLog,
    plan: Path | str | PlacementPlan,
    tables: Sequence[TableSource],
    options: AgainstOptions | None = None,
    *,
    progress: Progress | None = None,
) -> AgainstReport:
    """Return how the requests of ``log`` were served beside how ``plan`` serves them in simulation by ``tables``.

    Raises TableError or DocumentError for what is wrong with a file, UsageError for the rest.
    """
    real = log if isinstance(log, ServingLog) else read_serving_log(log)
    placed = plan if isinstance(plan, PlacementPlan) else read_plan(Path(plan))
    asked = options or AgainstOptions()
    if asked.warmup_s * 1e3 >= real.length_ms:
        raise UsageError(
            f"warm-up of {asked.warmup_s:g} s, expected less than the log's {real.length_ms / 1e3:.3g} s"
        )
    simulated = served_again(real, placed, tables, asked, progress=progress)
    objectives = {m.name: m.slo_ms for m in placed.workload.models}
    rows = []
    quantiles = []
    for name in real.models:
        row, curves = _beside(real, simulated, (name,), objectives, asked)
        rows.append(row)
        quantiles.append((name, *curves))
    row, curves = _beside(real, simulated, real.models, objectives, asked)
    rows.append(row)
    settings = {
        "policy": placed.policy,
        "warmup_s": asked.warmup_s,
        "network": str(asked.network),
        "drop": asked.drop,
        "routing": asked.routing,
        "batching": batching_for(asked.batching, placed),
        "interference": asked.interference,
        "admission": asked.admission,
        "seed": asked.seed,
    }
    return AgainstReport(
        log=real.name,
        seconds=real.length_ms / 1e3,
        settings=settings,
        models=tuple(rows),
        quantiles=tuple(quantiles),
        notes=(*real.notes, *simulated.notes),
    )


QUANTILES = tuple(np.linspace(0, 1, 201).tolist())
"""At which latencies are kept for pictures."""


def _beside(
    real: ServingLog,
    simulated: ServingLog,
    names: Sequence[str],
    objectives: dict[str, float],
    options: AgainstOptions,
) -> tuple[ServedBeside, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Return ``names`` together in both logs, and the latencies of both at QUANTILES."""
    from_ms = options.warmup_s * 1e3
    came = int(_of(real, names, from_ms).sum())
    slo = objectives[names[0]] if len(names) == 1 else None
    measures = []
    curves = []
    for log in (real, simulated):
        mine = _of(log, names, from_ms) & log.answered
        measures.append(_measures(log, mine, came, objectives, real.length_ms - from_ms))
        latencies = log.total_ms[mine]
        curve: tuple[float, ...] = ()
        if len(latencies):
            curve = tuple(np.quantile(latencies, QUANTILES).tolist())
        curves.append(curve)
    row = ServedBeside(
        model=names[0] if slo is not None else ALL,
        slo_ms=slo,
        requests=came,
        real=measures[0],
        simulated=measures[1],
    )
    return row, (curves[0], curves[1])


def _of(log: ServingLog, names: Sequence[str], from_ms: float) -> Flags:
    numbers = [log.models.index(name) for name in names if name in log.models]
    chosen: Flags = np.isin(log.model, numbers) & (log.arrived_ms >= from_ms)
    return chosen


def _measures(
    log: ServingLog, answered: Flags, came: int, objectives: dict[str, float], length_ms: float
) -> ServedMeasures:
    slos = np.array([objectives.get(name, np.inf) for name in log.models])
    latencies = log.total_ms[answered]
    on_time = int((latencies <= slos[log.model[answered]] * (1 + 1e-9)).sum())
    ended = log.arrived_ms[answered] + latencies <= log.arrived_ms[-1]
    batches = log.batch[answered]
    known = batches[batches > 0]
    percentiles: list[NumberOrNone] = [None] * 3
    if len(latencies):
        percentiles = [float(value) for value in np.quantile(latencies, (0.5, 0.9, 0.99))]
    batch_mean = on_time_pct = refused_pct = None
    if len(known):
        batch_mean = float(len(known) / (1 / known).sum())
    if came:
        on_time_pct = 100 * on_time / came
        refused_pct = 100 * (came - len(latencies)) / came
    return ServedMeasures(
        on_time_pct=on_time_pct,
        p50_ms=percentiles[0],
        p90_ms=percentiles[1],
        p99_ms=percentiles[2],
        throughput_rps=1e3 * int(ended.sum()) / length_ms,
        batch_mean=batch_mean,
        refused_pct=refused_pct,
    )
