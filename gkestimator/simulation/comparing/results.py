"""The cells of a comparison as one flat table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.core.versions import record_version
from gkestimator.simulation.comparing.run import Compared


@frozen
class Row:
    """One cell. ``status``: ``ok``, ``refused`` (``reason`` says why) or ``failed``.

    By the workload and the plan: ``asked_rps``, ``promised_rps`` (plain goodput), ``expected_rps`` (with filling,
    queueing, interference and intervals, by formulas), ``gpus_used``, ``cost_per_hour`` (USD), ``decision_ms`` (on
    the machine that computed the cell; the only column that differs between runs). Simulated: ``arrived_rps``,
    ``goodput_rps`` (requests to models answered within their SLO), ``rejected_pct`` and ``dropped_pct`` (of those that
    arrived: turned away at the door, let in and given up as too late), ``on_time_pct`` (of the clients' requests that
    arrived, those turned away included), ``least_on_time_pct`` (of the model worst off), ``latency_p50_ms``,
    ``latency_p99_ms``, ``batch_mean``, ``cuti_pct``. Null: unknown, or there was none.
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
    asked_rps: float | None = None
    promised_rps: float | None = None
    expected_rps: float | None = None
    arrived_rps: float | None = None
    goodput_rps: float | None = None
    rejected_pct: float | None = None
    dropped_pct: float | None = None
    on_time_pct: float | None = None
    least_on_time_pct: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    batch_mean: float | None = None
    gpus_used: int | None = None
    cost_per_hour: float | None = None
    cuti_pct: float | None = None
    decision_ms: float | None = None


def rows_of(found: Compared) -> tuple[Row, ...]:
    """A row for each cell, in the spec's order."""
    rows = []
    for job, cell, result in found.cells:
        plan: Mapping[str, Any] = result.get("plan") or {}
        simulation: Mapping[str, Any] = result.get("simulation") or {}
        totals: Mapping[str, Any] = simulation.get("totals") or {}
        models: Sequence[Mapping[str, Any]] = simulation.get("models") or ()
        shares = [m["on_time_pct"] for m in models if m["on_time_pct"] is not None]
        batches = sum(m["batches"] for m in models)
        requests = sum(m["batches"] * m["batch_mean"] for m in models if m["batch_mean"] is not None)
        rows.append(
            Row(
                **job.labels,
                arrivals=cell.arrivals.label,
                seed=cell.seed,
                status=result["status"],
                reason=result.get("reason"),
                asked_rps=plan.get("asked_rps"),
                promised_rps=plan.get("goodput_rps"),
                expected_rps=plan.get("expected_goodput_rps"),
                arrived_rps=totals.get("arrived_rps"),
                goodput_rps=totals.get("goodput_rps"),
                rejected_pct=_part(totals, "rejected_rps"),
                dropped_pct=_part(totals, "dropped_rps"),
                on_time_pct=totals.get("on_time_pct"),
                least_on_time_pct=min(shares, default=None),
                latency_p50_ms=totals.get("latency_p50_ms"),
                latency_p99_ms=totals.get("latency_p99_ms"),
                batch_mean=requests / batches if batches else None,
                gpus_used=plan.get("gpus_used"),
                cost_per_hour=plan.get("cost_per_hour"),
                cuti_pct=totals.get("cuti_pct"),
                decision_ms=result.get("decision_ms"),
            )
        )
    return tuple(rows)


def _part(totals: Mapping[str, Any], name: str) -> float | None:
    if totals.get("arrived_rps"):
        return 100 * totals[name] / totals["arrived_rps"]
    return None


def results_csv(rows: Sequence[Row]) -> str:
    """``rows`` as CSV; null is an empty cell, numbers stand in full."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    names = [f.name for f in fields(Row)]
    writer.writerow(names)
    writer.writerows(["" if (v := getattr(r, n)) is None else v for n in names] for r in rows)
    return buffer.getvalue()


def results_json(rows: Sequence[Row]) -> str:
    """``rows`` as ``{"schema_version": ..., "rows": [...]}``."""
    document = {"schema_version": record_version(Row), "rows": [asdict(r) for r in rows]}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def rows_from(document: Mapping[str, Any]) -> tuple[Row, ...]:
    """The rows of :func:`results_json`'s document."""
    return tuple(Row(**row) for row in document["rows"])
