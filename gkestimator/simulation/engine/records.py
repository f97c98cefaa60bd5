"""Declare rows of arrays by their fields: ``batch.size`` instead of a column's number.

Compiled code knows neither objects nor dictionaries, so each kind of thing is a structured array, one row for each.
numba reads a row's fields as attributes; without numba a row does the same by properties.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, overload

import numpy as np

from gkestimator.simulation.arrays import Ints

Whole = int | np.integer[Any]
# Fields of annotated types, each as wide as the others, so that no row has gaps.
_FIELDS = {"int": np.int64, "float": np.float64}


class Record:
    """Hold the fields of one row; a subclass annotates each as ``int`` or ``float``."""

    dtype: ClassVar[np.dtype[Any]]

    def __init_subclass__(cls) -> None:
        """Make the row's type in numpy: scalars of it have the fields as attributes, which write through."""
        fields = [(name, _FIELDS[kind]) for name, kind in cls.__annotations__.items()]
        accessors = {name: _accessor(name) for name, _ in fields}
        scalar = type(cls.__name__, (np.void,), accessors)
        cls.dtype = np.dtype((scalar, np.dtype(fields)))


def _accessor(name: str) -> property:
    def write(row: Any, value: Any) -> None:
        row[name] = value

    return property(itemgetter(name), write)


R = TypeVar("R", bound=Record)


class Records(Protocol, Generic[R]):
    """Hold rows: one by its number, a field of all by its name, some of them by a slice or their numbers."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that the rows take."""

    @overload
    def __getitem__(self, at: Whole) -> R: ...
    @overload
    def __getitem__(self, at: str) -> Any: ...
    @overload
    def __getitem__(self, at: slice | Ints) -> Records[R]: ...
    def __setitem__(self, at: str, values: Any) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[R]: ...
    def copy(self) -> Records[R]:
        """Return rows that share nothing with these."""


def rows(kind: type[R], count: int = 0) -> Records[R]:
    """Return ``count`` rows of zeros."""
    return cast(Records[R], np.zeros(count, kind.dtype))


def row(kind: type[R]) -> R:
    """Return one row of zeros, to be read and written in place."""
    return rows(kind, 1)[0]


T = TypeVar("T")


def joined(parts: list[T]) -> T:
    """Return the rows of all ``parts``, which are of one kind."""
    arrays: list[Any] = cast(Any, parts)
    # Where two arrays hold equal types that are not the same object, numpy makes one without our fields as attributes.
    return cast(T, np.concatenate(arrays).view(arrays[0].dtype))


def with_zeros(array: T, count: int) -> T:
    """Return ``array`` with ``count`` rows of zeros below."""
    above: Any = array
    return joined([array, cast(T, np.zeros((count, *above.shape[1:]), above.dtype))])
