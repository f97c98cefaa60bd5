"""Read the columns of published Parquet files, and bring them into our names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.kernels import Array

# Four times the largest published file; beyond that a file is not what it says.
_LARGEST_ROWS = 20_000_000


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, Array]:
    """Return the named columns as NumPy arrays (text as str objects).

    Raises TableError for an unreadable file or a missing column.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise UsageError(f"reading Parquet needs pyarrow: {install_extra('parquet')}") from e
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


def translated(path: Path, column: str, words: Iterable[str], names: Mapping[str, str]) -> Array:
    """Return the publisher's ``words`` by our names, as str objects.

    Raises TableError for a word that ``names`` lacks: a GPU that is taken for another would spoil its regressors.
    """
    unknown = sorted(set(words) - set(names))
    if unknown:
        raise TableError(f"{path}: {column} is {unknown[0]!r}; expected one of {', '.join(names)}")
    return np.array([names[word] for word in words], dtype=object)


def equal_rows(keys: Sequence[Array], times: Array) -> tuple[Array, Array, Array]:
    """Return the rows in the order of ``keys`` and then of time, and of each group of equal keys its start
    and length.

    The middle of a group is its median: publishers measured one shape several times.
    """
    order = np.lexsort((times, *reversed(keys)))
    ordered = np.stack(keys)[:, order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = np.any(ordered[:, 1:] != ordered[:, :-1], axis=0)
    first = np.flatnonzero(starts)
    return order, first, np.diff(np.append(first, len(order)))
