"""Columns of text tables, made alike by every report: words to the left, figures to the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gkestimator.core.escaping import printable
from gkestimator.tables.layout import TextColumn, clipped
from gkestimator.tables.units import number_text, percent_text


def words(heading: str, cells: Iterable[str], *, shrink: int | None = None) -> TextColumn:
    """Return a column of texts, flush left. ``shrink``: width that it may be cut to where the table is too
    wide."""
    return TextColumn(heading=heading, cells=list(cells), right=False, shrink=shrink)


def figures(
    heading: str, values: Iterable[float | None], text: Callable[[float | None], str] = number_text
) -> TextColumn:
    """Return a column of numbers, flush right, each written by ``text`` (three significant digits)."""
    return TextColumn(heading=heading, cells=[text(value) for value in values])


def percents(heading: str, values: Iterable[float | None]) -> TextColumn:
    """Return a column of percentages, flush right, without their sign."""
    return figures(heading, values, percent_text)


def counts(heading: str, values: Iterable[int]) -> TextColumn:
    """Return a column of whole numbers, flush right, with thousands grouped."""
    return TextColumn(heading=heading, cells=[f"{value:,}" for value in values])


def first_of_each(column: TextColumn, firsts: Sequence[bool]) -> TextColumn:
    """Return ``column`` with its text in the first row of each group alone: below it stands the same."""
    cells = [cell if first else "" for cell, first in zip(column.cells, firsts, strict=True)]
    return TextColumn(heading=column.heading, cells=cells, right=column.right, shrink=column.shrink)


def varying(columns: Iterable[TextColumn]) -> list[TextColumn]:
    """Return the ``columns`` that tell rows apart: those with more than one text."""
    return [column for column in columns if len(set(column.cells)) > 1]


def plural(count: int, word: str) -> str:
    """Return ``count`` with ``word``, which takes an s unless there is one: ``1 replica``, ``1,200
    replicas``."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def picture_text(text: str, limit: int | None = None) -> str:
    """Return ``text`` (cut in the middle to ``limit`` characters) as matplotlib writes it: a dollar sign
    would begin a formula."""
    shown = printable(text)
    if limit is not None:
        shown = clipped(shown, limit)
    return shown.replace("$", r"\$")
