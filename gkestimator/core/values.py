"""Say whether a value of a stranger's file is what is expected there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

Document: TypeAlias = Mapping[str, Any]
"""An object of a JSON or TOML file."""


def is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    """Return whether ``value`` is a whole number from ``low`` to ``high``; True and False are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return low <= value <= high


def is_number(value: object, low: float, high: float) -> TypeGuard[float]:
    """Return whether ``value`` is a number from ``low`` to ``high``; NaN, True and False are none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return low <= value <= high


def is_text(value: object) -> TypeGuard[str]:
    """Return whether ``value`` is a text."""
    return isinstance(value, str)


def is_list(
    value: object, fits: Callable[[Any], bool], *, least: int = 0, most: int | None = None
) -> TypeGuard[list[Any]]:
    """Return whether ``value`` is a list of ``least`` to ``most`` entries that ``fits`` takes."""
    if not isinstance(value, list) or len(value) < least:
        return False
    if most is not None and len(value) > most:
        return False
    return all(map(fits, value))


def is_row(value: object, length: int, fits: Callable[[Any], bool]) -> TypeGuard[list[Any]]:
    """Return whether ``value`` is a list of exactly ``length`` entries that all ``fits`` takes."""
    return is_list(value, fits, least=length, most=length)


def shown(value: object) -> str:
    """Return ``value`` for a message, shortened; huge integers and deep lists are not converted to text at all."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > 200:
        return "an integer of more than 200 bits"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"a table of {len(value)}"
    text = repr(value)
    if len(text) <= 60:
        return text
    return text[:59] + "…"
