"""Tables from CSV, JSON and Parquet, strictly: a file says what it means or is refused in one line."""

from __future__ import annotations

import csv
import difflib
import itertools
import json
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.core.errors import GkestimatorWarning, TableError
from gkestimator.core.files import FileWords, check_file
from gkestimator.tables.schema import VERSION_COLUMN, Cell, Column, TableSchema
from gkestimator.tables.writing import _pyarrow, format_of

MAX_FILE_BYTES = 512 * 2**20
MAX_ROWS = 2_000_000
_MAX_CELL = 1 << 20
_WORDS = FileWords(
    error=TableError, not_regular="found something other than a regular file, expected a table"
)
_TRUTH = {"true": True, "false": False}
Row = TypeVar("Row")


def read_table(
    path: Path,
    schema: TableSchema[Row],
    form: str | None = None,
    *,
    where: Mapping[str, Collection[str]] | None = None,
) -> tuple[Row, ...]:
    """The rows of the file at ``path`` (csv, json, parquet; None: by suffix).

    ``where`` keeps the rows whose cell in each named column (of text) is one of the given; the cells of others
    are not looked at, which makes a large table cheap to take a few models from.

    Columns may stand in any order; optional columns may be absent (their default, mostly null). Raises
    TableError naming file, row (from 1, the heading not counted) and column for an unknown or repeated
    column, a missing one, a cell of the wrong type or outside its bounds, another schema version, two rows
    with one key, or a file beyond MAX_FILE_BYTES or MAX_ROWS. Warns (GkestimatorWarning) of a file that an earlier
    program wrote, when the table had fewer columns.
    """
    form = form or format_of(path)
    readers = {"csv": _csv_rows, "json": _json_rows, "parquet": _parquet_rows}
    if form not in readers:
        raise TableError(f"{path}: found a {form} file, expected csv, json or parquet")
    check_file(path, _WORDS, MAX_FILE_BYTES)
    rows: list[Row] = []
    numbers: list[int] = []
    unknown: dict[str, None] = {}
    for number, cells in enumerate(readers[form](path, schema, where or {}), start=1):
        if number > MAX_ROWS:
            raise TableError(f"{path}: found more than {MAX_ROWS:,} rows, expected fewer")
        if cells is not None:
            rows.append(_row(path, schema, number, cells))
            numbers.append(number)
            unknown |= dict.fromkeys(_later_columns(schema, cells))
    if unknown:
        said = f"{path}: written when the {schema.name} had no {', '.join(unknown)}: taken as not known"
        warnings.warn(said, GkestimatorWarning, stacklevel=2)
    if schema.key:
        schema.check_unique(rows, where=str(path), numbers=numbers)
    return tuple(rows)


def _row(path: Path, schema: TableSchema[Row], number: int, cells: Mapping[str, Cell]) -> Row:
    if VERSION_COLUMN in cells:
        version = cells[VERSION_COLUMN]
        if not schema.reads(version, tuple(cells)):
            raise TableError(
                f"{path}: row {number}, column {VERSION_COLUMN}: found {version!r}, expected {schema.versions} (what "
                "this program reads)"
            )
        cells = {**cells, VERSION_COLUMN: schema.version}
    cells = _complete(schema, cells)
    for name, value in cells.items():
        column = schema.by_name[name]
        problem = column.problem(value)
        if problem:
            raise TableError(f"{path}: row {number}, column {name}: {problem}")
    return schema.build(cells)


def _check_header(path: Path, schema: TableSchema[Row], names: list[str], version: object) -> None:
    """Refuse a heading that the table does not have; ``version`` is the one that the file says, None: none."""
    for name in names:
        if name not in schema.by_name:
            close = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]} (units are part of the name)?" if close else ""
            raise TableError(
                f"{path}: column {name!r} is not known to the {schema.name}{hint}{_perhaps_newer(schema, version)}"
            )
        if names.count(name) > 1:
            raise TableError(f"{path}: column {name!r} stands twice, expected once")
    missing = [c.name for c in schema.columns if c.required and not c.nullable and c.name not in names]
    if missing:
        raise TableError(
            f"{path}: column{'s' * (len(missing) > 1)} {', '.join(missing)} missing from the {schema.name}"
        )


def _perhaps_newer(schema: TableSchema[Row], version: object) -> str:
    """Return the remark that a file is of another version, where it says one that is not ours."""
    ours = {str(v) for v in (*schema.earlier, schema.version)}
    if version is None or str(version) in ours:
        return ""
    said = f"the file is of schema version {str(version)[:20]!r}"
    return f"; {said}, perhaps of a newer program (here: {schema.versions})"


def _later_columns(schema: TableSchema[Row], cells: Mapping[str, Cell]) -> tuple[str, ...]:
    """Return the columns that a row lacks because its program did not know them yet.

    Empty for a row of the version now, and for one of the versions counted by hand: people write such tables
    themselves and leave out what they did not measure.
    """
    version = cells.get(VERSION_COLUMN, schema.version)
    if version == schema.version or version in schema.earlier:
        return ()
    return tuple(name for name in schema.names if name not in cells)


def _complete(schema: TableSchema[Row], cells: Mapping[str, Cell]) -> Mapping[str, Cell]:
    """Return ``cells`` with a null for provenance that the file does not hold; other columns have defaults."""
    absent = [c.name for c in schema.columns if c.required and c.nullable and c.name not in cells]
    if absent:
        return {**cells, **dict.fromkeys(absent)}
    return cells


def _csv_rows(
    path: Path, schema: TableSchema[Row], where: Mapping[str, Collection[str]]
) -> Iterator[dict[str, Cell] | None]:
    old_limit = csv.field_size_limit(_MAX_CELL)
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)
            names = next(reader, None)
            if names is None:
                raise TableError(f"{path}: found an empty file, expected a heading line")
            first = next(reader, None)
            told = dict(zip(names, first or (), strict=False))
            _check_header(path, schema, names, told.get(VERSION_COLUMN))
            columns = [schema.by_name[name] for name in names]
            filters = [(names.index(name), kept) for name, kept in where.items() if name in names]
            number = 0
            for texts in itertools.chain([first or []], reader):
                if not texts:
                    continue
                number += 1
                if len(texts) != len(columns):
                    raise TableError(
                        f"{path}: row {number}: found {len(texts)} cells, expected {len(columns)}"
                    )
                if any(texts[i] not in kept for i, kept in filters):
                    yield None
                    continue
                yield {c.name: _parse(path, number, c, t) for c, t in zip(columns, texts, strict=True)}
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise TableError(f"{path}: cannot be read as CSV in UTF-8: {e}") from e
    finally:
        csv.field_size_limit(old_limit)


def _parse(path: Path, number: int, column: Column, text: str) -> Cell:
    if column.type is str:
        if text == "" and column.nullable:
            return None
        return text
    if text.strip() == "":
        return None
    try:
        if column.type is bool:
            return _TRUTH[text.strip().lower()]
        if len(text) > 64 or "_" in text:  # int() takes "1_000", which no other program writes or reads
            raise ValueError(text)
        if column.type is int:
            return int(text)
        return float(text)
    except (ValueError, KeyError) as e:
        raise TableError(
            f"{path}: row {number}, column {column.name}: found {text[:40]!r}, expected {column.expected}"
        ) from e


def _json_rows(
    path: Path, schema: TableSchema[Row], where: Mapping[str, Collection[str]]
) -> Iterator[dict[str, Cell] | None]:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as e:
        raise TableError(f"{path}: cannot be read as JSON in UTF-8: {e}") from e
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise TableError(f'{path}: expected {{"schema_version": {schema.version}, "rows": [...]}}')
    version = document.get(VERSION_COLUMN)
    first = document["rows"][0] if document["rows"] else None
    names_of_first = tuple(first) if isinstance(first, dict) else ()
    if schema.by_name.keys() >= set(names_of_first) and not schema.reads(version, names_of_first):
        raise TableError(f"{path}: {VERSION_COLUMN}: found {version!r}, expected {schema.versions}")
    checked: set[tuple[str, ...]] = set()
    for number, found in enumerate(document["rows"], start=1):
        if not isinstance(found, dict):
            raise TableError(f"{path}: row {number}: found {type(found).__name__}, expected an object")
        names = tuple(found)
        if names not in checked:
            _check_header(path, schema, list(names), version)
            checked.add(names)
        if any(isinstance(t := found.get(name), str) and t not in kept for name, kept in where.items()):
            yield None
            continue
        yield {name: _plain(schema.by_name[name], v) for name, v in found.items()}


def _no_constant(text: str) -> float:
    raise ValueError(f"found {text}, expected a finite number or null")


def _plain(column: Column, value: Any) -> Cell:
    """JSON and Parquet do not tell 8 from 8.0; a whole float may stand in a column of whole numbers and
    vice versa."""
    if column.type is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value  # type: ignore[no-any-return]


def _parquet_rows(
    path: Path, schema: TableSchema[Row], where: Mapping[str, Collection[str]]
) -> Iterator[dict[str, Cell] | None]:
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            names = list(file.schema_arrow.names)
            _check_header(path, schema, names, _parquet_version(file))
            if file.metadata.num_rows > MAX_ROWS:
                raise TableError(
                    f"{path}: found {file.metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}"
                )
            filters = [(names.index(name), kept) for name, kept in where.items() if name in names]
            for batch in file.iter_batches(batch_size=8192):
                columns = [batch.column(i).to_pylist() for i in range(len(names))]
                for values in zip(*columns, strict=True):
                    if any(isinstance(values[i], str) and values[i] not in kept for i, kept in filters):
                        yield None
                        continue
                    yield {
                        n: None if _is_nan(v) else _plain(schema.by_name[n], v)
                        for n, v in zip(names, values, strict=True)
                    }
    except (OSError, arrow.ArrowException) as e:
        raise TableError(f"{path}: cannot be read as Parquet: {e}") from e


def _parquet_version(file: Any) -> str | None:
    """Return the version that the Parquet file says in its metadata; None: none."""
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(VERSION_COLUMN.encode())
    if version is None:
        return None
    return version.decode("utf-8", "replace")


def parquet_records(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of any flat Parquet file as mappings, NaN as None; what the columns mean is the caller's to check.

    Raises TableError where ``path`` is no Parquet file or has more than MAX_ROWS rows, UsageError without pyarrow.
    """
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            if file.metadata.num_rows > MAX_ROWS:
                raise TableError(
                    f"{path}: found {file.metadata.num_rows:,} rows, expected at most {MAX_ROWS:,}"
                )
            for batch in file.iter_batches(batch_size=8192):
                for row in batch.to_pylist():
                    yield {name: None if _is_nan(value) else value for name, value in row.items()}
    except (OSError, arrow.ArrowException) as e:
        raise TableError(f"{path}: cannot be read as Parquet: {e}") from e


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value  # pandas writes an unknown number as NaN
