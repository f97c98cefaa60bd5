"""NumPy's counterpart of an element type, where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType

_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.FLOAT: np.dtype(np.float32), DType.DOUBLE: np.dtype(np.float64),
    DType.FLOAT16: np.dtype(np.float16),
    DType.INT8: np.dtype(np.int8), DType.INT16: np.dtype(np.int16), DType.INT32: np.dtype(np.int32),
    DType.INT64: np.dtype(np.int64), DType.UINT8: np.dtype(np.uint8), DType.UINT16: np.dtype(np.uint16),
    DType.UINT32: np.dtype(np.uint32), DType.UINT64: np.dtype(np.uint64), DType.BOOL: np.dtype(np.bool_),
}  # fmt: skip


def numpy_of(dtype: DType) -> np.dtype[Any] | None:
    """The NumPy type of ``dtype``, None for strings, complex and the small formats."""
    return _NUMPY.get(dtype)
