"""Read a user's own measurements: requirement tables, or any CSV with ``model, batch_size, latency_ms``.

A file says what it means or is refused in one line: which column was found, which was expected, in which unit.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from gkestimator.core.errors import TableError, one_line
from gkestimator.core.escaping import is_line
from gkestimator.core.files import FileWords, check_file
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.core.texts import csv_rows, parse_json
from gkestimator.tables import REQUIREMENTS
from gkestimator.tables.reading import number_of, parquet_records
from gkestimator.tables.schema import cell_error, refuse_repeated

# A table of whole models; what is larger is a log, or not meant for us.
MAX_TRUTH_BYTES = 64 * 2**20
MAX_TRUTH_ROWS = 200_000
_WORDS = FileWords(
    error=TableError,
    not_regular="found something other than a regular file, expected a table of measurements",
)
MEASURES = (
    "latency_ms",
    "reserved_bytes",
    "mreq_bytes",
    "sm_util_mean_pct",
    "sm_util_busy_mean_pct",
    "sm_util_max_pct",
    "occupancy_mean_pct",
    "occupancy_max_pct",
    "dram_util_mean_pct",
    "gpu_ms",
    "power_w",
)
"""Columns of the requirement table that are compared where the truth has them."""
_KEYS = ("model", "gpu", "runtime", "dtype", "batch_size", "dims", "sm_share_pct")
_READ = (*_KEYS, *MEASURES, "throughput_rps", "source", "occupancy_source", "schema_version")
# Nothing takes no time and no memory; a utilisation may be 0.
_ABOVE_ZERO = {*(name for name in MEASURES if not name.endswith("_pct")), "throughput_rps", "sm_share_pct"}
_UNITS = {
    "latency_ms": r"(latency|time|duration|runtime|elapsed|t|ms|inference)([ _(\[-]*(m?s|us|ns|sec|secs|seconds|msec|"
    r"millis|milliseconds|mean|avg|p50)[)\]]*)*|milliseconds|seconds",
    "batch_size": r"batch(es|size)?|bs|n|batch[ -]size",
    "model": r"(model|network|net|onnx|file)([ _-]?(name|file|path))?|name",
}
"""What people call the required columns; a heading like these is answered with the one that is expected."""


Record: TypeAlias = Mapping[str, Any]
"""Cells of one row of a file by column."""


@frozen
class Measurement:
    """Hold one measured row, number ``row`` of the file (from 1, the heading not counted).

    ``model`` is the text in the file; ``gpu``, ``runtime`` and ``dtype`` are None where the file does not say.
    ``batch_size`` None: as exported. ``values`` holds those of MEASURES that were measured, in their units.
    """

    row: int
    model: str
    gpu: str | None
    runtime: str | None
    dtype: str | None
    batch_size: int | None
    dims: tuple[tuple[str, int], ...]
    sm_share_pct: float
    values: Mapping[str, float] = field(hash=False)


@frozen
class Truth:
    """Hold the measurements of one file and what is to be said about it."""

    path: Path
    measurements: tuple[Measurement, ...]
    messages: Names


def read_truth(path: Path | str) -> Truth:
    """Read measurements from CSV (comma, semicolon or tab; UTF-8 with or without a byte order mark), JSON (a
    requirement table, or a list of objects) or Parquet.

    Columns that are not known are ignored, and a message says so. ``throughput_rps`` stands in where
    ``latency_ms`` is missing. Raises TableError, one line naming file, row and column: an empty file, a
    missing column (with the heading that looks like it and the unit expected), a value that is no positive
    number, an estimate instead of a measurement, two rows that answer one question, or more than
    MAX_TRUTH_BYTES.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    _check_file(path)
    if suffix == ".parquet":
        records: Iterator[Record] = parquet_records(path)
    elif suffix == ".json":
        records = _json_records(path)
    else:
        records = _csv_records(path)
    return truth_of(path, records)


def truth_of(path: Path, records: Iterable[Record]) -> Truth:
    """Return the measurements in ``records``, mappings from column to value; ``path`` is what errors name."""
    rows: list[Measurement] = []
    ignored: dict[str, None] = {}
    seen: set[Names] = set()
    calculated = 0
    for number, record in enumerate(records, start=1):
        if number > MAX_TRUTH_ROWS:
            raise TableError(f"{path}: found more than {MAX_TRUTH_ROWS:,} rows, expected fewer")
        names = tuple(map(str, record))
        # JSON rows may each have other names; a thousand different headings are enough to look at.
        if names not in seen and len(seen) < 1000:
            seen.add(names)
            _check_columns(path, names)
            ignored |= dict.fromkeys(name for name in names if name not in REQUIREMENTS.by_name)
        measurement = _measurement(path, number, record)
        rows.append(measurement)
        occupancy = any(name.startswith("occupancy_") for name in measurement.values)
        calculated += occupancy and record.get("occupancy_source") == "analytical"
    if not rows:
        raise TableError(f"{path}: found no rows, expected at least one measurement")
    _check_unique(path, rows)
    messages = []
    if ignored:
        unused = ", ".join(one_line(name, limit=40) for name in list(ignored)[:8])
        if len(ignored) > 8:
            unused += f" and {len(ignored) - 8} more"
        messages.append(f"{path.name}: columns not used: {unused}")
    if calculated:
        messages.append(
            f"{path.name}: occupancy of {calculated} rows was calculated from launches (occupancy_source analytical), "
            "not counted: what is compared is launches and their times, not the rule that makes occupancy of them"
        )
    return Truth(path=path, measurements=tuple(rows), messages=tuple(messages))


def _check_file(path: Path) -> None:
    if check_file(path, _WORDS, MAX_TRUTH_BYTES) == 0:
        raise TableError(f"{path}: found an empty file, expected columns model, batch_size, latency_ms")


def _csv_records(path: Path) -> Iterator[Record]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise TableError(f"{path}: cannot be read as CSV in UTF-8: {e}") from e
    if "\0" in text[:4096]:
        raise TableError(f"{path}: found binary data, expected CSV in UTF-8")
    first = next((line for line in text.splitlines() if line.strip()), "")
    # Spreadsheets of many countries separate by semicolons, databases by tabs.
    separator = max(",;\t", key=first.count)
    try:
        reader = csv_rows(io.StringIO(text, newline=""), separator=separator)
        lines = (cells for cells in reader if any(cell.strip() for cell in cells))
        names = [name.strip() for name in next(lines, [])]
        _check_columns(path, names)
        for number, cells in enumerate(lines, start=1):
            if len(cells) != len(names):
                raise TableError(f"{path}: row {number}: found {len(cells)} cells, expected {len(names)}")
            record = {}
            for name, cell in zip(names, cells, strict=True):
                record[name] = _cell(path, number, name, cell.strip(), separator)
            yield record
    except csv.Error as e:
        raise TableError(f"{path}: cannot be read as CSV: {e}") from e


def _cell(path: Path, number: int, name: str, text: str, separator: str) -> Any:
    column = REQUIREMENTS.by_name.get(name)
    if text == "":
        return None
    if column is None or name not in _READ or column.type is str:
        return text
    if separator == ";" and re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text):
        text = text.replace(",", ".")  # a spreadsheet of a country with decimal commas
    try:
        return number_of(text, float)
    except ValueError as e:
        raise cell_error(path, number, name, f"found {text[:40]!r}, expected {column.expected}") from e


def _json_records(path: Path) -> Iterator[Record]:
    try:
        document: Any = parse_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise TableError(f"{path}: cannot be read as JSON in UTF-8: {e}") from e
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise TableError(
            f'{path}: expected a list of objects or {{"schema_version": {REQUIREMENTS.version}, "rows": [...]}}'
        )
    if isinstance(document, dict):
        first = rows[0] if rows else None
        names = first if isinstance(first, dict) else ()
        _check_version(f"{path}", document.get("schema_version"), names)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise TableError(f"{path}: row {number}: found {type(row).__name__}, expected an object")
        yield row


def _check_version(where: str, version: object, names: Iterable[str]) -> None:
    """Refuse another version of the requirement table, where the file says one (None: it does not)."""
    known = tuple(name for name in names if name in REQUIREMENTS.by_name)
    if version is not None and not REQUIREMENTS.reads(version, known):
        raise TableError(f"{where}: schema_version: found {version!r}, expected {REQUIREMENTS.versions}")


def _check_columns(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise TableError(f"{path}: found an empty file, expected columns model, batch_size, latency_ms")
    refuse_repeated(path, names)
    for needed in ("model", "batch_size", "latency_ms"):
        if needed in names or (needed == "latency_ms" and _instead_of_latency(names)):
            continue
        unit = " (milliseconds a batch)" if needed == "latency_ms" else ""
        close = _headings_like(needed, names)
        seen = repr(close[0]) if close else ", ".join(names)[:120]
        raise TableError(f"{path}: column {needed} is missing: found {seen}, expected {needed}{unit}")


def _headings_like(needed: str, names: Sequence[str]) -> list[str]:
    """Return the headings that people give to a required column; most of them say another unit."""
    return [n for n in names if n not in _READ and re.fullmatch(_UNITS[needed], n.strip().lower())]


def _instead_of_latency(names: Sequence[str]) -> bool:
    """Return whether the file measures something else: throughput, memory, utilisation."""
    others = {*MEASURES[1:], "throughput_rps"}
    return not others.isdisjoint(names) and not _headings_like("latency_ms", names)


def _measurement(path: Path, number: int, record: Record) -> Measurement:
    cells = _cells(path, number, record)
    model = cells.get("model")
    if not is_line(model, 500) or not model.strip():
        shown = one_line(model, limit=40)
        problem = f"found {shown!r}, expected a name or a path in printable characters"
        raise cell_error(path, number, "model", problem)
    _check_version(f"{path}: row {number}", cells.get("schema_version"), record)
    source = cells.get("source", "measured")
    if source != "measured":
        problem = f"found {one_line(source, limit=40)!r}, expected measured: an estimate is no truth"
        raise cell_error(path, number, "source", problem)
    values = {name: float(cells[name]) for name in MEASURES if name in cells}
    batch = cells.get("batch_size")
    if "latency_ms" not in values and "throughput_rps" in cells:
        if batch is None:
            problem = "found a rate without batch_size, expected latency_ms or both"
            raise cell_error(path, number, "throughput_rps", problem)
        values["latency_ms"] = batch / cells["throughput_rps"] * 1e3
    if not values:
        problem = f"found nothing measured, expected at least one of {', '.join(MEASURES)}"
        raise cell_error(path, number, "latency_ms", problem)
    return Measurement(
        row=number,
        model=model.strip(),
        gpu=cells.get("gpu") or None,
        runtime=cells.get("runtime") or None,
        dtype=cells.get("dtype") or None,
        batch_size=batch,
        dims=_dims(path, number, cells.get("dims") or ""),
        sm_share_pct=float(cells.get("sm_share_pct", 100.0)),
        values=values,
    )


def _cells(path: Path, number: int, record: Record) -> NamedValues:
    """Return the cells that are read and not empty, each as its column wants it. Raises TableError."""
    cells: NamedValues = {}
    for name in _READ:
        if record.get(name) is None:
            continue
        column = REQUIREMENTS.by_name[name]
        value: Any = column.whole(record[name])
        problem = column.problem(value)
        if problem is None and name in _ABOVE_ZERO and not value > 0:
            problem = f"found {value!r}, expected more than 0"
        if problem:
            raise cell_error(path, number, name, problem)
        cells[name] = value
    return cells


def _dims(path: Path, number: int, text: str) -> tuple[tuple[str, int], ...]:
    """Return ``name=number, ...`` as sorted pairs. Raises TableError."""
    dims: dict[str, int] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, size = (part.strip() for part in item.rpartition("="))
        digits = size.isascii() and size.isdigit() and len(size) <= 18
        if not name or not digits or name in dims:
            shown = one_line(item, limit=40)
            problem = f"found {shown!r}, expected name=number, each name once"
            raise cell_error(path, number, "dims", problem)
        dims[name] = int(size)
    return tuple(sorted(dims.items()))


def _check_unique(path: Path, rows: Sequence[Measurement]) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for m in rows:
        key = tuple(getattr(m, name) for name in _KEYS)
        first = seen.setdefault(key, m.row)
        if first != m.row:
            raise TableError(
                f"{path}: rows {first} and {m.row} both measure {one_line(m.model, limit=60)} at batch "
                f"{m.batch_size}; expected one row for each (the mean or median of repeated runs)"
            )
