"""Read types and (small) values of TensorProto, SparseTensorProto and TypeProto."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from gkestimator.core.dtypes import NUMPY_NAMES, DType
from gkestimator.core.errors import LimitError, ModelError
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Constant
from gkestimator.operators.registry import DeclaredType, TensorType

_NAMES = {str(d) for d in DType}
ELEMENT_TYPES: dict[DType, int] = {
    DType(name.lower()): number
    for name, number in onnx.TensorProto.DataType.items()
    if name.lower() in _NAMES
}
"""ONNX's numbers of the element types that the installed onnx knows."""
_DTYPES = {number: dtype for dtype, number in ELEMENT_TYPES.items()}
# Raw data are little-endian whatever the machine.
_NUMPY = {dtype: np.dtype(name).newbyteorder("<") for dtype, name in NUMPY_NAMES.items()}
_VALUE_FIELDS = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "double_data",
    "uint64_data",
    "string_data",
)
_EXTERNAL = onnx.TensorProto.EXTERNAL


def dtype_of(number: int, what: str) -> DType:
    """Return the element type with ONNX's number ``number``; ModelError when there is none."""
    dtype = _DTYPES.get(number)
    if dtype is None:
        raise ModelError(f"{what} has element type {number}, which ONNX does not define")
    return dtype


def tensor_type(dtype: DType, shape: tuple[int, ...], what: str) -> TensorType:
    """Return a checked type. Raises ModelError on negative dims and LimitError on too many dims or elements."""
    if not shape:
        return TensorType(dtype, shape)
    if len(shape) > limits.MAX_RANK:
        raise LimitError(f"{what} has {len(shape)} dimensions; at most {limits.MAX_RANK} are supported")
    if min(shape) < 0:
        raise ModelError(f"{what} has the negative dimension {min(shape)}")
    if math.prod(shape) >= limits.MAX_ELEMENTS:
        raise LimitError(f"{what} has {math.prod(shape)} elements; fewer than 2^63 are supported")
    return TensorType(dtype, shape)


def constant(proto: onnx.TensorProto, what: str) -> Constant:
    """Return the type of ``proto``, and its value where it is small, in the file and may be shape arithmetic."""
    if len(proto.dims) > limits.MAX_RANK:
        raise LimitError(f"{what} has {len(proto.dims)} dimensions; at most {limits.MAX_RANK} are supported")
    type_ = tensor_type(dtype_of(proto.data_type, what), tuple(proto.dims), what)
    elements = math.prod(type_.shape)
    most = limits.MAX_FLOAT_INITIALIZER
    if type_.dtype.is_integer or type_.dtype is DType.BOOL:
        most = limits.MAX_FOLD_ELEMENTS
    large = elements > most or type_.dtype.nbytes(elements) > limits.MAX_FOLD_BYTES
    if large or proto.data_location == _EXTERNAL:
        return Constant(type_, None)
    return Constant(type_, _value(proto, type_, elements, what))


def plain_constant(value: Any, dtype: DType, what: str) -> Constant:
    """Return a constant from a number or string (a scalar) or a tuple of them (one dimension)."""
    shape: tuple[int, ...] = (len(value),) if isinstance(value, tuple) else ()
    if shape and shape[0] > limits.MAX_FOLD_ELEMENTS:
        return Constant(TensorType(dtype, shape), None)
    try:
        array = np.array(value, dtype=object if dtype is DType.STRING else _NUMPY[dtype])
    except (ValueError, TypeError, OverflowError) as e:
        raise ModelError(f"{what} holds {value!r:.40}; {dtype} was expected") from e
    array.flags.writeable = False
    return Constant(TensorType(dtype, shape), array)


def _value(proto: onnx.TensorProto, type_: TensorType, elements: int, what: str) -> np.ndarray | None:
    """Return the value of a small tensor; None where the file does not hold it (exported without weights)."""
    dtype = _NUMPY.get(type_.dtype)
    if proto.HasField("raw_data") and dtype is not None:
        raw = proto.raw_data
        if not raw and elements:
            return None
        if len(raw) != type_.dtype.nbytes(elements):
            raise ModelError(
                f"{what} has {len(raw)} bytes of data; {type_.dtype.nbytes(elements)} were expected"
            )
        try:
            value = np.frombuffer(raw, dtype=dtype).reshape(type_.shape)
        except ValueError as e:  # a dimension of 0 beside ones that are too large for any array
            raise ModelError(f"{what} has dimensions {list(type_.shape)}, which no array can have") from e
    else:
        try:
            value = numpy_helper.to_array(proto)
        except (ValueError, TypeError, OverflowError, IndexError) as e:
            if _holds_values(proto):
                raise ModelError(
                    f"{what} has data that do not fit its type {type_.dtype}{list(type_.shape)}"
                ) from e
            return None
        if value.shape != type_.shape:
            return None
        value = value.copy()
    value.flags.writeable = False
    return value


def _holds_values(proto: onnx.TensorProto) -> bool:
    return any(getattr(proto, field) for field in _VALUE_FIELDS)


def sparse_constant(proto: onnx.SparseTensorProto, what: str) -> Constant:
    """Return a sparse tensor as the dense one that it stands for; its value is not used."""
    return Constant(tensor_type(dtype_of(proto.values.data_type, what), tuple(proto.dims), what), None)


def value_kind(proto: onnx.TypeProto) -> tuple[str, Any]:
    """Return ``(kind, tensor TypeProto or None)``: kind ``tensor``, ``sequence``, ``optional`` or ``other``."""
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return "tensor", getattr(proto, which)
    if which == "sequence_type":
        inner = proto.sequence_type.elem_type
        return "sequence", inner.tensor_type if inner.HasField("tensor_type") else None
    if which == "optional_type":
        kind, inner = value_kind(proto.optional_type.elem_type)
        return ("optional" if kind == "tensor" else kind), inner
    return "other", None


def declared_type(tensor: Any, what: str) -> DeclaredType:
    """Return what a TypeProto.Tensor says: its dims as numbers, names, or None where nothing is said."""
    if tensor is not None and tensor.elem_type:
        dtype = dtype_of(tensor.elem_type, what)
    else:
        dtype = None
    if tensor is None or not tensor.HasField("shape"):
        return DeclaredType(dtype, None)
    if len(tensor.shape.dim) > limits.MAX_RANK:
        raise LimitError(
            f"{what} has {len(tensor.shape.dim)} dimensions; at most {limits.MAX_RANK} are supported"
        )
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        if which == "dim_value":
            if dim.dim_value < -1:
                raise ModelError(f"{what} has the negative dimension {dim.dim_value}")
            dims.append(None if dim.dim_value == -1 else dim.dim_value)  # some exporters write -1 for "any"
        else:
            name = dim.dim_param
            if not isinstance(name, str):
                raise ModelError(f"{what} has a dimension whose name is not UTF-8 text")
            dims.append(name or None)
    return DeclaredType(dtype, tuple(dims))
