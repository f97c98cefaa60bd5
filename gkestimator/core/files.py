"""Open files from strangers: regular ones, without waiting, at most so large, and every failure in one line.

All readers of the project start here. What a reader says of a file it cannot take is a :class:`FileWords`.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn, overload

from gkestimator.core.errors import GkestimatorError, ModelError, TableError
from gkestimator.core.records import frozen


@frozen
class FileWords:
    """Hold a reader's error class and its words, which follow the file's name.

    ``too_large`` may name ``{size}`` and ``{limit}`` (bytes).
    """

    error: type[GkestimatorError]
    unreadable: str = "cannot be read"
    not_regular: str = "found something other than a regular file"
    too_large: str = "found {size:,} bytes, expected at most {limit:,}"


def reason(error: Exception) -> str:
    """Return the system's reason for an error, without the file's name where the system says it apart."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not text in UTF-8"
    return getattr(error, "strerror", None) or str(error)


def open_descriptor(path: Path) -> int:
    """Return a descriptor of ``path`` for reading; the caller closes it. Raises OSError or ValueError."""
    # Without O_NONBLOCK, opening a named pipe that nobody writes to would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags)


def check_status(path: Path, status: os.stat_result, words: FileWords, limit: int | None) -> None:
    """Raise ``words.error`` unless ``status`` is that of a regular file of at most ``limit`` bytes (None: any size)."""
    if not stat.S_ISREG(status.st_mode):
        raise words.error(f"{path}: {words.not_regular}")
    if limit is not None and status.st_size > limit:
        raise words.error(f"{path}: {words.too_large.format(size=status.st_size, limit=limit)}")


def _refuse(path: Path, words: FileWords, error: Exception) -> NoReturn:
    raise words.error(f"{path}: {words.unreadable}: {reason(error)}") from error


def file_status(path: Path, words: FileWords) -> os.stat_result:
    """Return what the system says of ``path``. Raises ``words.error``."""
    try:
        return os.stat(path)
    except (OSError, ValueError) as e:
        _refuse(path, words, e)


def check_file(path: Path, words: FileWords, limit: int) -> int:
    """Return the size in bytes of a file that is to be read piece by piece. Raises ``words.error``."""
    status = file_status(path, words)
    check_status(path, status, words, limit)
    return status.st_size


@contextlib.contextmanager
def opened(path: Path, words: FileWords, limit: int | None = None) -> Iterator[IO[bytes]]:
    """Open ``path`` for reading. Raises ``words.error``, also for what fails while the caller reads or decodes."""
    try:
        descriptor = open_descriptor(path)
        with os.fdopen(descriptor, "rb") as stream:
            check_status(path, os.fstat(descriptor), words, limit)
            yield stream
    except (OSError, ValueError) as e:
        _refuse(path, words, e)


def read_bytes(path: Path, words: FileWords, limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes. Raises ``words.error``."""
    with opened(path, words, limit) as stream:
        return stream.read(limit)


class FileBytes:
    """Give the bytes of an open file like a buffer, reading a window of it at a time.

    A file that is mapped into memory and cut short by somebody else ends the process (SIGBUS); this raises ModelError.
    """

    _WINDOW_BYTES = 1 << 16

    def __init__(self, descriptor: int, size: int) -> None:
        """Take a descriptor, which the caller closes, and the ``size`` in bytes that the file has."""
        self._file = io.FileIO(descriptor, closefd=False)
        self._size = size
        self._window = b""
        self._start = 0

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> bytes: ...
    def __getitem__(self, at: int | slice) -> int | bytes:
        if isinstance(at, slice):
            start, stop, _ = at.indices(self._size)
            inside = start - self._start
            if inside >= 0 and stop - self._start <= len(self._window):
                return self._window[inside : stop - self._start]
            content = bytearray(stop - start)
            self.read_into(memoryview(content), start)
            return bytes(content)
        inside = at - self._start
        if not 0 <= inside < len(self._window):
            self._window = self[at : at + self._WINDOW_BYTES]
            self._start = at
            inside = 0
        return self._window[inside]

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` with the bytes from ``offset`` on. Raises ModelError where the file ends before."""
        try:
            self._file.seek(offset)
            done = 0
            while done < len(target):
                count = self._file.readinto(target[done:])
                if not count:
                    raise ModelError("was cut short while it was read")
                done += count
        except OSError as e:
            raise ModelError(f"cannot be read: {reason(e)}") from e


@contextlib.contextmanager
def input_errors(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn the system's errors, and ``others`` that reading raises, into TableError naming ``path``."""
    errors: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except errors as e:
        raise TableError(f"{path}: cannot be read: {reason(e)}") from e


def refuse_constant(text: str) -> float:
    """Raise ValueError for ``NaN`` and ``Infinity``, which Python's JSON reader would take."""
    raise ValueError(f"found {text}, expected a finite number")
