"""Files that must survive being cut off: locked by one writer, flushed to the disk, a full disk recognised."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from gkestimator.core.errors import OutputError, UsageError
from gkestimator.core.escaping import utf8
from gkestimator.tables.files import output_errors


@contextlib.contextmanager
def held(lock: Path, what: Path) -> Iterator[None]:
    """Hold the file ``lock`` while the context is open, so that one command at a time writes ``what``.

    The kernel holds the lock and lets go when the process ends, however it ends: neither a stale file, nor a process
    that has an old number, nor a clock that goes back can keep others out. Raises UsageError that says who holds it,
    OutputError where nothing can be locked there.
    """
    with output_errors(lock):
        stream = _locked(lock, what)
    try:
        yield
    finally:
        # Before the lock is let go: who waits for this file sees that it is no longer the one of that name.
        with contextlib.suppress(OSError):
            lock.unlink()
        stream.close()


def held_beside(target: Path) -> contextlib.AbstractContextManager[None]:
    """Hold a lock for ``target``, which is replaced as a whole, while the context is open. Raises as :func:`held`."""
    lock = target.absolute().with_name(f".{target.name}.lock")
    if not lock.parent.is_dir():  # it will be made where all goes well; nobody else can be at work there
        return contextlib.nullcontext()
    return held(lock, target)


def _locked(lock: Path, what: Path) -> IO[bytes]:
    while True:
        stream = open(lock, "a+b", buffering=0)  # noqa: SIM115 - open as long as the lock is held
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(stream.fileno()), os.stat(lock)):
                _sign(stream)
                return stream
        except FileNotFoundError:
            pass  # its last holder has just removed it
        except OSError as e:
            holder = _holder(stream)
            stream.close()
            if e.errno not in (errno.EAGAIN, errno.EACCES):
                raise OutputError(f"{lock}: cannot be locked: {e.strerror or e}") from e
            raise UsageError(
                f"{what}: {holder} is writing it, expected one command at a time (it goes on when that one has ended)"
            ) from e
        stream.close()


def _sign(stream: IO[bytes]) -> None:
    """Write who holds the lock, for people alone."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
        stream.truncate(0)
        stream.write(utf8(f"process {os.getpid()} on {socket.gethostname()} (since {now} UTC)\n"))


def _holder(stream: IO[bytes]) -> str:
    with contextlib.suppress(OSError):
        stream.seek(0)
        return stream.read(200).decode(errors="replace").strip() or "another process"
    return "another process"


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
