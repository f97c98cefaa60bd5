"""Read tables from CSV, JSON, Parquet and memory, strictly: a table says what it means or is refused in one line."""

from __future__ import annotations

import csv
import difflib
import itertools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gkestimator.core.errors import GkestimatorWarning, TableError, UsageError
from gkestimator.core.files import FileWords, check_file
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.records import NamedValues, Names
from gkestimator.core.texts import csv_rows, parse_json
from gkestimator.tables.parquet import flat_batches, opened_parquet
from gkestimator.tables.schema import VERSION_COLUMN, Cell, Column, TableSchema, cell_error, refuse_repeated
from gkestimator.tables.writing import format_of

if TYPE_CHECKING:
    import pandas

_WORDS = FileWords(
    error=TableError, not_regular="found something other than a regular file, expected a table"
)
_TRUTH = {"true": True, "false": False}
Row = TypeVar("Row")
Cells: TypeAlias = Mapping[str, Cell]
Where: TypeAlias = Mapping[str, Collection[str]]
"""Words of columns of text: only rows with one of them are read."""
CellRows: TypeAlias = Iterator[dict[str, Cell] | None]
"""The cells of each row; None for a row that is left out."""
TableSource: TypeAlias = "Path | str | pandas.DataFrame"
"""A file, or a table in memory."""


def read_table(
    path: Path,
    schema: TableSchema[Row],
    form: str | None = None,
    *,
    where: Where | None = None,
) -> tuple[Row, ...]:
    """Return the rows of the file at ``path`` (csv, json, parquet; None: by suffix).

    ``where`` takes the rows whose cell in each named column (of text) is one of the words; the cells of
    others are not looked at, which makes a large table cheap to take a few models from.

    Columns may stand in any order; optional columns may be absent (their default, mostly null). Raises
    TableError naming file, row (from 1, the heading not counted) and column for an unknown or repeated
    column, a missing one, a cell of the wrong type or outside its bounds, another schema version, two rows
    with one key, or a file beyond the limits ``table_bytes`` or ``rows``. Warns (GkestimatorWarning) of a file that an
    earlier program wrote, when the table had fewer columns.
    """
    form = form or format_of(path)
    readers = {"csv": _csv_rows, "json": _json_rows, "parquet": _parquet_rows}
    if form not in readers:
        raise TableError(f"{path}: found a {form} file, expected csv, json or parquet")
    check_file(path, _WORDS, allowed("table_bytes"))
    return _checked_rows(path, schema, readers[form](path, schema, where or {}))


def rows_in(table: TableSource, schema: TableSchema[Row], *, where: Where | None = None) -> tuple[Row, ...]:
    """Return the rows of a file or of a DataFrame, which is read as a Parquet file with these columns would be.

    Raises what :func:`read_table` raises; messages call a DataFrame :func:`table_label`.
    """
    if isinstance(table, str | Path):
        return read_table(Path(table), schema, where=where)
    if not _is_frame(table):
        raise UsageError(f"table: found {type(table).__name__}, expected a path or a pandas DataFrame")
    label = table_label(table)
    return _checked_rows(label, schema, _frame_rows(label, table, schema, where or {}))


def listed(tables: TableSource | Sequence[TableSource]) -> tuple[TableSource, ...]:
    """Return several tables as a tuple, and one as a tuple of one."""
    if isinstance(tables, str | Path) or not isinstance(tables, Sequence):
        return (tables,)
    return tuple(tables)


def table_label(table: TableSource) -> str:
    """Return what messages call a table: its path, or ``table``."""
    if isinstance(table, str | Path):
        return str(table)
    return "table"


def _checked_rows(path: Path | str, schema: TableSchema[Row], cells_of_rows: CellRows) -> tuple[Row, ...]:
    rows: list[Row] = []
    numbers: list[int] = []
    unknown: dict[str, None] = {}
    most = allowed("rows")
    for number, cells in enumerate(cells_of_rows, start=1):
        if number > most:
            raise TableError(f"{path}: {exceeded('rows', f'more than {most:,}')}")
        if cells is not None:
            rows.append(_row(path, schema, number, cells))
            numbers.append(number)
            unknown |= dict.fromkeys(_later_columns(schema, cells))
    if unknown:
        text = f"{path}: written when the {schema.name} had no {', '.join(unknown)}: taken as not known"
        warnings.warn(text, GkestimatorWarning, stacklevel=3)
    # Only now: a key may stand in rows far apart.
    if schema.key:
        schema.check_unique(rows, where=str(path), numbers=numbers)
    return tuple(rows)


def _row(path: Path | str, schema: TableSchema[Row], number: int, cells: Cells) -> Row:
    if VERSION_COLUMN in cells:
        version = cells[VERSION_COLUMN]
        if not schema.reads(version, tuple(cells)):
            problem = f"found {version!r}, expected {schema.versions} (what this program reads)"
            raise cell_error(path, number, VERSION_COLUMN, problem)
        cells = {**cells, VERSION_COLUMN: schema.version}
    cells = _complete(schema, cells)
    for name, value in cells.items():
        wrong = schema.by_name[name].problem(value)
        if wrong:
            raise cell_error(path, number, name, wrong)
    return schema.build(cells)


def _check_header(path: Path | str, schema: TableSchema[Row], names: list[str], version: object) -> None:
    """Refuse a heading that the table does not have; ``version`` is the one that the file says, None: none."""
    for name in names:
        if name not in schema.by_name:
            hint = _perhaps_newer(schema, version)
            close = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.6)
            if close:
                hint = f"; did you mean {close[0]} (units are part of the name)?{hint}"
            raise TableError(f"{path}: column {name!r} is not known to the {schema.name}{hint}")
    refuse_repeated(path, names)
    missing = [c.name for c in schema.columns if c.required and not c.nullable and c.name not in names]
    if missing:
        plural = "columns" if len(missing) > 1 else "column"
        raise TableError(f"{path}: {plural} {', '.join(missing)} missing from the {schema.name}")


def _perhaps_newer(schema: TableSchema[Row], version: object) -> str:
    """Return the remark that a file is of another version, where it says one that is not ours."""
    ours = {str(v) for v in (*schema.earlier, schema.version)}
    if version is None or str(version) in ours:
        return ""
    theirs = f"the file is of schema version {str(version)[:20]!r}"
    return f"; {theirs}, perhaps of a newer program (here: {schema.versions})"


def _later_columns(schema: TableSchema[Row], cells: Cells) -> Names:
    """Return the columns that a row lacks because its program did not know them yet.

    Empty for a row of the version now, and for one of the versions counted by hand: people write such tables
    themselves and leave out what they did not measure.
    """
    version = cells.get(VERSION_COLUMN, schema.version)
    if version == schema.version or version in schema.earlier:
        return ()
    return tuple(name for name in schema.names if name not in cells)


def _complete(schema: TableSchema[Row], cells: Cells) -> Cells:
    """Return ``cells`` with a null for provenance that the file does not hold; other columns have defaults."""
    absent = [c.name for c in schema.columns if c.required and c.nullable and c.name not in cells]
    if absent:
        return {**cells, **dict.fromkeys(absent)}
    return cells


def _csv_rows(path: Path, schema: TableSchema[Row], where: Where) -> CellRows:
    try:
        with open(path, newline="", encoding="utf-8-sig") as stream:
            reader = csv_rows(stream)
            names = next(reader, None)
            if names is None:
                raise TableError(f"{path}: found an empty file, expected a heading line")
            # The version stands in the rows, but whether the heading is known may hang on it.
            first = next(reader, [])
            cells = dict(zip(names, first, strict=False))
            _check_header(path, schema, names, cells.get(VERSION_COLUMN))
            columns = [schema.by_name[name] for name in names]
            filters = [(names.index(name), words) for name, words in where.items() if name in names]
            lines = filter(None, itertools.chain([first], reader))
            for number, texts in enumerate(lines, start=1):
                if len(texts) != len(columns):
                    raise TableError(
                        f"{path}: row {number}: found {len(texts)} cells, expected {len(columns)}"
                    )
                if any(texts[i] not in words for i, words in filters):
                    yield None
                    continue
                yield {c.name: _parse(path, number, c, t) for c, t in zip(columns, texts, strict=True)}
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise TableError(f"{path}: cannot be read as CSV in UTF-8: {e}") from e


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
        return number_of(text, column.type)
    except (ValueError, KeyError) as e:
        problem = f"found {text[:40]!r}, expected {column.expected}"
        raise cell_error(path, number, column.name, problem) from e


def number_of(text: str, kind: type) -> int | float:
    """Return the number in a cell, whole where ``kind`` is int. Raises ValueError.

    int() takes "1_000", which no other program writes or reads; a text of thousands of digits would take minutes.
    """
    if len(text) > 64 or "_" in text:
        raise ValueError(text)
    if kind is int:
        return int(text)
    return float(text)


def _json_rows(path: Path, schema: TableSchema[Row], where: Where) -> CellRows:
    try:
        document: Any = parse_json(path.read_bytes())
    except (OSError, ValueError) as e:
        raise TableError(f"{path}: cannot be read as JSON in UTF-8: {e}") from e
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        raise TableError(f'{path}: expected {{"schema_version": {schema.version}, "rows": [...]}}')
    version = document.get(VERSION_COLUMN)
    first = document["rows"][0] if document["rows"] else None
    names_of_first = tuple(first) if isinstance(first, dict) else ()
    if schema.by_name.keys() >= set(names_of_first) and not schema.reads(version, names_of_first):
        raise TableError(f"{path}: {VERSION_COLUMN}: found {version!r}, expected {schema.versions}")
    checked: set[Names] = set()
    for number, row in enumerate(document["rows"], start=1):
        if not isinstance(row, dict):
            raise TableError(f"{path}: row {number}: found {type(row).__name__}, expected an object")
        names = tuple(row)
        if names not in checked:
            _check_header(path, schema, list(names), version)
            checked.add(names)
        if _left_out(row, where):
            yield None
            continue
        yield {name: schema.by_name[name].whole(value) for name, value in row.items()}


def _left_out(row: Mapping[str, Any], where: Where) -> bool:
    """Return whether a text of the row is none of the words asked for; what is no text is refused later."""
    for name, words in where.items():
        text = row.get(name)
        if isinstance(text, str) and text not in words:
            return True
    return False


def _parquet_rows(path: Path, schema: TableSchema[Row], where: Where) -> CellRows:
    for row in _parquet(path, lambda file: _check_parquet(path, schema, file)):
        if _left_out(row, where):
            yield None
            continue
        yield {name: schema.by_name[name].whole(value) for name, value in row.items()}


def _check_parquet(path: Path, schema: TableSchema[Row], file: Any) -> None:
    metadata = file.schema_arrow.metadata or {}
    version = metadata.get(VERSION_COLUMN.encode())
    if version is not None:
        version = version.decode("utf-8", "replace")
    _check_header(path, schema, list(file.schema_arrow.names), version)


def parquet_records(path: Path, limit: str = "rows") -> Iterator[NamedValues]:
    """Yield the rows of any flat Parquet file, NaN as None; what columns mean is the caller's to check.

    ``limit``: the name of that of rows. Raises TableError where ``path`` is no Parquet file or beyond a limit,
    UsageError without pyarrow.
    """
    return _parquet(path, lambda file: None, limit)


def _parquet(path: Path, check: Callable[[Any], None], limit: str = "rows") -> Iterator[NamedValues]:
    """Yield the rows of a Parquet file whose heading ``check`` does not refuse."""
    with opened_parquet(path, limit) as file:
        check(file)
        names = list(file.schema_arrow.names)
        for columns in flat_batches(path, file):
            for values in zip(*columns, strict=True):
                cells = (None if _is_nan(value) else value for value in values)
                yield dict(zip(names, cells, strict=True))


def _is_frame(table: Any) -> bool:
    return hasattr(table, "to_dict") and hasattr(table, "columns") and hasattr(table, "notna")


def _frame_rows(label: str, frame: Any, schema: TableSchema[Row], where: Where) -> CellRows:
    records = frame_records(frame)
    first = next(records, {})
    _check_header(label, schema, [str(name) for name in frame.columns], first.get(VERSION_COLUMN))
    for row in itertools.chain([first] if first else [], records):
        if _left_out(row, where):
            yield None
            continue
        yield {name: schema.by_name[name].whole(value) for name, value in row.items()}


def frame_records(frame: Any) -> Iterator[NamedValues]:
    """Yield the rows of a DataFrame with Python's values: NumPy's numbers as Python's, what is missing as None."""
    for record in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        yield {str(name): _plain(value) for name, value in record.items()}


def _plain(value: Any) -> Any:
    if _is_nan(value):
        return None
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value  # pandas writes an unknown number as NaN
