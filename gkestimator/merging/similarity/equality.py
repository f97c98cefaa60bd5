"""Say when two values are equal, and compare many of them fast.

``|a - b| <= tolerance`` with the difference taken in float64 (rounded to nearest), or ``a == b`` (so equal
infinities are equal). NaN equals nothing, not itself. float16, bfloat16 and float32 are exact in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.merging.editing import Values

Array: TypeAlias = np.ndarray
Ints: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"

_CHUNK = 1 << 16  # values compared at a time: both sides and the difference stay in the second-level cache
_SAMPLES = 64
_ROUGH = 2.0**-22
_LEAST_ROUGH = 1e-30  # below, float32 has too few digits for that
_FLOATS = ("float16", "float32", "float64", "uint16")
_WIDEST = 1e300  # a multiple of it is still finite
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))


def checked_tolerance(tolerance: float) -> float:
    """Return ``tolerance`` as it is, if it is a number from 0 to 1e300. Raises UsageError."""
    if not 0 <= tolerance <= _WIDEST:
        raise UsageError(f"tolerance is {tolerance}: expected a number from 0 to {_WIDEST:g}")
    return float(tolerance)


def floats(a: Array) -> Array:
    """Return ``a`` in a type NumPy calculates in fast: bfloat16 (uint16, its bits) and float16 as float32,
    exactly.

    Raises UsageError for other types than float16, bfloat16, float32 and float64.
    """
    if a.dtype in _WIDE:
        return a
    if a.dtype == np.uint16:
        return (a.astype(np.uint32) << 16).view(np.float32)
    if a.dtype != np.float16:
        raise UsageError(f"weights of type {a.dtype} cannot be compared: expected {', '.join(_FLOATS)}")
    return a.astype(np.float32)


def equal_cells(a: Array, b: Array, tolerance: float) -> Flags:
    """Return where ``a`` and ``b`` (of one type, shapes that broadcast) are equal."""
    a = floats(a)
    b = floats(b)
    same: Flags = np.asarray(a == b)
    if tolerance > 0 and not same.all():
        with np.errstate(invalid="ignore", over="ignore"):
            same |= np.abs(np.subtract(a, b, dtype=np.float64)) <= tolerance
    return same


def equal_in_all_taps(a: Array, b: Array, tolerance: float) -> Flags:
    """Return the same for cells of several values: the last axis."""
    same: Flags = np.asarray(equal_cells(a, b, tolerance).all(axis=-1))
    return same


def equal_everywhere(a: Array, b: Array, tolerance: float) -> bool:
    """Return True where all of ``a`` equals ``b`` (one type, one shape): in memory order, a chunk at a time,
    ends early.

    A sample over the whole goes first: one unequal value proves the answer no.
    """
    if a.size <= _CHUNK:
        return _chunk_equal(a, b, tolerance)
    # in memory order a chunk is one stretch of the file
    order = sorted(range(a.ndim), key=lambda axis: -abs(a.strides[axis]))
    a = a.transpose(order)
    b = b.transpose(order)
    at = np.linspace(0, a.size - 1, _SAMPLES, dtype=np.int64)
    sample = np.unravel_index(at, a.shape)
    if not equal_cells(a[sample], b[sample], tolerance).all():
        return False
    return all(_chunk_equal(x, y, tolerance) for x, y in _chunks(a, b))


def _chunks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Yield parts of both, of a chunk's size at most."""
    if a.ndim == 0 or a.size <= _CHUNK:
        yield a, b
        return
    inner = a.size // a.shape[0]
    step = max(1, _CHUNK // inner)
    for start in range(0, a.shape[0], step):
        if inner > _CHUNK:
            yield from _chunks(a[start], b[start])
        else:
            yield a[start : start + step], b[start : start + step]


def _chunk_equal(a: Array, b: Array, tolerance: float) -> bool:
    # the difference of two scalars would be no array
    a = np.atleast_1d(a)
    b = np.atleast_1d(b)
    if a.dtype.itemsize == 2:  # NumPy compares half precision by conversion: the bits first
        bits = a.view(np.uint16)
        if np.array_equal(bits, b.view(np.uint16)):
            if a.dtype == np.uint16:
                infinity = 0x7F80
            else:
                infinity = 0x7C00
            return not bool(((bits & 0x7FFF) > infinity).any())
    a = _aligned(floats(a))
    b = _aligned(floats(b))
    if a.size > _SAMPLES:
        line = (0,) * (a.ndim - 1)
        few = slice(_SAMPLES)
        if (a[line][few] == b[line][few]).all() and (a == b).all():
            return True
    if a.dtype == np.float32 and tolerance > _LEAST_ROUGH and a.size:
        # Rounded to float32 the largest difference is off by a 2^-24th: that decides unless it is that near.
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.subtract(a, b)
            largest = float(np.abs(apart, out=apart).max())
        if largest <= tolerance * (1 - _ROUGH):
            return True
        if tolerance * (1 + _ROUGH) < largest < math.inf:
            return False
    return bool(equal_cells(a, b, tolerance).all())


def _aligned(a: Array) -> Array:
    """Return a copy where the values lie at odd addresses, as in a file they may: NumPy works on such ones in
    small pieces.
    """
    if a.flags.aligned:
        return a
    return a.copy()


def equal_values(a: Values, b: Values, tolerance: float, *, dtype: DType | None = None) -> bool:
    """Return True where two constants have one shape and type and equal values everywhere.

    ``dtype`` is needed for bfloat16 alone: 16-bit words are compared by their bits unless it says that they
    are bfloat16. Integers, booleans, text and what is narrower than a byte are equal where their bytes are.
    Raises ModelError where a file does not hold the values, UsageError for a negative tolerance.
    """
    tolerance = checked_tolerance(tolerance)
    x = a.array()
    y = b.array()
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.dtype.kind == "f" or (x.dtype == np.uint16 and dtype is DType.BFLOAT16):
        return equal_everywhere(x, y, tolerance)
    return bool(np.array_equal(x, y))
