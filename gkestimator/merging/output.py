"""Render the report of a merge for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from gkestimator.core.errors import UsageError
from gkestimator.core.escaping import printable, utf8
from gkestimator.merging.planned import PlannedMerge
from gkestimator.merging.pricing import Price
from gkestimator.merging.report import MergedModel, MergeReport, ReportedOperator
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, text_table
from gkestimator.tables.units import UNKNOWN, bytes_text, flops_text, number_text

TextColumns: TypeAlias = "list[TextColumn]"

REPORT_FORMATS = ("table", "json", "markdown")


def render_report(report: MergeReport, form: str) -> bytes:
    """Return ``report`` as ``table``, ``markdown`` or ``json``, UTF-8. Raises UsageError for another form."""
    if form == "json":
        return json_bytes(report.document())
    return utf8("\n".join(_lines(report, _table(form))) + "\n")


def planned_output(merged: PlannedMerge, form: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the index of ``merged`` as ``json``, or the reports of all its sets; and the words that close
    the run.
    """
    words: list[str] = []
    for chosen, result in merged.results:
        where = ", ".join(chosen.gpus[:4])
        if len(chosen.gpus) > 4:
            where += f" and {len(chosen.gpus) - 4:,} more"
        words += [f"{where}: {line}" for line in result.report.words()]
    if not merged.results and not merged.failures:
        words.append("Nothing was merged: no GPU of the plan holds two models.")
    if form == "json":
        return json_bytes(merged.index), tuple(words)
    mark = ""
    if form == "markdown":
        mark = "## "
    blocks: list[list[str]] = []
    for chosen, result in merged.results:
        blocks.append([f"{mark}{', '.join(chosen.gpus)}"])
        blocks.append(_lines(result.report, _table(form)))
    for chosen, error in merged.failures:
        blocks.append([f"{mark}{', '.join(chosen.gpus)}: not merged: {error}"])
    lines = _blocks(*blocks) or ["no GPU of the plan holds two models"]
    return utf8("\n".join(map(printable, lines)) + "\n"), tuple(words)


_Row = TypeVar("_Row")
_Table = Callable[[Sequence[TextColumn]], list[str]]


def _table(form: str) -> _Table:
    tables: dict[str, _Table] = {"table": text_table, "markdown": markdown_table}
    if form not in tables:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(REPORT_FORMATS)}")
    return tables[form]


def _blocks(*blocks: Sequence[str]) -> list[str]:
    """Return the blocks that are not empty, a blank line between."""
    lines: list[str] = []
    for block in filter(None, blocks):
        if lines:
            lines.append("")
        lines += block
    return lines


def _lines(report: MergeReport, table: _Table) -> list[str]:
    settings = report.settings
    lead = ""
    if table is markdown_table:
        lead = "- "  # else its lines run together
    tau = "any start"
    if settings.tau_ms is not None:
        tau = f"tau {settings.tau_ms:g} ms"
    price = f"merged where {settings.price} falls"
    if settings.always:
        price = "merged whatever the price"
    head = (
        f"{settings.gpu} · {settings.runtime} · dtype {settings.dtype} · {price}",
        f"omega {settings.omega:g} · tolerance {settings.tolerance:g} · {tau}",
    )
    tables = [_models(report)]
    if report.merged:
        tables.append(_operators(report))
    if report.regions:
        tables.append(_regions(report))
    tables.append(_costs(report))
    return _blocks(
        [lead + printable(line) for line in head],
        *map(table, tables),
        [lead + printable(line) for line in _sizes(report)],
    )


def _column(heading: str, rows: Sequence[_Row], cell: Callable[[_Row], str]) -> TextColumn:
    return TextColumn(heading=heading, cells=[cell(row) for row in rows])


def _text(heading: str, rows: Sequence[_Row], cell: Callable[[_Row], str], shrink: int = 8) -> TextColumn:
    return TextColumn(heading=heading, cells=[cell(row) for row in rows], right=False, shrink=shrink)


def _models(report: MergeReport) -> TextColumns:
    models = report.models
    columns = [
        _text("model", models, lambda model: model.name),
        _column("group", models, lambda model: str(model.group)),
        _column("operators", models, lambda model: f"{model.operators:,}"),
        _column("weights", models, lambda model: bytes_text(model.weight_bytes)),
        _column("batch", models, lambda model: f"{model.batch_size:,}"),
    ]
    if any(model.dims for model in models):
        columns.append(_text("dims", models, _dims))
    return columns


def _dims(model: MergedModel) -> str:
    return ",".join(f"{name}={size}" for name, size in sorted(model.dims.items()))


def _operators(report: MergeReport) -> TextColumns:
    merged = report.merged
    columns = [
        _text("operators", merged, lambda operator: operator.operators[0], 12),
        _column("of", merged, lambda operator: str(len(operator.operators))),
        _text("kind", merged, lambda operator: operator.kind),
        _column("block", merged, _block),
        _column("similar", merged, lambda operator: number_text(operator.similarity)),
        _column("saved", merged, lambda operator: bytes_text(operator.saved_bytes)),
    ]
    if any(operator.extra_flops for operator in merged):  # else the names have more room
        columns.append(_column("extra work", merged, lambda operator: _more(operator.extra_flops)))
    return [
        *columns,
        _text("in L2", merged, lambda operator: _yes(operator.block_fits_l2)),
        _column("region", merged, lambda operator: str(operator.region)),
        _text("merged", merged, lambda operator: "yes" if operator.merged else "no: price"),
    ]


def _block(operator: ReportedOperator) -> str:
    block = f"{operator.rows:,} x {operator.columns:,}"
    if operator.whole:
        return block
    return f"{block} of more"


def _yes(answer: bool) -> str:
    if answer:
        return "yes"
    return "no"


def _more(flops: int | None) -> str:
    """Return work that is added; what lifting saves has a minus."""
    if flops is not None and flops < 0:
        return f"-{flops_text(-flops)}"
    return flops_text(flops)


def _regions(report: MergeReport) -> TextColumns:
    regions = report.regions
    return [
        TextColumn(heading="region", cells=[str(number) for number in range(len(regions))]),
        _column("operators before", regions, lambda region: f"{region.replaced:,}"),
        _column("after", regions, lambda region: f"{region.operators:,}"),
        _column("latency ms before", regions, lambda region: number_text(region.before.latency_ms)),
        _column("after", regions, lambda region: number_text(region.after.latency_ms)),
        _column("GPU ms before", regions, lambda region: number_text(region.before.gpu_ms)),
        _column("after", regions, lambda region: number_text(region.after.gpu_ms)),
        _text("pays", regions, lambda region: _yes(region.pays)),
    ]


def _costs(report: MergeReport) -> TextColumns:
    costs = (report.before, report.after)
    names = ("models one by one", "merged")
    if report.nothing:
        names = ("models one by one", "side by side")
    return [
        TextColumn(heading="version", cells=names, right=False, shrink=8),
        _column("latency ms", costs, _interval),
        _column("GPU ms", costs, lambda cost: number_text(cost.gpu_ms)),
        _column("DRAM", costs, lambda cost: bytes_text(cost.dram_bytes)),
        _column("weights read", costs, lambda cost: bytes_text(cost.weight_bytes)),
        _column("work", costs, lambda cost: flops_text(cost.flops)),
        _column("kernels", costs, lambda cost: f"{cost.kernels:,}"),
        _column("calls", costs, lambda cost: f"{cost.calls:,}"),
    ]


def _interval(cost: Price) -> str:
    latency = number_text(cost.latency_ms)
    if cost.latency_low_ms is None or cost.latency_high_ms is None:
        return latency
    return f"{latency} ({number_text(cost.latency_low_ms)}–{number_text(cost.latency_high_ms)})"


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
    worst = UNKNOWN
    if check.largest_relative_difference is not None:
        worst = f"{check.largest_relative_difference:.2g}"
    lines.append(
        f"outputs: largest relative difference {worst} over {check.samples:,} random inputs of each model"
    )
    if check.class_changed_pct is not None:
        lines.append(
            f"predicted class: changed in {check.changed_predictions:,} of {check.predictions:,} "
            f"({number_text(check.class_changed_pct)} %)"
        )
    for output in check.outputs:
        if output.problem:
            lines.append(f"output {output.model}/{output.output}: {output.problem}")
    return lines
