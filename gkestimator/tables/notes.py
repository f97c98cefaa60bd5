"""Say below a table what its rows warn of: a note a kind of warning, once, however its figures and names differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gkestimator.core.records import Names, frozen

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\w.]*\w)")
_LIST = re.compile(r"[\w.]+(?:, [\w.]+)*")


@frozen
class Footnotes:
    """Hold the texts below a table, and by row the numbers of those that hold for some rows only."""

    texts: Names
    marks: Names

    @classmethod
    def of(cls, warnings: Sequence[str]) -> Footnotes:
        """Return the notes of rows with these ``warnings`` (of each row, joined by ``; ``).

        First come those of all rows, where a mark would say nothing, then the others.
        """
        rows = [list(filter(None, text.split("; "))) for text in warnings]
        kinds: dict[str, dict[str, None]] = {}
        for row in rows:
            for warning in row:
                kinds.setdefault(_kind(warning), {})[warning] = None
        kinds_of_rows = [set(map(_kind, row)) for row in rows]
        common = set.intersection(*kinds_of_rows) if kinds_of_rows else set()
        others = [kind for kind in kinds if kind not in common]
        numbers = {kind: number for number, kind in enumerate(others, start=1)}
        marks = [sorted(numbers[kind] for kind in own - common) for own in kinds_of_rows]
        every = "all rows" if len(rows) > 1 else "note"
        heads = {kind: every for kind in kinds if kind in common} | {k: str(numbers[k]) for k in others}
        return cls(
            texts=tuple(f"{head}: {_merged(list(kinds[kind]))}" for kind, head in heads.items()),
            marks=tuple(",".join(map(str, own)) for own in marks),
        )


def _listed(warning: str) -> tuple[str, str] | None:
    """Return what a warning says of names, and these; None where it ends with no list of names."""
    head, colon, names = warning.partition(": ")
    if colon and _LIST.fullmatch(names):
        return head, names
    return None


def _kind(warning: str) -> str:
    """Return what is the same in warnings that differ in figures, or in the names at their end, alone."""
    listed = _listed(warning)
    if listed is not None:
        return listed[0]
    return _NUMBER.sub("#", warning)


def _merged(texts: Sequence[str]) -> str:
    """Return the warnings of one kind as one: with the range of each figure, or all of their names."""
    first = texts[0]
    if len(texts) == 1:
        return first
    listed = [pair for pair in map(_listed, texts) if pair is not None]
    if listed:
        names = sorted({name for _, names in listed for name in names.split(", ")})
        return f"{listed[0][0]}: {', '.join(names)} (not all in every row)"
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = [sorted(set(column), key=_value) for column in columns]
    figures = iter(f"{values[0]} to {values[-1]}" if len(values) > 1 else values[0] for values in ranges)
    return _NUMBER.sub(lambda _: next(figures), first)


def _value(text: str) -> float:
    return float(text.replace(",", ""))
