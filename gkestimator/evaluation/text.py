"""Write an evaluation as text: tables for people, CSV and JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.core.escaping import printable, utf8
from gkestimator.core.records import Names
from gkestimator.evaluation.api import Evaluation
from gkestimator.evaluation.compared import COMPARED, SUMMARIES, ComparedRow, SummaryRow
from gkestimator.evaluation.host import HostFit, errors_words
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import (
    TextColumn,
    markdown_table,
    number_columns,
    text_table,
    word_column,
)
from gkestimator.tables.units import UNKNOWN, fixed_text, number_text, signed_text, whole_text
from gkestimator.tables.writing import encode_csv

EVALUATION_FORMATS = ("table", "csv", "json", "markdown")
_NAMES = {
    "latency_ms": "latency",
    "reserved_bytes": "reserved memory",
    "mreq_bytes": "memory",
    "sm_util_mean_pct": "SM utilisation, mean",
    "sm_util_busy_mean_pct": "SM utilisation, busy mean",
    "sm_util_max_pct": "SM utilisation, maximum",
    "occupancy_mean_pct": "occupancy, mean",
    "occupancy_max_pct": "occupancy, maximum",
    "dram_util_mean_pct": "DRAM use, mean",
    "gpu_ms": "GPU time",
    "power_w": "power",
}
_BRIEF = (
    ("reserved_bytes", "memory %"),
    ("mreq_bytes", "memory %"),
    ("sm_util_mean_pct", "SM pts"),
    ("occupancy_mean_pct", "occ. pts"),
    ("occupancy_max_pct", "max occ. pts"),
    ("power_w", "power %"),
)
_BOUND = {True: "host", False: "GPU", None: UNKNOWN}
_INSIDE = {True: "yes", False: "no", None: UNKNOWN}
Table = Callable[[Sequence[TextColumn]], list[str]]


def render_evaluation(result: Evaluation, form: str) -> bytes:
    """Return ``result`` as ``form`` (one of EVALUATION_FORMATS), UTF-8.

    CSV holds the rows, JSON rows and summary.
    """
    COMPARED.check(result.compared, where="evaluation")
    SUMMARIES.check(result.summarised, where="summary")
    if form == "csv":
        return encode_csv(COMPARED, result.compared)
    if form == "json":
        document = {
            "schema_version": COMPARED.version,
            "rows": [COMPARED.record(r) for r in result.compared],
            "summary": [SUMMARIES.record(r) for r in result.summarised],
        }
        return json_bytes(document)
    if form == "table":
        lines = _blocks(result, text_table, "")
    elif form == "markdown":
        lines = _blocks(result, markdown_table, "## ")
    else:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(EVALUATION_FORMATS)}")
    return utf8("\n".join(lines) + "\n")


def _blocks(result: Evaluation, table: Table, title: str) -> list[str]:
    lines = [*_facts(result), ""]
    if not result.compared:
        return [*lines, "nothing was compared"]
    if title:
        lines += [f"{title}Rows", ""]
    lines += [*table(_row_columns(result.compared)), ""]
    latency = [s for s in result.summarised if s.measure == "latency_ms"]
    others = [s for s in result.summarised if s.measure != "latency_ms" and s.scope != "model"]
    if latency:
        lines += [f"{title}Latency: absolute error in % of the measurement", ""]
        lines += [*table(_latency_columns(latency)), ""]
    if others:
        lines += [f"{title}Other measures: absolute error", "", *table(_other_columns(others)), ""]
    return [*lines, *_legend(bool(latency))]


def _facts(result: Evaluation) -> list[str]:
    """Return how many rows there are, and what all of them share."""
    rows = result.compared
    models = {r.model for r in rows}
    counts = f"{result.name}: {len(rows)} rows of {len(models)} models beside their estimates"
    shared: list[str] = []
    for name in ("gpu", "runtime", "dtype"):
        values = {str(getattr(r, name)) for r in rows}
        if len(values) == 1:
            shared += values
    overheads = {r.host_overhead_us for r in rows}
    if len(overheads) == 1:
        shared.append(f"host overhead {number_text(overheads.pop())} us a call")
    shared.append("copies of inputs and outputs included" if result.include_copy else "without copies")
    return [printable(counts), printable(" · ".join(shared))]


def _row_columns(rows: Sequence[ComparedRow]) -> list[TextColumn]:
    columns = [word_column("model", rows, "model", shrink=16)]
    for name, heading in (("gpu", "GPU"), ("runtime", "runtime"), ("dtype", "dtype"), ("dims", "dims")):
        column = word_column(heading, rows, name, shrink=8)
        if len(set(column.cells)) > 1:
            columns.append(column)
    columns += number_columns(rows, [("batch", "batch_size", whole_text)])
    if any(r.measured_ms is not None for r in rows):
        columns += _latency_comparison(rows)
    for name, heading in _BRIEF:
        if any(getattr(r, f"measured_{name}") is not None for r in rows):
            cells = [signed_text(r.signed_error(name)) for r in rows]
            columns.append(TextColumn(heading=heading, cells=cells))
    return columns


def _latency_comparison(rows: Sequence[ComparedRow]) -> list[TextColumn]:
    inside = [_INSIDE[r.inside] for r in rows]
    bound = [_BOUND[r.host_bound] for r in rows]
    return [
        *number_columns(rows, [("measured ms", "measured_ms", number_text)]),
        TextColumn(heading="estimated ms (90 %)", cells=[_interval(r) for r in rows]),
        *number_columns(rows, [("error %", "error_pct", signed_text)]),
        TextColumn(heading="inside", cells=inside, right=False),
        TextColumn(heading="bound", cells=bound, right=False),
        *number_columns(rows, [("known %", "coverage_pct", number_text)]),
    ]


def _interval(row: ComparedRow) -> str:
    if row.estimated_ms is None:
        return UNKNOWN
    return f"{number_text(row.estimated_ms)} ({number_text(row.low_ms)}–{number_text(row.high_ms)})"


def _share(value: float | None) -> str:
    return fixed_text(value, ".0f")


_ROWS = ("rows", "n", str)
_ERRORS = (
    ("mean", "mean", fixed_text),
    ("median", "median", fixed_text),
    ("90th", "p90", fixed_text),
    ("worst", "worst", fixed_text),
    ("bias", "bias", signed_text),
)
_LATENCY = (
    ("inside %", "inside_pct", _share),
    ("roofline", "roofline_mean", fixed_text),
    ("constant", "constant_mean", fixed_text),
)


def _latency_columns(rows: Sequence[SummaryRow]) -> list[TextColumn]:
    names = word_column("GPU or model", rows, "name", shrink=12)
    return [names, *number_columns(rows, [_ROWS, *_ERRORS, *_LATENCY])]


def _other_columns(rows: Sequence[SummaryRow]) -> list[TextColumn]:
    return [
        TextColumn(heading="measure", cells=[_NAMES[r.measure] for r in rows], right=False),
        word_column("GPU", rows, "name", shrink=10),
        *number_columns(rows, [_ROWS]),
        word_column("in", rows, "unit"),
        *number_columns(rows, _ERRORS),
    ]


def _legend(latency: bool) -> list[str]:
    lines = ["bias: median signed error, positive where estimates are too high"]
    if latency:
        lines += [
            "inside: share of measurements inside the 90 % interval",
            "roofline, constant: mean error of the kernels' summed rooflines, as they are and times the one constant",
            "that fits the GPU's other models best (– without other models)",
        ]
    return lines


def trust_words(result: Evaluation) -> Names:
    """Return closing lines: how good the estimates are here, and where they are not."""
    lines = []
    latency = [s for s in result.summarised if s.measure == "latency_ms"]
    for s in latency:
        if s.scope != "gpu":
            continue
        inside = ""
        if s.inside_pct is not None:
            inside = f"; {s.inside_pct:.0f} % of the 90 % intervals hold"
        lines.append(
            f"{s.name}: latency is off by {s.median:.1f} % in the median, {s.mean:.1f} % in the mean "
            f"({s.n} rows){inside}."
        )
    models = [s for s in latency if s.scope == "model"]
    # Of one or two models the table says it already.
    if len(models) > 2:
        worst = max(models, key=lambda s: s.mean)
        lines.append(f"Worst model: {worst.name}, {worst.mean:.1f} % in the mean (bias {worst.bias:+.1f}).")
    return tuple(lines)


def host_words(fit: HostFit) -> Names:
    """Return what a fit of the host says, in lines."""
    parts = []
    if fit.host_overhead_us is not None:
        overhead = f"launch overhead {fit.host_overhead_us:.1f} us a call"
        if fit.overhead_range_us:
            low, high = fit.overhead_range_us
            overhead += f" ({low:.1f} to {high:.1f} leaving models out)"
        parts.append(overhead)
    if fit.copy_bytes_per_s is not None:
        copies = f"copies {fit.copy_bytes_per_s / 1e9:.2f} GB/s"
        if fit.rate_range:
            low, high = fit.rate_range
            copies += f" ({low / 1e9:.2f} to {high / 1e9:.2f})"
        parts.append(copies)
    before, after = errors_words(fit, untested="one model only, so not tested")
    return (
        f"{fit.runtime}: {', '.join(parts)}; {fit.host_rows} of {fit.rows} rows host-bound; mean latency error "
        f"{before}, {after}.",
        *(f"{fit.runtime}: {note}" for note in fit.notes),
    )
