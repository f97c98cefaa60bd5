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

from gkestimator.core.errors import ModelError
from gkestimator.core.files import open_descriptor

Identity: TypeAlias = "tuple[int, int, int, int]"  # device, inode, size, time of the last change

_MOST_OPEN = 64  # a map holds a descriptor, and a model may keep each tensor in a file of its own
_open: OrderedDict[tuple[Path, Identity], mmap.mmap] = OrderedDict()
_lock = threading.Lock()


def identity_of(path: Path) -> Identity:
    """Which file ``path`` is now, and in what state. ModelError where it is no regular file."""
    try:
        status = os.stat(path)
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be opened: {e.strerror or e}") from e
    except ValueError as e:
        raise ModelError(f"not a file name: {e}") from e
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{path.name}: not a regular file")
    return _identity(status)


def mapped_file(path: Path, identity: Identity) -> mmap.mmap:
    """The whole file ``path``, read-only. ModelError: it cannot be read, is empty, or is not ``identity`` any more."""
    if identity_of(path) != identity:
        raise _changed(path)
    key = (path, identity)
    with _lock:
        found = _open.get(key)
        if found is None:
            found = _open[key] = _map(path, identity)
            while len(_open) > _MOST_OPEN:
                _open.popitem(last=False)  # arrays of it keep it alive
        _open.move_to_end(key)
        return found


def mapped_array(
    path: Path, identity: Identity, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
) -> np.ndarray:
    """``nbytes`` of ``path`` from ``offset`` on as an array [shape] of ``dtype``, read-only, not copied.

    Raises ModelError where the file does not hold them (any more).
    """
    mapped = mapped_file(path, identity)
    if offset < 0 or offset + nbytes > len(mapped):
        raise ModelError(
            f"{path.name}: found {len(mapped)} bytes, expected weights up to byte {offset + nbytes}"
        )
    flat = np.frombuffer(mapped, np.dtype("u1"), count=nbytes, offset=offset)
    return flat.view(dtype).reshape(shape)


def open_same(path: Path, identity: Identity) -> int:
    """A descriptor of ``path`` for reading; the caller closes it. ModelError as for :func:`mapped_file`."""
    try:
        descriptor = open_descriptor(path)
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be opened: {e.strerror or e}") from e
    if _identity(os.fstat(descriptor)) != identity:
        os.close(descriptor)
        raise _changed(path)
    return descriptor


def _map(path: Path, identity: Identity) -> mmap.mmap:
    if not identity[2]:
        raise ModelError(f"{path.name}: empty file")
    descriptor = open_same(path, identity)
    try:
        # not closed by hand: arrays are views of it
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be read: {e.strerror or e}") from e
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _changed(path: Path) -> ModelError:
    return ModelError(f"{path.name}: was changed while it was read")
