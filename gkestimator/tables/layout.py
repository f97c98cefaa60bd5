"""Lay out plain-text and Markdown tables: alignment, clipping and nothing else."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from gkestimator.core.escaping import markdown, printable
from gkestimator.core.records import frozen

TERMINAL_COLUMNS: ContextVar[int | None] = ContextVar("TERMINAL_COLUMNS", default=None)
"""Width of the terminal that tables are written to; None: to a file or a pipe, where they are always the same."""


@frozen
class TextColumn:
    """Hold a heading and its cells. ``shrink``: width that the column may be cut to when the table is too wide.

    A cell that is cut loses its middle: both ends tell names apart. ``drop``: on a narrow terminal columns are left out
    before names are cut, that of the lowest number first; 0: never.
    """

    heading: str
    cells: Sequence[str]
    right: bool = True
    shrink: int | None = None
    drop: int = 0


def number_columns(
    rows: Sequence[object],
    shown: Iterable[tuple[str, str, Callable[[Any], str]]],
    drop: Mapping[str, int] = MappingProxyType({}),
) -> list[TextColumn]:
    """Return a right-aligned column for each (heading, field of the rows, text of its values).

    ``drop``: by heading, as in :class:`TextColumn`.
    """
    columns = []
    for heading, field, text in shown:
        cells = [text(getattr(row, field)) for row in rows]
        columns.append(TextColumn(heading=heading, cells=cells, drop=drop.get(heading, 0)))
    return columns


def word_column(heading: str, rows: Sequence[object], field: str, *, shrink: int | None = None) -> TextColumn:
    """Return a left-aligned column of a field of the rows, as it is."""
    cells = [str(getattr(row, field)) for row in rows]
    return TextColumn(heading=heading, cells=cells, right=False, shrink=shrink)


def width(text: str) -> int:
    """Return the columns that ``text`` takes on a terminal."""
    columns = 0
    for character in text:
        if unicodedata.combining(character):
            continue
        columns += 1
        if unicodedata.east_asian_width(character) in "WF":  # wide characters take two
            columns += 1
    return columns


def clipped(text: str, limit: int) -> str:
    """Return ``text`` cut in the middle to ``limit`` columns."""
    if width(text) <= limit:
        return text
    head = (limit - 1) // 2
    return text[:head] + "…" + text[len(text) - (limit - 1 - head) :]


def text_table(columns: Sequence[TextColumn], *, limit: int = 100) -> list[str]:
    """Return the lines of a table: heading, rule, rows. Two spaces between columns, no trailing space.

    Columns that may shrink do so, the widest first, until a line has at most ``limit`` columns. On a terminal its width
    is the limit: columns are dropped first, which a last line says.
    """
    terminal = TERMINAL_COLUMNS.get()
    if terminal is None:
        return _lines(columns, limit)
    kept = list(columns)
    droppable = sorted((column for column in columns if column.drop), key=lambda column: -column.drop)
    while droppable and _whole_width(kept) > terminal:
        kept.remove(droppable.pop())
    lines = _lines(kept, terminal)
    dropped = [column.heading for column in columns if column not in kept]
    if dropped:
        said = f"too narrow for {', '.join(dropped)}: csv and json have every column"
        lines += textwrap.wrap(said, terminal, initial_indent="… ", subsequent_indent="  ")
    return lines


def _width_of(column: TextColumn) -> int:
    return max(width(printable(text)) for text in (column.heading, *column.cells))


def _whole_width(columns: Sequence[TextColumn]) -> int:
    return sum(map(_width_of, columns)) + 2 * (len(columns) - 1)


def _lines(columns: Sequence[TextColumn], limit: int) -> list[str]:
    cells = [[printable(c) for c in column.cells] for column in columns]
    widths = list(map(_width_of, columns))
    while sum(widths) + 2 * (len(widths) - 1) > limit:
        able = [i for i, c in enumerate(columns) if c.shrink is not None and widths[i] > c.shrink]
        if not able:
            break
        # One column of text at a time from the widest, so that none is cut more than it must be.
        widths[max(able, key=lambda i: widths[i])] -= 1

    def line(row: Sequence[str]) -> str:
        parts = []
        for text, size, column in zip(row, widths, columns, strict=True):
            shown = clipped(text, size)
            space = " " * (size - width(shown))
            parts.append(space + shown if column.right else shown + space)
        return "  ".join(parts).rstrip()

    heading = line([column.heading for column in columns])
    rule = "  ".join("-" * size for size in widths)
    return [heading, rule, *(line(row) for row in zip(*cells, strict=True))]


def markdown_table(columns: Sequence[TextColumn]) -> list[str]:
    """Return the same as a GitHub-flavoured Markdown table; bars in cells are escaped."""
    lines = [_markdown_line([column.heading for column in columns])]
    lines.append("|" + "|".join("---:" if column.right else "---" for column in columns) + "|")
    for row in zip(*(column.cells for column in columns), strict=True):
        lines.append(_markdown_line(row))
    return lines


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = [markdown(printable(cell).replace("\\", "\\\\").replace("|", "\\|")) for cell in cells]
    return f"| {' | '.join(escaped)} |"


def wrapped(facts: Iterable[str]) -> list[str]:
    """Return facts in lines of at most the terminal's width, or 100 letters; a fact is never broken."""
    limit = TERMINAL_COLUMNS.get() or 100
    lines: list[str] = []
    for fact in map(printable, facts):
        if lines and len(lines[-1]) + 3 + len(fact) <= limit:
            lines[-1] += " · " + fact
        else:
            lines.append(fact)
    return lines


def note_column(marks: Sequence[str]) -> list[TextColumn]:
    """Return the column of the notes' marks by row; none where no row has one."""
    if any(marks):
        return [TextColumn(heading="note", cells=marks, right=False)]
    return []


def note_lines(texts: Iterable[str]) -> list[str]:
    """Return notes as lines below a table, an empty one before them; none where there are none."""
    notes = []
    columns = TERMINAL_COLUMNS.get()
    for text in texts:
        note = printable(text)
        notes += textwrap.wrap(note, columns, subsequent_indent="   ") if columns else [note]
    if notes:
        return ["", *notes]
    return []
