"""Cut weight values out of a serialised model before protobuf sees it.

The protobuf wire format is a list of (tag, payload) fields, so tensors' value fields can be skipped by their
length: a 1.9 GB file with its weights inside costs its graph alone, and the weights are never read.
Format: https://protobuf.dev/programming-guides/encoding/ ; field numbers: onnx.proto.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx

from gkestimator.core.errors import LimitError, ModelError
from gkestimator.core.files import FileBytes
from gkestimator.core.limits import allowed
from gkestimator.onnx_io.reading import limits

Buffer: TypeAlias = "bytes | FileBytes"

# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_VALUE_FIELDS = frozenset({4, 5, 6, 7, 9, 10, 11})
_COPY_BELOW = 4_096  # a message this small is copied as it stands
_KEEP_BELOW = 1 << 20  # values that may be shape arithmetic stay ...
_KEEP_TOTAL = 64 << 20  # ... up to this much together, then only very small ones
_KEEP_ALWAYS = 128
_MAX_DEPTH = 96
_LOCATED = frozenset(
    {4, 9, 10}
)  # float_data, raw_data, double_data: little-endian bytes, where they are packed
_EXTERNAL_DATA = b"\x6a"  # tag of TensorProto.external_data: a list of (key = 1, value = 2)
# What an empty message of each type takes in memory (bytes, protobuf 5 to 7, its place in a list included).
_OBJECT_BYTES = {
    "AttributeProto": 210,
    "TensorProto": 175,
    "FunctionProto": 165,
    "NodeProto": 160,
    "GraphProto": 135,
}
_SMALL_OBJECT_BYTES = 85


@dataclass(slots=True)
class _Kind:
    """Hold a type of message: what an empty one takes in memory, and its fields that are messages, by number."""

    size: int
    is_tensor: bool
    children: dict[int, _Kind] = field(default_factory=dict)


@functools.cache
def _model_kind() -> _Kind:
    """Return the type of a whole model, as the installed onnx describes it."""
    kinds: dict[str, _Kind] = {}

    def kind_of(descriptor: Any) -> _Kind:
        kind = kinds.get(descriptor.full_name)
        if kind is None:
            size = _OBJECT_BYTES.get(descriptor.name, _SMALL_OBJECT_BYTES)
            kind = kinds[descriptor.full_name] = _Kind(size, descriptor.name == "TensorProto")
            for each in descriptor.fields:
                if each.message_type is not None:
                    kind.children[each.number] = kind_of(each.message_type)
        return kind

    return kind_of(onnx.ModelProto.DESCRIPTOR)


class _Stripper:
    """Hold the state of one walk: the bytes of values kept so far, the fields seen, and the memory of the messages."""

    def __init__(self, data: Buffer, token: str | None = None) -> None:
        self.data = data
        self.kept = 0
        self.copied = 0
        self.fields = 0
        self.most_fields = allowed("wire_fields")
        self.memory = 0
        self.most_memory = allowed("message_bytes")
        self.token = token
        if token is None:
            self.cut = _VALUE_FIELDS
            self.keep_below = _KEEP_BELOW
        else:
            self.cut = _LOCATED
            self.keep_below = _COPY_BELOW

    def strip(self, kind: _Kind, start: int, end: int, depth: int, out: list[bytes]) -> int:
        """Append the message without its large values to ``out``; returns its new length."""
        self._enter(kind, depth)
        data = self.data
        children = kind.children
        at = run = start  # run: begin of a stretch that is copied as it stands
        length = 0
        while at < end:
            self.fields += 1
            if self.fields > self.most_fields:
                limits.check("wire_fields", self.fields)
            field_at = at
            tag, at = _varint_at(data, at, end)
            number = tag >> 3
            if tag & 7 != 2:
                at = _behind(data, tag & 7, at, end)
                if at > end:
                    break
                continue
            size, body = _varint_at(data, at, end)
            at = body + size
            if at > end:
                break
            if kind.is_tensor and number in self.cut:
                if self._keep(size):
                    continue
                length += self._copy(run, field_at, out)
                run = at
                if self.token is not None:
                    out.append(_entry(self.token, f"{number},{body},{size}"))
                    length += len(out[-1])
            elif number in children:
                if size <= _COPY_BELOW:
                    self._count(children[number], bytes(data[body:at]), 0, size, depth + 1)
                    continue
                length += self._copy(run, field_at, out)
                inner: list[bytes] = []
                inner_length = self.strip(children[number], body, at, depth + 1, inner)
                head = varint(tag) + varint(inner_length)
                out.append(head)
                out.extend(inner)
                length += len(head) + inner_length
                run = at
        if at != end:
            raise ModelError("truncated: a protobuf field ends beyond its message")
        return length + self._copy(run, end, out)

    def _count(self, kind: _Kind, data: bytes, at: int, end: int, depth: int) -> None:
        """Count the fields of a message that is copied as it stands, and the memory that it takes once it is parsed."""
        self._enter(kind, depth)
        children = kind.children
        fields = 0
        while at < end:
            fields += 1
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint_at(data, at - 1, end)
            if tag & 7 != 2:
                at = _behind(data, tag & 7, at, end)
                continue
            size, at = _varint_at(data, at, end)
            body = at
            at += size
            child = children.get(tag >> 3)
            if child is not None and at <= end:
                self._count(child, data, body, at, depth + 1)
        if at != end:
            raise ModelError("truncated: a protobuf field ends beyond its message")
        self.fields += fields

    def _enter(self, kind: _Kind, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise LimitError(f"messages nested deeper than {_MAX_DEPTH}")
        self.memory += kind.size
        if self.memory > self.most_memory:
            limits.check("message_bytes", self.memory)

    def _keep(self, size: int) -> bool:
        if size <= _KEEP_ALWAYS or (size <= self.keep_below and self.kept + size <= _KEEP_TOTAL):
            self.kept += size
            return True
        return False

    def _copy(self, start: int, end: int, out: list[bytes]) -> int:
        if end > start:
            self.copied += end - start
            limits.check("graph_bytes", self.copied)
            out.append(self.data[start:end])
        return end - start


def _varint_at(data: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return the varint at ``at`` and the position behind it."""
    result = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    raise ModelError("not an ONNX file: broken protobuf (varint)")


def _behind(data: Buffer, wire: int, at: int, end: int) -> int:
    """Return the position behind a number that begins at ``at``."""
    if wire == 0:
        return _varint_at(data, at, end)[1]
    if wire == 1:
        return at + 8
    if wire == 5:
        return at + 4
    raise ModelError(f"not an ONNX file (found protobuf wire type {wire})")


def varint(number: int) -> bytes:
    """Return ``number`` as a protobuf varint."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _entry(key: str, value: str) -> bytes:
    inner = b"".join(
        head + varint(len(text)) + text for head, text in ((b"\x0a", key.encode()), (b"\x12", value.encode()))
    )
    return _EXTERNAL_DATA + varint(len(inner)) + inner


def strip_values(data: Buffer) -> bytes:
    """Return a serialised ModelProto without the tensor values that are too large to be shape arithmetic.

    A tensor whose value was cut keeps its name, type and dims. Raises ModelError on a broken file and
    LimitError on one whose graph itself is too large, or would be once it is parsed.
    """
    return _stripped(_Stripper(data))


def locate_values(data: Buffer, token: str) -> bytes:
    """Return a serialised ModelProto whose large packed values are replaced by a note of where they are in ``data``.

    The note is an entry of ``external_data`` with the key ``token``: field number, offset and length, joined by
    commas (a field that is there twice leaves two). Values that are no plain little-endian bytes (varints, text)
    stay. Raises as :func:`strip_values`.
    """
    return _stripped(_Stripper(data, token))


def _stripped(stripper: _Stripper) -> bytes:
    out: list[bytes] = []
    stripper.strip(_model_kind(), 0, len(stripper.data), 0, out)
    return b"".join(out)
