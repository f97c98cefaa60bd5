"""Turn TensorProtos to Weights and back: where its values are, or the values where they are small."""

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
    opened_same,
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
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)
# Numbers of TensorProto's fields, and which types' values are kept in them as a file has them.
_RAW_DATA = 9
_RAW_TYPES = frozenset(DType) - {DType.STRING}
_FIELD_TYPES = {
    4: frozenset({DType.FLOAT, DType.COMPLEX64}),
    10: frozenset({DType.DOUBLE, DType.COMPLEX128}),
    _RAW_DATA: _RAW_TYPES,
}
_MISSING = "merging needs the weights"


def storage_dtype(dtype: DType) -> str | None:
    """Return NumPy's name of how elements are stored; None for those kept as raw bytes (text, below a byte)."""
    if dtype is DType.STRING or dtype.bits < 8:
        return None
    return _STORAGE.get(dtype) or _WIDTHS[dtype.bits]


@frozen
class TensorSource:
    """Say which file tensors come from. ``token``: key of the entry that says where a value was cut out."""

    path: Path
    identity: Identity
    token: str


def weight_of(proto: TensorProto, name: str, source: TensorSource | None, what: str) -> Weight:
    """Return ``proto`` as a Weight called ``name``; ``source`` None: the proto holds its values itself.

    Raises ModelError naming ``what`` where the values are not there.
    """
    dtype = dtype_of(proto.data_type, what)
    shape = tensor_type(dtype, tuple(proto.dims), what).shape
    tensor = _Tensor(proto=proto, dtype=dtype, shape=shape, what=what)
    values: Values
    if source is None:
        values = tensor.own_values()
    else:
        values = tensor.values(source)
    return Weight(name=name, dtype=dtype, shape=shape, values=values)


@frozen
class _Tensor:
    """Find the values of a TensorProto. ``what``: how errors call it."""

    proto: TensorProto
    dtype: DType
    shape: Numbers
    what: str

    @property
    def nbytes(self) -> int:
        """Return the bytes that the values take."""
        return self.dtype.nbytes(math.prod(self.shape))

    def values(self, source: TensorSource) -> Values:
        """Return the values that stand in the proto, in the source's file or in external data beside it."""
        if self.proto.data_location == TensorProto.EXTERNAL:
            return self._external(source)
        spans = []
        for entry in self.proto.external_data:
            if entry.key == source.token:
                spans.append(tuple(map(int, entry.value.split(","))))
        if not spans:
            return self.own_values()
        field, offset, _ = spans[0]
        fields = [number for number, _, _ in spans]
        # Packed values may come in several pieces, raw bytes may not.
        if len(set(fields)) > 1 or (len(spans) > 1 and field == _RAW_DATA):
            raise ModelError(f"{self.what} holds its values twice")
        size = sum(nbytes for _, _, nbytes in spans)
        if size != self.nbytes or self.dtype not in _FIELD_TYPES[field]:
            raise ModelError(
                f"{self.what} has {size} bytes of data; {self.nbytes} of {self.dtype} were expected"
            )
        if len(spans) == 1:
            return self._mapped(source.path, source.identity, offset)
        with opened_same(source.path, source.identity) as content:
            return self._held(b"".join(content[at : at + nbytes] for _, at, nbytes in spans))

    def own_values(self) -> Held:
        """Return the values that stand in the proto."""
        if self.dtype is DType.STRING:
            strings = self.proto.string_data
            self._expect(len(strings), math.prod(self.shape), "strings")
            # The strings as they stand in a file: a serialised field.
            bare = TensorProto(string_data=strings)
            return Held(held=np.frombuffer(bare.SerializeToString(), np.uint8))
        if self.proto.HasField("raw_data"):
            raw = self.proto.raw_data
        else:
            raw = self._typed()
        self._expect(len(raw), self.nbytes, "bytes of data")
        return self._held(raw)

    def _expect(self, present: int, expected: int, unit: str) -> None:
        if present == expected:
            return
        if present:
            raise ModelError(f"{self.what} has {present} {unit}; {expected} were expected")
        raise ModelError(f"{self.what} has no values (exported without weights?); {_MISSING}")

    def _mapped(self, path: Path, identity: Identity, offset: int) -> Mapped:
        dtype = storage_dtype(self.dtype)
        shape = self.shape
        if dtype is None:
            dtype = "u1"
            shape = (self.nbytes,)
        return Mapped(
            path=path, identity=identity, offset=offset, nbytes=self.nbytes, dtype=dtype, shape=shape
        )

    def _held(self, raw: bytes) -> Held:
        dtype = storage_dtype(self.dtype)
        if dtype is None:
            return Held(held=np.frombuffer(raw, "u1"))
        return Held(held=np.frombuffer(raw, dtype).reshape(self.shape))

    def _typed(self) -> bytes:
        """Return the bytes of values in one of the typed fields (onnx.proto says which type is kept where)."""
        dtype = self.dtype
        proto = self.proto
        try:
            if dtype in _FIELD_TYPES[4]:
                return np.array(proto.float_data, "<f4").tobytes()
            if dtype in _FIELD_TYPES[10]:
                return np.array(proto.double_data, "<f8").tobytes()
            if dtype is DType.INT64:
                return np.array(proto.int64_data, "<i8").tobytes()
            if dtype in (DType.UINT32, DType.UINT64):
                return np.array(proto.uint64_data, "<u8").astype(_STORAGE[dtype]).tobytes()
            width = {1: "u1", 2: "<u2", 4: "<i4"}[max(1, dtype.bits // 8)]
            return np.array(proto.int32_data, "<i4").astype(width).tobytes()
        except (ValueError, OverflowError, TypeError) as e:
            raise ModelError(f"{self.what} has data that do not fit its type {dtype}") from e

    def _external(self, source: TensorSource) -> Values:
        what = self.what
        entries: Mapping[str, str] = {entry.key: entry.value for entry in self.proto.external_data}
        location = entries.get("location", "")
        if self.dtype is DType.STRING:
            raise ModelError(f"{what} is text in external data, which ONNX does not allow")
        path = _below(source.path.parent, location, what)
        # said apart from "not below the folder": a forgotten file is the usual slip
        if self.nbytes and not os.path.lexists(path):
            raise ModelError(f"{what}: its external data {location!r} is missing; {_MISSING}")
        try:
            offset = int(entries.get("offset") or 0)
            # left out: as long as the tensor, as ONNX Runtime reads it
            length = int(entries.get("length") or self.nbytes)
        except ValueError as e:
            raise ModelError(f"{what}: its external data's offset or length is no number") from e
        if not self.nbytes:
            return self._held(b"")
        try:
            identity = identity_of(path)
        except ModelError as e:
            raise ModelError(f"{what}: external data {e}; {_MISSING}") from e
        size = identity[2]
        if offset < 0 or length != self.nbytes or offset + length > size:
            raise ModelError(
                f"{what}: its external data are {length} bytes from byte {offset} of {location!r} ({size} bytes); "
                f"{self.nbytes} within it were expected"
            )
        return self._mapped(path, identity, offset)


def _below(folder: Path, location: str, what: str) -> Path:
    """Return ``location`` as a real path; ModelError unless that is below the real ``folder``."""
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
    """Return a weight with the values of ``array`` (numbers or bool; element type by its dtype), for small
    constants.

    Raises ModelError for a dtype that ONNX has not.
    """
    dtype = _FROM_NUMPY.get(array.dtype)
    if dtype is None:
        raise ModelError(f"weight {name!r}: no element type of ONNX for NumPy's {array.dtype}")
    held = np.array(array, order="C")  # whoever gave it may change it later
    held.flags.writeable = False
    return Weight(name=name, dtype=dtype, shape=array.shape, values=Held(held=held))


def raw_bytes(weight: Weight) -> bytes:
    """Return all values of ``weight`` as a file holds them (text: serialised string_data)."""
    return np.ascontiguousarray(weight.values.array()).tobytes()


def tensor_proto(weight: Weight, *, values: bool) -> TensorProto:
    """Return ``weight`` as a TensorProto, without its values unless ``values``."""
    proto = TensorProto(name=weight.name, data_type=element_type(weight.dtype), dims=weight.shape)
    if values and weight.dtype is DType.STRING:
        proto.MergeFromString(raw_bytes(weight))
    elif values:
        proto.raw_data = raw_bytes(weight)
    return proto


def filled_with(node: EditNode) -> int | None:
    """Return the integer of a ConstantOfShape; None where it is no integer (the default is the float 0).

    Raises ModelError where the attribute holds fewer values than it says.
    """
    for opaque in node.opaque:
        attribute = AttributeProto.FromString(opaque)
        tensor = attribute.t
        if attribute.name == "value" and tensor.data_type in _INTEGERS and tensor.data_location == 0:
            weight = weight_of(tensor, "value", None, f"{node.name}: value")
            values = weight.values.array().reshape(-1)
            if len(values) == 1:
                return int(values[0])
            return None
    return None
