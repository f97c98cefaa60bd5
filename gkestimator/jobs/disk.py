"""Files that must survive being cut off: locked by one writer, flushed to the disk, a full disk recognised."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import IO, Any

from gkestimator.core.errors import OutputError


def lock_alone(stream: IO[Any], path: Path) -> None:
    """Lock an open file until it is closed. Raises BlockingIOError where another process holds it,
    OutputError (which names ``path``) where it cannot be locked."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno in (errno.EAGAIN, errno.EACCES):
            raise BlockingIOError(e.errno, e.strerror) from e
        raise OutputError(f"{path}: cannot be locked: {e.strerror or e}") from e


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or what it came from, is that of a full disk or a quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def sync_folder(folder: Path) -> None:
    """Flush the files of a folder and the folder itself to the disk."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            sync(path)
    sync(folder)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
