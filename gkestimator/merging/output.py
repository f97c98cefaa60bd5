"""The report of a merge for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.merging.editing import Names
from gkestimator.merging.planned import PlannedMerge
from gkestimator.merging.pricing import Price
from gkestimator.merging.report import MergeReport
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, printable, text_table
from gkestimator.tables.units import UNKNOWN, bytes_text, flops_text, number_text

REPORT_FORMATS = ("table", "json", "markdown")


def render_report(report: MergeReport, form: str) -> bytes:
    """``report`` as ``table``, ``markdown`` or ``json``, UTF-8. Raises UsageError for another form."""
    if form == "json":
        return json_bytes(report.document())
    return ("\n".join(_lines(report, _table(form))) + "\n").encode()


def planned_output(found: PlannedMerge, form: str) -> tuple[bytes, Names]:
    """The index of ``found`` as ``json``, or the reports of all its sets; and the words that close the run."""
    words: list[str] = []
    for chosen, result in found.results:
        where = ", ".join(chosen.gpus[:4]) + (
            f" and {len(chosen.gpus) - 4:,} more" if len(chosen.gpus) > 4 else ""
        )
        words += [f"{where}: {line}" for line in result.report.words()]
    if not found.results and not found.failures:
        words.append("Nothing was merged: no GPU of the plan holds two models.")
    if form == "json":
        return json_bytes(found.index), tuple(words)
    if form == "markdown":
        mark = "## "
    else:
        mark = ""
    blocks = []
    for chosen, result in found.results:
        blocks += [[f"{mark}{', '.join(chosen.gpus)}"], _lines(result.report, _table(form))]
    for chosen, error in found.failures:
        blocks.append([f"{mark}{', '.join(chosen.gpus)}: not merged: {error}"])
    lines = _blocks(*blocks) or ["no GPU of the plan holds two models"]
    return ("\n".join(printable(line) for line in lines) + "\n").encode(), tuple(words)


_Table = Callable[[Sequence[TextColumn]], list[str]]


def _table(form: str) -> _Table:
    tables: dict[str, _Table] = {"table": text_table, "markdown": markdown_table}
    if form not in tables:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(REPORT_FORMATS)}")
    return tables[form]


def _blocks(*blocks: Sequence[str]) -> list[str]:
    """The blocks that are not empty, a blank line between."""
    found: list[str] = []
    for block in filter(None, blocks):
        found += [""] * bool(found) + list(block)
    return found


def _lines(report: MergeReport, table: _Table) -> list[str]:
    s = report.settings
    lead = "- " if table is markdown_table else ""  # else its lines run together
    if s.tau_ms is None:
        tau = "any start"
    else:
        tau = f"tau {s.tau_ms:g} ms"
    if s.always:
        price = "merged whatever the price"
    else:
        price = f"merged where {s.price} falls"
    head = (
        f"{s.gpu} · {s.runtime} · dtype {s.dtype} · {price}",
        f"omega {s.omega:g} · tolerance {s.tolerance:g} · {tau}",
    )
    return _blocks(
        [lead + printable(line) for line in head],
        table(_models(report)),
        table(_operators(report)) if report.merged else [],
        table(_regions(report)) if report.regions else [],
        table(_costs(report)),
        [lead + printable(line) for line in _sizes(report)],
    )


def _column(heading: str, cells: Sequence[str]) -> TextColumn:
    return TextColumn(heading=heading, cells=cells)


def _text(heading: str, cells: Sequence[str], shrink: int = 8) -> TextColumn:
    return TextColumn(heading=heading, cells=cells, right=False, shrink=shrink)


def _models(report: MergeReport) -> list[TextColumn]:
    models = report.models
    columns = [
        _text("model", [model.name for model in models]),
        _column("group", [str(model.group) for model in models]),
        _column("operators", [f"{model.operators:,}" for model in models]),
        _column("weights", [bytes_text(model.weight_bytes) for model in models]),
        _column("batch", [f"{model.batch_size:,}" for model in models]),
    ]
    if any(model.dims for model in models):
        columns.append(
            _text("dims", [",".join(f"{k}={v}" for k, v in sorted(model.dims.items())) for model in models])
        )
    return columns


def _operators(report: MergeReport) -> list[TextColumn]:
    found = report.merged
    columns = [
        _text("operators", [o.operators[0] for o in found], 12),
        _column("of", [str(len(o.operators)) for o in found]),
        _text("kind", [o.kind for o in found]),
        _column("block", [f"{o.rows:,} x {o.columns:,}{'' if o.whole else ' of more'}" for o in found]),
        _column("similar", [number_text(o.similarity) for o in found]),
        _column("saved", [bytes_text(o.saved_bytes) for o in found]),
    ]
    if any(o.extra_flops for o in found):  # else the names have more room
        columns.append(_column("extra work", [_more(o.extra_flops) for o in found]))
    return [
        *columns,
        _text("in L2", ["yes" if o.block_fits_l2 else "no" for o in found]),
        _column("region", [str(o.region) for o in found]),
        _text("merged", ["yes" if o.merged else "no: price" for o in found]),
    ]


def _more(flops: int | None) -> str:
    """Work that is added; what lifting saves has a minus."""
    if flops is not None and flops < 0:
        return f"-{flops_text(-flops)}"
    return flops_text(flops)


def _regions(report: MergeReport) -> list[TextColumn]:
    found = report.regions
    return [
        _column("region", [str(i) for i in range(len(found))]),
        _column("operators before", [f"{r.replaced:,}" for r in found]),
        _column("after", [f"{r.operators:,}" for r in found]),
        _column("latency ms before", [number_text(r.before.latency_ms) for r in found]),
        _column("after", [number_text(r.after.latency_ms) for r in found]),
        _column("GPU ms before", [number_text(r.before.gpu_ms) for r in found]),
        _column("after", [number_text(r.after.gpu_ms) for r in found]),
        _text("pays", ["yes" if r.pays else "no" for r in found]),
    ]


def _costs(report: MergeReport) -> list[TextColumn]:
    rows = (
        ("models one by one", report.before),
        ("side by side" if report.nothing else "merged", report.after),
    )
    return [
        _text("version", [name for name, _ in rows]),
        _column("latency ms", [_interval(c) for _, c in rows]),
        _column("GPU ms", [number_text(c.gpu_ms) for _, c in rows]),
        _column("DRAM", [bytes_text(c.dram_bytes) for _, c in rows]),
        _column("weights read", [bytes_text(c.weight_bytes) for _, c in rows]),
        _column("work", [flops_text(c.flops) for _, c in rows]),
        _column("kernels", [f"{c.kernels:,}" for _, c in rows]),
        _column("calls", [f"{c.calls:,}" for _, c in rows]),
    ]


def _interval(cost: Price) -> str:
    if cost.latency_low_ms is None or cost.latency_high_ms is None:
        return number_text(cost.latency_ms)
    return f"{number_text(cost.latency_ms)} ({number_text(cost.latency_low_ms)}–{number_text(cost.latency_high_ms)})"


def _sizes(report: MergeReport) -> list[str]:
    own = sum(model.weight_bytes for model in report.models)
    lines = [
        f"weights: {bytes_text(own)} in the models' files, {bytes_text(report.stored_bytes)} merged; "
        f"{bytes_text(report.saved_bytes)} less to read",
        f"extra work: {_more(report.after.flops - report.before.flops)}",
    ]
    check = report.check
    if check is None:
        return [*lines, f"outputs: not compared: {report.check_reason}"]
    if check.largest_relative_difference is None:
        worst = UNKNOWN
    else:
        worst = f"{check.largest_relative_difference:.2g}"
    lines.append(
        f"outputs: largest relative difference {worst} over {check.samples:,} random inputs of each model"
    )
    if check.class_changed_pct is not None:
        lines.append(
            f"predicted class: changed in {check.changed_predictions:,} of {check.predictions:,} "
            f"({number_text(check.class_changed_pct)} %)"
        )
    problems = [f"output {o.model}/{o.output}: {o.problem}" for o in check.outputs if o.problem]
    return [*lines, *problems]
