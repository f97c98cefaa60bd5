"""Say where a weight's values are, and map files into memory: what is read of a weight are the pages that
somebody looks at.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from gkestimator.core.errors import ModelError
from gkestimator.core.files import FileBytes
from gkestimator.core.records import frozen
from gkestimator.merging.editing.cut_short import expect_whole, guard

Numbers: TypeAlias = "tuple[int, ...]"
Identity: TypeAlias = "tuple[int, int, int, int]"  # device, inode, size, time of the last change

_MOST_OPEN = 64  # a map holds a descriptor, and a model may keep each tensor in a file of its own
_open: OrderedDict[tuple[Path, Identity], mmap.mmap] = OrderedDict()
_lock = threading.Lock()


def identity_of(path: Path) -> Identity:
    """Return which file ``path`` is now, and in what state. ModelError where it is no regular file."""
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
    """Return the whole file ``path``, read-only.

    ModelError: it cannot be read, is empty, or is not ``identity`` any more.
    """
    expect_whole()
    if identity_of(path) != identity:
        raise _changed(path)
    key = (path, identity)
    with _lock:
        mapped = _open.get(key)
        if mapped is None:
            mapped = _map(path, identity)
            _open[key] = mapped
            while len(_open) > _MOST_OPEN:
                _open.popitem(last=False)  # arrays of it keep it alive
        _open.move_to_end(key)
        return mapped


def mapped_array(
    path: Path, identity: Identity, offset: int, nbytes: int, dtype: str, shape: Numbers
) -> np.ndarray:
    """Return ``nbytes`` of ``path`` from ``offset`` on as an array [shape] of ``dtype``, read-only, not
    copied.

    Raises ModelError where the file does not hold them (any more).
    """
    mapped = mapped_file(path, identity)
    if offset < 0 or offset + nbytes > len(mapped):
        raise ModelError(
            f"{path.name}: found {len(mapped)} bytes, expected weights up to byte {offset + nbytes}"
        )
    # as bytes first: an offset in a file need not be a multiple of the element's size
    flat = np.frombuffer(mapped, np.dtype("u1"), count=nbytes, offset=offset)
    return flat.view(dtype).reshape(shape)


def open_same(path: Path, identity: Identity) -> int:
    """Return a descriptor of ``path`` for reading; the caller closes it.

    ModelError as for :func:`mapped_file`.
    """
    try:
        # O_NONBLOCK: opening a FIFO that nobody writes to must not hang
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
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
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        guard(mapped, path.name)
        return mapped
    except OSError as e:
        raise ModelError(f"{path.name}: cannot be read: {e.strerror or e}") from e
    finally:
        os.close(descriptor)


def _identity(status: os.stat_result) -> Identity:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _changed(path: Path) -> ModelError:
    return ModelError(f"{path.name}: was changed while it was read")


@contextlib.contextmanager
def opened_same(path: Path, identity: Identity) -> Iterator[FileBytes]:
    """Open the file ``path`` to read a little of it; errors as for :func:`mapped_file`."""
    if not identity[2]:
        raise ModelError(f"{path.name}: empty file")
    descriptor = open_same(path, identity)
    try:
        yield FileBytes(descriptor, identity[2])
    finally:
        os.close(descriptor)


@runtime_checkable
class Values(Protocol):
    """Give the values of a tensor."""

    def array(self) -> np.ndarray:
        """Return the values in the tensor's shape, read-only; a view of the file where that is possible.

        bfloat16 as uint16 (its bits); types narrower than a byte and text as one dimension of raw uint8.
        Raises ModelError where the file does not hold them (any more).
        """
        ...


@frozen
class Mapped:
    """Point at ``nbytes`` bytes of the file ``path`` from ``offset`` on, little-endian, memory-mapped.

    ``dtype`` is NumPy's name of the stored type (``<f4``, ``<f2``, ``<u2`` for bfloat16, ``u1`` raw, ...).
    ``identity`` is what the file was when it was read
    (:func:`~gkestimator.merging.editing.values.identity_of`): a file changed since is an error, never other
    weights.
    """

    path: Path
    identity: tuple[int, int, int, int]
    offset: int
    nbytes: int
    dtype: str
    shape: Numbers

    def array(self) -> np.ndarray:
        """Return the bytes as an array; see :class:`Values`."""
        from gkestimator.merging.editing.values import mapped_array

        return mapped_array(self.path, self.identity, self.offset, self.nbytes, self.dtype, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Hold values in memory: small ones, and those that a file keeps in no form that can be mapped."""

    held: np.ndarray

    def array(self) -> np.ndarray:
        """Return the array itself; see :class:`Values`."""
        return self.held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueBlock:
    """Point at a rectangular part of other values: ``start[i]`` to ``stop[i]`` along axis i."""

    base: Values
    start: Numbers
    stop: Numbers

    def array(self) -> np.ndarray:
        """Return a view; see :class:`Values`."""
        cut = tuple(map(slice, self.start, self.stop))
        return self.base.array()[cut]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rearranged:
    """Point at other values with their axes permuted (None: kept), then reshaped (None: not)."""

    base: Values
    axes: Numbers | None = None
    shape: Numbers | None = None

    def array(self) -> np.ndarray:
        """Return a view where NumPy can make one; see :class:`Values`."""
        array = self.base.array()
        if self.axes is not None:
            array = array.transpose(self.axes)
        if self.shape is None:
            return array
        return array.reshape(self.shape)
