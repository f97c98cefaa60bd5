"""Read a text file from a stranger as blocks of whole lines: bounded memory whatever the file holds."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from gkestimator.core.errors import DocumentError
from gkestimator.core.files import FileWords, opened
from gkestimator.simulation.arrays import Bytes, Ints

_READ = 2**20
# A line of the Azure Functions format of 2019 has 1,444 columns: about 10 KB where every minute is busy.
MAX_LINE = 2**16
# Text of this kind shrinks to a tenth or so; deflate can pretend a thousandfold.
_MAX_RATIO = 200
_RATIO_FROM = 2**26
# Stands for a comma inside a quoted field, which is only compared then.
INNER_COMMA = "\x1f"
_COMMA, _NEWLINE = ord(","), ord("\n")
_WORDS = FileWords(
    error=DocumentError, not_regular="found something other than a regular file, expected a trace"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBlock:
    """Hold consecutive rows of the CSV file at ``path``.

    ``data``: their text, without quotes, blank lines or carriage returns; field ``j`` of row ``i`` is
    ``data[starts[i, j]:ends[i, j]]``; ``lines[i]``: the row's line in the file, counted from 1.
    """

    path: Path
    data: bytes
    starts: Ints
    ends: Ints
    lines: Ints

    @property
    def codes(self) -> Bytes:
        """Return ``data`` as numbers."""
        return np.frombuffer(self.data, np.uint8)

    def text(self, row: int, column: int) -> str:
        """Return one field, for messages and rare forms."""
        field = self.data[self.starts[row, column] : self.ends[row, column]]
        return field.decode("utf-8", "replace").replace(INNER_COMMA, ",")

    def error(self, row: int, problem: str) -> DocumentError:
        """Return the error that ``row`` has ``problem`` (``found ..., expected ...``)."""
        return DocumentError(f"{self.path}: line {self.lines[row]}: {problem}")

    def wrong(self, row: int, column: int, name: str, expected: str) -> DocumentError:
        """Return the error that the field called ``name`` is not as ``expected``."""
        return self.error(row, f"{name}: found {quoted(self.text(row, column))}, expected {expected}")


class Lines:
    """Read the file at ``path`` (plain or gzip), a CSV with a header: ``header``, then :meth:`blocks`, once.

    Raises DocumentError (one line that names the file and the line): not a regular file, unreadable, empty,
    NUL bytes, a line of more than MAX_LINE bytes, a line break or a wrong quote inside a field, a row with
    another number of fields than the header, a broken gzip file or one that grows more than 200-fold.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._texts = self._whole_lines()
        self._line = 1
        first = next(self._texts, b"")
        head, _, self._rest = first.partition(b"\n")
        if not head.strip():
            raise DocumentError(f"{path}: found nothing in the first line, expected the columns' names")
        self.header = [n.strip() for n in self._fields(head.removeprefix(b"\xef\xbb\xbf"), 1)]

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the rows below the header."""
        self._line = 2
        for text in self._rest_and_texts():
            if not text:
                continue
            block = self._plain(text)
            if block is not None:
                self._line += len(block.lines)
            else:
                block = self._irregular(text)
                self._line += text.count(b"\n")
            if block is not None:
                yield block

    def _rest_and_texts(self) -> Iterator[bytes]:
        yield self._rest
        yield from self._texts

    def _plain(self, text: bytes) -> RowBlock | None:
        """Return the block where nothing is quoted, blank or short of fields; None where something is."""
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        if b'"' in text or b"\r" in text:
            return None
        block = self._cut(text)
        if block is None:
            return None
        separators = block.codes[block.ends]
        if (separators[:, -1] != _NEWLINE).any() or (separators[:, :-1] != _COMMA).any():
            return None
        if len(self.header) == 1 and (block.codes[block.starts] <= ord(" ")).any():
            return None  # blank lines, or such that may be
        return block

    def _cut(self, data: bytes) -> RowBlock | None:
        """Return ``data`` cut at commas and line ends; None where that gives no whole rows."""
        codes = np.frombuffer(data, np.uint8)
        cuts = np.flatnonzero((codes == _COMMA) | (codes == _NEWLINE))
        if len(cuts) % len(self.header):
            return None
        ends = cuts.reshape(-1, len(self.header))
        starts = np.concatenate([[-1], cuts[:-1]]) + 1
        lines = np.arange(len(ends)) + self._line
        return RowBlock(path=self.path, data=data, starts=starts.reshape(ends.shape), ends=ends, lines=lines)

    def _irregular(self, text: bytes) -> RowBlock | None:
        """Return the block row by row: take what CSV allows, and name the line of what it does not."""
        rows = []
        numbers = []
        for number, line in enumerate(text.split(b"\n")[:-1], self._line):
            line = line.removesuffix(b"\r")
            if not line.strip():
                continue
            fields = self._fields(line, number)
            if len(fields) != len(self.header):
                raise self._error(number, f"found {len(fields)} fields, expected {len(self.header)}")
            rows.append(",".join(f.replace(",", INNER_COMMA) for f in fields) + "\n")
            numbers.append(number)
        if not rows:
            return None
        block = self._cut("".join(rows).encode("latin-1"))
        assert block is not None
        return replace(block, lines=np.asarray(numbers))

    def _error(self, line: int, problem: str) -> DocumentError:
        return DocumentError(f"{self.path}: line {line}: {problem}")

    def _fields(self, line: bytes, number: int) -> list[str]:
        # Latin-1 gives every byte back as it was.
        text = line.removesuffix(b"\r").decode("latin-1")
        if "\r" in text:
            raise self._error(number, "found a carriage return inside, expected LF or CR LF")
        try:
            return next(csv.reader([text], strict=True))
        except csv.Error as e:
            problem = "found a quote that does not close on the line, expected one row a line"
            raise self._error(number, problem) from e

    def _whole_lines(self) -> Iterator[bytes]:
        """Yield texts that end with a line's end."""
        line = 1
        left = b""
        for read in _reads(self.path):
            if 0 in read:
                before = left + read[: read.index(0)]
                problem = "found a NUL byte, expected text in UTF-8 (or that, gzipped)"
                raise self._error(line + before.count(b"\n"), problem)
            head, newline, tail = read.rpartition(b"\n")
            if newline:
                text = left + head + newline
                line += self._short_enough(text, line)
                yield text
                left = tail
            else:
                left += tail
            if len(left) > MAX_LINE:
                self._short_enough(left, line)
        if left:
            yield left + b"\n"

    def _short_enough(self, text: bytes, line: int) -> int:
        """Return how many lines end in ``text``, which begins with line number ``line``. Raises DocumentError."""
        breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
        widths = np.diff(breaks, prepend=-1, append=len(text))
        if widths.max() > MAX_LINE + 1:
            problem = f"found more than {MAX_LINE:,} bytes without a line's end, expected rows of a trace"
            raise self._error(line + int(widths.argmax()), problem)
        return len(breaks)


def quoted(text: str) -> str:
    """Return ``text`` as it may stand in a message."""
    if len(text) > 40:
        text = text[:37] + "..."
    return repr(text)


def _reads(path: Path) -> Iterator[bytes]:
    """Yield the file's bytes, unpacked where gzipped, a megabyte at a time."""
    try:
        with opened(path, _WORDS) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                yield from _unpacked(path, raw)
            else:
                yield from iter(lambda: raw.read(_READ), b"")
    except (EOFError, zlib.error) as e:
        raise DocumentError(f"{path}: cannot be read: {e}") from e


def _unpacked(path: Path, raw: IO[bytes]) -> Iterator[bytes]:
    total = 0
    with gzip.GzipFile(fileobj=raw) as stream:
        while read := stream.read(_READ):
            total += len(read)
            if total > _RATIO_FROM and total > _MAX_RATIO * raw.tell():
                raise DocumentError(
                    f"{path}: found {total:,} bytes packed in {raw.tell():,}, expected at most {_MAX_RATIO} times that"
                )
            yield read
