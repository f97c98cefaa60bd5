"""Bring values that are given for inputs into the type and shape that the model declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gkestimator.core.dtypes import NUMPY_NAMES, DType
from gkestimator.core.errors import UsageError, one_line
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import InputSpec
from gkestimator.operators.registry import SequenceType, TensorType, ValueType

_SHOWN = 60
# Kinds of NumPy's types that a value of each kind of element may have: whole numbers pass for any others.
_TAKEN = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc"}


def given_value(spec: InputSpec, value: Any) -> ValueType | np.ndarray:
    """Return what is given for an input: a type as it is, numbers as an array, a list for a sequence as its type.

    Raises UsageError where it is not of the type and shape that the model declares.
    """
    if isinstance(value, TensorType | SequenceType):
        return value
    if spec.kind == "sequence" and isinstance(value, list | tuple):
        return SequenceType(_elements(spec, value))
    array = _array(spec, value)
    if spec.kind == "tensor":
        known = array.dtype.name in NUMPY_NAMES.values() and spec.declared.dtype not in (None, *NUMPY_NAMES)
        return _type(spec, array) if known else array  # numbers of a type that NumPy has not
    return SequenceType((_type(spec, array),), optional=spec.kind == "optional")


def _elements(spec: InputSpec, values: Sequence[Any]) -> tuple[TensorType, ...]:
    limits.check("sequence_tensors", len(values), f"input {spec.name!r}")
    elements = []
    for value in values:
        if isinstance(value, TensorType):
            elements.append(value)
        else:
            elements.append(_type(spec, _array(spec, value)))
    return tuple(elements)


def _type(spec: InputSpec, array: np.ndarray) -> TensorType:
    return TensorType(spec.declared.dtype or DType(array.dtype.name), array.shape)


def _array(spec: InputSpec, value: Any) -> np.ndarray:
    """Return numbers as an array of the declared type, where NumPy has it, and of a shape that is declared."""
    try:
        array = np.asarray(value)
    except ValueError as e:  # lists of different lengths
        raise _unfit(spec, value) from e
    if not _has_shape(array, spec.declared.shape):
        raise _unfit(spec, value)
    if array.dtype.kind in "OSU" and spec.declared.dtype is not DType.STRING:
        raise _unfit(spec, value)  # whole numbers beyond 64 bits are objects too
    name = None if spec.declared.dtype is None else NUMPY_NAMES.get(spec.declared.dtype)
    if name is None or array.dtype.name not in NUMPY_NAMES.values():
        return array
    wanted = np.dtype(name)
    if array.size and array.dtype.kind not in _TAKEN[wanted.kind]:
        raise _unfit(spec, value)
    if array.size and wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise _unfit(spec, value)
    return array.astype(wanted)


def _has_shape(array: np.ndarray, declared: Sequence[int | str | None] | None) -> bool:
    """Return whether an array has as many dimensions as are declared, and their sizes where they are numbers."""
    if declared is None:
        return True
    pairs = zip(array.shape, declared, strict=False)
    return len(declared) == array.ndim and all(n == size for n, size in pairs if isinstance(size, int))


def _unfit(spec: InputSpec, value: object) -> UsageError:
    dtype, shape = spec.declared
    sizes = "any shape" if shape is None else f"shape [{', '.join(map(str, shape))}]"
    if isinstance(value, np.ndarray):
        value = f"{value.dtype} of shape {list(value.shape)}"
    return UsageError(
        f"input {spec.name!r}: found {one_line(value, limit=_SHOWN)}, expected {dtype or 'any type'} of {sizes}"
    )
