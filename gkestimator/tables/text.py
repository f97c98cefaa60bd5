"""Show the requirement table and the kernel listing to people: the columns that fit a line, their units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

from gkestimator.core.escaping import printable
from gkestimator.tables.kernel_rows import KernelRow
from gkestimator.tables.layout import (
    TextColumn,
    markdown_table,
    note_column,
    note_lines,
    number_columns,
    text_table,
    word_column,
    wrapped,
)
from gkestimator.tables.notes import Footnotes
from gkestimator.tables.requirement import Requirement, RequirementRows, cpu_lines
from gkestimator.tables.units import UNKNOWN, bytes_text, flops_text, number_text, percent_text, whole_text

_Shown: TypeAlias = tuple[str, str, Callable[[Any], str]]
"""Heading, field of the rows, text of its values."""

_TIMES: tuple[_Shown, ...] = (("GPU ms", "gpu_ms", number_text), ("host ms", "host_ms", number_text))
_NUMBERS = (
    ("memory", "mreq_bytes", bytes_text),
    ("SM %", "sm_util_mean_pct", percent_text),
    ("known %", "coverage_pct", percent_text),
)
_POWER: tuple[_Shown, ...] = (("W", "power_w", number_text),)
_WIDTH = 110
_DROP = {"known %": 1, "W": 2, "host ms": 3, "GPU ms": 4, "binds": 5, "SM %": 6}
"""Which columns a narrow terminal does without, the first first."""
_DROP_OF_KERNELS = {"SM %": 1, "DRAM": 2, "work": 3, "bound": 4, "share %": 5}
_BOUND = {True: "host", False: "GPU", None: UNKNOWN}


def requirements_text(rows: RequirementRows) -> str:
    """Return the table as plain text: what all rows share stands above it, what they warn of below it."""
    if not rows:
        return "no rows\n"
    alone, rows = _without_cpu_models(rows)
    if not rows:
        return alone
    shared, columns = _requirement_columns(rows)
    lines = [*shared, "", *text_table(columns, limit=_WIDTH), *_footnotes(rows)]
    return alone + "\n".join(lines) + "\n"


def _without_cpu_models(rows: RequirementRows) -> tuple[str, RequirementRows]:
    """Return a line on each model that runs on the CPU alone, and the rows of the others: figures of a GPU would
    mislead.
    """
    lines = [f"{printable(line)}\n" for line in cpu_lines(rows)]
    return "".join(lines), [row for row in rows if not row.runs_on_cpu_alone]


def requirements_markdown(rows: RequirementRows) -> str:
    """Return the table as Markdown."""
    if not rows:
        return "no rows\n"
    alone, rows = _without_cpu_models(rows)
    if not rows:
        return alone
    shared, columns = _requirement_columns(rows)
    lines = ["  \n".join(shared), "", *markdown_table(columns)]
    for line in _footnotes(rows):
        lines.append(f"- {line.strip()}" if line else "")
    return f"{alone}\n" * bool(alone) + "\n".join(lines) + "\n"


def _requirement_columns(rows: RequirementRows) -> tuple[list[str], list[TextColumn]]:
    """Return what all rows share, in words, and the columns that differ or matter."""
    columns = [word_column("model", rows, "model", shrink=7), word_column("GPU", rows, "gpu", shrink=7)]
    shared = []
    for name in ("runtime", "dtype", "dims"):
        column = word_column(name, rows, name, shrink=10)
        if len(set(column.cells)) > 1:
            columns.append(column)
        elif column.cells[0]:
            shared.append(f"{name} {column.cells[0]}")
    shares = [f"{r.sm_share_pct:g} %" for r in rows]
    if len(set(shares)) > 1:
        columns.append(TextColumn(heading="SM share", cells=shares, right=False, shrink=10))
    elif shares[0] != "100 %":
        shared.append(f"SM share {shares[0]}")
    columns += number_columns(rows, [("batch", "batch_size", whole_text)])
    columns.append(TextColumn(heading="latency ms (90 %)", cells=[_latency(r) for r in rows]))
    bound = [_BOUND[r.host_bound] for r in rows]
    columns += _known_columns(rows, _TIMES)
    columns.append(TextColumn(heading="binds", cells=bound, right=False, drop=_DROP["binds"]))
    columns += _known_columns(rows, _POWER)
    columns += number_columns(rows, _NUMBERS, _DROP)
    columns += note_column(Footnotes.of([row.warnings for row in rows]).marks)
    shared += _provenance(rows)
    return wrapped(shared), columns


def _known_columns(rows: RequirementRows, shown: Iterable[_Shown]) -> list[TextColumn]:
    """Return those of the columns in which some row has a value: older tables and most GPUs lack some wholly."""
    known = [column for column in shown if any(getattr(r, column[1]) is not None for r in rows)]
    return number_columns(rows, known, _DROP)


def _provenance(rows: RequirementRows) -> Iterator[str]:
    """Yield where the figures are from: the host's overhead where all rows took the same, and the sources."""
    overheads = {r.host_overhead_us for r in rows}
    if len(overheads) == 1 and None not in overheads:
        yield f"host overhead {number_text(overheads.pop())} us a call"
    for label, name in (("times", "source"), ("occupancy", "occupancy_source"), ("memory", "memory_source")):
        sources = {getattr(r, name) for r in rows} - {None, ""}
        if sources:
            yield f"{label} {' and '.join(sorted(sources))}"


def _latency(row: Requirement) -> str:
    if row.latency_low_ms is None and row.latency_high_ms is None:
        return number_text(row.latency_ms)
    ends = f"{number_text(row.latency_low_ms)}–{number_text(row.latency_high_ms)}"
    if row.latency_high_ms is None:
        ends = f"at least {number_text(row.latency_low_ms)}"
    return f"{number_text(row.latency_ms)} ({ends})"


def _footnotes(rows: RequirementRows) -> list[str]:
    return note_lines(Footnotes.of([row.warnings for row in rows]).texts)


def _kernel_columns(rows: Sequence[KernelRow]) -> list[TextColumn]:
    columns = number_columns(rows, [("#", "index", str)])
    columns.append(word_column("operator", rows, "operator", shrink=10))
    columns.append(word_column("kernel", rows, "kernel", shrink=10))
    if any(r.launches != 1 for r in rows):
        columns += number_columns(rows, [("runs", "launches", str)])
    columns += number_columns(
        rows,
        [("us", "duration_us", number_text), ("share %", "share_pct", percent_text)],
        _DROP_OF_KERNELS,
    )
    bound = [r.bound_by or UNKNOWN for r in rows]
    columns.append(TextColumn(heading="bound", cells=bound, right=False, drop=_DROP_OF_KERNELS["bound"]))
    work = [("work", "flops", flops_text), ("DRAM", "dram_bytes", bytes_text)]
    return columns + number_columns(rows, [*work, ("SM %", "sm_util_pct", percent_text)], _DROP_OF_KERNELS)


def _grouped(
    rows: Sequence[KernelRow], render: Callable[[Sequence[TextColumn]], list[str]], title: str
) -> str:
    """Return one table per estimate under its title."""
    blocks = []
    # One estimate's kernels stand together, for they are made in launch order.
    for heading, group in groupby(rows, key=_heading):
        lines = [title + printable(heading), "", *render(_kernel_columns(list(group)))]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks) or "no kernels\n"


def _heading(row: KernelRow) -> str:
    batch = UNKNOWN if row.batch_size is None else row.batch_size
    words = [f"{row.model} on {row.gpu}", f"runtime {row.runtime}", f"dtype {row.dtype}", f"batch {batch}"]
    if row.dims:
        words.append(f"dims {row.dims}")
    if row.sm_share_pct != 100:
        words.append(f"SM share {row.sm_share_pct:g} %")
    return ", ".join(words)


def kernels_text(rows: Sequence[KernelRow]) -> str:
    """Return every kernel of every estimate, in launch order, one table per estimate."""
    return _grouped(rows, text_table, "")


def kernels_markdown(rows: Sequence[KernelRow]) -> str:
    """Return the same as Markdown."""
    return _grouped(rows, markdown_table, "### ")
