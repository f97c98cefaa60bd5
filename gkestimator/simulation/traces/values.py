"""Columns of a block as arrays: numbers and points in time, digit by digit for all rows at once.

What has the usual form is converted with whole-array arithmetic that is exact (up to 15 digits and a power of ten are
floats without error, and their quotient is rounded once), so the figures are those of Python's ``float``; every other
field goes through Python one by one, and what is wrong there is named with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.errors import DocumentError
from gkestimator.simulation.arrays import Bytes, Flags, Floats, Ints
from gkestimator.simulation.traces.lines import RowBlock, quoted

_DIGITS = 15
# No two parts can take the same characters: else a field of 65,000 digits would be tried in every cut, for minutes.
_DECIMAL = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_WHOLE = re.compile(r" *[0-9]{1,15} *")
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_MAX_SECONDS = 1e11


def decimals(path: Path, block: RowBlock, column: int, name: str) -> Floats:
    """Numbers of at least 0 and at most 1e11 (seconds of 3,000 years). Raises DocumentError naming the line."""
    odd = np.ones(len(block.lines), bool)
    found = _digits(block, block.starts[:, column], block.ends[:, column], odd, points=True)

    def number(text: str) -> float:
        if _DECIMAL.fullmatch(text.strip(" ")):
            return float(text)
        return np.nan

    _one_by_one(path, block, column, name, odd, found, number, "a number of at least 0")
    wrong = np.flatnonzero(~(found <= _MAX_SECONDS))
    if len(wrong):
        raise _refused(path, block, int(wrong[0]), column, name, f"at most {_MAX_SECONDS:g}")
    return found


def whole_numbers(path: Path, block: RowBlock, columns: NDArray[np.intp] | list[int], name: str) -> Ints:
    """Whole numbers of at least 0 in ``columns``: (rows, columns). Raises DocumentError naming the line."""
    starts = block.starts[:, columns]
    ends = block.ends[:, columns]
    odd = np.ones(starts.size, bool)
    found = _digits(block, starts.ravel(), ends.ravel(), odd, points=False)
    width = starts.shape[1]
    for at in np.flatnonzero(odd):
        row = int(at) // width
        column = int(columns[int(at) % width])
        text = block.text(row, column)
        if not _WHOLE.fullmatch(text):
            raise _refused(path, block, row, column, name, "a whole number of at least 0")
        found[at] = float(text)
    return found.astype(np.int64).reshape(starts.shape)


def instants(path: Path, block: RowBlock, column: int, name: str) -> Ints:
    """Points in time (``2023-11-16 18:17:03.9799600``, ``T`` for the space, ``Z`` or an offset behind; without one:
    UTC) in nanoseconds since 1970. Raises DocumentError naming the line."""
    codes = block.codes
    starts = block.starts[:, column]
    ends = block.ends[:, column]
    found = np.zeros(len(starts), np.int64)
    odd = np.ones(len(starts), bool)
    lengths = ends - starts
    for length in np.flatnonzero(np.bincount(np.minimum(lengths, 64))):
        rows = np.flatnonzero(lengths == length)
        if not 19 <= length <= 35 or len(rows) == 0:
            continue
        chars = codes[starts[rows, None] + np.arange(length)]
        if length >= 25 and chars[0, -6] == 43:
            zone = 6
        else:
            zone = int(chars[0, -1] == 90)
        nanos = int(length) - zone - 20
        if nanos > 9 or nanos == 0:
            continue
        good, values = _instant_digits(chars, zone, max(nanos, 0))
        found[rows[good]] = values[good]
        odd[rows[good]] = False

    for row in np.flatnonzero(odd):
        try:
            found[row] = _instant(block.text(int(row), column))
        except ValueError as e:
            raise _refused(
                path, block, int(row), column, name, "a time such as 2023-11-16 18:17:03.9799600"
            ) from e
    return found


def _digits(block: RowBlock, starts: Ints, ends: Ints, odd: Flags, *, points: bool) -> Floats:
    """The values of fields of at most 15 digits, with a decimal point where ``points``; ``odd`` becomes False there."""
    codes = block.codes
    found = np.zeros(len(starts))
    lengths = np.minimum(ends - starts, 63)
    where = lengths
    if points:
        dots = np.append(np.flatnonzero(codes == 46), len(codes))
        dot = dots[np.searchsorted(dots, starts)]
        where = np.where(dot < ends, np.minimum(dot - starts, 63), lengths)
    forms = lengths * 64 + where
    for form in np.flatnonzero(np.bincount(forms, minlength=1)):
        length, point = divmod(int(form), 64)
        places = [p for p in range(length) if p != point]
        if not 0 < len(places) <= _DIGITS:
            continue
        rows = np.flatnonzero(forms == form)
        digits = codes[starts[rows, None] + np.array(places)] - np.uint8(48)
        good = (digits <= 9).all(axis=1)
        weights = 10.0 ** np.arange(len(places) - 1, -1, -1)
        values = digits.astype(np.float64) @ weights / 10.0 ** max(length - point - 1, 0)
        found[rows[good]] = values[good]
        odd[rows[good]] = False
    return found


def _instant_digits(chars: Bytes, zone: int, nanos: int) -> tuple[Flags, Ints]:
    """Which rows of ``chars`` have the usual form, and their nanoseconds since 1970."""
    base = chars.shape[1] - zone
    digits = chars[:, :base] - np.uint8(48)
    numeric = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, *range(20, 20 + nanos)]
    good = (digits[:, numeric] <= 9).all(axis=1)
    for place, char in ((4, "-"), (7, "-"), (13, ":"), (16, ":"), *([(19, ".")] if nanos else [])):
        good &= chars[:, place] == ord(char)
    good &= (chars[:, 10] == ord(" ")) | (chars[:, 10] == ord("T"))
    if zone:
        ending = np.frombuffer(b"+00:00" if zone == 6 else b"Z", np.uint8)
        good &= (chars[:, base:] == ending).all(axis=1)
    weights = np.zeros((base, 6))
    weights[[0, 1, 2, 3, 5, 6], 0] = 10.0 ** np.arange(5, -1, -1)  # year and month, YYYYMM
    for part, place in enumerate((8, 11, 14, 17), 1):
        weights[[place, place + 1], part] = (10, 1)
    weights[20 : 20 + nanos, 5] = 10.0 ** np.arange(8, 8 - nanos, -1)
    months, day, hour, minute, second, fraction = (digits.astype(np.float64) @ weights).astype(np.int64).T
    year = months // 100
    month = months % 100
    good &= (hour < 24) & (minute < 60) & (second < 60) & (month >= 1) & (month <= 12) & (year >= 1970)
    good &= year < 2200
    number = np.where(good, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first = number.astype("datetime64[D]")
    good &= (day >= 1) & (day <= ((number + 1).astype("datetime64[D]") - first).astype(np.int64))
    days = first.astype(np.int64) + day - 1
    return good, ((days * 24 + hour) * 3600 + minute * 60 + second) * 10**9 + fraction


def _instant(text: str) -> int:
    from datetime import datetime

    form = _INSTANT.fullmatch(text.strip())
    if form is None:
        raise ValueError
    date, hour, minute, second, fraction, zone = form.groups()
    whole = datetime.fromisoformat(f"{date}T{hour}:{minute}:{second}{(zone or 'Z').replace('Z', '+00:00')}")
    if not 1970 <= whole.year < 2200:
        raise ValueError
    return int(whole.timestamp()) * 10**9 + int((fraction or "").ljust(9, "0"))


def _one_by_one(
    path: Path,
    block: RowBlock,
    column: int,
    name: str,
    odd: Flags,
    found: Floats,
    convert: Callable[[str], float],
    expected: str,
) -> None:
    for row in np.flatnonzero(odd):
        try:
            found[row] = convert(block.text(int(row), column))
        except ValueError:
            found[row] = np.nan
        if not np.isfinite(found[row]):
            raise _refused(path, block, int(row), column, name, expected)


def _refused(path: Path, block: RowBlock, row: int, column: int, name: str, expected: str) -> DocumentError:
    found = quoted(block.text(row, column))
    return DocumentError(f"{path}: line {block.lines[row]}: {name}: found {found}, expected {expected}")
