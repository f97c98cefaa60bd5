"""Where a weight's values are: in a file, in memory, or a part of another's. Nothing is read before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from gkestimator.core.records import frozen


@runtime_checkable
class Values(Protocol):
    """Values of a tensor."""

    def array(self) -> np.ndarray:
        """The values in the tensor's shape, read-only; a view of the file where that is possible.

        bfloat16 as uint16 (its bits); types narrower than a byte and text as one dimension of raw uint8.
        Raises ModelError where the file does not hold them (any more).
        """
        ...


@frozen
class Mapped:
    """``nbytes`` bytes of the file ``path`` from ``offset`` on, little-endian, memory-mapped.

    ``dtype`` is NumPy's name of the stored type (``<f4``, ``<f2``, ``<u2`` for bfloat16, ``u1`` raw, ...).
    ``identity`` is what the file was when it was read (:func:`~gkestimator.merging.editing.mapping.identity_of`): a
    file changed since is an error, never other weights.
    """

    path: Path
    identity: tuple[int, int, int, int]
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    def array(self) -> np.ndarray:
        """The bytes as an array; see :class:`Values`."""
        from gkestimator.merging.editing.mapping import mapped_array

        return mapped_array(self.path, self.identity, self.offset, self.nbytes, self.dtype, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """Values in memory: small ones, and those that a file keeps in no form that can be mapped."""

    held: np.ndarray

    def array(self) -> np.ndarray:
        """The array itself; see :class:`Values`."""
        return self.held


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueBlock:
    """A rectangular part of other values: ``start[i]`` to ``stop[i]`` along axis i."""

    base: Values
    start: tuple[int, ...]
    stop: tuple[int, ...]

    def array(self) -> np.ndarray:
        """A view; see :class:`Values`."""
        return self.base.array()[tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rearranged:
    """Other values with their axes permuted (None: kept), then reshaped (None: not)."""

    base: Values
    axes: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None

    def array(self) -> np.ndarray:
        """A view where NumPy can make one; see :class:`Values`."""
        found = self.base.array()
        if self.axes is not None:
            found = found.transpose(self.axes)
        if self.shape is None:
            return found
        return found.reshape(self.shape)
