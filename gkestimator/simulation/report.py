"""Render a simulation for people and for spreadsheets: what every model got, where its time went, closing words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from gkestimator.core.errors import one_line
from gkestimator.documents.simulation import (
    SimulatedApplication,
    SimulatedLanguage,
    SimulatedModel,
    SimulationReport,
    StageTimes,
    simulation_json,
)
from gkestimator.reporting.simulated import (
    count_text,
    figure_columns,
    first_of,
    note_lines,
    rendered,
    share_text,
    text_of,
    written_as,
)
from gkestimator.reporting.text import plural, words
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import number_text, percent_text

STAGE_NAMES = ("router", "network", "queue", "gpu")
# A model keeps its objective where this part of its requests does: what plans for cost are held to as well.
KEPT_PCT = 99.0
# Part of a model's requests, in percent, from which the closing words name what became of them.
_NAMED_PCT = 0.05
_MANY = 5
_GPUS_SHOWN = 24
_STAGE_PLACES = {
    "router": "filling batches",
    "network": "the network",
    "queue": "the queue",
    "gpu": "the GPU",
}
_ASKED = written_as(number_text, asked_rps="asked/s", arrived_rps="came/s")
_SERVED = (
    *written_as(number_text, throughput_rps="done/s", goodput_rps="on time/s"),
    *written_as(share_text, on_time_pct="%"),
    *written_as(number_text, latency_p50_ms="p50 ms", latency_p99_ms="p99 ms"),
)
_SLO = written_as(number_text, slo_ms="SLO ms")
_REFUSED = written_as(number_text, rejected_rps="refused/s")
_DROPPED = written_as(number_text, dropped_rps="dropped/s")
_BATCHES = (
    *written_as(number_text, batch_mean="batch"),
    *written_as(percent_text, batches_full_pct="full %", batches_timed_out_pct="timed out %"),
)
_LANGUAGES = [
    *written_as(number_text, tokens_per_s="tokens/s", sequences_mean="at once"),
    *written_as(percent_text, cache_pct="cache %"),
    *written_as(count_text, preempted="preempted"),
]
_GPUS = written_as(percent_text, busy_pct="busy %", cuti_pct="Cuti %", muti_pct="Muti %")


def render_simulation(report: SimulationReport, form: str) -> bytes:
    """Return ``report`` as ``table``, ``csv`` (one row a model) or ``json`` (the document), UTF-8.

    Raises UsageError for another form.
    """
    makers = {"table": simulation_text, "csv": simulation_csv, "json": simulation_json}
    return rendered(report, form, makers)


def simulation_csv(report: SimulationReport) -> str:
    """Return one row for each model: the document's fields, a stage's as ``router_mean_ms`` and so on.

    Quantiles stand in the document alone. Null is an empty cell, numbers stand in full.
    """
    names: list[str] = []
    for field in dataclasses.fields(SimulatedModel):
        if field.name in STAGE_NAMES:
            names += [f"{field.name}.{part.name}" for part in dataclasses.fields(StageTimes)]
        elif field.name != "latency_quantiles_ms":
            names.append(field.name)
    header = [name.replace(".", "_") for name in names]
    return csv_text(header, map(attrgetter(*names), report.models))


def simulation_text(report: SimulationReport) -> str:
    """Return the report at 100 columns.

    It says what every model and application got, where the models' time went, the GPUs, totals beside the
    plan's, and notes.
    """
    lines = [*_settings(report), ""]
    lines += text_table(_service_columns(report.models))
    lines += ["", "where the time goes, mean / 99th percentile in ms:"]
    lines += text_table(_stage_columns(report.models))
    if report.applications:
        names = [a.application for a in report.applications]
        figures = [*_SLO, *_ASKED, *_REFUSED, *_SERVED]
        columns = figure_columns(report.applications, figures)
        lines += ["", *text_table([words("application", names, shrink=10), *columns])]
    if report.languages:
        of_model = words("model", [language.model for language in report.languages], shrink=10)
        lines += ["", "tokens, TTFT and TPOT as mean / 99th percentile in ms:"]
        lines += text_table([of_model, *_language_columns(report.languages)])
    lines += ["", *_gpu_lines(report), "", *_totals(report)]
    return text_of([*lines, *note_lines(report.notes)])


def _settings(report: SimulationReport) -> list[str]:
    s = report.settings
    scale = warm = drop = ""
    if s.rate_scale != 1:
        scale = f" at {s.rate_scale:g} times the rates"
    if s.warmup_s:
        warm = f", the first {s.warmup_s:g} s not counted"
    if s.drop != "none":
        drop = f" · drop {s.drop}"
    wait = "the plan's waits"
    if s.batching == "late":
        wait = "batching late"
    elif s.max_wait_ms is not None:
        wait = f"waits of {s.max_wait_ms:g} ms"
    law = s.interference
    if s.coefficients is not None:
        law += f" ({s.coefficients})"
    return [
        f"plan of {s.policy} · arrivals {s.arrivals}{scale} · {s.duration_s:g} s{warm} · seed {s.seed}",
        f"{s.service} service · interference {law} · copy {s.copy} · network {s.network or 'none'} · {s.routing} · "
        f"{wait} · admission {s.admission}{drop}",
    ]


def _model_names(models: Sequence[SimulatedModel]) -> TextColumn:
    return words("model", [m.model for m in models], shrink=10)


def _service_columns(models: Sequence[SimulatedModel]) -> list[TextColumn]:
    figures = [*_SLO, *written_as(count_text, replicas="replicas"), *_ASKED]
    if any(m.rejected_rps for m in models):
        figures += _REFUSED
    if any(m.dropped_rps for m in models):
        figures += _DROPPED
    names = _model_names(models)
    return [names, *figure_columns(models, [*figures, *_SERVED])]


def _stage_columns(models: Sequence[SimulatedModel]) -> list[TextColumn]:
    columns = [_model_names(models)]
    stages = list(STAGE_NAMES)
    if not any(m.network.mean_ms for m in models):
        stages.remove("network")
    columns += figure_columns(models, [(name, name, _stage_text) for name in stages])
    return columns + figure_columns(models, _BATCHES)


def _language_columns(languages: Sequence[SimulatedLanguage]) -> list[TextColumn]:
    times: list[TextColumn] = []
    for heading, kind in (("TTFT", "ttft"), ("TPOT", "tpot")):
        cells = []
        for language in languages:
            mean, p99 = (getattr(language, f"{kind}_{end}_ms") for end in ("mean", "p99"))
            cells.append(f"{number_text(mean)} / {number_text(p99)}")
        objectives = [number_text(getattr(language, f"slo_{kind}_ms")) for language in languages]
        times += [TextColumn(heading=heading, cells=cells), TextColumn(heading="SLO", cells=objectives)]
    return times + figure_columns(languages, _LANGUAGES)


def _stage_text(times: StageTimes) -> str:
    return f"{number_text(times.mean_ms)} / {number_text(times.p99_ms)}"


def _gpu_lines(report: SimulationReport) -> list[str]:
    if not report.gpus:
        return ["no GPU is used"]
    shown = report.gpus[:_GPUS_SHOWN]
    names = words("GPU", [g.id for g in shown], shrink=10)
    lines = text_table([names, *figure_columns(shown, _GPUS)])
    more = len(report.gpus) - len(shown)
    if more:
        lines.append(f"and {more:,} more GPUs")
    return lines


def _totals(report: SimulationReport) -> list[str]:
    t = report.totals
    dropped = ""
    if report.settings.drop != "none":
        dropped = f", {number_text(t.dropped_rps)} dropped"
    return [
        f"goodput {_exact(t.goodput_rps)} req/s · the plan: {_exact(t.promised_goodput_rps)}, expected "
        f"{_exact(t.expected_goodput_rps)} req/s · throughput {_exact(t.throughput_rps)} req/s",
        f"of {_exact(t.arrived_rps)} requests a second {share_text(t.on_time_pct)} % on time, "
        f"{number_text(t.rejected_rps)} refused{dropped} · latency p50 {number_text(t.latency_p50_ms)}, "
        f"p99 {number_text(t.latency_p99_ms)}, p99.9 {number_text(t.latency_p999_ms)} ms",
        f"GPUs used {t.gpus_used:,} · Cuti {percent_text(t.cuti_pct)} % · Muti {percent_text(t.muti_pct)} % · "
        f"cost {number_text(t.cost_per_hour)} USD per hour",
    ]


def _exact(value: float | None) -> str:
    return number_text(value, digits=6)


def simulation_words(report: SimulationReport) -> list[str]:
    """Return the lines that close a run, on stderr.

    They hold the plan's promise against what was simulated, and say which models miss their objective and
    why.
    """
    if not report.totals.arrived_rps:
        return [f"No request came in {report.settings.duration_s:g} s: there is nothing to say of the plan."]
    lines = [_promise(report)]
    late = sorted(filter(_misses, report.models), key=lambda m: m.goodput_rps - m.arrived_rps)
    if late:
        misses = first_of([_miss(m) for m in late], _MANY, "; ", "; and")
        lines.append(f"Less than {KEPT_PCT:g} % on time: {misses}.")
    elif report.models:
        came = sum(m.on_time_pct is not None for m in report.models)
        who = "It"
        if came > 1:
            who = f"Each of {came:,} models"
        lines.append(f"{who} keeps its SLO for at least {KEPT_PCT:g} % of its requests.")
    missed = list(filter(_misses, report.applications))
    if missed:
        shares = [f"{a.application} {share_text(a.on_time_pct)} %" for a in missed[:_MANY]]
        lines.append(f"Applications below: {', '.join(shares)}.")
    return [one_line(line, limit=2000) for line in lines]


def _misses(served: SimulatedModel | SimulatedApplication) -> bool:
    return served.on_time_pct is not None and served.on_time_pct < KEPT_PCT


def _promise(report: SimulationReport) -> str:
    t = report.totals
    cost = "price unknown"
    if t.cost_per_hour is not None:
        cost = f"{t.cost_per_hour:,.2f} USD per hour"
    promise = number_text(t.promised_goodput_rps, digits=4)
    if t.expected_goodput_rps is not None:
        promise += f" and expected {number_text(t.expected_goodput_rps, digits=4)}"
    return (
        f"{report.settings.policy} answers {number_text(t.goodput_rps, digits=4)} req/s on time on "
        f"{plural(t.gpus_used, 'GPU')} ({cost}); its plan promised {promise} req/s."
    )


def _miss(m: SimulatedModel) -> str:
    """Return one model that misses its objective: by how much, and why."""
    why = []
    for rate, what in ((m.rejected_rps, "refused at the door"), (m.dropped_rps, "dropped as too late")):
        part = 100 * rate / (m.arrived_rps or math.inf)
        if part >= _NAMED_PCT:
            why.append(f"{percent_text(part)} % {what}")
    if m.latency_p99_ms is not None and m.latency_p99_ms > m.slo_ms:
        most = max(STAGE_NAMES, key=lambda name: getattr(m, name).p99_ms or 0.0)
        times: Any = getattr(m, most)
        why.append(
            f"p99 {number_text(m.latency_p99_ms)} ms of {number_text(m.slo_ms)}, most in {_STAGE_PLACES[most]}: "
            f"mean {number_text(times.mean_ms)}, p99 {number_text(times.p99_ms)} ms"
        )
    text = f"{m.model} {share_text(m.on_time_pct)} %"
    if why:
        text += f" ({', '.join(why)})"
    return text
