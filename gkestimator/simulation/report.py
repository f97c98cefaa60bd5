"""A simulation for people and for spreadsheets: what every model got, where its time went, and the words that close
a run."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

from gkestimator.core.errors import UsageError, one_line
from gkestimator.documents.simulation import (
    SimulatedModel,
    SimulationReport,
    StageTimes,
    simulation_json,
)
from gkestimator.tables.layout import TextColumn, printable, text_table
from gkestimator.tables.units import UNKNOWN, number_text, percent_text

SIMULATION_FORMATS = ("table", "csv", "json")
SIMULATION_SUFFIXES = {".json": "json", ".csv": "csv", ".txt": "table"}
STAGE_NAMES = ("router", "network", "queue", "gpu")
# A model keeps its objective where this part of its requests does: what plans for cost are held to as well.
KEPT_PCT = 99.0
_MANY = 5
_GPUS_SHOWN = 24


def render_simulation(report: SimulationReport, form: str) -> bytes:
    """``report`` as ``table``, ``csv`` (one row a model) or ``json`` (the document), UTF-8. Raises UsageError for
    another."""
    makers: dict[str, Callable[[SimulationReport], str]] = {
        "table": simulation_text,
        "csv": simulation_csv,
        "json": simulation_json,
    }
    if form not in makers:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(SIMULATION_FORMATS)}")
    return makers[form](report).encode()


def simulation_csv(report: SimulationReport) -> str:
    """One row for each model: the document's fields, a stage's as ``router_mean_ms`` and so on; quantiles stand in
    the document alone. Null is an empty cell, numbers stand in full."""
    names: list[tuple[str, str | None]] = []
    for f in dataclasses.fields(SimulatedModel):
        if f.name in STAGE_NAMES:
            names += [(f.name, part.name) for part in dataclasses.fields(StageTimes)]
        elif f.name != "latency_quantiles_ms":
            names.append((f.name, None))
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name if part is None else f"{name}_{part}" for name, part in names])
    for model in report.models:
        cells: list[Any] = []
        for name, part in names:
            value = getattr(model, name)
            cells.append(value if part is None else getattr(value, part))
        writer.writerow(["" if c is None else c for c in cells])
    return buffer.getvalue()


def simulation_text(report: SimulationReport) -> str:
    """The report at 100 columns: what every model and application got, where the models' time went, the GPUs,
    totals beside the plan's, notes."""
    lines = [*_settings(report), ""]
    lines += text_table(_service_columns(report))
    lines += ["", "where the time goes, mean / 99th percentile in ms:", *text_table(_stage_columns(report))]
    if report.applications:
        lines += ["", *text_table(_application_columns(report))]
    lines += ["", *_gpu_lines(report), "", *_totals(report)]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    return "\n".join(printable(line) for line in lines) + "\n"


def _settings(report: SimulationReport) -> list[str]:
    s = report.settings
    if s.rate_scale == 1:
        scale = ""
    else:
        scale = f" at {s.rate_scale:g} times the rates"
    warm = f", the first {s.warmup_s:g} s not counted" if s.warmup_s else ""
    if s.max_wait_ms is None:
        wait = "the plan's waits"
    else:
        wait = f"waits of {s.max_wait_ms:g} ms"
    if s.coefficients is None:
        law = s.interference
    else:
        law = f"{s.interference} ({s.coefficients})"
    return [
        f"plan of {s.policy} · arrivals {s.arrivals}{scale} · {s.duration_s:g} s{warm} · seed {s.seed}",
        f"{s.service} service · interference {law} · copy {s.copy} · network {s.network or 'none'} · {s.routing} · "
        f"{wait} · admission {s.admission}" + (f" · drop {s.drop}" if s.drop != "none" else ""),
    ]


def _column(heading: str, cells: Sequence[str]) -> TextColumn:
    return TextColumn(heading=heading, cells=cells)


def _names(heading: str, cells: Sequence[str]) -> TextColumn:
    return TextColumn(heading=heading, cells=cells, right=False, shrink=10)


def _service_columns(report: SimulationReport) -> list[TextColumn]:
    models = report.models
    columns = [
        _names("model", [m.model for m in models]),
        _column("SLO ms", [number_text(m.slo_ms) for m in models]),
        _column("replicas", [f"{m.replicas:,}" for m in models]),
        _column("asked/s", [number_text(m.asked_rps) for m in models]),
        _column("came/s", [number_text(m.arrived_rps) for m in models]),
    ]
    if any(m.rejected_rps for m in models):
        columns.append(_column("refused/s", [number_text(m.rejected_rps) for m in models]))
    if any(m.dropped_rps for m in models):
        columns.append(_column("dropped/s", [number_text(m.dropped_rps) for m in models]))
    return [
        *columns,
        _column("done/s", [number_text(m.throughput_rps) for m in models]),
        _column("on time/s", [number_text(m.goodput_rps) for m in models]),
        _column("%", [share_text(m.on_time_pct) for m in models]),
        _column("p50 ms", [number_text(m.latency_p50_ms) for m in models]),
        _column("p99 ms", [number_text(m.latency_p99_ms) for m in models]),
    ]


def share_text(value: float | None) -> str:
    """A share of requests: 99.97 % is not 100 %."""
    if value is None:
        return UNKNOWN
    if value < 100:
        return f"{int(value * 10) / 10:.1f}"
    return "100"


def _stage_columns(report: SimulationReport) -> list[TextColumn]:
    models = report.models
    columns = [_names("model", [m.model for m in models])]
    shown = [name for name in STAGE_NAMES if name != "network" or any(m.network.mean_ms for m in models)]
    for name in shown:
        stages = [getattr(m, name) for m in models]
        columns.append(_column(name, [f"{number_text(t.mean_ms)} / {number_text(t.p99_ms)}" for t in stages]))
    return [
        *columns,
        _column("batch", [number_text(m.batch_mean) for m in models]),
        _column("full %", [percent_text(m.batches_full_pct) for m in models]),
        _column("timed out %", [percent_text(m.batches_timed_out_pct) for m in models]),
    ]


def _application_columns(report: SimulationReport) -> list[TextColumn]:
    found = report.applications
    return [
        _names("application", [a.application for a in found]),
        _column("SLO ms", [number_text(a.slo_ms) for a in found]),
        _column("asked/s", [number_text(a.asked_rps) for a in found]),
        _column("came/s", [number_text(a.arrived_rps) for a in found]),
        _column("refused/s", [number_text(a.rejected_rps) for a in found]),
        _column("done/s", [number_text(a.throughput_rps) for a in found]),
        _column("on time/s", [number_text(a.goodput_rps) for a in found]),
        _column("%", [share_text(a.on_time_pct) for a in found]),
        _column("p50 ms", [number_text(a.latency_p50_ms) for a in found]),
        _column("p99 ms", [number_text(a.latency_p99_ms) for a in found]),
    ]


def _gpu_lines(report: SimulationReport) -> list[str]:
    if not report.gpus:
        return ["no GPU is used"]
    shown = report.gpus[:_GPUS_SHOWN]
    lines = text_table(
        [
            _names("GPU", [g.id for g in shown]),
            _column("busy %", [percent_text(g.busy_pct) for g in shown]),
            _column("Cuti %", [percent_text(g.cuti_pct) for g in shown]),
            _column("Muti %", [percent_text(g.muti_pct) for g in shown]),
        ]
    )
    more = len(report.gpus) - len(shown)
    if more:
        return [*lines, f"and {more:,} more GPUs"]
    return lines


def _totals(report: SimulationReport) -> list[str]:
    t = report.totals
    wide = [number_text(v, digits=6) for v in (t.goodput_rps, t.promised_goodput_rps, t.expected_goodput_rps)]
    if report.settings.drop != "none":
        dropped = f", {number_text(t.dropped_rps)} dropped"
    else:
        dropped = ""
    return [
        f"goodput {wide[0]} req/s · the plan: {wide[1]}, expected {wide[2]} req/s · "
        f"throughput {number_text(t.throughput_rps, digits=6)} req/s",
        f"of {number_text(t.arrived_rps, digits=6)} requests a second {share_text(t.on_time_pct)} % on time, "
        f"{number_text(t.rejected_rps)} refused{dropped} · latency p50 {number_text(t.latency_p50_ms)}, "
        f"p99 {number_text(t.latency_p99_ms)}, p99.9 {number_text(t.latency_p999_ms)} ms",
        f"GPUs used {t.gpus_used:,} · Cuti {percent_text(t.cuti_pct)} % · Muti {percent_text(t.muti_pct)} % · "
        f"cost {number_text(t.cost_per_hour)} USD per hour",
    ]


def simulation_words(report: SimulationReport) -> list[str]:
    """What closes a run, on stderr: the plan's promise against what was simulated, and which models miss their
    objective, and where their time goes."""
    t = report.totals
    if not t.arrived_rps:
        return [f"No request came in {report.settings.duration_s:g} s: there is nothing to say of the plan."]
    cost = "price unknown" if t.cost_per_hour is None else f"{t.cost_per_hour:,.2f} USD per hour"
    promise = f"its plan promised {number_text(t.promised_goodput_rps, digits=4)}"
    if t.expected_goodput_rps is not None:
        promise += f" and expected {number_text(t.expected_goodput_rps, digits=4)}"
    lines = [
        f"{report.settings.policy} answers {number_text(t.goodput_rps, digits=4)} req/s on time on {t.gpus_used:,} "
        f"GPU{'s' * (t.gpus_used != 1)} ({cost}); {promise} req/s."
    ]
    late = sorted(
        (m for m in report.models if m.on_time_pct is not None and m.on_time_pct < KEPT_PCT),
        key=lambda m: m.goodput_rps - m.arrived_rps,
    )
    came = sum(m.on_time_pct is not None for m in report.models)
    if late:
        said = "; ".join(_miss(m) for m in late[:_MANY])
        if len(late) > _MANY:
            more = f"; and {len(late) - _MANY:,} more"
        else:
            more = ""
        lines.append(f"Less than {KEPT_PCT:g} % on time: {said}{more}.")
    elif report.models:
        lines.append(
            f"Each of {came:,} models keeps its SLO for at least {KEPT_PCT:g} % of its requests."
            if came > 1
            else f"It keeps its SLO for at least {KEPT_PCT:g} % of its requests."
        )
    missed = [a for a in report.applications if a.on_time_pct is not None and a.on_time_pct < KEPT_PCT]
    if missed:
        lines.append(
            "Applications below: "
            + ", ".join(f"{a.application} {share_text(a.on_time_pct)} %" for a in missed[:_MANY])
            + "."
        )
    return [one_line(line, limit=2000) for line in lines]


def _miss(m: SimulatedModel) -> str:
    """One model that misses: by how much, and why."""
    head = f"{m.model} {share_text(m.on_time_pct)} %"
    if m.arrived_rps:
        refused = 100 * m.rejected_rps / m.arrived_rps
    else:
        refused = 0.0
    why = []
    if refused >= 0.05:
        why.append(f"{percent_text(refused)} % refused at the door")
    if m.arrived_rps:
        dropped = 100 * m.dropped_rps / m.arrived_rps
    else:
        dropped = 0.0
    if dropped >= 0.05:
        why.append(f"{percent_text(dropped)} % dropped as too late")
    if m.latency_p99_ms is not None and m.latency_p99_ms > m.slo_ms:
        parts = {name: getattr(m, name) for name in STAGE_NAMES}
        most = max(parts, key=lambda name: parts[name].p99_ms or 0.0)
        where = {
            "router": "filling batches",
            "network": "the network",
            "queue": "the queue",
            "gpu": "the GPU",
        }
        why.append(
            f"p99 {number_text(m.latency_p99_ms)} ms of {number_text(m.slo_ms)}, most in {where[most]}: "
            f"mean {number_text(parts[most].mean_ms)}, p99 {number_text(parts[most].p99_ms)} ms"
        )
    if why:
        return f"{head} ({', '.join(why)})"
    return head
