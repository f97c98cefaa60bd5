"""Report a comparison to people: tables, the words that close a run, and the files of the folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.errors import OutputError
from gkestimator.core.escaping import utf8
from gkestimator.core.records import frozen
from gkestimator.reporting.simulated import figure_columns, written_as
from gkestimator.reporting.text import plural, words
from gkestimator.simulation.arrays import Names, NumberOrNone, Texts
from gkestimator.simulation.comparing.latencies import nearest
from gkestimator.simulation.comparing.panels import Panel, panels_of
from gkestimator.simulation.comparing.pictures import draw_pictures
from gkestimator.simulation.comparing.results import Row, RowList, results_csv, results_json, rows_of
from gkestimator.simulation.comparing.run import Compared
from gkestimator.simulation.comparing.spec import ComparisonSpec
from gkestimator.tables.layout import TextColumn, markdown_table, text_table
from gkestimator.tables.together import write_folder
from gkestimator.tables.units import number_text, percent_text

_AXIS = {"rate_scale": "load", "slo_scale": "SLO"}
_MANY = 5


_SETTINGS = (
    "duration_s",
    "warmup_s",
    "service",
    "interference",
    "admission",
    "drop",
    "routing",
    "copy",
    "batching",
)


def _count(value: NumberOrNone) -> str:
    if value is None:
        return number_text(None)
    return f"{value:g}"


def _share(value: NumberOrNone) -> str:
    """Return a percentage; what is not all of it is not rounded up to 100."""
    if value is None or not 99 <= value < 100:
        return percent_text(value)
    return f"{min(value, 99.99):.2f}"


_FIGURES = (
    *written_as(number_text, promised_rps="promised req/s", expected_rps="expected", goodput_rps="simulated"),
    *written_as(_share, on_time_pct="on time %", least_on_time_pct="worst model %"),
    *written_as(percent_text, rejected_pct="rejected %", dropped_pct="dropped %"),
    *written_as(number_text, latency_p50_ms="p50 ms", latency_p99_ms="p99 ms", batch_mean="batch"),
    *written_as(_count, gpus_used="GPUs"),
    *written_as(number_text, cost_per_hour="USD/h", decision_ms="decision ms"),
)


@frozen
class Report:
    """Hold ``text`` for a terminal; ``words`` close the run; ``whole``: every cell has a result and
    the report is written."""

    text: str
    words: Names
    whole: bool


def write_report(spec: ComparisonSpec, compared: Compared, folder: Path) -> Report:
    """Write results.csv, results.json, report.md and (with matplotlib) the pictures into ``folder``, all or none.

    Where that fails the report says why: its text counts all the same.
    """
    rows = rows_of(compared)
    columns = ["on_time_pct", "least_on_time_pct", "latency_p99_ms", "gpus_used"]
    if any(r.cost_per_hour is not None for r in rows):
        columns.append("cost_per_hour")
    panels = panels_of(rows, columns)
    pictures, missing = draw_pictures(rows, compared)
    files = {
        "results.csv": utf8(results_csv(rows)),
        "results.json": utf8(results_json(rows)),
        **pictures,
        "report.md": utf8(_markdown(spec, panels, rows, list(pictures))),
    }
    lost = None
    try:
        write_folder(folder, files)
    except OutputError as e:
        lost = e
    tables = []
    for panel in panels:
        if panel.column == "on_time_pct":
            tables.append("\n".join([_title(panel), "", *text_table(_columns(panel))]))
    text = "\n\n".join(tables) + "\n"
    return Report(
        text=text,
        words=_words(rows, compared, folder, missing, lost),
        whole=not _bad(rows) and lost is None,
    )


def _title(panel: Panel) -> str:
    parts = [f"{panel.measure.title}, by {_AXIS[panel.x]}"]
    for name, value in panel.where.items():
        if name in _AXIS:
            parts.append(f"{_AXIS[name]} x {value}")
        else:
            parts.append(f"{name} {value}")
    return " · ".join(parts)


def panel_table(panel: Panel) -> list[str]:
    """Return ``panel`` as lines of Markdown: policies by scale, the best in bold."""
    return markdown_table(_columns(panel, bold=True))


def _at_one_load(rows: RowList) -> list[str]:
    """Return every cell at the load and the objective nearest to the workload's own, with all its figures."""
    if not rows:
        return []
    rate, slo = nearest([(r.rate_scale, r.slo_scale) for r in rows])
    lines = []
    groups: dict[tuple[str, str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if (row.rate_scale, row.slo_scale) == (rate, slo):
            groups[row.workload, row.cluster, row.arrivals, row.seed].append(row)
    for (workload, cluster, arrivals, seed), members in groups.items():
        policies = words("policy", [row.policy for row in members], shrink=10)
        lines += [
            "",
            f"## load x {rate:g} · SLO x {slo:g} · workload {workload} · cluster {cluster} · arrivals {arrivals} · "
            f"seed {seed}",
            "",
            *markdown_table([policies, *figure_columns(members, _FIGURES)]),
        ]
    return lines


def _columns(panel: Panel, *, bold: bool = False) -> list[TextColumn]:
    policies = list(panel.values)
    columns = [words("policy", policies, shrink=10)]
    for at, x in enumerate(panel.xs):
        best = panel.best(at)
        cells = []
        for policy in policies:
            text = _text(panel, panel.values[policy][at])
            if bold and policy in best:
                text = f"**{text}**"
            cells.append(text)
        columns.append(TextColumn(heading=f"x {x:g}", cells=cells))
    return columns


def _text(panel: Panel, value: NumberOrNone) -> str:
    if value is None or panel.column.endswith("_pct"):
        return _share(value)
    if panel.column == "gpus_used":
        return f"{value:g}"
    return number_text(value)


def _markdown(spec: ComparisonSpec, panels: Sequence[Panel], rows: RowList, pictures: Texts) -> str:
    settings = ", ".join(f"{name.replace('_', ' ')} {spec.settings[name]}" for name in _SETTINGS)
    means = ""
    if len(spec.seeds) > 1:
        means = " (means)"
    lines = [
        f"# Comparison {spec.path.stem}",
        "",
        f"{plural(len(rows), 'cell')}. {settings}. Seeds: {', '.join(map(str, spec.seeds))}{means}. "
        "Loads multiply the rates of the workload, SLO scales its "
        "objectives; a policy places each load anew. Bold: best to 0.05 %. A dash: refused, failed or none.",
    ]
    for picture in pictures:
        lines += ["", f"![{Path(picture).stem}]({picture})"]
    for panel in panels:
        lines += ["", f"## {_title(panel)}", "", *panel_table(panel)]
    lines += _at_one_load(rows)
    bad = _bad(rows)
    if bad:
        lines += ["", "## Without a result", ""]
        lines += [f"- {line}" for line in _reasons(bad)]
    return "\n".join(lines) + "\n"


def _bad(rows: RowList) -> list[Row]:
    return [r for r in rows if r.status != "ok"]


def _reasons(bad: RowList) -> list[str]:
    groups = Counter((row.policy, row.status, row.reason or "") for row in bad)
    lines = []
    for (policy, status, reason), count in groups.items():
        lines.append(f"{policy} {status} in {plural(count, 'cell')}: {reason}")
    return lines


def _words(
    rows: RowList, compared: Compared, folder: Path, missing: str | None, lost: OutputError | None
) -> Names:
    there = ""
    if len(rows) > compared.computed:
        there = f", {len(rows) - compared.computed:,} kept"
    total = f"{plural(len(rows), 'cell')}"
    lines = [f"gkest: {total}, {compared.computed:,} computed now{there}; {folder}/report.md"]
    if lost is not None:
        lines = [f"gkest: {total}, {compared.computed:,} computed now{there}", f"gkest: error: {lost}"]
    if missing:
        lines.append(f"gkest: note: {missing}")
    reasons = _reasons(_bad(rows))
    lines += [f"gkest: error: {line}" for line in reasons[:_MANY]]
    if len(reasons) > _MANY:
        lines.append(f"gkest: error: and {len(reasons) - _MANY:,} more reasons in report.md")
    return tuple(lines)
