"""Plain-text and Markdown tables from ready-made cells: alignment, clipping and nothing else."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from gkestimator.core.records import frozen


@frozen
class TextColumn:
    """A heading and its cells. ``shrink``: width that the column may be cut to when the table is too wide.

    A cell that is cut loses its middle: both ends tell names apart.
    """

    heading: str
    cells: Sequence[str]
    right: bool = True
    shrink: int | None = None


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal (East Asian wide characters take two)."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def printable(text: str) -> str:
    """``text`` without control characters: names come from files and must not steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def clipped(text: str, limit: int) -> str:
    """``text`` cut in the middle to ``limit`` columns."""
    if width(text) <= limit:
        return text
    head = (limit - 1) // 2
    return text[:head] + "…" + text[len(text) - (limit - 1 - head) :]


def text_table(columns: Sequence[TextColumn], *, limit: int = 100) -> list[str]:
    """Lines of a table: heading, rule, rows. Two spaces between columns, no trailing space.

    Columns that may shrink do so, the widest first, until a line has at most ``limit`` columns.
    """
    cells = [[printable(c) for c in column.cells] for column in columns]
    widths = [
        max([width(column.heading), *(width(c) for c in body)])
        for column, body in zip(columns, cells, strict=True)
    ]
    while sum(widths) + 2 * (len(widths) - 1) > limit:
        able = [i for i, c in enumerate(columns) if c.shrink is not None and widths[i] > c.shrink]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1

    def line(row: Sequence[str]) -> str:
        parts = []
        for text, size, column in zip(row, widths, columns, strict=True):
            shown = clipped(text, size)
            space = " " * (size - width(shown))
            parts.append(space + shown if column.right else shown + space)
        return "  ".join(parts).rstrip()

    rows = [line([column.heading for column in columns]), "  ".join("-" * size for size in widths)]
    rows.extend(line(row) for row in zip(*cells, strict=True))
    return rows


def markdown_table(columns: Sequence[TextColumn]) -> list[str]:
    """The same as a GitHub-flavoured Markdown table; bars in cells are escaped."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(printable(c).replace("\\", "\\\\").replace("|", "\\|") for c in row) + " |"

    rule = "|" + "|".join("---:" if column.right else "---" for column in columns) + "|"
    body = zip(*(column.cells for column in columns), strict=True)
    return [line([column.heading for column in columns]), rule, *(line(row) for row in body)]
