"""Write what changed: a table for people, JSON, and Markdown that can be posted on a pull request.

Names of models, dimensions and kernels come from strangers' files, so in Markdown they stand in code spans, where
neither HTML nor a mention of a person has any effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from gkestimator.core.escaping import printable
from gkestimator.core.records import NamedValues, Names
from gkestimator.estimation.changes import (
    AllChanges,
    FigureChange,
    KernelChange,
    RowChange,
    breaches,
)
from gkestimator.estimation.request import ChangeLimits
from gkestimator.reporting.simulated import first_of, rendered, text_of
from gkestimator.reporting.text import figures, first_of_each, words
from gkestimator.tables import REQUIREMENTS, Requirement
from gkestimator.tables.layout import TextColumn, markdown_table, text_table
from gkestimator.tables.units import UNKNOWN, bytes_text, flops_text, number_text, signed_text, whole_text

CHANGE_SUFFIXES = {".json": "json", ".md": "markdown", ".txt": "table"}
_KERNELS_SHOWN = 20
_ROWS_SHOWN = 60
_LINES = 3  # of a row: latency, memory, FLOPs
_ARROW = " → "
_NAMING = (
    ("model", "model", 16),
    ("dims", "dims", 12),
    ("runtime", "runtime", None),
    ("dtype", "dtype", None),
    ("SM share %", "sm_share_pct", None),
    ("GPU", "gpu", 12),
    ("batch", "batch_size", None),
)
"""Columns that name a row: heading, field, and the width that they may shrink to."""
_ALWAYS = ("gpu", "batch_size")
_NAMED = ("model", "dims", "runtime", "dtype", "GPU")
_MOST_CHARACTERS = 60_000
"""GitHub takes comments of 65,536 characters."""


def render_changes(comparison: AllChanges, limits: ChangeLimits, form: str) -> bytes:
    """Return ``comparison`` as ``form``: table, json or markdown."""
    makers: dict[str, Callable[[AllChanges], str]] = {
        "table": _text,
        "json": partial(_json, limits=limits),
        "markdown": partial(_markdown, limits=limits),
    }
    return rendered(comparison, form, makers)


def change_words(comparison: AllChanges, limits: ChangeLimits) -> list[str]:
    """Return closing lines: what intervals hold, what stands in one file alone, and which limits are passed."""
    lines = [_of_intervals(comparison)]
    if comparison.only_before:
        lines.append(f"Only in OLD: {_rows_text(comparison.only_before)}")
    if comparison.only_after:
        lines.append(f"Only in NEW: {_rows_text(comparison.only_after)}")
    lines += [
        f"Fitted before and does not fit now: {row.after.model} on {row.place}"
        for row in comparison.rows
        if row.no_longer_fits
    ]
    return [*lines, *all_breaches(comparison, limits)]


def all_breaches(comparison: AllChanges, limits: ChangeLimits) -> list[str]:
    """Return a line for every limit that a row passes; none: all hold."""
    return [f"Over the limit: {text}" for row in comparison.rows for text in breaches(row, limits)]


def _of_intervals(comparison: AllChanges) -> str:
    if comparison.of_models:
        return (
            "interval: 90 %, of the kernels that differ alone, for those in both files err alike · memory and "
            "FLOPs are calculated"
        )
    return "interval: not known, for tables do not hold their kernels; equal rows differ by nothing"


def _rows_text(rows: Sequence[Requirement]) -> str:
    return first_of([f"{row.model} on {row.gpu}, batch {row.batch_size or UNKNOWN}" for row in rows], 4, "; ")


def _percent(figure: FigureChange) -> str:
    """Return the change in percent with its sign, ``0`` where there is none."""
    percent = figure.change_pct
    if percent == 0:
        return "0"
    return _signed(percent)


def _signed(percent: float | None) -> str:
    """Return a percentage with its sign, to a hundredth below one."""
    if percent is not None and abs(percent) < 0.95:
        return f"{percent:+.2f}"
    return signed_text(percent)


def _interval(figure: FigureChange) -> str:
    """Return the interval of the change in percent of what was before."""
    low = figure.percent(figure.low)
    high = figure.percent(figure.high)
    if low is None or high is None:
        return UNKNOWN
    if low == high == 0:
        return "0"
    return f"{_signed(low)} to {_signed(high)}"


def _both(before: str, after: str) -> str:
    """Return a word before and after, once where it did not change."""
    if before == after:
        return before
    return f"{before}{_ARROW}{after}"


def _columns(rows: Sequence[RowChange]) -> list[TextColumn]:
    """Return the columns of a table with three lines for each row: latency, memory and FLOPs."""
    columns = _naming_columns(rows)
    told = [line for row in rows for line in _figure_lines(row)]
    columns.append(words("", [line[0] for line in told]))
    for at, heading in enumerate(("before", "after", "change %", "interval %"), start=1):
        columns.append(TextColumn(heading=heading, cells=[line[at] for line in told]))
    return columns


def _naming_columns(rows: Sequence[RowChange]) -> list[TextColumn]:
    """Return the columns that name a row, empty in its second and third line: GPU, batch size, and what tells rows
    apart or changed itself."""
    firsts = [line == 0 for _ in rows for line in range(_LINES)]
    columns = []
    for heading, field, shrink in _NAMING:
        texts = [_both(_name(row.before, field), _name(row.after, field)) for row in rows]
        if field not in _ALWAYS and len(set(texts)) == 1 and _ARROW not in texts[0]:
            continue
        column = words(heading, [text for text in texts for _ in range(_LINES)], shrink=shrink)
        columns.append(first_of_each(column, firsts))
    return columns


def _name(row: Requirement, field: str) -> str:
    value = getattr(row, field)
    if field == "batch_size":
        return whole_text(value)
    return str(value)


def _figure_lines(row: RowChange) -> Iterator[Names]:
    """Yield name, figure before and after, change and interval of the three figures."""
    before = row.before
    after = row.after
    latency = (f"{number_text(before.latency_ms)} ms", f"{number_text(after.latency_ms)} ms")
    yield ("latency", *latency, _percent(row.latency), _interval(row.latency))
    memory = (bytes_text(before.mreq_bytes), bytes_text(after.mreq_bytes))
    yield ("memory", *memory, _percent(row.memory), "")
    work = (flops_text(before.flops), flops_text(after.flops))
    yield ("FLOPs", *work, _percent(row.flops), "")


def _kernel_columns(kernels: Sequence[KernelChange]) -> list[TextColumn]:
    return [
        words("kernel", [kernel.name for kernel in kernels], shrink=20),
        words("shape", [kernel.shape for kernel in kernels], shrink=24),
        words("launches", [_both(str(k.launches_before), str(k.launches_after)) for k in kernels]),
        figures("us before", [kernel.before_us for kernel in kernels]),
        figures("us after", [kernel.after_us for kernel in kernels]),
    ]


def _text(comparison: AllChanges) -> str:
    lines = text_table(_columns(comparison.rows), limit=110)
    for row in comparison.rows:
        if not row.kernels:
            continue
        lines += ["", f"Kernels on {row.place}: {_count_text(row.kernels)}"]
        lines += text_table(_kernel_columns(row.kernels[:_KERNELS_SHOWN]))
        lines += _left_out(row.kernels)
    return text_of(lines)


def _count_text(kernels: Sequence[KernelChange]) -> str:
    """Return how many kernels came and went, by name and shape."""
    added = sum(kernel.launches_before == 0 for kernel in kernels)
    removed = sum(kernel.launches_after == 0 for kernel in kernels)
    others = len(kernels) - added - removed
    counts = ((added, "added"), (removed, "removed"), (others, "launched more or less often"))
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def _left_out(kernels: Sequence[KernelChange]) -> list[str]:
    more = len(kernels) - _KERNELS_SHOWN
    if more <= 0:
        return []
    return [f"... and {more:,} more that differ less: see --format json"]


def _json(comparison: AllChanges, limits: ChangeLimits) -> str:
    document = {
        "compared": "models" if comparison.of_models else "tables",
        "rows": [_row_values(row, limits) for row in comparison.rows],
        "only_before": [_key_values(row) for row in comparison.only_before],
        "only_after": [_key_values(row) for row in comparison.only_after],
        "within_limits": not all_breaches(comparison, limits),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _key_values(row: Requirement) -> NamedValues:
    return {name: getattr(row, name) for name in REQUIREMENTS.key}


def _row_values(row: RowChange, limits: ChangeLimits) -> NamedValues:
    kernels = None
    if row.kernels is not None:
        kernels = [
            {name: getattr(kernel, name) for name in (*_KERNEL_FIELDS, "change_us")} for kernel in row.kernels
        ]
    return {
        "before": _key_values(row.before),
        "after": _key_values(row.after),
        "latency_ms": _figure_values(row.latency),
        "memory_bytes": _figure_values(row.memory),
        "flops": _figure_values(row.flops),
        "no_longer_fits": row.no_longer_fits,
        "over": breaches(row, limits),
        "kernels": kernels,
    }


_KERNEL_FIELDS = ("name", "shape", "launches_before", "launches_after", "before_us", "after_us")


def _figure_values(figure: FigureChange) -> NamedValues:
    return {
        "before": figure.before,
        "after": figure.after,
        "change": figure.change,
        "change_low": figure.low,
        "change_high": figure.high,
        "change_pct": figure.change_pct,
        "change_low_pct": figure.percent(figure.low),
        "change_high_pct": figure.percent(figure.high),
    }


def _code(text: str) -> str:
    """Return ``text`` as a code span, in which nothing of it means anything to Markdown."""
    plain = printable(text).replace("`", "'")
    return f"`{plain}`" if plain else ""


def _in_code(column: TextColumn) -> TextColumn:
    return TextColumn(
        heading=column.heading, cells=[_code(cell) for cell in column.cells], right=column.right
    )


def _named_in_code(columns: Sequence[TextColumn]) -> list[TextColumn]:
    """Return ``columns`` with the texts of strangers' files as code."""
    return [_in_code(column) if column.heading in _NAMED else column for column in columns]


def _markdown(comparison: AllChanges, limits: ChangeLimits) -> str:
    rows = comparison.rows[:_ROWS_SHOWN]
    over = all_breaches(comparison, limits)
    names = sorted({_both(row.before.model, row.after.model) for row in comparison.rows})
    blocks = [
        f"**{_headline(comparison, limits, bool(over))}** ({first_of([_code(name) for name in names], 3)})",
        "\n".join(markdown_table(_named_in_code(_columns(rows)))),
    ]
    if len(comparison.rows) > len(rows):
        blocks.append(f"... and {len(comparison.rows) - len(rows):,} more rows: see `--format json`")
    if over:
        blocks.append("\n".join(f"- {_code(line)}" for line in over[:_ROWS_SHOWN]))
    notes = [line for line in change_words(comparison, ChangeLimits()) if line]
    folded = [_folded("How to read this", "\n".join(f"- {_told(line)}" for line in notes))]
    folded += [_kernel_block(row) for row in rows if row.kernels]
    room = _MOST_CHARACTERS - sum(len(block) + 2 for block in blocks)
    for block in folded:
        room -= len(block) + 2
        if room < 0:
            blocks.append("More kernels than a comment holds: see `--format json`")
            break
        blocks.append(block)
    return "\n\n".join(blocks) + "\n"


def _told(line: str) -> str:
    """Return a closing line with what names may stand in it, behind the colon, as code."""
    head, colon, names = line.partition(": ")
    if head.startswith(("Only in", "Fitted")):
        return f"{head}{colon}{_code(names)}"
    return line


def _headline(comparison: AllChanges, limits: ChangeLimits, over: bool) -> str:
    """Return the largest changes in one line, and whether they are allowed."""
    parts = []
    for what, field in (("latency", "latency"), ("memory", "memory"), ("FLOPs", "flops")):
        percents = [getattr(row, field).change_pct for row in comparison.rows]
        known = [percent for percent in percents if percent is not None]
        if len(known) < len(percents):
            parts.append(f"{what} not known everywhere")
            continue
        ends = list(dict.fromkeys(f"{end:+.1f}" if end else "0" for end in (min(known), max(known))))
        parts.append(f"{what} {' to '.join(ends)} %")
    verdict = ""
    if over:
        verdict = "Over the limit: "
    elif limits != ChangeLimits():
        verdict = "Within the limits: "
    return f"{verdict}{', '.join(parts)}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _kernel_block(row: RowChange) -> str:
    kernels = row.kernels or ()
    columns = _kernel_columns(kernels[:_KERNELS_SHOWN])
    table = markdown_table([_in_code(columns[0]), _in_code(columns[1]), *columns[2:]])
    # A summary is HTML, so that only what this program wrote may stand in it; the rest stands below, as code.
    body = "\n".join([_code(row.place), "", *table, *_left_out(kernels)])
    return _folded(f"Kernels: {_count_text(kernels)} (batch {row.after.batch_size or UNKNOWN})", body)
