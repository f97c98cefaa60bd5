"""Turn columns of a block into arrays: numbers and points in time, digit by digit for all rows at once.

What has the usual form is converted with whole-array arithmetic that is exact (up to 15 digits and a power of
ten are floats without error, and their quotient is rounded once), so the figures are those of Python's
``float``; every other field goes through Python one by one, and what is wrong there is named with its line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from gkestimator.simulation.arrays import Bytes, Flags, Floats, Ints
from gkestimator.simulation.traces.lines import RowBlock

_DIGITS = 15
# Lengths from here on are one: no field so long has the usual form.
_LONG = 63
# No two parts can take the same characters: else a field of 65,000 digits would be tried in every cut, for minutes.
_DECIMAL = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_WHOLE = re.compile(r" *[0-9]{1,15} *")
_INSTANT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
_DATE_DIGITS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_DATE_SIGNS = {4: "-", 7: "-", 13: ":", 16: ":"}
_POINT, _NINE, _ZERO = 46, 9, np.uint8(48)
_ENDINGS = (b"", b"Z", b"+00:00")
_MAX_SECONDS = 1e11
_FIRST_YEAR, _BEYOND_YEAR = b"1970", b"2200"


def decimals(block: RowBlock, column: int, name: str) -> Floats:
    """Return numbers of at least 0 and at most 1e11 (seconds of 3,000 years). Raises DocumentError naming the line."""
    values, usual = _digits(block, block.starts[:, column], block.ends[:, column], points=True)
    for row in np.flatnonzero(~usual):
        text = block.text(int(row), column)
        values[row] = np.nan
        if _DECIMAL.fullmatch(text.strip(" ")):
            values[row] = float(text)
        if not np.isfinite(values[row]):
            raise block.wrong(int(row), column, name, "a number of at least 0")
    large = np.flatnonzero(values > _MAX_SECONDS)
    if len(large):
        raise block.wrong(int(large[0]), column, name, f"at most {_MAX_SECONDS:g}")
    return values


def whole_numbers(block: RowBlock, columns: Sequence[int], name: str) -> Ints:
    """Return whole numbers of at least 0 in ``columns``: (rows, columns). Raises DocumentError naming the line."""
    starts = block.starts[:, columns]
    ends = block.ends[:, columns]
    values, usual = _digits(block, starts.ravel(), ends.ravel(), points=False)
    for at in np.flatnonzero(~usual):
        row, number = divmod(int(at), len(columns))
        text = block.text(row, columns[number])
        if not _WHOLE.fullmatch(text):
            raise block.wrong(row, columns[number], name, "a whole number of at least 0")
        values[at] = float(text)
    return values.astype(np.int64).reshape(starts.shape)


def instants(block: RowBlock, column: int, name: str) -> Ints:
    """Return points in time in nanoseconds since 1970.

    They are written as ``2023-11-16 18:17:03.9799600``, with ``T`` for the space, and ``Z`` or an offset
    behind; without one they are UTC. Raises DocumentError naming the line.
    """
    starts = block.starts[:, column]
    lengths = np.minimum(block.ends[:, column] - starts, _LONG)
    values = np.zeros(len(starts), np.int64)
    usual = np.zeros(len(starts), bool)
    for length in np.flatnonzero(np.bincount(lengths)):
        if not 19 <= length <= 35:
            continue
        rows = np.flatnonzero(lengths == length)
        chars = block.codes[starts[rows, None] + np.arange(length)]
        for ending in _ENDINGS:
            good, nanoseconds = _usual_instants(chars, ending)
            values[rows[good]] = nanoseconds
            usual[rows[good]] = True
            if usual[rows].all():
                break
    for row in np.flatnonzero(~usual):
        try:
            values[row] = _instant(block.text(int(row), column))
        except ValueError as e:
            expected = "a time such as 2023-11-16 18:17:03.9799600"
            raise block.wrong(int(row), column, name, expected) from e
    return values


def _digits(block: RowBlock, starts: Ints, ends: Ints, *, points: bool) -> tuple[Floats, Flags]:
    """Return the values of fields of at most 15 digits, and which fields are such.

    With ``points`` a field may have a decimal point.
    """
    codes = block.codes
    values = np.zeros(len(starts))
    usual = np.zeros(len(starts), bool)
    lengths = np.minimum(ends - starts, _LONG)
    before_point = lengths
    if points:
        dots = np.append(np.flatnonzero(codes == _POINT), len(codes))
        next_dot = dots[np.searchsorted(dots, starts)]
        before_point = np.where(next_dot < ends, np.minimum(next_dot - starts, _LONG), lengths)
    # Fields of one length with the point at one place are converted together.
    forms = lengths * (_LONG + 1) + before_point
    for form in np.flatnonzero(np.bincount(forms, minlength=1)):
        length, point = divmod(int(form), _LONG + 1)
        places = [p for p in range(length) if p != point]
        if not 0 < len(places) <= _DIGITS:
            continue
        rows = np.flatnonzero(forms == form)
        digits = codes[starts[rows, None] + np.array(places)] - _ZERO
        good = (digits <= _NINE).all(axis=1)
        weights = 10.0 ** np.arange(len(places) - 1, -1, -1)
        whole = digits.astype(np.float64) @ weights
        shifted = whole / 10.0 ** max(length - point - 1, 0)
        values[rows[good]] = shifted[good]
        usual[rows[good]] = True
    return values, usual


def _usual_instants(chars: Bytes, ending: bytes) -> tuple[Flags, Ints]:
    """Return which rows of ``chars`` are times of the usual form with ``ending``, and their nanoseconds since 1970."""
    base = chars.shape[1] - len(ending)
    fraction = base - 20
    good = (chars[:, base:] == np.frombuffer(ending, np.uint8)).all(axis=1)
    if base < 19 or fraction == 0 or fraction > 9:
        good[:] = False
    if not good.any():
        return good, np.zeros(0, np.int64)
    numeric = [*_DATE_DIGITS, *range(20, base)]
    good &= (chars[:, numeric] - _ZERO <= _NINE).all(axis=1)
    for place, sign in _DATE_SIGNS.items():
        good &= chars[:, place] == ord(sign)
    if fraction > 0:
        good &= chars[:, 19] == _POINT
    good &= (chars[:, 10] == ord(" ")) | (chars[:, 10] == ord("T"))
    texts = np.ascontiguousarray(chars[:, :base]).view(f"S{base}").ravel()
    good &= (texts >= _FIRST_YEAR) & (texts < _BEYOND_YEAR)
    try:
        return good, texts[good].astype("datetime64[ns]").astype(np.int64)
    except ValueError:  # one of them is no date: they go one by one
        return np.zeros(len(chars), bool), np.zeros(0, np.int64)


def _instant(text: str) -> int:
    """Return one time in nanoseconds since 1970. Raises ValueError where it is none."""
    form = _INSTANT.fullmatch(text.strip())
    if form is None:
        raise ValueError
    date, hour, minute, second, fraction, zone = form.groups()
    if hour == "24":  # Python 3.14 reads it as the next day's midnight
        raise ValueError
    offset = (zone or "Z").replace("Z", "+00:00")
    moment = datetime.fromisoformat(f"{date}T{hour}:{minute}:{second}{offset}")
    if not int(_FIRST_YEAR) <= moment.year < int(_BEYOND_YEAR):
        raise ValueError
    return int(moment.timestamp()) * 10**9 + int((fraction or "").ljust(9, "0"))
