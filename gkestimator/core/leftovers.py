"""Name temporary files and folders after the process that makes them, and remove what killed processes left.

A name ends in ``.HOST-PID-BEGUN-RANDOM.tmp``: host, number and start tell a process from another that has its number
later, so that nothing of a living process is ever removed, and no clock is asked.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

SUFFIX = ".tmp"
_NAME = re.compile(r"(?s:.+)\.([0-9a-f]{4})-([0-9a-f]+)-([0-9a-f]+)-[a-z0-9_]{8}\.tmp(?:\.old)?")


def begun(pid: int) -> int | None:
    """Return when a process began, in the system's ticks since its start; 0 where there is no /proc to tell.

    None: there is no such process.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (OSError, OverflowError):
        pass  # another user's: it is there
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def temporary_prefix(name: str) -> str:
    """Return how the name of something temporary begins; random letters and ``SUFFIX`` follow."""
    pid = os.getpid()
    return f"{name}.{_host()}-{pid:x}-{begun(pid) or 0:x}-"


@contextlib.contextmanager
def scratch_folder(name: str, folder: Path | None = None) -> Iterator[Path]:
    """Yield a new private folder in ``folder`` (None: where temporary files are), removed when the context ends."""
    place = folder or Path(tempfile.gettempdir())
    remove_leftovers(place)
    with tempfile.TemporaryDirectory(
        prefix=temporary_prefix(name), suffix=SUFFIX, dir=place, ignore_cleanup_errors=True
    ) as path:
        yield Path(path)


@functools.lru_cache(maxsize=64)
def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that have ended left in ``folder``, once in the life of this process."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            match = _NAME.fullmatch(entry.name)
            if match is None or not _is_left(entry, match):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _is_left(entry: os.DirEntry[str], match: re.Match[str]) -> bool:
    """Return whether an entry is our user's, and its process has ended."""
    host, pid, since = match.groups()
    # A folder may be shared with other machines, whose processes cannot be seen from here.
    if host != _host() or entry.stat(follow_symlinks=False).st_uid != os.getuid():
        return False
    return begun(int(pid, 16)) not in (0, int(since, 16))


@functools.cache
def _host() -> str:
    return f"{zlib.crc32(platform.node().encode(errors='replace')) & 0xFFFF:04x}"
