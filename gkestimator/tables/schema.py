"""Say what a column is: name, type, unit, null rule and bounds, derived once from the fields of a row class.

A row class is a frozen dataclass whose fields are made by :func:`column` and :func:`required_column`. Readers,
writers, checks and the page ``docs/reference/tables.md`` are all derived from the resulting :class:`TableSchema`;
nothing else says what a column means.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, dataclass_transform

from gkestimator.core.errors import TableError
from gkestimator.core.records import Names, frozen
from gkestimator.core.versions import derived_version

VERSION_COLUMN = "schema_version"
Cell: TypeAlias = "str | int | float | bool | None"
Row = TypeVar("Row")
Class = TypeVar("Class", bound=type)
# Parquet, pandas and other programs hold whole numbers in 64 bits.
_INT64_MAX = 2**63 - 1
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_TAKEN: Mapping[type, Any] = {str: str, int: int, float: (int, float), bool: bool}


def required_column(
    unit: str,
    doc: str,
    group: str = "",
    *,
    default: Any = MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Names = (),
) -> Any:
    """Return the field of a column that every row must give: ``unit`` ("" for none), a sentence, the group of
    columns it stands in, bounds (both inclusive), allowed words.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata={"unit": unit, "doc": doc, "group": group, **bounds})


def column(unit: str, doc: str, group: str = "", *, default: Cell = None, **bounds: Any) -> Any:
    """Return the field of a column that a row may leave out; ``bounds`` as in :func:`required_column`."""
    return required_column(unit, doc, group, default=default, **bounds)


def version_column(version: Callable[[], int]) -> Any:
    """Return the field of the column that holds the table's version, asked for when a row is built."""
    described = required_column("", "Version of this table's columns.", "key", minimum=1)
    return field(default_factory=version, metadata=described.metadata)


# A type checker takes a field of `required_column` for required, any other for one with a default.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(required_column,))
def table_row(kind: Class) -> Class:
    """Make ``kind`` the row class of a table: a frozen record whose fields are columns."""
    return frozen(kind)


@frozen
class Column:
    """Hold one column. ``type`` is str, int, float or bool; ``required`` ones must be present in a file."""

    name: str
    type: type
    unit: str
    doc: str
    group: str
    nullable: bool
    required: bool
    minimum: float | None = None
    maximum: float | None = None
    choices: Names = ()

    def problem(self, value: object) -> str | None:
        """Return what is wrong with ``value`` (``found ..., expected ...``), or None when it may stand here."""
        if value is None:
            if self.nullable:
                return None
            return f"found nothing, expected {self.expected}"
        # In Python True is a whole number; in a table it is none.
        if isinstance(value, bool) or not isinstance(value, _TAKEN[self.type]):
            if self.type is bool and isinstance(value, bool):
                return None
            return f"found {value!r}, expected {self.expected}"
        if self.choices and value not in self.choices:
            return f"found {value!r}, expected one of {', '.join(self.choices)}"
        if isinstance(value, int | float):
            return self._number_problem(value)
        return None

    def _number_problem(self, value: float) -> str | None:
        # Before anything else: a whole number may be too large for a float.
        if isinstance(value, int) and abs(value) > _INT64_MAX:
            return "found a number beyond 64 bits"
        if not math.isfinite(value):
            return (
                f"found {value!r}, expected a finite number (an unknown value is null, an empty cell in CSV)"
            )
        if self.minimum is not None and value < self.minimum:
            return f"found {value!r}, expected at least {self.minimum:g}"
        if self.maximum is not None and value > self.maximum:
            return f"found {value!r}, expected at most {self.maximum:g}"
        return None

    def whole(self, value: Any) -> Cell:
        """Return ``value``, as a whole number where it is 8.0 in a column of those: files do not tell it from
        8.
        """
        if self.type is int and isinstance(value, float) and value.is_integer():
            return int(value)
        return value  # type: ignore[no-any-return]

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of one cell."""
        described: dict[str, Any] = {"type": _JSON_TYPES[self.type]}
        if self.minimum is not None:
            described["minimum"] = self.minimum
        if self.maximum is not None:
            described["maximum"] = self.maximum
        if self.choices:
            described["enum"] = list(self.choices)
        if self.nullable:
            described["type"] = [described["type"], "null"]
            if self.choices:
                described["enum"].append(None)
        words = self.doc
        if self.unit:
            words = f"{words} Unit: {self.unit}."
        return {"description": words, **described}

    @property
    def identity(self) -> str:
        """Return what a change of must move the table's version: name, type, unit and null rule."""
        null = "null" if self.nullable else "no null"
        return f"{self.name}: {self.type.__name__} ({self.unit}), {null}"

    @property
    def expected(self) -> str:
        """Return what a cell of this column holds, in words."""
        kind = _KINDS[self.type]
        if self.unit and self.type in (int, float):
            return f"{kind} ({self.unit})"
        return kind


def cell_error(where: object, row: int, column: str, problem: str) -> TableError:
    """Return the error of one cell: the table or file, its row (from 1, the heading not counted), its column."""
    return TableError(f"{where}: row {row}, column {column}: {problem}")


def refuse_repeated(where: object, names: Sequence[str]) -> None:
    """Raise TableError where a heading stands twice: nobody can say which of the cells is meant."""
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"{where}: column {name!r} stands twice, expected once")


class TableSchema(Generic[Row]):
    """Hold the columns of one table, in order, and the row class they come from.

    ``key`` names the columns that together identify a row; two rows with equal keys contradict each other.
    ``version`` is what is written: it follows from the columns, so a new column needs nothing but its field.
    Files without that column are read as before, the column taking its default; ``earlier`` lists the
    versions that are read beside those, above all the numbers that were counted by hand before versions
    followed the columns.
    """

    def __init__(
        self,
        name: str,
        row_type: type[Row],
        *,
        key: Names = (),
        earlier: tuple[int, ...] = (1,),
    ) -> None:
        self.name = name
        self.row_type = row_type
        self.key = key
        self.earlier = earlier
        self._versions: dict[Names, int] = {}

    @cached_property
    def version(self) -> int:
        """Return the version of the columns as they are now (see :mod:`gkestimator.core.versions`)."""
        return self.version_of(self.names)

    def version_of(self, names: Names) -> int:
        """Return the version that a table with no other columns than ``names`` would have.

        A file that an earlier program wrote, when there were fewer columns, says this number; where a column
        changed its type, unit or null rule since, it says another.
        """
        if names not in self._versions:
            counted = [self.by_name[name].identity for name in names if name != VERSION_COLUMN]
            self._versions[names] = derived_version(counted)
        return self._versions[names]

    @property
    def versions(self) -> str:
        """Return the versions that are read whatever columns a file has, in words."""
        return f"{', '.join(map(str, self.earlier))} or {self.version}"

    def reads(self, version: object, names: Names = ()) -> bool:
        """Return whether a file of ``version`` with the columns ``names`` (all known to this table) is read."""
        if not isinstance(version, int) or isinstance(version, bool):
            return False
        return version == self.version or version in self.earlier or version == self.version_of(names)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns in the order of the row class's fields."""
        # Resolved on first use: resolving the hints of every table would slow every start.
        hints = typing.get_type_hints(self.row_type)
        columns = []
        for f in fields(self.row_type):  # type: ignore[arg-type]
            members = typing.get_args(hints[f.name]) or (hints[f.name],)
            plain = [m for m in members if m is not type(None)]
            column = Column(
                name=f.name,
                type=plain[0],
                nullable=len(plain) < len(members),
                required=f.default is MISSING and f.default_factory is MISSING,
                **f.metadata,
            )
            columns.append(column)
        return tuple(columns)

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Return the columns by name."""
        return {c.name: c for c in self.columns}

    @cached_property
    def names(self) -> Names:
        """Return the column names in order."""
        return tuple(c.name for c in self.columns)

    def record(self, row: Row) -> dict[str, Cell]:
        """Return ``row`` as a mapping in column order."""
        return {name: getattr(row, name) for name in self.names}

    def first_problem(self, row: Row) -> str | None:
        """Return what is wrong with a row, behind the name of its column; None where it may stand in the table."""
        for column in self.columns:
            problem = column.problem(getattr(row, column.name))
            if problem:
                return f"{column.name}: {problem}"
        return None

    def check(self, rows: Iterable[Row], *, where: str = "table") -> None:
        """Refuse rows that break the schema.

        Raises TableError naming ``where``, the row (from 1) and the column.
        """
        for number, row in enumerate(rows, start=1):
            for column in self.columns:
                problem = column.problem(getattr(row, column.name))
                if problem:
                    raise cell_error(where, number, column.name, problem)

    def check_unique(
        self, rows: Sequence[Row], *, where: str = "table", numbers: Sequence[int] | None = None
    ) -> None:
        """Refuse two rows with one key. Raises TableError naming both by ``numbers`` (default: from 1 on)."""
        seen: dict[tuple[Cell, ...], int] = {}
        for number, row in zip(numbers or range(1, len(rows) + 1), rows, strict=True):
            key = tuple(getattr(row, name) for name in self.key)
            first = seen.setdefault(key, number)
            if first == number:
                continue
            cells = zip(self.key, key, strict=True)
            text = ", ".join(f"{name}={value}" for name, value in cells if value not in ("", None))
            raise TableError(
                f"{where}: rows {first} and {number} both answer {text}; expected one row for each"
            )

    def build(self, cells: Mapping[str, Cell]) -> Row:
        """Return a row of checked cells; columns that are absent take their default."""
        return self.row_type(**cells)
