"""Options of policies as they come from a command line: texts to numbers and truth values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError, one_line

_MAX_TEXT = 200
_TRUTH = {"true": True, "false": False}


def policy_options(
    pairs: Iterable[str], given: Mapping[str, Any], *, option: str = "--option"
) -> dict[str, Any]:
    """``given`` (those that are None left out) and the ``NAME=VALUE`` of ``pairs``: whole numbers, finite
    numbers, ``true``, ``false`` and, of the rest, texts. ``option`` is what messages call the pairs. Raises
    UsageError for a pair of another form or a name that stands twice."""
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = name.strip().replace("-", "_")
        if not equals or not key.isidentifier() or not text.strip() or len(pair) > _MAX_TEXT:
            raise UsageError(f"{option} {one_line(pair, limit=60)}: expected NAME=VALUE")
        if key in found:
            raise UsageError(f"{option} {name}: stands twice, expected once")
        found[key] = Path(text.strip()) if key == "coefficients" else _value(option, name, text.strip())
    return found


def check_flags(policy: str, **flags: object) -> None:
    """Any text may be given for an option. Raises UsageError: one of ``flags`` is neither true nor false."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            shown = name.replace("_", "-")
            raise UsageError(f"policy {policy}: option {shown}: found {value!r}, expected true or false")


def _value(option: str, name: str, text: str) -> int | float | bool | str:
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    if number - number != 0:
        raise UsageError(f"{option} {name}: found {text}, expected a finite number")
    return number
