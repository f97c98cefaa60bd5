"""Write what simulators report: columns of figures, CSV, closing lines, and pictures in the project's style."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from gkestimator.core.errors import UsageError
from gkestimator.core.escaping import printable, utf8
from gkestimator.reporting.style import STYLE
from gkestimator.tables.layout import TextColumn
from gkestimator.tables.units import UNKNOWN

REPORT_FORMATS = ("table", "csv", "json")
REPORT_SUFFIXES = {".json": "json", ".csv": "csv", ".txt": "table"}
FigureColumn: TypeAlias = tuple[str, str, Callable[[Any], str]]
"""Heading, field of the record, and the text of a value."""
Report = TypeVar("Report")


def rendered(report: Report, form: str, makers: Mapping[str, Callable[[Report], str]]) -> bytes:
    """Return ``report`` as the maker of ``form`` writes it, in UTF-8. Raises UsageError for a form without a maker."""
    if form not in makers:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(makers)}")
    return utf8(makers[form](report))


def text_of(lines: Iterable[str]) -> str:
    """Return ``lines`` as one text that is safe to print: names in it come from strangers' files."""
    return "\n".join(printable(line) for line in lines) + "\n"


def note_lines(notes: Sequence[str]) -> list[str]:
    """Return the lines that close a report with its notes, after an empty one."""
    if not notes:
        return []
    return ["", *(f"note: {note}" for note in notes)]


def written_as(text: Callable[[Any], str], **headings: str) -> tuple[FigureColumn, ...]:
    """Return columns of figures by field, each under its heading, written by ``text``."""
    return tuple((heading, field, text) for field, heading in headings.items())


def figure_columns(
    records: Sequence[Any],
    figures: Iterable[FigureColumn],
    value_of: Callable[[Any, str], Any] = getattr,
) -> list[TextColumn]:
    """Return a column of numbers for each of ``figures``, with a cell for each of ``records``."""
    columns = []
    for heading, field, text in figures:
        cells = [text(value_of(record, field)) for record in records]
        columns.append(TextColumn(heading=heading, cells=cells))
    return columns


def count_text(value: int) -> str:
    """Return a whole number with its thousands grouped."""
    return f"{value:,}"


def share_text(value: float | None) -> str:
    """Return a share of requests in percent: 99.97 % is not shown as 100 %."""
    if value is None:
        return UNKNOWN
    if value < 100:
        return f"{int(value * 10) / 10:.1f}"
    return "100"


def first_of(items: Sequence[object], limit: int, separator: str = ", ", joint: str = " and") -> str:
    """Return the first ``limit`` of ``items`` and how many more there are."""
    shown = separator.join(str(item) for item in items[:limit])
    if len(items) <= limit:
        return shown
    return f"{shown}{joint} {len(items) - limit:,} more"


@contextmanager
def drawing(**settings: Any) -> Iterator[Any]:
    """Set the project's style while the block draws; yield matplotlib's class of figures.

    ``settings`` (matplotlib's, ``.`` written as ``_``) change the style. The salt makes names inside an SVG file the
    same from run to run.
    """
    import matplotlib
    from matplotlib.figure import Figure

    changed: Any = {name.replace("_", "."): value for name, value in settings.items()}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "gkestimator", **changed}):
        yield Figure


def title_of(figure: Any, text: str, size: float = 9.5) -> None:
    """Write ``text`` above a figure, at its left edge."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=size)
