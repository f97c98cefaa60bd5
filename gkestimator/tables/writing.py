"""Write tables to CSV, JSON, Parquet, Markdown and plain text.

Null is an empty cell in CSV, ``null`` in JSON and Parquet.
"""

from __future__ import annotations

import io
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from gkestimator.core.errors import UsageError
from gkestimator.core.escaping import utf8
from gkestimator.core.extras import install_extra
from gkestimator.core.outputs import form_named
from gkestimator.core.records import NamedValues
from gkestimator.tables.csv_text import csv_text, safe_cells
from gkestimator.tables.files import json_bytes, write_atomically
from gkestimator.tables.kernel_rows import KERNEL_ROWS, KernelRow
from gkestimator.tables.requirement import REQUIREMENTS, RequirementRows
from gkestimator.tables.schema import Cell, TableSchema
from gkestimator.tables.text import kernels_markdown, kernels_text, requirements_markdown, requirements_text

if TYPE_CHECKING:
    import pandas


FORMATS = ("table", "csv", "json", "parquet", "markdown")
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".md": "markdown", ".txt": "table"}
Row = TypeVar("Row")


def format_of(path: Path) -> str:
    """Return the format that the suffix of ``path`` stands for. Raises UsageError for any other suffix."""
    return form_named(str(path), path, _SUFFIXES)


def render(rows: RequirementRows, form: str, *, kernels: Sequence[KernelRow] | None = None) -> bytes:
    """Return the requirement table as ``form`` (one of FORMATS), UTF-8 where it is text.

    ``kernels`` (None: not asked for) adds the kernel listing: below the table in the formats for people,
    under ``"kernels"`` in JSON; CSV and Parquet hold one table, so there the listing stands in place of the
    rows. Raises TableError for a row that breaks the schema (NaN, infinity) and UsageError when Parquet
    support is missing.
    """
    REQUIREMENTS.check(rows, where="estimate")
    if kernels is not None:
        KERNEL_ROWS.check(kernels, where="kernels")
    if form in ("table", "markdown"):
        show, show_kernels = _PEOPLE[form]
        text = show(rows)
        if kernels is not None:
            text += f"\n{show_kernels(kernels)}"
        return utf8(text)
    if form == "json":
        document = _document(REQUIREMENTS, rows)
        if kernels is not None:
            document["kernels"] = [KERNEL_ROWS.record(r) for r in kernels]
        return json_bytes(document)
    if form in ("csv", "parquet"):
        encode = encode_csv if form == "csv" else encode_parquet
        if kernels is None:
            return encode(REQUIREMENTS, rows)
        return encode(KERNEL_ROWS, kernels)
    raise UsageError(f"format {form!r} is not known, expected one of {', '.join(FORMATS)}")


_PEOPLE = {
    "table": (requirements_text, kernels_text),
    "markdown": (requirements_markdown, kernels_markdown),
}


def _document(schema: TableSchema[Row], rows: Sequence[Row]) -> NamedValues:
    return {"schema_version": schema.version, "rows": [schema.record(r) for r in rows]}


def _csv_cell(value: Cell) -> Cell:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def encode_csv(schema: TableSchema[Row], rows: Sequence[Row]) -> bytes:
    """Return ``rows`` as CSV; floats in full: reading gives the same numbers."""
    cells = ([_csv_cell(getattr(row, name)) for name in schema.names] for row in rows)
    return utf8(csv_text(schema.names, cells))


def encode_parquet(schema: TableSchema[Row], rows: Sequence[Row]) -> bytes:
    """Return Parquet with an explicit type for every column, so that a column of nulls keeps its type."""
    arrow, parquet = pyarrow_modules()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    columns = {}
    described = []
    for c in schema.columns:
        kind = types[c.type]
        columns[c.name] = arrow.array([getattr(r, c.name) for r in rows], type=kind)
        described.append(arrow.field(c.name, kind, nullable=c.nullable))
    metadata = {"schema_version": str(schema.version)}
    table = arrow.table(columns, schema=arrow.schema(described, metadata=metadata))
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()


def pyarrow_modules() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module. Raises UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise UsageError(f"Parquet needs pyarrow: {install_extra('parquet')}, or choose csv or json") from e
    return pyarrow, pyarrow.parquet


def write_table(
    schema: TableSchema[Row],
    rows: Sequence[Row],
    path: Path,
    form: str | None = None,
    *,
    safe_csv: bool = False,
) -> None:
    """Write ``rows`` to ``path`` as csv, json or parquet (None: by suffix), wholly or not at all.

    ``safe_csv``: texts that a spreadsheet would compute begin with ``'`` in CSV, and are read back so.

    Raises TableError for bad rows, UsageError for another format, OutputError where ``path`` cannot be
    written.
    """
    form = form or format_of(path)
    schema.check(rows, where=str(path))
    if form == "json":
        data = json_bytes(_document(schema, rows))
    elif form == "csv":
        with safe_cells(safe_csv):
            data = encode_csv(schema, rows)
    elif form == "parquet":
        data = encode_parquet(schema, rows)
    else:
        raise UsageError(f"{path}: format {form!r}, expected csv, json or parquet")
    write_bytes(path, data)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` wholly or not at all. Raises OutputError."""

    def write(stream: IO[bytes]) -> None:
        stream.write(data)

    write_atomically(path, write)


# Types of pandas that hold what is missing.
_PANDAS_TYPES = {str: "string", int: "Int64", float: "Float64", bool: "boolean"}


def to_dataframe(rows: Sequence[Any], schema: TableSchema[Any] = REQUIREMENTS) -> pandas.DataFrame:
    """Return ``rows`` as a DataFrame in column order; whole numbers and truth values use pandas' nullable
    types.
    """
    return _dataframe(rows, {c.name: c.type for c in schema.columns})


def records_dataframe(records: Sequence[Any], kind: type) -> pandas.DataFrame:
    """Return records of ``kind`` (a dataclass) as a DataFrame of their texts, numbers and truth values."""
    types = {}
    for name, hint in typing.get_type_hints(kind).items():
        members = [member for member in typing.get_args(hint) or (hint,) if member is not type(None)]
        if len(members) == 1 and members[0] in _PANDAS_TYPES:
            types[name] = members[0]
    return _dataframe(records, types)


def _dataframe(rows: Sequence[Any], types: Mapping[str, type]) -> pandas.DataFrame:
    import pandas

    columns = {}
    for name, kind in types.items():
        columns[name] = pandas.array([getattr(row, name) for row in rows], dtype=_PANDAS_TYPES[kind])
    return pandas.DataFrame(columns)
