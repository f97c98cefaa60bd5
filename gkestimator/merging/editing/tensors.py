"""TensorProto to Weight and back: where its values are, or the values where they are small."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import AttributeProto, TensorProto

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError
from gkestimator.core.records import frozen
from gkestimator.merging.editing.form import EditNode, Weight
from gkestimator.merging.editing.values import (
    Held,
    Identity,
    Mapped,
    Numbers,
    Values,
    identity_of,
    mapped_file,
)
from gkestimator.onnx_io.fragment_models import element_type
from gkestimator.onnx_io.reading.tensors import dtype_of, tensor_type

_STORAGE = {
    DType.FLOAT: "<f4", DType.DOUBLE: "<f8", DType.FLOAT16: "<f2", DType.BFLOAT16: "<u2", DType.UINT8: "u1",
    DType.INT8: "i1", DType.UINT16: "<u2", DType.INT16: "<i2", DType.INT32: "<i4", DType.INT64: "<i8",
    DType.UINT32: "<u4", DType.UINT64: "<u8", DType.BOOL: "?", DType.COMPLEX64: "<c8",
    DType.COMPLEX128: "<c16",
}  # fmt: skip
_WIDTHS = {8: "u1", 16: "<u2", 32: "<u4", 64: "<u8"}
_FROM_NUMPY = {np.dtype(v): k for k, v in _STORAGE.items() if k is not DType.BFLOAT16}
_MISSING = "merging needs the weights"


def storage_dtype(dtype: DType) -> str | None:
    """NumPy's name of how elements of ``dtype`` are stored; None for those kept as raw bytes (text, below a byte)."""
    if dtype is DType.STRING or dtype.bits < 8:
        return None
    return _STORAGE.get(dtype) or _WIDTHS[dtype.bits]


@frozen
class TensorSource:
    """The file that tensors come from. ``token``: key of the entry that says where a value was cut out."""

    path: Path
    identity: Identity
    token: str

    @property
    def folder(self) -> Path:
        """Where external data may be."""
        return self.path.parent


def weight_of(proto: TensorProto, name: str, source: TensorSource | None, what: str) -> Weight:
    """``proto`` as a Weight called ``name``; ``source`` None: the proto holds its values itself.

    Raises ModelError naming ``what`` where the values are not there.
    """
    dtype = dtype_of(proto.data_type, what)
    shape = tensor_type(dtype, tuple(proto.dims), what).shape
    return Weight(name=name, dtype=dtype, shape=shape, values=_values(proto, dtype, shape, source, what))


def _values(
    proto: TensorProto, dtype: DType, shape: Numbers, source: TensorSource | None, what: str
) -> Values:
    elements = math.prod(shape)
    nbytes = dtype.nbytes(elements)
    if source is not None and proto.data_location == TensorProto.EXTERNAL:
        return _external(proto, dtype, shape, source, what)
    spans = [_span(e.value) for e in proto.external_data if source is not None and e.key == source.token]
    if source is not None and spans:
        if any(n != spans[0][0] for n, _, _ in spans) or (len(spans) > 1 and spans[0][0] == 9):
            raise ModelError(f"{what} holds its values twice")
        number, offset, length = spans[0]
        if sum(n for _, _, n in spans) != nbytes or not _fits(number, dtype):
            found = sum(n for _, _, n in spans)
            raise ModelError(f"{what} has {found} bytes of data; {nbytes} of {dtype} were expected")
        if len(spans) == 1:
            return _mapped(source.path, source.identity, offset, length, dtype, shape)
        pieces = [mapped_file(source.path, source.identity)[at : at + n] for _, at, n in spans]
        return _held(b"".join(pieces), dtype, shape)
    if dtype is DType.STRING:
        if len(proto.string_data) != elements:
            raise _missing(what, len(proto.string_data), elements, "strings")
        return Held(held=np.frombuffer(_text(proto), np.uint8))
    if proto.HasField("raw_data"):
        raw = proto.raw_data
    else:
        raw = _typed(proto, dtype, what)
    if len(raw) != nbytes:
        raise _missing(what, len(raw), nbytes, "bytes of data")
    return _held(raw, dtype, shape)


def _missing(what: str, found: int, expected: int, unit: str) -> ModelError:
    if found:
        return ModelError(f"{what} has {found} {unit}; {expected} were expected")
    return ModelError(f"{what} has no values (exported without weights?); {_MISSING}")


def _span(text: str) -> tuple[int, int, int]:
    number, offset, length = (int(part) for part in text.split(","))
    return number, offset, length


def _fits(number: int, dtype: DType) -> bool:
    """Whether the packed field ``number`` holds little-endian elements of ``dtype``."""
    if number == 9:
        return dtype is not DType.STRING
    return dtype in ((DType.FLOAT, DType.COMPLEX64) if number == 4 else (DType.DOUBLE, DType.COMPLEX128))


def _mapped(path: Path, identity: Identity, offset: int, nbytes: int, dtype: DType, shape: Numbers) -> Mapped:
    kind = storage_dtype(dtype)
    return Mapped(
        path=path,
        identity=identity,
        offset=offset,
        nbytes=nbytes,
        dtype=kind or "u1",
        shape=shape if kind else (nbytes,),
    )


def _held(raw: bytes, dtype: DType, shape: Numbers) -> Held:
    kind = storage_dtype(dtype)
    array = np.frombuffer(raw, kind or "u1")
    return Held(held=array.reshape(shape) if kind else array)


def _typed(proto: TensorProto, dtype: DType, what: str) -> bytes:
    """The bytes of values in one of the typed fields (onnx.proto says which type is kept where)."""
    try:
        if dtype in (DType.FLOAT, DType.COMPLEX64):
            return np.array(proto.float_data, "<f4").tobytes()
        if dtype in (DType.DOUBLE, DType.COMPLEX128):
            return np.array(proto.double_data, "<f8").tobytes()
        if dtype is DType.INT64:
            return np.array(proto.int64_data, "<i8").tobytes()
        if dtype in (DType.UINT32, DType.UINT64):
            return (
                np.array(proto.uint64_data, "<u8").astype("<u4" if dtype is DType.UINT32 else "<u8").tobytes()
            )
        width = {1: "u1", 2: "<u2", 4: "<i4"}[max(1, dtype.bits // 8)]
        return np.array(proto.int32_data, "<i4").astype(width).tobytes()
    except (ValueError, OverflowError, TypeError) as e:
        raise ModelError(f"{what} has data that do not fit its type {dtype}") from e


def _text(proto: TensorProto) -> bytes:
    """The strings of ``proto`` as they stand in a file: its serialised field string_data."""
    bare = TensorProto()
    bare.string_data.extend(proto.string_data)
    return bytes(bare.SerializeToString())


def _external(proto: TensorProto, dtype: DType, shape: Numbers, source: TensorSource, what: str) -> Values:
    entries: Mapping[str, str] = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    nbytes = dtype.nbytes(math.prod(shape))
    if dtype is DType.STRING:
        raise ModelError(f"{what} is text in external data, which ONNX does not allow")
    path = _below(source.folder, location, what)
    if nbytes and not os.path.lexists(path):
        raise ModelError(f"{what}: its external data {location!r} is missing; {_MISSING}")
    try:
        offset = int(entries.get("offset") or 0)
        length = int(
            entries.get("length") or nbytes
        )  # left out: as long as the tensor, as ONNX Runtime reads it
    except ValueError as e:
        raise ModelError(f"{what}: its external data's offset or length is no number") from e
    if not nbytes:
        return _held(b"", dtype, shape)
    try:
        identity = identity_of(path)
    except ModelError as e:
        raise ModelError(f"{what}: external data {e}; {_MISSING}") from e
    size = identity[2]
    if offset < 0 or length != nbytes or offset + length > size:
        raise ModelError(
            f"{what}: its external data are {length} bytes from byte {offset} of {location!r} ({size} bytes); "
            f"{nbytes} within it were expected"
        )
    return _mapped(path, identity, offset, nbytes, dtype, shape)


def _below(folder: Path, location: str, what: str) -> Path:
    """``location`` as a real path; ModelError unless that is below the real ``folder``."""
    try:
        root = Path(os.path.realpath(folder))
        path = Path(os.path.realpath(root / location))
    except (ValueError, OSError) as e:
        raise ModelError(f"{what}: its external data's location is not a file name") from e
    if not location or Path(location).is_absolute() or root not in path.parents:
        raise ModelError(
            f"{what}: its external data {location!r} is not below the model's folder, where it was expected"
        )
    return path


def make_weight(name: str, array: np.ndarray) -> Weight:
    """A weight with the values of ``array`` (numbers or bool; element type by its dtype), for small constants.

    Raises ModelError for a dtype that ONNX has not.
    """
    dtype = _FROM_NUMPY.get(array.dtype)
    if dtype is None:
        raise ModelError(f"weight {name!r}: no element type of ONNX for NumPy's {array.dtype}")
    held = np.array(array, order="C")  # whoever gave it may change it later
    held.flags.writeable = False
    return Weight(name=name, dtype=dtype, shape=array.shape, values=Held(held=held))


def raw_bytes(weight: Weight) -> bytes:
    """All values of ``weight`` as a file holds them (text: serialised string_data)."""
    return np.ascontiguousarray(weight.values.array()).tobytes()


def tensor_proto(weight: Weight, *, values: bool) -> TensorProto:
    """``weight`` as a TensorProto, without its values unless ``values``."""
    proto = TensorProto(name=weight.name, data_type=element_type(weight.dtype), dims=weight.shape)
    if values and weight.dtype is DType.STRING:
        proto.MergeFromString(raw_bytes(weight))
    elif values:
        proto.raw_data = raw_bytes(weight)
    return proto


_INTEGERS = (TensorProto.INT64, TensorProto.INT32)


def filled_with(node: EditNode) -> int | None:
    """The integer of a ConstantOfShape; None where it is no integer (the default is the float 0).

    Raises ModelError where the attribute holds fewer values than it says.
    """
    for opaque in node.opaque:
        attribute = AttributeProto.FromString(opaque)
        tensor = attribute.t
        if attribute.name == "value" and tensor.data_type in _INTEGERS and tensor.data_location == 0:
            values = weight_of(tensor, "value", None, f"{node.name}: value").values.array().reshape(-1)
            if len(values) == 1:
                return int(values[0])
            return None
    return None
