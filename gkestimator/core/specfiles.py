"""Reading specification files: small TOML files in which every figure is a table of value, unit and source.

GPU specifications and runtime profiles share these rules. The files may come from strangers, so size, types,
units and ranges are checked before a figure is used, and every failure is a one-line :class:`SpecError` that
names the file and the field.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.errors import SpecError
from gkestimator.core.records import frozen

# Dotted keys take the TOML parser time quadratic in their parts, which a megabyte turns into hours. A
# specification has some 8 KiB in lines of at most 700 characters.
MAX_SPEC_BYTES = 1 << 16
_MAX_LINE = 1024
_MAX_TEXT = 600
_FIGURE_KEYS = frozenset({"value", "unit", "source"})

COUNT = {"1": 1.0}
CLOCK = {"MHz": 1.0, "GHz": 1e3}
FLOP_RATE = {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
INT_RATE = {"OP/s": 1.0, "GOP/s": 1e9, "TOP/s": 1e12}
BYTE_RATE = {"B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}
BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
POWER = {"W": 1.0}
PRICE = {"USD/h": 1.0}
PIN_RATE = {"Gbit/s": 1e9}
TIME_US = {"us": 1.0, "ms": 1e3}


@frozen
class Quantity:
    """What a figure may be: its units with their factors, and the range, in the base unit, beyond which it is
    absurd.

    ``nullable`` figures may say ``value = "unknown"``, which reads as None; ``extra`` names further keys
    (texts) that the table must have.
    """

    units: Mapping[str, float]
    low: float
    high: float
    integer: bool = False
    nullable: bool = False
    extra: tuple[str, ...] = ()


def read_spec_text(path: Path, *, what: str) -> str:
    """The text of a regular UTF-8 file of at most ``MAX_SPEC_BYTES`` bytes. Raises SpecError."""
    try:
        # O_NONBLOCK: opening a named pipe must not hang before the check below refuses it.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SpecError(f"{path}: not a regular file, expected a {what} (TOML)")
            data = file.read(MAX_SPEC_BYTES + 1)
    except (OSError, ValueError) as e:
        if isinstance(e, OSError) and e.strerror:
            reason = e.strerror
        else:
            reason = str(e)
        raise SpecError(f"{path}: cannot read this {what}: {reason}") from e
    if len(data) > MAX_SPEC_BYTES:
        raise SpecError(f"{path}: larger than {MAX_SPEC_BYTES} bytes, too large for a {what}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise SpecError(f"{path}: not UTF-8 text at byte {e.start}, expected a {what} (TOML)") from e
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > _MAX_LINE:
            raise SpecError(
                f"{path}: line {number} has {len(line)} characters, at most {_MAX_LINE} in a {what}"
            )
    return text


def parse_spec(path: Path, text: str, *, what: str) -> dict[str, Any]:
    """``text`` as TOML; a syntax error names line and column. Raises SpecError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as e:  # ValueError: syntax, and integers too long to convert
        raise SpecError(f"{path}: not a {what}: {e}") from e


def spec_header(path: Path, text: str, *, what: str) -> dict[str, Any]:
    """The keys above the first table. Parsing only these makes a search for a name cheap."""
    lines = []
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            break
        lines.append(line)
    try:
        return tomllib.loads("".join(lines))
    except (ValueError, RecursionError):  # a "[" inside a multi-line value: only the whole file parses
        return {k: v for k, v in parse_spec(path, text, what=what).items() if not isinstance(v, dict)}


class SpecReader:
    """Takes known keys out of a parsed file; what is left over at :meth:`finish` is refused."""

    def __init__(self, path: Path, data: dict[str, Any], *, what: str) -> None:
        self.path = path
        self.what = what
        self.sources: dict[str, str] = {}
        self._data = dict(data)

    def fail(self, field: str, message: str) -> SpecError:
        """The error for ``field``, to be raised by the caller."""
        return SpecError(f"{self.path}: [{field}] {message}")

    def schema_version(self, expected: int) -> None:
        """Require ``schema_version = expected``."""
        found = self._data.pop("schema_version", None)
        if type(found) is not int or found != expected:
            raise self.fail("schema_version", f"is {_show(found)}, expected {expected}")

    def text(self, field: str, *, default: str | None = None) -> str:
        """A text on one line; required unless ``default`` is given."""
        return self._text_of(self._data.pop(field, default), field)

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of at most 64 texts; absent means none."""
        found = self._data.pop(field, [])
        if not isinstance(found, list) or len(found) > 64:
            raise self.fail(field, f"is {_show(found)}, expected a list of at most 64 texts")
        return tuple(self._text_of(item, field) for item in found)

    def table(self, field: str) -> dict[str, Any]:
        """A required table, taken out as it is."""
        found = self._data.pop(field, None)
        if not isinstance(found, dict):
            raise self.fail(field, f"is {_show(found)}, expected a table")
        return found

    def figure(self, field: str, quantity: Quantity) -> tuple[float | None, dict[str, str]]:
        """The figure ``field`` in base units (None: unknown) and its extra texts."""
        return self.figure_of(self._data.pop(field, None), field, quantity)

    def number(self, field: str, quantity: Quantity) -> float:
        """A figure that must be known, in base units."""
        return self._known(field, self.figure(field, quantity)[0])

    def integer(self, field: str, quantity: Quantity) -> int:
        """A figure that must be known and whole, in base units."""
        return int(self.number(field, quantity))

    def numbers(self, field: str, quantities: Mapping[str, Quantity]) -> dict[str, float]:
        """The figures ``[field.key]`` of those keys of ``quantities`` that are there; others are refused."""
        found = self.table(field)
        self._refuse_unknown(found, quantities, field)
        return {
            key: self._known(
                f"{field}.{key}", self.figure_of(found[key], f"{field}.{key}", quantities[key])[0]
            )
            for key in quantities
            if key in found
        }

    def has(self, field: str) -> bool:
        """Whether an optional field is there."""
        return field in self._data

    def figure_of(self, found: object, field: str, quantity: Quantity) -> tuple[float | None, dict[str, str]]:
        """Check one figure's table and remember its source under ``field``."""
        if not isinstance(found, dict):
            state = "is missing" if found is None else f"is {_show(found)}"
            raise self.fail(field, f"{state}, expected a table of value, unit and source")
        keys = _FIGURE_KEYS.union(quantity.extra)
        self._refuse_unknown(found, keys, field)
        for key in sorted(keys):
            if key not in found:
                raise self.fail(field, f"has no {key}")
        source = self._text_of(found["source"], f"{field}.source")
        extra = {key: self._text_of(found[key], f"{field}.{key}") for key in quantity.extra}
        unit = found["unit"]
        if not isinstance(unit, str) or unit not in quantity.units:
            raise self.fail(field, f"has the unit {_show(unit)}, expected {' or '.join(quantity.units)}")
        value = found["value"]
        self.sources[field] = source
        if quantity.nullable and value == "unknown":
            return None, extra
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(field, f"has the value {_show(value)}, expected a number")
        factor = quantity.units[unit]
        # Compared before the multiplication: an integer of a thousand digits does not fit a float.
        if not quantity.low / factor <= value <= quantity.high / factor:
            span = f"{quantity.low / factor:g} to {quantity.high / factor:g} {unit}"
            raise self.fail(field, f"is {_show(value)} {unit}, expected {span}")
        base = value * factor
        if quantity.integer and base != int(base):
            raise self.fail(field, f"is {_show(value)} {unit}, expected a whole number")
        return base, extra

    def finish(self) -> None:
        """Refuse keys that nobody asked for: a misspelt field must not be lost silently."""
        self._refuse_unknown(self._data, (), "")

    def _refuse_unknown(self, found: Mapping[str, Any], known: Iterable[str], field: str) -> None:
        for key in found:
            if key not in known:
                listed = ", ".join(sorted(known))
                raise self.fail(
                    f"{field}.{key}" if field else key,
                    "is not a field of " + (f"it (known: {listed})" if listed else f"a {self.what}"),
                )

    def _known(self, field: str, value: float | None) -> float:
        if value is None:
            raise self.fail(field, "is unknown, but is required")
        return value

    def _text_of(self, found: object, field: str) -> str:
        if not isinstance(found, str):
            raise self.fail(field, "is missing" if found is None else f"is {_show(found)}, expected a text")
        if len(found) > _MAX_TEXT or not found.isprintable():
            raise self.fail(field, f"is not one printable line of at most {_MAX_TEXT} characters")
        if not found.strip() and field != "note":
            raise self.fail(field, "is empty")
        return found


def _show(value: object) -> str:
    """``value`` for a message, shortened; huge integers are not converted to text at all."""
    if value is None:
        return "missing"
    if isinstance(value, int) and value.bit_length() > 200:
        return "an integer of more than 200 bits"
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    text = repr(value)
    if len(text) <= 60:
        return text
    return text[:59] + "…"
