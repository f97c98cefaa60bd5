"""Define `frozen`, the decorator of every immutable value in the project."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(kind: Class) -> Class:
    """Make `kind` a frozen, slotted dataclass whose fields are given by name.

    Values that travel between rooms are frozen: nobody can change them midway, and a call says what each number is.
    """
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)
