"""A run with re-planning for people: totals, decisions, models at 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.simulation.replanning.report import ReplanDecision, ReplanReport, replan_json
from gkestimator.simulation.report import share_text
from gkestimator.tables.layout import TextColumn, printable, text_table
from gkestimator.tables.units import number_text

_MOST_DECISIONS = 40


def render_replan(report: ReplanReport, form: str) -> bytes:
    """``report`` as ``table`` or ``json``, UTF-8; ``csv`` has one row a window of its timeline."""
    makers = {"table": replan_text, "json": replan_json, "csv": timeline_csv}
    return makers[form](report).encode()


def timeline_csv(report: ReplanReport) -> str:
    """One row a window: ``start_s, arrived, on_time, wait_mean_ms, gpus``; null is an empty cell."""
    time = report.timeline
    lines = ["start_s,arrived,on_time,wait_mean_ms,gpus"]
    rows = zip(time.arrived, time.on_time, time.wait_mean_ms, time.gpus, strict=True)
    for i, (arrived, on_time, wait, gpus) in enumerate(rows):
        lines.append(
            f"{i * time.window_s!r},{arrived},{on_time},{'' if wait is None else repr(wait)},{gpus!r}"
        )
    return "\n".join(lines) + "\n"


def replan_text(report: ReplanReport) -> str:
    """The report at 100 columns; of many decisions the first."""
    options = report.options
    how = "no re-planning" if report.replan is None else f"re-planned as {report.replan.kind}"
    lines = [
        f"policy {report.policy} · {how} · {report.arrivals} · {number_text(options.duration_ms / 1e3)} s "
        f"· seed {options.seed}",
        "",
        *_totals(report),
        "",
    ]
    shown = report.decisions[:_MOST_DECISIONS]
    if shown:
        lines += [*text_table(_decision_columns(shown)), ""]
    if len(report.decisions) > len(shown):
        lines[-1:] = [f"and {len(report.decisions) - len(shown):,} more decisions", ""]
    lines += text_table(_model_columns(report))
    lines += [
        f"at {number_text(d.time_s)} s the policy could not answer: {d.failed}" for d in shown if d.failed
    ]
    if report.notes:
        lines += ["", *(f"note: {note}" for note in report.notes)]
    return "\n".join(printable(line) for line in lines) + "\n"


def _totals(report: ReplanReport) -> list[str]:
    t = report.totals
    cost = "cost unknown" if t.cost is None else f"{t.cost:,.2f} USD"
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


def _decision_columns(decisions: Sequence[ReplanDecision]) -> list[TextColumn]:
    def texts(name: str) -> list[str]:
        found = [getattr(d, name) for d in decisions]
        return [f"{n:,}" if isinstance(n, int) else number_text(n, digits=4) for n in found]

    return [
        TextColumn(heading="s", cells=texts("time_s")),
        TextColumn(heading="why", cells=[d.reason for d in decisions], right=False, shrink=16),
        TextColumn(heading="GPUs", cells=texts("gpus")),
        TextColumn(heading="kept", cells=texts("kept")),
        TextColumn(heading="reset", cells=texts("reset")),
        TextColumn(heading="loads", cells=texts("loads")),
        TextColumn(heading="ends", cells=texts("ends")),
        TextColumn(heading="ready s", cells=texts("ready_s")),
    ]


def _model_columns(report: ReplanReport) -> list[TextColumn]:
    models = report.models
    return [
        TextColumn(heading="model", cells=[m.model for m in models], right=False, shrink=12),
        TextColumn(heading="SLO ms", cells=[number_text(m.slo_ms) for m in models]),
        TextColumn(heading="requests", cells=[f"{m.arrived:,}" for m in models]),
        TextColumn(
            heading="on time %",
            cells=[share_text(100 * m.on_time / m.arrived if m.arrived else None) for m in models],
        ),
        TextColumn(heading="wait ms", cells=[number_text(m.wait_mean_ms) for m in models]),
        TextColumn(heading="p50 ms", cells=[number_text(m.latency_p50_ms) for m in models]),
        TextColumn(heading="p99 ms", cells=[number_text(m.latency_p99_ms) for m in models]),
    ]
