"""Read what the pages of a Parquet file unpack to, from the header of each page.

The sums at a file's end are its writer's word, and nothing holds pages to them: 50 kB can say 200 bytes and unpack to
gigabytes. What pyarrow takes memory for is said in each page's header, which it gives no access to, so the headers are
walked here. Format: Apache Parquet's ``parquet.thrift`` (PageHeader), in the compact protocol of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from gkestimator.core.errors import TableError
from gkestimator.core.files import FileWords, opened
from gkestimator.core.limits import allowed, exceeded

_WORDS = FileWords(error=TableError, unreadable="cannot be read as Parquet")
# A header holds the least and the greatest text of its page; pyarrow itself takes no more than 16 MiB of one.
_FIRST_BYTES = 1 << 12
_MOST_BYTES = 1 << 24
_MOST_DEPTH = 8
_MOST_SIZE = 2**31 - 1
# Fields of PageHeader and of DictionaryPageHeader.
_UNPACKED, _PACKED, _DICTIONARY, _VALUES = 2, 3, 7, 1
# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _SHORT, _WHOLE, _LONG, _DOUBLE, _TEXT, _LIST, _SET, _MAP, _STRUCT = range(13)

Fields = dict[int, "int | Fields | None"]


class PageSize(NamedTuple):
    """Hold what a page's header says: its bytes ``unpacked`` and ``packed``, and where the next header starts."""

    unpacked: int
    packed: int
    next_start: int


def unpacked_bytes(path: Path, metadata: Any) -> int:
    """Return the bytes that all pages of ``path`` unpack to, by their headers; ``metadata``: pyarrow's FileMetaData.

    Raises TableError: a page whose header cannot be read, or more pages or bytes than ``pages`` and
    ``unpacked_bytes`` allow.
    """
    pages = unpacked = 0
    with opened(path, _WORDS) as stream:
        for start, stop in _chunks(metadata):
            for page in _pages(path, stream, start, stop):
                pages += 1
                unpacked += page.unpacked
                if pages > allowed("pages"):
                    raise TableError(f"{path}: {exceeded('pages', pages)}")
                if unpacked > allowed("unpacked_bytes"):
                    raise TableError(f"{path}: {exceeded('unpacked_bytes', unpacked)}")
    return unpacked


def _chunks(metadata: Any) -> Iterator[tuple[int, int]]:
    """Yield where the pages of each column of each group of rows start and stop, in bytes of the file."""
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            column = group.column(j)
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset is not None:
                start = min(start, column.dictionary_page_offset)
            yield start, start + column.total_compressed_size


def _pages(path: Path, stream: IO[bytes], start: int, stop: int) -> Iterator[PageSize]:
    while start < stop:
        page = _page(path, stream, start)
        yield page
        start = page.next_start


def _page(path: Path, stream: IO[bytes], start: int) -> PageSize:
    """Return what the header at ``start`` says. Raises TableError where it cannot be read or says what cannot be."""
    length = _FIRST_BYTES
    while True:
        stream.seek(max(start, 0))
        data = stream.read(length)
        header = _CompactReader(data)
        try:
            fields = header.struct()
            break
        except IndexError:  # it goes on behind what was read
            if len(data) < length or length >= _MOST_BYTES:
                raise _damaged(path, start) from None
            length *= 16
        except ValueError as e:
            raise _damaged(path, start) from e
    unpacked = _size(path, start, fields.get(_UNPACKED))
    packed = _size(path, start, fields.get(_PACKED))
    dictionary = fields.get(_DICTIONARY)
    # Room for all words of a dictionary is taken before one is read; each takes a byte of its page at least.
    if isinstance(dictionary, dict) and _size(path, start, dictionary.get(_VALUES)) > unpacked:
        raise _damaged(path, start)
    return PageSize(unpacked=unpacked, packed=packed, next_start=start + header.at + packed)


def _size(path: Path, start: int, value: object) -> int:
    """Return a number of bytes or values of the page at ``start``. Raises TableError where it is none."""
    if isinstance(value, int) and 0 <= value <= _MOST_SIZE:
        return value
    raise _damaged(path, start)


def _damaged(path: Path, start: int) -> TableError:
    return TableError(f"{path}: cannot be read as Parquet: the header of the page at byte {start} is damaged")


class _CompactReader:
    """Read a struct of Thrift's compact protocol from the start of ``data``; ``at`` is the byte after it.

    Raises IndexError where the data end before, ValueError for what a page's header never holds.
    """

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data

    def struct(self, depth: int = 0) -> Fields:
        """Return the fields by number: whole numbers and structs; None for a field of another type."""
        if depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        fields: Fields = {}
        number = 0
        while True:
            head = self._byte()
            if head == _STOP:
                return fields
            step = head >> 4
            number = number + step if step else self._signed()
            fields[number] = self._value(head & 15, depth)

    def _value(self, kind: int, depth: int) -> int | Fields | None:
        if kind in (_SHORT, _WHOLE, _LONG):
            return self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_TRUE, _FALSE):
            return None
        if kind == _BYTE:
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _TEXT:
            self._skip(self._unsigned())
        else:
            raise ValueError(f"type {kind}")
        return None

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError(count)

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise ValueError("a number beyond 64 bits")

    def _signed(self) -> int:
        """Return a number whose last bit is its sign ("zigzag")."""
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)
