"""Hold the cells of a comparison as one flat table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.core.versions import record_version
from gkestimator.simulation.arrays import AnyByName, NumberOrNone, ValuesByName
from gkestimator.simulation.comparing.run import Compared
from gkestimator.simulation.summary import mean_of
from gkestimator.tables.csv_text import csv_text


@frozen
class Row:
    """Hold one cell. ``status``: ``ok``, ``refused`` (``reason`` says why) or ``failed``.

    By the workload and the plan: ``asked_rps``, ``promised_rps`` (plain goodput), ``expected_rps`` (with
    filling, queueing, interference and intervals, by formulas), ``gpus_used``, ``cost_per_hour`` (USD),
    ``decision_ms`` (on the machine that computed the cell; the only column that differs between runs).
    Simulated: ``arrived_rps``, ``goodput_rps`` (requests to models answered within their SLO),
    ``rejected_pct`` and ``dropped_pct`` (of those that arrived: turned away at the door, let in and given up
    as too late), ``on_time_pct`` (of the clients' requests that arrived, those turned away included),
    ``least_on_time_pct`` (of the model worst off), ``latency_p50_ms``, ``latency_p99_ms``, ``batch_mean``,
    ``cuti_pct``. Null: unknown, or there was none.
    """

    workload: str
    cluster: str
    arrivals: str
    seed: int
    slo_scale: float
    rate_scale: float
    policy: str
    status: str
    reason: str | None = None
    asked_rps: NumberOrNone = None
    promised_rps: NumberOrNone = None
    expected_rps: NumberOrNone = None
    arrived_rps: NumberOrNone = None
    goodput_rps: NumberOrNone = None
    rejected_pct: NumberOrNone = None
    dropped_pct: NumberOrNone = None
    on_time_pct: NumberOrNone = None
    least_on_time_pct: NumberOrNone = None
    latency_p50_ms: NumberOrNone = None
    latency_p99_ms: NumberOrNone = None
    batch_mean: NumberOrNone = None
    gpus_used: int | None = None
    cost_per_hour: NumberOrNone = None
    cuti_pct: NumberOrNone = None
    decision_ms: NumberOrNone = None


RowList: TypeAlias = Sequence[Row]
# Columns by the field of a cell's result that they are.
_OF_RESULT = {"status": "status", "reason": "reason", "decision_ms": "decision_ms"}
_OF_PLAN = {
    "asked_rps": "asked_rps",
    "promised_rps": "goodput_rps",
    "expected_rps": "expected_goodput_rps",
    "gpus_used": "gpus_used",
    "cost_per_hour": "cost_per_hour",
}
_OF_TOTALS = {
    "arrived_rps": "arrived_rps",
    "goodput_rps": "goodput_rps",
    "on_time_pct": "on_time_pct",
    "latency_p50_ms": "latency_p50_ms",
    "latency_p99_ms": "latency_p99_ms",
    "cuti_pct": "cuti_pct",
}


def rows_of(compared: Compared) -> tuple[Row, ...]:
    """Return a row for each cell, in the spec's order."""
    rows = []
    for job, cell, result in compared.cells:
        simulation: AnyByName = result.get("simulation") or {}
        totals: AnyByName = simulation.get("totals") or {}
        models: Sequence[AnyByName] = simulation.get("models") or ()
        shares = [m["on_time_pct"] for m in models if m["on_time_pct"] is not None]
        batches = sum(m["batches"] for m in models)
        requests = sum(m["batches"] * m["batch_mean"] for m in models if m["batch_mean"] is not None)
        row = Row(
            **job.labels,
            arrivals=cell.arrivals.label,
            seed=cell.seed,
            **_columns(result, _OF_RESULT),
            **_columns(result.get("plan") or {}, _OF_PLAN),
            **_columns(totals, _OF_TOTALS),
            rejected_pct=_part(totals, "rejected_rps"),
            dropped_pct=_part(totals, "dropped_rps"),
            least_on_time_pct=min(shares, default=None),
            batch_mean=mean_of(requests, batches),
        )
        rows.append(row)
    return tuple(rows)


def _columns(values: AnyByName, fields_of: Mapping[str, str]) -> ValuesByName:
    return {column: values.get(field) for column, field in fields_of.items()}


def _part(totals: AnyByName, name: str) -> NumberOrNone:
    if totals.get("arrived_rps"):
        return float(100 * totals[name] / totals["arrived_rps"])
    return None


def results_csv(rows: RowList) -> str:
    """Return ``rows`` as CSV; null is an empty cell, numbers stand in full."""
    names = [f.name for f in fields(Row)]
    return csv_text(names, map(attrgetter(*names), rows))


def results_json(rows: RowList) -> str:
    """Return ``rows`` as ``{"schema_version": ..., "rows": [...]}``."""
    document = {"schema_version": record_version(Row), "rows": [asdict(r) for r in rows]}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def rows_from(document: AnyByName) -> tuple[Row, ...]:
    """Return the rows of :func:`results_json`'s document."""
    return tuple(Row(**row) for row in document["rows"])
