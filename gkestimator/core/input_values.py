"""Read values that are given for inputs of models: numbers and nested lists in a text, and NumPy's files of arrays."""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.files import FileWords, read_bytes
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.option_kinds import Kind, UnfitError
from gkestimator.core.texts import parse_json

_SHOWN = 60
_LIMIT = "input_value_bytes"
_FORM = "a number, or numbers in lists ([1,3,8,8]), or @FILE.npy"
_WORDS = FileWords(
    error=UsageError,
    not_regular="not a regular file",
    too_large="found {size} bytes, expected at most {limit}",
)
# What reading the heading of a stranger's array may raise; it is an expression of Python, which is never run.
_NO_ARRAY = (ValueError, TypeError, KeyError, SyntaxError, EOFError, RecursionError, tokenize.TokenError)


class InputValues(Kind):
    """Take values of inputs by name; in a text one pair ``NAME=VALUE``; read as a dict.

    A value is a number, nested lists of numbers, or ``@FILE.npy``; programs may pass arrays and types as well.
    """

    metavar = "NAME=VALUE"
    python = "Mapping[str, Any]"
    expected = f"values by name, such as size=[1,3,8,8]; a value is {_FORM}"

    def parsed(self, text: str) -> object:
        """Return the pair as a tuple of one, its value still a text. Raises UnfitError for a text of another form."""
        name, _, value = (part.strip() for part in text.partition("="))
        if not name or not value:
            raise UnfitError(repr(text), f"NAME=VALUE, where VALUE is {_FORM}")
        return ((name, value),)

    def checked(self, value: object) -> dict[str, Any]:
        """Return the values by name. Raises UnfitError for other forms, and for a name said twice."""
        if isinstance(value, Mapping):
            pairs = tuple(value.items())
        elif isinstance(value, tuple):
            pairs = value
        else:
            raise self._refuse(value)
        values: dict[str, Any] = {}
        for name, given in pairs:
            if not isinstance(name, str):
                raise self._refuse(value)
            if name in values:
                raise UnfitError(f"{name} twice", f"{name} once")
            values[name] = _value(name, given) if isinstance(given, str) else given
        return values


def _value(name: str, text: str) -> object:
    """Return what a text says: an array where it names a file."""
    if text.startswith("@"):
        return _array(Path(text[1:]))
    if len(text) > allowed(_LIMIT):
        raise UsageError(f"input {name}: {exceeded(_LIMIT, len(text))}")
    try:
        value = parse_json(text)
    except ValueError as e:
        raise UnfitError(one_line(f"{name}={text}", limit=_SHOWN), _FORM) from e
    if not _numbers_alone(value):
        raise UnfitError(one_line(f"{name}={text}", limit=_SHOWN), _FORM)
    return value


def _numbers_alone(value: object) -> bool:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left += item
        elif not isinstance(item, int | float):
            return False
    return True


def _array(path: Path) -> object:
    """Return the array in a file of NumPy. Raises UsageError; objects are never unpickled."""
    import numpy as np
    from numpy.lib import format as npy

    raw = read_bytes(path, _WORDS, allowed(_LIMIT))
    stream = io.BytesIO(raw)
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
        count = math.prod(shape)
        # Before the array is made: a heading of 80 bytes may ask for terabytes.
        if dtype.hasobject or min(shape, default=0) < 0 or count * dtype.itemsize != len(raw) - stream.tell():
            raise ValueError("not as many numbers as the heading says")
        flat = np.frombuffer(raw, dtype, count, stream.tell())
        return flat.reshape(shape, order="F" if by_columns else "C")
    except _NO_ARRAY as e:
        raise UsageError(f"{path}: found no array of numbers, expected a file that numpy.save wrote") from e
