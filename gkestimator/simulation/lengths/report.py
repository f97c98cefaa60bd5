"""Render what the schemes of a run came to, for people and for programs."""

from __future__ import annotations

from operator import getitem

from gkestimator.reporting.simulated import (
    count_text,
    figure_columns,
    rendered,
    text_of,
    written_as,
)
from gkestimator.reporting.text import counts, words
from gkestimator.simulation.arrays import ValuesByName
from gkestimator.simulation.lengths.running import LengthsRun
from gkestimator.simulation.lengths.serving import Served
from gkestimator.simulation.summary import mean_of, percent_of
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import number_text, percent_text


def _four_digits(value: float | None) -> str:
    return number_text(value, digits=4)


_FIGURES = (
    *written_as(number_text, arrived_rps="came/s"),
    *written_as(_four_digits, on_time_pct="in time %"),
    *written_as(number_text, latency_mean_ms="mean ms", latency_p50_ms="p50", latency_p98_ms="p98"),
    *written_as(number_text, latency_p99_ms="p99", padding="padding", gpus_mean="GPUs"),
)
_COST = written_as(number_text, cost_per_hour="USD/h")
# Shown where some scheme did any of it.
_DONE = written_as(count_text, replaced="replaced", added="added", removed="removed")


def render_lengths(run: LengthsRun, form: str) -> bytes:
    """Return ``run`` as ``table``, ``csv`` (one row a scheme) or ``json``, UTF-8. Raises UsageError for another."""
    return rendered(run, form, {"table": _text, "csv": _csv, "json": _json})


def _rows(run: LengthsRun) -> list[ValuesByName]:
    return [_row(run, scheme, served) for scheme, served in run.served.items()]


def _row(run: LengthsRun, scheme: str, served: Served) -> ValuesByName:
    """Return what is said of a scheme.

    ``arrived_rps``: all that came; all is answered, some of it maybe long after the end. ``padding``: tokens
    computed over tokens asked for. ``gpus_mean``: GPU time over the time simulated; cost from it. Null: no
    request was counted, or the price is not known.
    """
    spec = run.spec
    counted_s = (spec.duration_ms - spec.warmup_ms) / 1e3
    gpus = served.gpu_ms / spec.duration_ms
    cost = None
    if run.price_per_hour is not None:
        cost = run.price_per_hour * gpus
    return {
        "scheme": scheme,
        "requests": served.requests,
        "arrived_rps": served.requests / counted_s,
        "goodput_rps": served.on_time / counted_s,
        "on_time_pct": percent_of(served.on_time, served.requests),
        "latency_mean_ms": served.mean_ms,
        "latency_p50_ms": served.quantile_ms(0.5),
        "latency_p98_ms": served.quantile_ms(0.98),
        "latency_p99_ms": served.quantile_ms(0.99),
        "padding": mean_of(served.padded_tokens, served.tokens),
        "gpus_mean": gpus,
        "gpus_most": max(w.gpus for w in served.windows),
        "cost_per_hour": cost,
        "replaced": served.replaced,
        "added": served.added,
        "removed": served.removed,
    }


def _json(run: LengthsRun) -> str:
    spec = run.spec
    ladder = run.ladder
    runtimes = []
    for runtime, capacity in zip(ladder.runtimes, ladder.capacities, strict=True):
        runtimes.append({"length": runtime.length, "latency_ms": runtime.latency_ms, "capacity": capacity})
    schemes = []
    for scheme, served in run.served.items():
        parts = {"runtimes": _runtimes(run, served), "windows": _windows(served)}
        schemes.append(_row(run, scheme, served) | parts)
    document = {
        "schema_version": 1,
        "model": spec.model,
        "gpu": spec.gpu,
        "slo_ms": spec.slo_ms,
        "seed": spec.seed,
        "duration_s": spec.duration_ms / 1e3,
        "warmup_s": spec.warmup_ms / 1e3,
        "runtimes": runtimes,
        "schemes": schemes,
        "notes": list(run.notes),
    }
    return json_bytes(document).decode()


def _runtimes(run: LengthsRun, served: Served) -> list[dict[str, int]]:
    """Return the requests of each runtime that the scheme has: padding has the longest alone."""
    lengths = run.ladder.lengths[-len(served.asked) :]
    rows = zip(lengths, served.asked.tolist(), served.served.tolist(), strict=True)
    return [{"length": n, "shortest_for": asked, "served": done} for n, asked, done in rows]


def _windows(served: Served) -> list[ValuesByName]:
    windows = []
    for window in served.windows:
        figures = {
            "end_s": window.end_ms / 1e3,
            "requests": window.requests,
            "on_time": window.on_time,
            "latency_p98_ms": window.p98_ms,
            "gpus": window.gpus,
            "instances": list(window.counts),
        }
        windows.append(figures)
    return windows


def _csv(run: LengthsRun) -> str:
    rows = _rows(run)
    return csv_text(rows[0], [row.values() for row in rows])


def _text(run: LengthsRun) -> str:
    spec = run.spec
    latencies = [f"{r.length}: {number_text(r.latency_ms)}" for r in run.ladder.runtimes]
    lines = [
        f"{spec.model} on {spec.gpus:,} x {spec.gpu} · SLO {spec.slo_ms:g} ms · "
        f"{spec.duration_ms / 1e3:g} s · seed {spec.seed}",
        "",
        *text_table(_scheme_columns(run)),
        "",
        "runtimes: instances at the end and share of the requests served (of those whose shortest it is)",
        "",
        *text_table(_runtime_columns(run)),
        "",
        f"latencies ms: {', '.join(latencies)}",
        *(f"note: {note}" for note in run.notes),
    ]
    return text_of(lines)


def _scheme_columns(run: LengthsRun) -> list[TextColumn]:
    rows = _rows(run)
    figures = list(_FIGURES)
    if run.price_per_hour is not None:
        figures += _COST
    figures += [figure for figure in _DONE if any(row[figure[1]] for row in rows)]
    return [words("scheme", run.served), *figure_columns(rows, figures, getitem)]


def _runtime_columns(run: LengthsRun) -> list[TextColumn]:
    lengths = run.ladder.lengths
    columns = [counts("length", lengths)]
    for scheme, served in run.served.items():
        cells = [""] * (len(lengths) - len(served.served))  # padding has the longest alone
        for count, done, asked in zip(served.windows[-1].counts, served.served, served.asked, strict=True):
            shares = [percent_text(percent_of(int(part), served.requests)) for part in (done, asked)]
            cells.append(f"{count:,}: {shares[0]} ({shares[1]})")
        columns.append(TextColumn(heading=scheme, cells=cells))
    return columns


def lengths_words(run: LengthsRun) -> list[str]:
    """Return what closes a run, on stderr: who did best."""
    counted = [row for row in _rows(run) if row["latency_p98_ms"] is not None]
    if not counted:
        return ["No request was counted."]
    best = min(counted, key=lambda row: row["latency_p98_ms"])
    return [
        f"Lowest 98th percentile: {best['scheme']}, {number_text(best['latency_p98_ms'])} ms "
        f"({_four_digits(best['on_time_pct'])} % within {run.spec.slo_ms:g} ms on "
        f"{number_text(best['gpus_mean'])} GPUs)."
    ]
