"""Files mapped into memory: what is read of a weight are the pages that somebody looks at."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gkestimator.errors import ModelError

__all__ = ["mapped_array", "mapped_file", "open_unchanged"]

Identity: TypeAlias = "tuple[int, int, int, int]"  # device, inode, size, time of the last change

_MOST_OPEN = 64  # a map holds a descriptor, and a model may keep each tensor in a file of its own
_open: OrderedDict[Path, mmap.mmap] = OrderedDict()
_seen: dict[Path, Identity] = {}  # what each file was when it was first mapped
_lock = threading.Lock()


def mapped_file(path: Path) -> mmap.mmap:
    """The whole file ``path``, read-only. ModelError: it is no regular file, empty, or not what it was before."""
    with _lock:
        found = _open.get(path)
        if found is None:
            found = _open[path] = _map(path)
            while len(_open) > _MOST_OPEN:
                _open.popitem(last=False)  # arrays of it keep it alive
        else:
            _check(path, _status(path))
            _open.move_to_end(path)
        return found


def begin(path: Path) -> None:
    """Read ``path`` anew: what was mapped of it before is forgotten, and it may have changed since."""
    with _lock:
        _open.pop(path, None)
        _seen.pop(path, None)


def mapped_array(path: Path, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """``nbytes`` of ``path`` from ``offset`` on as an array [shape] of ``dtype``, read-only, not copied.

    Raises ModelError where the file does not hold them (any more).
    """
    if not nbytes:
        return np.empty(shape, dtype)
    mapped = mapped_file(path)
    if offset < 0 or offset + nbytes > len(mapped):
        raise ModelError(
            f"{path.name}: found {len(mapped)} bytes, expected weights up to byte {offset + nbytes}"
        )
    flat = np.frombuffer(mapped, np.dtype("u1"), count=nbytes, offset=offset)
    return flat.view(dtype).reshape(shape)


def open_unchanged(path: Path) -> int:
    """A descriptor of ``path`` for reading; the caller closes it. ModelError as for :func:`mapped_file`."""
    descriptor = _descriptor(path)
    try:
        _check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _map(path: Path) -> mmap.mmap:
    descriptor = _descriptor(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path.name}: not a regular file")
        if status.st_size == 0:
            raise ModelError(f"{path.name}: empty file")
        _check(path, status)
        # not closed by hand: arrays are views of it
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be read: {e.strerror or e}") from e
    finally:
        os.close(descriptor)


def _descriptor(path: Path) -> int:
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to must not hang
        return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be opened: {e.strerror or e}") from e
    except ValueError as e:
        raise ModelError(f"not a file name: {e}") from e


def _status(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be read any more: {e.strerror or e}") from e


def _check(path: Path, status: os.stat_result) -> None:
    now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if _seen.setdefault(path, now) != now:
        raise ModelError(f"{path.name}: was changed while it was read")
