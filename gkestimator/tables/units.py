"""Write numbers as people read them: three significant digits, binary sizes, a dash for what is not known."""

from __future__ import annotations

import math

from gkestimator.core.records import Names

UNKNOWN = "–"
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")


def number_text(value: float | None, *, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits and no exponent below a million; thousands are
    grouped.
    """
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - magnitude)
    if rounded:  # 9.996 rounds up to 10.0, which has one digit more before the point
        magnitude = math.floor(math.log10(abs(rounded)))
    if magnitude >= 9 or magnitude < -4:
        return f"{value:.{digits - 1}e}"
    return f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"


def fixed_text(value: float | None, form: str = ".1f") -> str:
    """Return ``value`` in a fixed form of :func:`format`."""
    if value is None:
        return UNKNOWN
    return format(value, form)


def whole_text(value: int | None) -> str:
    """Return a whole number with its thousands grouped."""
    return fixed_text(value, ",")


def signed_text(value: float | None) -> str:
    """Return a difference: one decimal and always a sign."""
    return fixed_text(value, "+.1f")


def percent_text(value: float | None) -> str:
    """Return a percentage without its sign: one decimal below 10, none above."""
    if value is None:
        return UNKNOWN
    if abs(value) < 9.95:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def _scaled(value: int | float | None, step: int, units: Names) -> str:
    if value is None:
        return UNKNOWN
    power = 0
    scaled = float(value)
    limit: float = step
    while abs(scaled) >= limit and power < len(units) - 1:
        scaled /= step
        power += 1
        limit = 0.9995 * step  # what rounds up to a whole step reads better in the next unit
    if power:
        return f"{number_text(scaled)} {units[power]}"
    return f"{value:g} {units[0]}"


def bytes_text(value: int | None) -> str:
    """Return a size with a binary prefix: ``1.21 GiB``."""
    return _scaled(value, 1024, _BYTES)


def flops_text(value: int | None) -> str:
    """Return a count of floating-point operations with a decimal prefix: ``8.24 GFLOP``."""
    return _scaled(value, 1000, _FLOPS)
