"""The requirement table and the kernel listing for people: which columns to show at 100 columns, and in
what units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from gkestimator.tables.kernel_rows import KernelRow
from gkestimator.tables.layout import TextColumn, markdown_table, printable, text_table
from gkestimator.tables.requirement import Requirement
from gkestimator.tables.units import UNKNOWN, bytes_text, flops_text, number_text, percent_text

_BOUND = {True: "host", False: "GPU", None: UNKNOWN}


def requirements_text(rows: Sequence[Requirement]) -> str:
    """The table as plain text: what all rows share stands above it, what they warn of below it."""
    if not rows:
        return "no rows\n"
    shared, columns = _requirement_columns(rows)
    lines = [*shared, "", *text_table(columns), *_footnotes(rows)]
    return "\n".join(lines) + "\n"


def requirements_markdown(rows: Sequence[Requirement]) -> str:
    """The table as Markdown."""
    if not rows:
        return "no rows\n"
    shared, columns = _requirement_columns(rows)
    notes = [f"- {line.strip()}" for line in _footnotes(rows) if line.strip()]
    lines = ["  \n".join(shared), "", *markdown_table(columns), *([""] if notes else []), *notes]
    return "\n".join(lines) + "\n"


def _requirement_columns(rows: Sequence[Requirement]) -> tuple[list[str], list[TextColumn]]:
    marks = _warning_marks(rows)
    shared: list[str] = []
    columns = [
        TextColumn(heading="model", cells=[r.model for r in rows], right=False, shrink=10),
        TextColumn(heading="GPU", cells=[r.gpu for r in rows], right=False, shrink=10),
    ]
    for heading, label, cells in (
        ("runtime", "runtime", [r.runtime for r in rows]),
        ("dtype", "dtype", [r.dtype for r in rows]),
        ("dims", "dims", [r.dims for r in rows]),
        ("SM share", "SM share", [f"{r.sm_share_pct:g} %" for r in rows]),
    ):
        if len(set(cells)) > 1:
            columns.append(TextColumn(heading=heading, cells=cells, right=False, shrink=10))
        elif cells[0] and not (label == "SM share" and cells[0] == "100 %"):
            shared.append(f"{label} {cells[0]}")
    overheads = {r.host_overhead_us for r in rows}
    if len(overheads) == 1 and None not in overheads:
        shared.append(f"host overhead {number_text(overheads.pop())} us a call")
    for label, sources in (
        ("times", {r.source for r in rows}),
        ("occupancy", {r.occupancy_source for r in rows}),
        ("memory", {r.memory_source for r in rows}),
    ):
        known = sorted(s for s in sources if s)
        if known:
            shared.append(f"{label} {' and '.join(known)}")
    columns += [
        _column("batch", [UNKNOWN if r.batch_size is None else f"{r.batch_size:,}" for r in rows]),
        _column("latency ms (90 %)", [_latency(r) for r in rows]),
        _column("per s", [number_text(r.throughput_rps) for r in rows]),
        _column("memory", [bytes_text(r.mreq_bytes) for r in rows]),
        _column("mem %", [percent_text(r.mreq_pct) for r in rows]),
        _column("SM %", [percent_text(r.sm_util_mean_pct) for r in rows]),
        _column("known %", [percent_text(r.coverage_pct) for r in rows]),
        TextColumn(heading="bound", cells=[_BOUND[r.host_bound] for r in rows], right=False),
    ]
    if any(marks):
        columns.append(TextColumn(heading="note", cells=marks, right=False))
    return [printable(line) for line in _wrapped(shared)], columns


def _column(heading: str, cells: Sequence[str]) -> TextColumn:
    return TextColumn(heading=heading, cells=cells)


def _latency(row: Requirement) -> str:
    if row.latency_low_ms is None and row.latency_high_ms is None:
        return number_text(row.latency_ms)
    ends = f"{number_text(row.latency_low_ms)}–{number_text(row.latency_high_ms)}"
    if row.latency_high_ms is None:
        ends = f"at least {number_text(row.latency_low_ms)}"
    return f"{number_text(row.latency_ms)} ({ends})"


def _wrapped(facts: Iterable[str], *, limit: int = 100) -> list[str]:
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= limit:
            lines[-1] += " · " + fact
        else:
            lines.append(fact)
    return lines


def _notes(rows: Sequence[Requirement]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for row in rows:
        for warning in _warnings_of(row):
            numbers.setdefault(warning, len(numbers) + 1)
    return numbers


def _warnings_of(row: Requirement) -> list[str]:
    return [w for w in row.warnings.split("; ") if w]


def _warning_marks(rows: Sequence[Requirement]) -> list[str]:
    """Numbers of the notes that hold for some rows only; what holds for all needs no mark."""
    numbers = _notes(rows)
    common = set.intersection(*(set(_warnings_of(r)) for r in rows))
    return [",".join(str(numbers[w]) for w in _warnings_of(r) if w not in common) for r in rows]


def _footnotes(rows: Sequence[Requirement]) -> list[str]:
    notes = [printable(f"{number}: {text}") for text, number in _notes(rows).items()]
    if notes:
        return ["", *notes]
    return []


def _kernel_columns(rows: Sequence[KernelRow]) -> list[TextColumn]:
    columns = [
        _column("#", [str(r.index) for r in rows]),
        TextColumn(heading="operator", cells=[r.operator for r in rows], right=False, shrink=10),
        TextColumn(heading="kernel", cells=[r.kernel for r in rows], right=False, shrink=10),
        _column("us", [number_text(r.duration_us) for r in rows]),
        _column("share %", [percent_text(r.share_pct) for r in rows]),
        TextColumn(heading="bound", cells=[r.bound_by or UNKNOWN for r in rows], right=False),
        _column("work", [flops_text(r.flops) for r in rows]),
        _column("DRAM", [bytes_text(r.dram_bytes) for r in rows]),
        _column("SM %", [percent_text(r.sm_util_pct) for r in rows]),
    ]
    if any(r.launches != 1 for r in rows):
        columns.insert(3, _column("runs", [str(r.launches) for r in rows]))
    return columns


def _grouped(
    rows: Sequence[KernelRow], render: Callable[[Sequence[KernelRow]], list[str]], title: str
) -> str:
    blocks = []
    for key, group in groupby(
        rows, key=lambda r: (r.model, r.gpu, r.runtime, r.dtype, r.batch_size, r.dims, r.sm_share_pct)
    ):
        model, gpu, runtime, dtype, batch, dims, share = key
        words = [
            f"{model} on {gpu}",
            f"runtime {runtime}",
            f"dtype {dtype}",
            f"batch {UNKNOWN if batch is None else batch}",
        ]
        words += [f"dims {dims}"] if dims else []
        words += [f"SM share {share:g} %"] if share != 100 else []
        blocks.append("\n".join([title + printable(", ".join(words)), "", *render(list(group))]) + "\n")
    return "\n".join(blocks) if blocks else "no kernels\n"


def kernels_text(rows: Sequence[KernelRow]) -> str:
    """Every kernel of every estimate, in launch order, one table per estimate."""
    return _grouped(rows, lambda group: text_table(_kernel_columns(group)), "")


def kernels_markdown(rows: Sequence[KernelRow]) -> str:
    """The same as Markdown."""
    return _grouped(rows, lambda group: markdown_table(_kernel_columns(group)), "### ")
