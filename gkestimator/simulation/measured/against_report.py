"""Write a server's log beside its simulation: as text, CSV, JSON, and as a picture."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from gkestimator.core.versions import record_version
from gkestimator.reporting.simulated import (
    drawing,
    note_lines,
    rendered,
    share_text,
    text_of,
    title_of,
)
from gkestimator.reporting.style import BLUE, GREY, INK, saved
from gkestimator.reporting.text import picture_text, words
from gkestimator.simulation.arrays import NumberOrNone
from gkestimator.simulation.measured.against import MEASURES, QUANTILES, AgainstReport, ServedBeside
from gkestimator.simulation.picture import check_drawable
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import UNKNOWN, number_text

_HEADINGS = {
    "on_time_pct": "on time %",
    "p50_ms": "p50 ms",
    "p90_ms": "p90 ms",
    "p99_ms": "p99 ms",
    "throughput_rps": "done/s",
    "batch_mean": "batch",
    "refused_pct": "refused %",
}
_MOST_PANELS = 12
_ACROSS = 3


def render_against(report: AgainstReport, form: str) -> bytes:
    """Return ``report`` as ``table``, ``csv`` or ``json``, UTF-8. Raises UsageError for another form."""
    return rendered(report, form, {"table": against_text, "csv": against_csv, "json": against_json})


def against_text(report: AgainstReport) -> str:
    """Return three lines for each model and for all: real, simulated, and the difference."""
    models: list[str] = []
    whats: list[str] = []
    cells: dict[str, list[str]] = {name: [] for name in MEASURES}
    for row in report.models:
        models += [row.model, "", ""]
        whats += ["real", "simulated", "difference"]
        for name in MEASURES:
            write = _writer(name)
            cells[name] += [
                write(getattr(row.real, name)),
                write(getattr(row.simulated, name)),
                _difference_text(row, name),
            ]
    columns = [words("model", models, shrink=10), words("", whats)]
    columns += [TextColumn(heading=_HEADINGS[name], cells=cells[name]) for name in MEASURES]
    settings = " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.settings.items())
    lines = [
        f"{report.log}: {report.whole.requests:,} requests in {report.seconds:.4g} s, and the same simulated",
        settings,
        "",
        *text_table(columns),
        "",
        "difference: simulated less real, in points (pts) where the measure is in percent, else in percent of the real",
    ]
    return text_of([*lines, *note_lines(report.notes)])


def _writer(name: str) -> Callable[[NumberOrNone], str]:
    if name.endswith("_pct"):
        return share_text
    return number_text


def _difference_text(row: ServedBeside, name: str) -> str:
    value = row.difference(name)
    if value is None:
        return UNKNOWN
    unit = "pts" if name.endswith("_pct") else "%"
    return f"{value:+.1f} {unit}"


def against_csv(report: AgainstReport) -> str:
    """Return one row for each model, and one for all: each measure real, simulated, and their difference."""
    header = ["model", "slo_ms", "requests"]
    for name in MEASURES:
        header += [f"real_{name}", f"simulated_{name}", f"difference_{name}"]
    return csv_text(header, map(_cells, report.models))


def _cells(row: ServedBeside) -> list[Any]:
    cells: list[Any] = [row.model, row.slo_ms, row.requests]
    for name in MEASURES:
        cells += [getattr(row.real, name), getattr(row.simulated, name), row.difference(name)]
    return cells


def against_json(report: AgainstReport) -> str:
    """Return the report as a document; latencies at the quantiles 0, 0.005, ..., 1."""
    models = []
    for row in report.models:
        differences = {name: row.difference(name) for name in MEASURES}
        models.append({**dataclasses.asdict(row), "difference": differences})
    curves = {name: {"real": real, "simulated": simulated} for name, real, simulated in report.quantiles}
    document = {
        "schema_version": record_version(AgainstReport),
        "log": report.log,
        "seconds": report.seconds,
        "settings": report.settings,
        "models": models,
        "latency_quantiles_ms": curves,
        "notes": report.notes,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def draw_against(report: AgainstReport, form: str) -> bytes:
    """Return a picture as ``png``, ``svg`` or ``pdf``: for each model the share answered within a time, both ways."""
    check_drawable()
    shown = [curves for curves in report.quantiles if curves[1]][:_MOST_PANELS]
    rows = {row.model: row for row in report.models}
    down = -(-max(len(shown), 1) // _ACROSS)
    with drawing() as new_figure:
        across = min(max(len(shown), 1), _ACROSS)
        figure = new_figure(figsize=(3.4 * across, 2.6 * down + 0.5), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for axes, (name, real, simulated) in zip(grid.flat, shown, strict=False):
            _draw_panel(axes, rows[name], real, simulated)
        if shown:
            grid.flat[0].legend(loc="lower right", fontsize=7, frameon=False)
        title_of(figure, f"{report.log}: answered within a time, real and simulated")
        return saved(figure, form)


def _draw_panel(axes: Any, row: ServedBeside, real: Sequence[float], simulated: Sequence[float]) -> None:
    shares = [100 * q for q in QUANTILES]
    axes.plot(real, shares, color=INK, linewidth=1.4, label="real")
    if simulated:
        axes.plot(simulated, shares, color=BLUE, linewidth=1.2, linestyle=(0, (4, 2)), label="simulated")
    if row.slo_ms is not None:
        axes.axvline(row.slo_ms, color=GREY, linewidth=0.9)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 101)
    axes.set_xlabel("time to the answer (ms)")
    axes.set_ylabel("answered (%)")
    on_time = f"{share_text(row.real.on_time_pct)} / {share_text(row.simulated.on_time_pct)} % on time"
    axes.set_title(f"{picture_text(row.model, 24)}: {on_time}", loc="left", fontsize=7.5)
