"""A JSON object read piece by piece: its one long list element by element, so that memory stays bounded."""

from __future__ import annotations

import gzip
import json
import re
import stat
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from gkestimator.core.errors import TableError
from gkestimator.core.limits import allowed, exceeded, remedy, seconds_for
from gkestimator.profiling.type_names import Fields

MAX_ELEMENT = 16 * 2**20
_CHUNK = 2**18
_SPACE = " \t\n\r"
# As C++ prints what is no number; kineto writes such words into a kernel's figures.
_BARE = re.compile(r"-?(?:nan|inf)\b")


class _Reader:
    """A window on the text: ``text[at:]`` is what has been read and not yet used."""

    def __init__(self, file: IO[str], limit_s: float) -> None:
        self._file = file
        self._deadline = time.monotonic() + limit_s
        self._limit_s = limit_s
        self._read = 0
        self._words = 0
        self._decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)
        self.text = ""
        self.at = 0

    def more(self) -> bool:
        """Read on, as much again as waits; False at the end of the file.

        A value is read from its start each time: by pieces of one size a long one would be read hundreds of times.
        """
        if time.monotonic() > self._deadline:
            raise ValueError(
                f"reading took more than {self._limit_s:g} s; given up ({remedy('report_seconds')})"
            )
        chunk = self._file.read(max(_CHUNK, len(self.text) - self.at))
        self._read += len(chunk)
        if self._read > allowed("trace_characters"):
            raise ValueError(exceeded("trace_characters", "more"))
        self.text = self.text[self.at :] + chunk
        self.at = 0
        return bool(chunk)

    def peek(self) -> str:
        """The next character that is no space, empty at the end."""
        while True:
            while self.at < len(self.text):
                if self.text[self.at] not in _SPACE:
                    return self.text[self.at]
                self.at += 1
            if not self.more():
                return ""

    def expect(self, wanted: str) -> str:
        character = self.peek()
        if not character or character not in wanted:
            where = "its end" if not character else repr(character)
            raise ValueError(f"found {where}, expected {' or '.join(wanted)}")
        self.at += 1
        return character

    def _no_number(self, at: int) -> bool:
        """Put ``null`` where C++ wrote ``nan`` or ``inf`` at ``at``; False where it did not."""
        word = _BARE.match(self.text, at)
        if word is None:
            return False
        # Each copies what is read and not yet used.
        self._words += 1
        if self._words > allowed("trace_words"):
            raise ValueError(exceeded("trace_words", "more"))
        self.text = f"{self.text[:at]}null{self.text[word.end() :]}"
        return True

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self.text, self.at)
                if end < len(self.text):
                    self.at = end
                    return value
                # A number that touches the window's end may go on behind it.
                if not self.more():
                    self.at = len(self.text)
                    return value
            except json.JSONDecodeError as e:
                if self._no_number(e.pos):
                    continue
                if len(self.text) - self.at > MAX_ELEMENT:
                    raise ValueError(f"no JSON value of at most {MAX_ELEMENT:,} characters: {e.msg}") from e
                if not self.more():
                    raise ValueError(f"cut short or no JSON: {e.msg}") from e


def _no_constant(text: str) -> None:
    raise ValueError(f"found {text}, expected a finite number")


def stream_object(
    path: Path,
    key: str,
    element: Callable[[Any], None],
    *,
    keep: Collection[str],
    limit_s: float | None = None,
) -> Fields:
    """Return the fields ``keep`` of the JSON object in the file at ``path`` (gzip where it begins so).

    The list ``key`` is handed to ``element`` one by one, and what else there is is passed over. Numbers with a point
    are Decimal: nanoseconds in microseconds since the start of the machine do not fit a float. ``limit_s``: None is
    what the limit ``report_seconds`` allows for the file's size. Raises TableError in one line for anything else, and
    after ``limit_s`` seconds."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise TableError(f"{path}: not a regular file, expected a trace in JSON")
        if limit_s is None:
            limit_s = seconds_for("report_seconds", status.st_size)
        with closing(_text(path)) as file:
            return _object(_Reader(file, limit_s), key, element, keep)
    except (EOFError, zlib.error, OSError, ValueError, RecursionError, ArithmeticError) as e:
        raise TableError(f"{path}: no trace in JSON: {getattr(e, 'strerror', None) or e}") from e


def _text(path: Path) -> IO[str]:
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    if zipped:
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _object(reader: _Reader, key: str, element: Callable[[Any], None], keep: Collection[str]) -> Fields:
    rest: Fields = {}
    reader.expect("{")
    if reader.peek() == "}":
        reader.expect("}")
        return rest
    while True:
        name = reader.value()
        if not isinstance(name, str):
            raise ValueError(f"found {str(name)[:40]!r}, expected the name of a field")
        reader.expect(":")
        if name == key and reader.peek() == "[":
            for one in _elements(reader):
                element(one)
        else:
            value = reader.value()
            if name in keep:
                rest[name] = value
        if reader.expect(",}") == "}":
            break
    if reader.peek():
        raise ValueError(f"found {reader.peek()!r} after the object's end")
    return rest


def _elements(reader: _Reader) -> Iterator[Any]:
    reader.expect("[")
    if reader.peek() == "]":
        reader.expect("]")
        return
    while True:
        yield reader.value()
        if reader.expect(",]") == "]":
            return
