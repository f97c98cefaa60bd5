"""The raw page of Nsight Compute as CSV: a header, a row of units, rows of kernels; between them whatever the
profiler and the program printed."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from gkestimator.core.errors import TableError, one_line
from gkestimator.core.files import input_errors
from gkestimator.profiling.captures import NVTX_DOMAIN
from gkestimator.profiling.parsers.ncu_values import Action, ReadReport, decimal_mark, number, unit_factor
from gkestimator.profiling.type_names import Names, Texts

MAX_BYTES = 4 * 2**30
MAX_LINE = 16 * 2**20
MAX_ROWS = 1_000_000
_HEADER = re.compile(r'"ID","Process ID"')
_ROW = re.compile(r'"[0-9]{1,12}","[0-9]{1,12}",')
_TRIPLE = re.compile(r"\(\s*([0-9]{1,10}),\s*([0-9]{1,10}),\s*([0-9]{1,10})\s*\)")
_PUSH_POP = "Push/Pop_Range"
_OURS = re.compile(rf"(?<![\w.:-]){NVTX_DOMAIN}:([^:\s\"]+)")
_FACTS = {"Context": "launch__context_id", "Stream": "launch__stream_id", "Device": "launch__device_id"}
_SIDES = {"Grid Size": "launch__grid_dim", "Block Size": "launch__block_dim"}
_WORD = re.compile(r"[A-Za-z][\w.:]{0,400}\Z")
_MAX_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    header: Names
    units: Names
    values: Names


def read_csv(path: Path) -> ReadReport:
    """Return the kernels of the raw page in the file at ``path``. Values are brought to base units whatever
    the page was printed in, and whatever the locale. Raises TableError in one line for another page (details,
    source), a row that does not fit its header, and numbers of which the decimal mark cannot be told."""
    problems: list[str] = []
    with input_errors(path):
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise TableError(f"{path}: not a regular file of at most {MAX_BYTES:,} bytes")
        with path.open(encoding="utf-8", errors="replace", newline=None) as file:
            rows = list(_rows(path, _lines(path, file), problems))
    try:
        mark = decimal_mark(_metric_texts(rows))
    except ValueError as e:
        raise TableError(f"{path}: {e}") from e
    unknown: set[str] = set()
    actions = tuple(_action(path, row, mark, unknown) for row in rows)
    if unknown:
        names = ", ".join(repr(u) for u in sorted(unknown)[:5])
        problems.append(f"metrics in units that are not understood were left out: {names}")
    return ReadReport(reader="csv", actions=actions, problems=tuple(problems))


@lru_cache(maxsize=10_000)
def _is_metric(column: str) -> bool:
    """Return whether it is a metric: gpu__time_duration.sum, inst_executed, ...; the other columns are
    Stream, Grid Size, NVTX ranges, ..."""
    return _WORD.match(column) is not None and "_" in column and "PL_Type" not in column


def _metric_texts(rows: Iterable[_Row]) -> Iterator[str]:
    """Yield what stands in the columns of metrics, which follow the locale; the compute capability 8.6 does not."""
    for row in rows:
        yield from (text for column, text in zip(row.header, row.values, strict=True) if _is_metric(column))


def _lines(path: Path, file: IO[str]) -> Iterator[tuple[int, str]]:
    for count, line in enumerate(iter(lambda: file.readline(MAX_LINE), ""), start=1):
        if len(line) >= MAX_LINE:
            raise TableError(f"{path}: line {count}: longer than {MAX_LINE:,} characters")
        yield count, line.rstrip("\n")


def _rows(path: Path, lines: Iterable[tuple[int, str]], problems: list[str]) -> Iterator[_Row]:
    header: Names | None = None
    units: Names | None = None
    seen = 0
    for count, line in lines:
        if line.startswith(("==ERROR==", "==WARNING==")) and len(problems) < _MAX_PROBLEMS:
            problems.append(one_line(line, limit=200))
        at = _HEADER.search(line)
        if at is not None:
            header = _header(path, count, line[at.start() :])
            units = None
            continue
        if header is None:
            continue
        if units is None:
            # The row of units follows its header at once, but for what others print.
            units = _units(line, len(header))
            if units is None and _ROW.search(line):
                raise TableError(
                    f"{path}: line {count}: found a row of values, expected the row of units first"
                )
            continue
        at = _ROW.search(line)
        if at is not None:
            seen += 1
            if seen > MAX_ROWS:
                raise TableError(f"{path}: more than {MAX_ROWS:,} rows")
            yield _Row(count, header, units, _values(path, count, line[at.start() :], len(header)))
    if header is None:
        raise TableError(f'{path}: no raw page of ncu (a header that begins "ID","Process ID" is missing)')
    if units is None:
        raise TableError(f"{path}: cut short: no row of units after the header")


def _fields(text: str) -> Names | None:
    try:
        return tuple(next(csv.reader([text], strict=True), ()))
    except csv.Error:
        return None


def _header(path: Path, count: int, text: str) -> Names:
    names = _fields(text)
    if names is None or "Kernel Name" not in names:
        raise TableError(f"{path}: line {count}: a header without Kernel Name, expected the raw page of ncu")
    if "Metric Name" in names or "Section Name" in names:
        raise TableError(f"{path}: line {count}: this is the details page of ncu, expected --page raw")
    if len(set(names)) != len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise TableError(f"{path}: line {count}: column {twice[:80]!r} occurs twice")
    return names


def _units(text: str, columns: int) -> Names | None:
    at = text.find('"","",')
    units = _fields(text[at:]) if at >= 0 else None
    if units is not None and len(units) == columns:
        return units
    return None


def _values(path: Path, count: int, text: str, columns: int) -> Names:
    values = _fields(text)
    if values is None or len(values) != columns:
        what = "no CSV" if values is None else f"{len(values)} fields"
        raise TableError(
            f"{path}: line {count}: found {what}, expected {columns} fields "
            f"(cut short, or output of the program within)"
        )
    return values


def _action(path: Path, row: _Row, mark: str | None, unknown: set[str]) -> Action:
    metrics: dict[str, float] = {}
    words: Texts = {}
    ranges: list[tuple[str | None, str]] = []
    name = ""
    for column, unit, text in zip(row.header, row.units, row.values, strict=True):
        if column == "Kernel Name":
            name = text
        elif _PUSH_POP in column:
            ranges += [(NVTX_DOMAIN, label) for label in _OURS.findall(text)]
        elif column in _SIDES:
            triple = _TRIPLE.fullmatch(text.strip())
            for axis, size in zip("xyz", triple.groups() if triple else (), strict=False):
                metrics.setdefault(f"{_SIDES[column]}_{axis}", float(size))
        elif column in _FACTS or _is_metric(column):
            try:
                value = number(text, mark)
            except ValueError as e:
                raise TableError(f"{path}: line {row.line}: {column}: {e}") from e
            factor = unit_factor(unit)
            if value is None:
                if text.strip():
                    words[column] = text[:1000]
            elif factor is None:
                unknown.add(unit[:40])
            else:
                # In base units it may leave the range of a float.
                if math.isfinite(value * factor):
                    metrics[_FACTS.get(column, column)] = value * factor
    return Action(name=name, ranges=tuple(ranges), metrics=metrics, words=words)
