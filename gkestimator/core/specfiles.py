"""Read specification files: small TOML files in which every figure is a table of value, unit and source.

GPU specifications and runtime profiles share these rules. The files may come from strangers, so size, types,
units and ranges are checked before a figure is used, and every failure is a one-line :class:`SpecError` that
names the file and the field.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.errors import SpecError
from gkestimator.core.escaping import is_line
from gkestimator.core.files import FileWords, file_status, read_bytes
from gkestimator.core.records import frozen
from gkestimator.core.values import Document, shown

# Dotted keys take the TOML parser time quadratic in their parts, which a megabyte turns into hours. A
# specification has some 8 KiB in lines of at most 700 characters.
MAX_SPEC_BYTES = 1 << 16
_MAX_LINE = 1024
_MAX_TEXT = 600
UNKNOWN = "unknown"
"""The value of a figure that no source states."""
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
    """Hold what a figure may be: its units with their factors, and the range, in the base unit, beyond which it is
    absurd.

    ``nullable`` figures may say ``value = "unknown"``, which reads as None; ``extra`` names further keys (texts) that
    the table must have.
    """

    units: Mapping[str, float]
    low: float
    high: float
    integer: bool = False
    nullable: bool = False
    extra: tuple[str, ...] = ()


def _words(what: str) -> FileWords:
    return FileWords(
        error=SpecError,
        unreadable=f"cannot read this {what}",
        not_regular=f"not a regular file, expected a {what} (TOML)",
        too_large=f"larger than {MAX_SPEC_BYTES} bytes, too large for a {what}",
    )


def spec_version(path: Path, *, what: str) -> tuple[Path, int, int]:
    """Return ``path`` with its modification time and size, which name one version of its content. Raises SpecError."""
    status = file_status(path, _words(what))
    return path, status.st_mtime_ns, status.st_size


def read_spec_text(path: Path, *, what: str) -> str:
    """Return the text of a regular UTF-8 file of at most ``MAX_SPEC_BYTES`` bytes. Raises SpecError."""
    data = read_bytes(path, _words(what), MAX_SPEC_BYTES)
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


def _parsed(path: Path, text: str, what: str) -> dict[str, Any]:
    """Return ``text`` as TOML; a syntax error names line and column. Raises SpecError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as e:  # ValueError: syntax, and integers too long to convert
        raise SpecError(f"{path}: not a {what}: {e}") from e


def read_spec(path: Path, *, what: str) -> dict[str, Any]:
    """Return the entries of a specification file, not yet checked. Raises SpecError."""
    return _parsed(path, read_spec_text(path, what=what), what)


def spec_header(path: Path, *, what: str) -> dict[str, Any]:
    """Return the keys above the first table. Parsing only these makes a search for a name cheap."""
    text = read_spec_text(path, what=what)
    lines = []
    for line in text.splitlines(keepends=True):
        if line.startswith("["):
            break
        lines.append(line)
    try:
        return tomllib.loads("".join(lines))
    except (ValueError, RecursionError):  # a "[" inside a multi-line value: only the whole file parses
        entries = _parsed(path, text, what)
        return {k: v for k, v in entries.items() if not isinstance(v, dict)}


class SpecReader:
    """Take known keys out of a parsed file; what is left over at :meth:`finish` is refused."""

    def __init__(self, path: Path, data: dict[str, Any], *, what: str) -> None:
        self.path = path
        self.what = what
        self.sources: dict[str, str] = {}
        self._data = dict(data)

    def fail(self, field: str, message: str) -> SpecError:
        """Return the error for ``field``, to be raised by the caller."""
        return SpecError(f"{self.path}: [{field}] {message}")

    def _unfit(self, field: str, value: object, expected: str) -> SpecError:
        if value is None:
            return self.fail(field, f"is missing, expected {expected}")
        return self.fail(field, f"is {shown(value)}, expected {expected}")

    def schema_version(self, expected: int) -> None:
        """Require ``schema_version = expected``."""
        version = self._data.pop("schema_version", None)
        if type(version) is not int or version != expected:
            raise self._unfit("schema_version", version, str(expected))

    def text(self, field: str, *, default: str | None = None) -> str:
        """Take a text on one line; required unless ``default`` is given."""
        return self._text_of(self._data.pop(field, default), field)

    def texts(self, field: str) -> tuple[str, ...]:
        """Take a list of at most 64 texts; absent means none."""
        items = self._data.pop(field, [])
        if not isinstance(items, list) or len(items) > 64:
            raise self._unfit(field, items, "a list of at most 64 texts")
        return tuple(self._text_of(item, field) for item in items)

    def table(self, field: str) -> dict[str, Any]:
        """Take a required table out as it is."""
        table = self._data.pop(field, None)
        if not isinstance(table, dict):
            raise self._unfit(field, table, "a table")
        return table

    def figure(self, field: str, quantity: Quantity) -> tuple[float | None, dict[str, str]]:
        """Take the figure ``field`` in base units (None: unknown) and its extra texts."""
        return self.figure_of(self._data.pop(field, None), field, quantity)

    def number(self, field: str, quantity: Quantity) -> float:
        """Take a figure that must be known, in base units."""
        return self.number_of(self._data.pop(field, None), field, quantity)

    def integer(self, field: str, quantity: Quantity) -> int:
        """Take a figure that must be known and whole, in base units."""
        return int(self.number(field, quantity))

    def numbers(self, field: str, quantities: Mapping[str, Quantity]) -> dict[str, float]:
        """Take the figures ``[field.key]`` of those keys of ``quantities`` that are there; others are refused."""
        figures = self.figures(field, quantities)
        numbers = {}
        for key, value in figures.items():
            if value is None:
                raise self.fail(f"{field}.{key}", "is unknown, but is required")
            numbers[key] = value
        return numbers

    def figures(self, field: str, quantities: Mapping[str, Quantity]) -> dict[str, float | None]:
        """Take the figures ``[field.key]`` as `numbers` does; those that may be unknown may be None."""
        table = self.table(field)
        self._refuse_unknown(table, quantities, field)
        figures = {}
        for key, quantity in quantities.items():
            if key in table:
                figures[key] = self.figure_of(table[key], f"{field}.{key}", quantity)[0]
        return figures

    def has(self, field: str) -> bool:
        """Return whether an optional field is there."""
        return field in self._data

    def number_of(self, entry: object, field: str, quantity: Quantity) -> float:
        """Return one figure that must be known, in base units, from its table."""
        value, _ = self.figure_of(entry, field, quantity)
        if value is None:
            raise self.fail(field, "is unknown, but is required")
        return value

    def figure_of(self, entry: object, field: str, quantity: Quantity) -> tuple[float | None, dict[str, str]]:
        """Check one figure's table and remember its source under ``field``."""
        expected = "expected a table of value, unit and source"
        if entry is None:
            raise self.fail(field, f"is missing, {expected}")
        if not isinstance(entry, dict):
            raise self.fail(field, f"is {shown(entry)}, {expected}")
        keys = _FIGURE_KEYS.union(quantity.extra)
        self._refuse_unknown(entry, keys, field)
        for key in sorted(keys):
            if key not in entry:
                raise self.fail(field, f"has no {key}")
        source = self._text_of(entry["source"], f"{field}.source")
        extra = {key: self._text_of(entry[key], f"{field}.{key}") for key in quantity.extra}
        unit = entry["unit"]
        if not isinstance(unit, str) or unit not in quantity.units:
            known = " or ".join(quantity.units)
            raise self.fail(field, f"has the unit {shown(unit)}, expected {known}")
        self.sources[field] = source
        value = entry["value"]
        if quantity.nullable and value == UNKNOWN:
            return None, extra
        return self._in_base_units(value, unit, field, quantity), extra

    def _in_base_units(self, value: object, unit: str, field: str, quantity: Quantity) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(field, f"has the value {shown(value)}, expected a number")
        factor = quantity.units[unit]
        low = quantity.low / factor
        high = quantity.high / factor
        given = f"is {shown(value)} {unit}"
        # Compared before the multiplication: an integer of a thousand digits does not fit a float.
        if not low <= value <= high:
            raise self.fail(field, f"{given}, expected {low:g} to {high:g} {unit}")
        base = value * factor
        if quantity.integer and base != int(base):
            raise self.fail(field, f"{given}, expected a whole number")
        return base

    def finish(self) -> None:
        """Refuse keys that nobody asked for: a misspelt field must not be lost silently."""
        for key in self._data:
            raise self.fail(key, f"is not a field of a {self.what}")

    def _refuse_unknown(self, entry: Document, known: Collection[str], field: str) -> None:
        for key in entry:
            if key not in known:
                listed = ", ".join(sorted(known))
                raise self.fail(f"{field}.{key}", f"is not a field of it (known: {listed})")

    def _text_of(self, value: object, field: str) -> str:
        if value is None:
            raise self.fail(field, "is missing")
        if not isinstance(value, str):
            raise self._unfit(field, value, "a text")
        if not is_line(value, _MAX_TEXT):
            raise self.fail(field, f"is not one printable line of at most {_MAX_TEXT} characters")
        if not value.strip() and field != "note":
            raise self.fail(field, "is empty")
        return value
