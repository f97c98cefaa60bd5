"""Writing a file wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from gkestimator.errors import OutputError

__all__ = ["write_atomically"]


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk and rename it to ``path``.

    Until the rename ``path`` keeps its old content; after any failure the temporary file is gone. A device or
    a pipe (``/dev/stdout``) is written in place. Raises OutputError naming ``path`` and the system's reason.
    """
    with _output_errors(path):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and stat.S_ISDIR(mode):
            raise OutputError(f"{path}: found a folder, expected a file name to write to")
        if mode is not None and not stat.S_ISREG(mode):
            with open(path, "wb") as stream:
                write(stream)
            return
        target = Path(os.path.realpath(path))  # a link keeps pointing at its file
        _replace(target, write, keep_mode=None if mode is None else stat.S_IMODE(mode))


def _replace(target: Path, write: Callable[[IO[bytes]], None], *, keep_mode: int | None) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        if keep_mode is None:
            umask = os.umask(0)
            os.umask(umask)
            keep_mode = 0o666 & ~umask  # mkstemp makes private files; a result is an ordinary file
        os.chmod(name, keep_mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
