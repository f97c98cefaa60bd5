"""Open strangers' Parquet files: what they unpack to is known before anything is unpacked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gkestimator.core.errors import TableError
from gkestimator.core.limits import allowed, exceeded
from gkestimator.tables.parquet_pages import unpacked_bytes
from gkestimator.tables.writing import pyarrow_modules

_BATCH_ROWS = 8192
_TEXT = "BYTE_ARRAY"


@contextlib.contextmanager
def opened_parquet(path: Path, limit: str = "rows") -> Iterator[Any]:
    """Open ``path`` as pyarrow's ParquetFile, whose columns of text are dictionaries.

    Raises TableError, also for what fails while the caller reads: no flat Parquet file, or one beyond the limits
    ``limit`` (of rows), ``pages`` and ``unpacked_bytes``. Raises UsageError without pyarrow.
    """
    arrow, parquet = pyarrow_modules()
    try:
        metadata = parquet.read_metadata(path)
        _check_size(path, metadata, limit)
        columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        # One text that stands in all rows unpacks to a copy for each: a dictionary holds it once.
        texts = [column.path for column in columns if column.physical_type == _TEXT]
        with parquet.ParquetFile(path, memory_map=False, read_dictionary=texts) as file:
            for field in file.schema_arrow:
                if arrow.types.is_nested(field.type) or arrow.types.is_fixed_size_binary(field.type):
                    raise TableError(
                        f"{path}: column {field.name[:60]!r}: found values of type {str(field.type)[:60]}, expected "
                        "numbers, truth values or texts"
                    )
            yield file
    except (OSError, arrow.ArrowException, UnicodeDecodeError) as e:
        raise TableError(f"{path}: cannot be read as Parquet: {e}") from e


def _check_size(path: Path, metadata: Any, limit: str) -> None:
    """Raise TableError where a file has more rows than ``limit`` allows, or unpacks to more than is allowed."""
    rows = sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    rows = max(rows, metadata.num_rows)  # two words of the same writer, which need not agree
    if rows > allowed(limit):
        raise TableError(f"{path}: {exceeded(limit, rows)}")
    unpacked_bytes(path, metadata)


def flat_batches(path: Path, file: Any) -> Iterator[list[list[Any]]]:
    """Yield the columns of some thousand rows at a time, as Python's values; equal texts are one object.

    Raises TableError for a text beyond the limit ``cell_characters``.
    """
    arrow, _ = pyarrow_modules()
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        columns = []
        for i, field in enumerate(batch.schema):
            column = batch.column(i)
            if arrow.types.is_dictionary(field.type):
                columns.append(_texts(path, field.name, column))
            else:
                columns.append(column.to_pylist())
        yield columns


def _texts(path: Path, name: str, column: Any) -> list[Any]:
    """Return the texts of a dictionary's column; of its words only those that stand in it are taken out."""
    used = column.indices.unique().drop_null()
    words = column.dictionary.take(used).to_pylist()
    for word in words:
        if isinstance(word, str | bytes) and len(word) > allowed("cell_characters"):
            raise TableError(f"{path}: column {name[:60]!r}: {exceeded('cell_characters', len(word))}")
    by_index: dict[int | None, Any] = dict(zip(used.to_pylist(), words, strict=True))
    return [by_index.get(index) for index in column.indices.to_pylist()]
