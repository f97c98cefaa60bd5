"""An evaluation as text: tables for people, CSV and JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.evaluation.api import Evaluation
from gkestimator.evaluation.compared import COMPARED, SUMMARIES, ComparedRow, SummaryRow
from gkestimator.evaluation.host import HostFit
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, printable, text_table
from gkestimator.tables.units import UNKNOWN, number_text
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
}
_BRIEF = (
    ("reserved_bytes", "memory %"),
    ("mreq_bytes", "memory %"),
    ("sm_util_mean_pct", "SM pts"),
    ("occupancy_mean_pct", "occ. pts"),
    ("occupancy_max_pct", "max occ. pts"),
)
_BOUND = {True: "host", False: "GPU", None: UNKNOWN}
_INSIDE = {True: "yes", False: "no", None: UNKNOWN}
Table = Callable[[Sequence[TextColumn]], list[str]]


def render_evaluation(result: Evaluation, form: str) -> bytes:
    """``result`` as ``form`` (one of EVALUATION_FORMATS), UTF-8. CSV holds the rows, JSON rows and summary."""
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
        return ("\n".join(_blocks(result, text_table, "")) + "\n").encode()
    if form == "markdown":
        return ("\n".join(_blocks(result, markdown_table, "## ")) + "\n").encode()
    raise UsageError(f"format {form!r} is not known, expected one of {', '.join(EVALUATION_FORMATS)}")


def _blocks(result: Evaluation, table: Table, title: str) -> list[str]:
    lines = [*_facts(result), ""]
    if not result.compared:
        return [*lines, "nothing was compared"]
    lines += [*([f"{title}Rows", ""] if title else []), *table(_row_columns(result.compared)), ""]
    latency = [s for s in result.summarised if s.measure == "latency_ms"]
    if latency:
        lines += [
            f"{title}Latency: absolute error in % of the measurement",
            "",
            *table(_latency_columns(latency)),
            "",
        ]
    others = [s for s in result.summarised if s.measure != "latency_ms" and s.scope != "model"]
    if others:
        lines += [f"{title}Other measures: absolute error", "", *table(_other_columns(others)), ""]
    return [*lines, *_legend(bool(latency))]


def _facts(result: Evaluation) -> list[str]:
    rows = result.compared
    facts = [
        f"{result.name}: {len(rows)} rows of {len({r.model for r in rows})} models beside their estimates"
    ]
    shared = []
    for name in ("gpu", "runtime", "dtype"):
        values = sorted({str(getattr(r, name)) for r in rows})
        if len(values) == 1:
            shared.append(values[0])
    overheads = {r.host_overhead_us for r in rows}
    if len(overheads) == 1 and rows:
        shared.append(f"host overhead {number_text(next(iter(overheads)))} us a call")
    shared.append("copies of inputs and outputs included" if result.include_copy else "without copies")
    return [printable(facts[0]), printable(" · ".join(shared))]


def _row_columns(rows: Sequence[ComparedRow]) -> list[TextColumn]:
    columns = [TextColumn(heading="model", cells=[r.model for r in rows], right=False, shrink=16)]
    for name, heading in (("gpu", "GPU"), ("runtime", "runtime"), ("dtype", "dtype"), ("dims", "dims")):
        cells = [str(getattr(r, name)) for r in rows]
        if len(set(cells)) > 1:
            columns.append(TextColumn(heading=heading, cells=cells, right=False, shrink=8))
    columns.append(_column("batch", [UNKNOWN if r.batch_size is None else f"{r.batch_size:,}" for r in rows]))
    if any(r.measured_ms is not None for r in rows):
        columns += [
            _column("measured ms", [number_text(r.measured_ms) for r in rows]),
            _column("estimated ms (90 %)", [_interval(r) for r in rows]),
            _column("error %", [_signed(r.error_pct) for r in rows]),
            TextColumn(heading="inside", cells=[_INSIDE[r.inside] for r in rows], right=False),
            TextColumn(heading="bound", cells=[_BOUND[r.host_bound] for r in rows], right=False),
            _column("known %", [number_text(r.coverage_pct) for r in rows]),
        ]
    for name, heading in _BRIEF:
        if any(getattr(r, f"measured_{name}") is not None for r in rows):
            columns.append(_column(heading, [_signed(_away(r, name)) for r in rows]))
    return columns


def _away(row: ComparedRow, name: str) -> float | None:
    estimated = getattr(row, name)
    measured = getattr(row, f"measured_{name}")
    if estimated is None or measured is None:
        return None
    return float(estimated - measured if name.endswith("_pct") else 100 * (estimated / measured - 1))


def _interval(row: ComparedRow) -> str:
    if row.estimated_ms is None:
        return UNKNOWN
    return f"{number_text(row.estimated_ms)} ({number_text(row.low_ms)}–{number_text(row.high_ms)})"


def _column(heading: str, cells: Sequence[str]) -> TextColumn:
    return TextColumn(heading=heading, cells=cells)


def _signed(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:+.1f}"


def _plain(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.1f}"


def _latency_columns(rows: Sequence[SummaryRow]) -> list[TextColumn]:
    return [
        TextColumn(heading="GPU or model", cells=[r.name for r in rows], right=False, shrink=12),
        _column("rows", [str(r.n) for r in rows]),
        *_error_columns(rows),
        _column("inside %", [UNKNOWN if r.inside_pct is None else f"{r.inside_pct:.0f}" for r in rows]),
        _column("roofline", [_plain(r.roofline_mean) for r in rows]),
        _column("constant", [_plain(r.constant_mean) for r in rows]),
    ]


def _other_columns(rows: Sequence[SummaryRow]) -> list[TextColumn]:
    return [
        TextColumn(heading="measure", cells=[_NAMES[r.measure] for r in rows], right=False),
        TextColumn(heading="GPU", cells=[r.name for r in rows], right=False, shrink=10),
        _column("rows", [str(r.n) for r in rows]),
        TextColumn(heading="in", cells=[r.unit for r in rows], right=False),
        *_error_columns(rows),
    ]


def _error_columns(rows: Sequence[SummaryRow]) -> list[TextColumn]:
    return [
        _column("mean", [_plain(r.mean) for r in rows]),
        _column("median", [_plain(r.median) for r in rows]),
        _column("90th", [_plain(r.p90) for r in rows]),
        _column("worst", [_plain(r.worst) for r in rows]),
        _column("bias", [_signed(r.bias) for r in rows]),
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


def trust_words(result: Evaluation) -> tuple[str, ...]:
    """Closing lines: how good the estimates are here, and where they are not."""
    lines = []
    for s in result.summarised:
        if s.measure != "latency_ms" or s.scope != "gpu":
            continue
        if s.inside_pct is None:
            inside = ""
        else:
            inside = f"; {s.inside_pct:.0f} % of the 90 % intervals hold"
        lines.append(
            f"{s.name}: latency is off by {s.median:.1f} % in the median, {s.mean:.1f} % in the mean "
            f"({s.n} rows){inside}."
        )
    models = [s for s in result.summarised if s.measure == "latency_ms" and s.scope == "model"]
    if len(models) > 2:
        worst = max(models, key=lambda s: s.mean)
        lines.append(f"Worst model: {worst.name}, {worst.mean:.1f} % in the mean (bias {worst.bias:+.1f}).")
    return tuple(lines)


def host_words(fit: HostFit) -> tuple[str, ...]:
    """What a fit of the host found, in lines."""
    parts = []
    if fit.host_overhead_us is not None:
        spread = fit.overhead_range_us
        parts.append(
            f"launch overhead {fit.host_overhead_us:.1f} us a call"
            + (f" ({spread[0]:.1f} to {spread[1]:.1f} leaving models out)" if spread else "")
        )
    if fit.copy_bytes_per_s is not None:
        rates = fit.rate_range
        parts.append(
            f"copies {fit.copy_bytes_per_s / 1e9:.2f} GB/s"
            + (f" ({rates[0] / 1e9:.2f} to {rates[1] / 1e9:.2f})" if rates else "")
        )
    after = "one model only, so not tested"
    if fit.after_pct is not None:
        after = f"{fit.after_pct[0]:.1f} % (median {fit.after_pct[1]:.1f}) with models left out one at a time"
    return (
        f"{fit.runtime}: {', '.join(parts)}; {fit.host_rows} of {fit.rows} rows host-bound; mean latency error "
        f"{fit.before_pct[0]:.1f} % (median {fit.before_pct[1]:.1f}) before, {after}.",
        *(f"{fit.runtime}: {note}" for note in fit.notes),
    )
