"""Render a run with re-planning for people: totals, decisions, models at 100 columns."""

from __future__ import annotations

from gkestimator.reporting.simulated import (
    FigureColumn,
    count_text,
    csv_text,
    figure_columns,
    name_column,
    note_lines,
    rendered,
    share_text,
    text_of,
)
from gkestimator.simulation.replanning.report import ReplanModel, ReplanReport, replan_json
from gkestimator.simulation.summary import percent_of
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import number_text

_MOST_DECISIONS = 40


def _figure(value: int | float | None) -> str:
    if isinstance(value, int):
        return count_text(value)
    return number_text(value, digits=4)


_TIME: FigureColumn = ("s", "time_s", _figure)
_CHANGES: tuple[FigureColumn, ...] = (
    ("GPUs", "gpus", _figure),
    ("kept", "kept", _figure),
    ("reset", "reset", _figure),
    ("loads", "loads", _figure),
    ("ends", "ends", _figure),
    ("ready s", "ready_s", _figure),
)
_ASKED: tuple[FigureColumn, ...] = (
    ("SLO ms", "slo_ms", number_text),
    ("requests", "arrived", count_text),
)
_TIMES: tuple[FigureColumn, ...] = (
    ("wait ms", "wait_mean_ms", number_text),
    ("p50 ms", "latency_p50_ms", number_text),
    ("p99 ms", "latency_p99_ms", number_text),
)


def render_replan(report: ReplanReport, form: str) -> bytes:
    """Return ``report`` as ``table`` or ``json``, UTF-8; ``csv`` has one row a window of its timeline."""
    return rendered(report, form, {"table": replan_text, "json": replan_json, "csv": timeline_csv})


def timeline_csv(report: ReplanReport) -> str:
    """Return one row a window: ``start_s, arrived, on_time, wait_mean_ms, gpus``; null is an empty cell."""
    time = report.timeline
    starts = [i * time.window_s for i in range(len(time.gpus))]
    rows = zip(starts, time.arrived, time.on_time, time.wait_mean_ms, time.gpus, strict=True)
    return csv_text(["start_s", "arrived", "on_time", "wait_mean_ms", "gpus"], rows)


def replan_text(report: ReplanReport) -> str:
    """Return the report at 100 columns; of many decisions the first."""
    options = report.options
    how = "no re-planning"
    if report.replan is not None:
        how = f"re-planned as {report.replan.kind}"
    seconds = number_text(options.duration_ms / 1e3)
    lines = [
        f"policy {report.policy} · {how} · {report.arrivals} · {seconds} s · seed {options.seed}",
        "",
        *_totals(report),
        "",
    ]
    shown = report.decisions[:_MOST_DECISIONS]
    if shown:
        reasons = name_column("why", [d.reason for d in shown], shrink=16)
        times = figure_columns(shown, [_TIME])
        lines += text_table([*times, reasons, *figure_columns(shown, _CHANGES)])
        more = len(report.decisions) - len(shown)
        if more:
            lines.append(f"and {more:,} more decisions")
        lines.append("")
    lines += text_table(_model_columns(report.models))
    for decision in shown:
        if decision.failed:
            time = number_text(decision.time_s)
            lines.append(f"at {time} s the policy could not answer: {decision.failed}")
    return text_of([*lines, *note_lines(report.notes)])


def _totals(report: ReplanReport) -> list[str]:
    t = report.totals
    cost = "cost unknown"
    if t.cost is not None:
        cost = f"{t.cost:,.2f} USD"
    return [
        f"{t.arrived:,} requests: {share_text(t.on_time_pct)} % on time, {t.rejected:,} turned away, "
        f"{t.dropped:,} dropped, {t.unanswered:,} unanswered; goodput {number_text(t.goodput_rps, digits=4)} req/s",
        f"wait {number_text(t.wait_mean_ms)} ms in the mean; latency p50 {number_text(t.latency_p50_ms)} ms, "
        f"p99 {number_text(t.latency_p99_ms)} ms",
        f"GPUs in use: {t.gpus_mean:.2f} in the mean, {t.gpus_peak} at most; {t.gpu_hours:.4g} GPU hours, {cost}",
        f"{t.decisions} decisions, {t.changes} changes, {t.failed} failed",
        f"replicas: {t.kept} kept, {t.reset} with other settings, {t.loads} loaded ({t.moves} of them moved), "
        f"{t.ends} ended ({t.retired_first} first)",
    ]


def _model_columns(models: tuple[ReplanModel, ...]) -> list[TextColumn]:
    names = name_column("model", [m.model for m in models], shrink=12)
    shares = [share_text(percent_of(m.on_time, m.arrived)) for m in models]
    on_time = TextColumn(heading="on time %", cells=shares)
    return [names, *figure_columns(models, _ASKED), on_time, *figure_columns(models, _TIMES)]
