"""Define `frozen`, the decorator of every immutable value in the project, and names for types that many share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)
Record = TypeVar("Record")
# No texts: the versions of tables and documents are made of the types that these stand for.
Names: TypeAlias = tuple[str, ...]
"""Texts in an order that counts: names of models, GPUs or columns."""
NamedValues: TypeAlias = dict[str, Any]
"""Values by name, as in an object of JSON."""
NamedNumbers: TypeAlias = dict[str, float]
"""Numbers by name."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(kind: Class) -> Class:
    """Make `kind` a frozen, slotted dataclass whose fields are given by name.

    Values that travel between rooms are frozen: nobody can change them midway, and a call says what each number is.
    """
    record: Class = dataclass(frozen=True, slots=True, kw_only=True)(kind)  # type: ignore[assignment]
    return record


def map_fields(record: Record, function: Callable[[Any], Any]) -> Record:
    """Return a record of the same kind with `function` applied to the value of every field."""
    changed = {}
    for member in fields(record):  # type: ignore[arg-type]  # a record is a dataclass
        changed[member.name] = function(getattr(record, member.name))
    return type(record)(**changed)
