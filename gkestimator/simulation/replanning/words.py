"""Render a run with re-planning for people: totals, decisions, models at 100 columns."""

from __future__ import annotations

from gkestimator.reporting.simulated import (
    count_text,
    figure_columns,
    note_lines,
    rendered,
    share_text,
    text_of,
    written_as,
)
from gkestimator.reporting.text import figures, words
from gkestimator.simulation.replanning.report import ReplanModel, ReplanReport, replan_json
from gkestimator.simulation.summary import percent_of
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import number_text

_MOST_DECISIONS = 40


def _figure(value: int | float | None) -> str:
    if isinstance(value, int):
        return count_text(value)
    return number_text(value, digits=4)


_TIME = written_as(_figure, time_s="s")
_CHANGES = written_as(
    _figure, gpus="GPUs", kept="kept", reset="reset", loads="loads", ends="ends", ready_s="ready s"
)
_ASKED = (*written_as(number_text, slo_ms="SLO ms"), *written_as(count_text, arrived="requests"))
_TIMES = written_as(number_text, wait_mean_ms="wait ms", latency_p50_ms="p50 ms", latency_p99_ms="p99 ms")


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
        reasons = words("why", [d.reason for d in shown], shrink=16)
        times = figure_columns(shown, _TIME)
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
    names = words("model", [m.model for m in models], shrink=12)
    shares = [percent_of(m.on_time, m.arrived) for m in models]
    on_time = figures("on time %", shares, share_text)
    return [names, *figure_columns(models, _ASKED), on_time, *figure_columns(models, _TIMES)]
