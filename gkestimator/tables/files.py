"""Write a file wholly or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from gkestimator.core.errors import OutputError
from gkestimator.core.escaping import json_text
from gkestimator.core.leftovers import SUFFIX, remove_leftovers, temporary_prefix


def json_bytes(document: Any) -> bytes:
    """Return ``document`` as the JSON that files and ``--format json`` hold: indented by 1, UTF-8, no NaN, a
    newline.
    """
    return json_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_atomically(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk and rename it to ``path``.

    Until the rename ``path`` keeps its old content; after any failure the temporary file is gone. A device or
    a pipe (``/dev/stdout``) is written in place. Raises OutputError naming ``path`` and the system's reason.
    """
    with output_errors(path):
        mode = file_mode(path)
        if mode is not None and not stat.S_ISREG(mode):
            with open(path, "wb") as stream:
                write(stream)
            return
        target, name = write_aside(path, write, mode)
        try:
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def file_mode(path: Path) -> int | None:
    """Return the mode of what is at ``path``; None where there is nothing. Raises OutputError for a folder."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise OutputError(f"{path}: found a folder, expected a file name to write to")
    return mode


def write_aside(
    path: Path, write: Callable[[IO[bytes]], None], mode: int | None, *, flush: bool = True
) -> tuple[Path, str]:
    """Fill a temporary file beside ``path``: what it is to be renamed to, and its name now.

    ``mode``: that of the file there (:func:`file_mode`), which the new one gets. A link keeps pointing at its
    file. ``flush``: to disk. After a failure the temporary file is gone.
    """
    target = Path(os.path.realpath(path))
    remove_leftovers(target.parent)
    prefix = temporary_prefix(f".{target.name[:64]}")
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=SUFFIX, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            if flush:
                stream.flush()
                # Else a crash after the rename could leave an empty file under the good name.
                os.fsync(stream.fileno())
        if mode is None:
            umask = os.umask(0)
            os.umask(umask)
            mode = 0o666 & ~umask  # mkstemp makes private files; a result is an ordinary file
        os.chmod(name, stat.S_IMODE(mode))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return target, name


@contextlib.contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors into OutputError naming ``path``."""
    try:
        yield
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {e.strerror or e}") from e
