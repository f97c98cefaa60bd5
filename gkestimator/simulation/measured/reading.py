"""Read the log of a server: ours, or another's that says when requests came, to whom, and how long they took."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gkestimator.core.errors import TableError, one_line
from gkestimator.core.escaping import is_line
from gkestimator.core.files import FileWords, check_file
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.core.texts import csv_rows
from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.measured.log import OK, ServingLog
from gkestimator.tables.reading import parquet_records
from gkestimator.tables.request_log import STATUSES
from gkestimator.tables.schema import cell_error, refuse_repeated

MAX_LOG_BYTES = 512 * 2**20
_MOST_MS = 1e11
_WORDS = FileWords(
    error=TableError, not_regular="found something other than a regular file, expected a log of requests"
)
# What others call our columns, ours first; columns of time carry their unit behind.
_TIMES = {
    "arrived_ms": "arrived|arrival|arrival_time|start|start_time|sent|timestamp|time",
    "total_ms": "total|latency|total_latency|response_time|duration|elapsed|e2e|e2e_latency",
    "router_ms": "router",
    "queue_ms": "queue|queue_time|queued|wait",
    "gpu_ms": "gpu|service|service_time|compute|execution|exec|inference",
}
_OTHERS = {
    "model": "model|model_name",
    "replica": "replica|replica_id|instance|worker",
    "batch": "batch|batch_size",
    "status": "status|status_code|code",
    "on_time": "on_time",
}
_NEEDED = {"arrived_ms": "arrived_ms", "model": "model", "total_ms": "total_ms (or latency_ms, latency_s)"}
_UNIT_MS = {"ms": 1.0, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_TRUE = {"true": 1, "1": 1, "false": 0, "0": 0}
_MAX_NAME = 500
# Statuses of HTTP that are not an answer; every other below 400 is one.
_REFUSED = (429, 503)
_TIMED_OUT = (408, 504)

Cells: TypeAlias = Mapping[str, Any]
Parse: TypeAlias = Callable[[Any], Any]


@frozen
class _Heading:
    """Hold which column of the file one of ours is, and how its cells are read."""

    ours: str
    theirs: str
    parse: Parse


def read_serving_log(path: Path | str) -> ServingLog:
    """Return the requests logged in the CSV or Parquet file at ``path``.

    Needed are when each request came, its model, and how long it took; where the log also says how long it waited in
    the replica's queue, how long its batch ran and how large that was, more can be told of it. Other columns are left
    aside, and a note says so. Raises TableError, in one line, with the row and the column.
    """
    path = Path(path)
    if check_file(path, _WORDS, MAX_LOG_BYTES) == 0:
        raise TableError(f"{path}: found an empty file, expected a log of requests")
    records: Iterator[Cells] = _csv_records(path)
    if path.suffix.lower() == ".parquet":
        records = parquet_records(path, "log_rows")
    columns: dict[str, list[Any]] = {}
    headings: list[_Heading] = []
    notes: Names = ()
    most = allowed("log_rows")
    for number, record in enumerate(records, start=1):
        if not headings:
            headings, notes = _headings(path, [str(name) for name in record])
            columns = {heading.ours: [] for heading in headings}
        if number > most:
            raise TableError(f"{path}: {exceeded('log_rows', f'more than {most:,}')}")
        for heading in headings:
            cell = record[heading.theirs]
            try:
                value = heading.parse(cell)
            except (ValueError, TypeError, OverflowError) as e:
                problem = f"found {one_line(repr(cell), limit=40)}, expected {e}"
                raise cell_error(path, number, heading.theirs, problem) from e
            columns[heading.ours].append(value)
    if not columns:
        raise TableError(f"{path}: found no request, expected at least one")
    return _log_of(path, columns, notes)


def _csv_records(path: Path) -> Iterator[Cells]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv_rows(stream)
            names = [name.strip() for name in next(reader, [])]
            refuse_repeated(path, names)
            for number, cells in enumerate(filter(None, reader), start=1):
                if len(cells) != len(names):
                    raise TableError(f"{path}: row {number}: found {len(cells)} cells, expected {len(names)}")
                yield dict(zip(names, cells, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise TableError(f"{path}: cannot be read as CSV in UTF-8: {e}") from e


def _headings(path: Path, names: Sequence[str]) -> tuple[list[_Heading], Names]:
    """Return which columns are read and how, and a note of those that are not. Raises TableError."""
    headings = []
    for ours, words in _TIMES.items():
        parse_as = _instant_or_ms if ours == "arrived_ms" else _milliseconds
        theirs = _chosen(path, names, ours, rf"({words})(_(?P<unit>ms|s|us|ns))?")
        if theirs is None:
            continue
        unit = theirs.rpartition("_")[2]
        if unit not in _UNIT_MS and ours != "arrived_ms":
            raise TableError(f"{path}: column {theirs!r} says no unit, expected {theirs}_ms or {theirs}_s")
        headings.append(_Heading(ours=ours, theirs=theirs, parse=parse_as(_UNIT_MS.get(unit))))
    parses: dict[str, Parse] = {
        "model": _name,
        "replica": _name_or_none,
        "batch": _batch,
        "status": _status,
        "on_time": _truth,
    }
    for ours, words in _OTHERS.items():
        theirs = _chosen(path, names, ours, words)
        if theirs is not None:
            headings.append(_Heading(ours=ours, theirs=theirs, parse=parses[ours]))
    read = {heading.ours for heading in headings}
    for ours, expected in _NEEDED.items():
        if ours not in read:
            shown = one_line(", ".join(names), limit=120)
            raise TableError(f"{path}: found columns {shown}, expected one that is {expected}")
    return headings, _not_used(path, names, headings)


def _not_used(path: Path, names: Sequence[str], headings: Sequence[_Heading]) -> Names:
    """Return a note of columns that are neither read nor ours."""
    known = {*_KNOWN, *(heading.theirs for heading in headings)}
    aside = [one_line(name, limit=40) for name in names if name not in known]
    if not aside:
        return ()
    more = " ..." if len(aside) > 8 else ""
    return (f"{path.name}: columns not used: {', '.join(aside[:8])}{more}",)


_KNOWN = ("source", "gpu", "network_ms", "request", "plan_version")


def _chosen(path: Path, names: Sequence[str], ours: str, pattern: str) -> str | None:
    """Return the column that is ``ours``: of that very name, or the only one that is called so elsewhere."""
    if ours in names:
        return ours
    fitting = [name for name in names if re.fullmatch(pattern, name.lower())]
    if len(fitting) > 1:
        raise TableError(
            f"{path}: found columns {fitting[0]!r} and {fitting[1]!r}, either of which may be {ours}: expected one"
        )
    return next(iter(fitting), None)


def _milliseconds(unit_ms: float | None) -> Parse:
    """Return what reads a time in units of ``unit_ms``; an empty cell is nan."""

    def parse(cell: Any) -> float:
        if _is_empty(cell):
            return math.nan
        value = _number(cell) * (unit_ms or 1.0)
        if not 0 <= value < math.inf:
            raise ValueError("a time of at least 0")
        return value

    return parse


def _instant_or_ms(unit_ms: float | None) -> Parse:
    """Return what reads when a request came: a number of its unit, without a unit a date with its time."""

    def parse(cell: Any) -> float:
        if isinstance(cell, datetime):
            moment = cell
        elif unit_ms is None:
            try:
                moment = datetime.fromisoformat(str(cell).strip())
            except ValueError as e:
                raise ValueError("a date with its time (or a column with a unit, arrived_ms)") from e
        else:
            value = _number(cell) * unit_ms
            if not 0 <= value < math.inf:
                raise ValueError("a time of at least 0")
            return value
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp() * 1e3

    return parse


def _is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _number(cell: Any) -> float:
    text = str(cell)
    try:
        if len(text) > 64 or "_" in text:
            raise ValueError
        return float(text)
    except ValueError as e:
        raise ValueError("a number") from e


def _name(cell: Any) -> str:
    text = str(cell).strip()
    if _is_empty(cell) or not is_line(text, _MAX_NAME):
        raise ValueError("a name in printable characters")
    return text


def _name_or_none(cell: Any) -> str | None:
    if _is_empty(cell):
        return None
    return _name(cell)


def _batch(cell: Any) -> int:
    if _is_empty(cell):
        return 0
    value = _number(cell)
    if not 1 <= value <= 2**31 or value != int(value):
        raise ValueError("a whole number of at least 1")
    return int(value)


def _status(cell: Any) -> int:
    """Return the number of a status: by its word, or by the number of HTTP."""
    text = str(cell).strip().lower()
    if _is_empty(cell) or text in ("true", "success"):
        return OK
    if text in STATUSES:
        return STATUSES.index(text)
    if re.fullmatch(r"[1-5][0-9][0-9](\.0)?", text):
        code = int(text[:3])
        if code in _REFUSED:
            return STATUSES.index("refused")
        if code in _TIMED_OUT:
            return STATUSES.index("timeout")
        return OK if code < 400 else STATUSES.index("failed")
    if text in ("false", "error"):
        return STATUSES.index("failed")
    raise ValueError(f"one of {', '.join(STATUSES)}, or a status of HTTP")


def _truth(cell: Any) -> int:
    if _is_empty(cell):
        return -1
    value = _TRUE.get(str(cell).strip().lower())
    if value is None:
        raise ValueError("true or false")
    return value


def _log_of(path: Path, columns: NamedValues, notes: Names) -> ServingLog:
    count = len(columns["model"])
    order = np.argsort(np.array(columns["arrived_ms"]), kind="stable")
    arrived = np.array(columns["arrived_ms"])[order]

    if not arrived[-1] - arrived[0] <= _MOST_MS:
        raise TableError(f"{path}: its requests arrive over more than three years, expected at most that")

    def floats(name: str) -> Floats:
        return np.array(columns.get(name, [math.nan] * count), np.float64)[order]

    def ints(name: str, unknown: int) -> Ints:
        return np.array(columns.get(name, [unknown] * count), np.int64)[order]

    models, model = _numbered(columns["model"])
    replicas, replica = _numbered(columns.get("replica", [None] * count))
    return ServingLog(
        name=path.name,
        models=models,
        replicas=replicas,
        model=model[order],
        replica=replica[order],
        batch=ints("batch", 0),
        arrived_ms=arrived - arrived[0],
        router_ms=floats("router_ms"),
        queue_ms=floats("queue_ms"),
        gpu_ms=floats("gpu_ms"),
        total_ms=floats("total_ms"),
        status=ints("status", OK),
        on_time=ints("on_time", -1),
        notes=notes,
    )


def _numbered(names: Sequence[str | None]) -> tuple[Names, Ints]:
    """Return the distinct names and which of them each is; -1: none."""
    numbers: dict[str | None, int] = {None: -1}
    for name in names:
        if name not in numbers:
            numbers[name] = len(numbers) - 1
    known = tuple(name for name in numbers if name is not None)
    return known, np.array([numbers[name] for name in names], np.int64)
