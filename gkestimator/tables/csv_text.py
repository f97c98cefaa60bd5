"""Write rows as CSV, with texts that no spreadsheet computes where that is asked for.

A text that begins with ``=`` is a formula to a spreadsheet, and a name from a stranger may begin so. Files for programs
keep such texts as they are; :func:`safe_cells` is for those that people open.
"""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from gkestimator.core.escaping import safe_cell
from gkestimator.core.option_kinds import Flag
from gkestimator.core.options import Option, Value


@dataclass(kw_only=True)
class CsvOptions:
    """Hold how files of CSV are written."""

    safe_csv: Value[bool] = Option(
        False,
        Flag(),
        "In CSV, put ' before texts that begin with = + - @, which a spreadsheet would compute.",
    )


@dataclass
class ChangedCells:
    """Count the cells that :func:`safe_cells` changed."""

    count: int = 0

    def words(self) -> str:
        """Return what was done, for whoever asked for it."""
        if not self.count:
            return "CSV: no text begins with = + - @ or a tab, nothing was changed"
        return f"CSV: ' was put before texts that a spreadsheet would compute ({self.count:,})"


_CHANGED: ContextVar[ChangedCells | None] = ContextVar("_CHANGED", default=None)


@contextlib.contextmanager
def safe_cells(asked: bool = True) -> Iterator[ChangedCells]:
    """Have CSV that is written in the block hold :func:`safe_cell` of every text, and count those that differ.

    Numbers stay numbers, those below 0 too. ``asked`` False changes nothing.
    """
    changed = ChangedCells()
    token = _CHANGED.set(changed if asked else _CHANGED.get())
    try:
        yield changed
    finally:
        _CHANGED.reset(token)


def csv_text(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return CSV as RFC 4180 has it, with a heading line; null is an empty cell, numbers stand in full."""
    buffer = io.StringIO(newline="")
    # Not the RFC's CRLF: every program reads this, and tools that compare lines do too.
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heading)
    changed = _CHANGED.get()
    if changed is not None:
        rows = ([_safe(cell, changed) for cell in row] for row in rows)
    writer.writerows(rows)
    return buffer.getvalue()


def _safe(cell: object, changed: ChangedCells) -> object:
    if not isinstance(cell, str):
        return cell
    safe = safe_cell(cell)
    changed.count += safe != cell
    return safe
