"""Reading the columns of a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError, UsageError

_LARGEST_ROWS = 20_000_000


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """The named columns as NumPy arrays (text as str objects). Raises TableError for an unreadable file or a
    missing column."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise UsageError("reading Parquet needs pyarrow: pip install 'gkestimator[parquet]'") from e
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            missing = [c for c in columns if c not in names]
            if missing:
                raise TableError(f"{path}: column {missing[0]!r} is missing; found {', '.join(names)}")
            if file.metadata.num_rows > _LARGEST_ROWS:
                raise TableError(f"{path}: {file.metadata.num_rows} rows; expected at most {_LARGEST_ROWS}")
            table = file.read(columns=list(columns))
    except (OSError, pyarrow.ArrowException) as e:
        raise TableError(f"{path}: not a readable Parquet file: {e}") from e
    return {name: table.column(name).to_numpy() for name in columns}
