"""Cut weight values out of a serialised model before protobuf sees it.

The protobuf wire format is a list of (tag, payload) fields, so tensors' value fields can be skipped by their
length: a 1.9 GB file with its weights inside costs its graph alone, and the pages of the weights are never
read. Format: https://protobuf.dev/programming-guides/encoding/ ; field numbers: onnx.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from gkestimator.core.errors import LimitError, ModelError
from gkestimator.onnx_io.reading import limits

Buffer: TypeAlias = "bytes | memoryview"

# Which fields of a message hold messages that may hold tensors, by field number (onnx.proto).
_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
# float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_VALUE_FIELDS = frozenset({4, 5, 6, 7, 9, 10, 11})
_COPY_BELOW = 4_096  # a message this small is copied without looking into it
_KEEP_BELOW = 1 << 20  # values that may be shape arithmetic stay ...
_KEEP_TOTAL = 64 << 20  # ... up to this much together, then only very small ones
_KEEP_ALWAYS = 128
_MAX_DEPTH = 96
_LOCATED = frozenset(
    {4, 9, 10}
)  # float_data, raw_data, double_data: little-endian bytes, where they are packed
_EXTERNAL_DATA = b"\x6a"  # tag of TensorProto.external_data: a list of (key = 1, value = 2)


class _Stripper:
    """Hold the state of one walk: the bytes of values kept so far and the fields seen."""

    def __init__(self, data: Buffer, token: str | None = None) -> None:
        self.data = data
        self.kept = 0
        self.fields = 0
        self.token = token
        if token is None:
            self.cut = _VALUE_FIELDS
        else:
            self.cut = _LOCATED
        if token is None:
            self.keep_below = _KEEP_BELOW
        else:
            self.keep_below = _COPY_BELOW

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Return the varint at ``at`` and the position behind it."""
        result = shift = 0
        data = self.data
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result, at
            shift += 7
        raise ModelError("not an ONNX file: broken protobuf (varint)")

    def strip(self, kind: str, start: int, end: int, depth: int, out: list[Buffer]) -> int:
        """Append the message without its large values to ``out``; returns its new length."""
        if depth > _MAX_DEPTH:
            raise LimitError(f"messages nested deeper than {_MAX_DEPTH}")
        children = _CHILDREN[kind]
        tensor = kind == "tensor"
        at = run = start  # run: begin of a stretch that is copied as it stands
        length = 0
        while at < end:
            self.fields += 1
            if self.fields > limits.MAX_WIRE_FIELDS:
                raise LimitError(f"more than {limits.MAX_WIRE_FIELDS} protobuf fields")
            field_at = at
            tag, at = self.varint(at, end)
            number = tag >> 3
            if tag & 7 != 2:
                at = self._behind(tag & 7, at, end)
                if at > end:
                    break
                continue
            size, body = self.varint(at, end)
            at = body + size
            if at > end:
                break
            if tensor and number in self.cut:
                if self._keep(size):
                    continue
                length += self._copy(run, field_at, out)
                run = at
                if self.token is not None:
                    out.append(_entry(self.token, f"{number},{body},{size}"))
                    length += len(out[-1])
            elif size > _COPY_BELOW and number in children:
                length += self._copy(run, field_at, out)
                inner: list[Buffer] = []
                inner_length = self.strip(children[number], body, at, depth + 1, inner)
                head = varint(tag) + varint(inner_length)
                out.append(head)
                out.extend(inner)
                length += len(head) + inner_length
                run = at
        if at != end:
            raise ModelError("truncated: a protobuf field ends beyond its message")
        return length + self._copy(run, end, out)

    def _behind(self, wire: int, at: int, end: int) -> int:
        """Return the position behind a number that begins at ``at``."""
        if wire == 0:
            return self.varint(at, end)[1]
        if wire == 1:
            return at + 8
        if wire == 5:
            return at + 4
        raise ModelError(f"not an ONNX file (found protobuf wire type {wire})")

    def _keep(self, size: int) -> bool:
        if size <= _KEEP_ALWAYS or (size <= self.keep_below and self.kept + size <= _KEEP_TOTAL):
            self.kept += size
            return True
        return False

    def _copy(self, start: int, end: int, out: list[Buffer]) -> int:
        if end > start:
            out.append(self.data[start:end])
        return end - start


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
    LimitError on one whose graph itself is too large.
    """
    out: list[Buffer] = []
    length = _Stripper(data).strip("model", 0, len(data), 0, out)
    if length > limits.MAX_GRAPH_BYTES:
        raise LimitError(f"the graph alone takes {length} bytes; at most {limits.MAX_GRAPH_BYTES} are read")
    return b"".join(out)


def locate_values(data: Buffer, token: str) -> bytes:
    """Return a serialised ModelProto whose large packed values are replaced by a note of where they are in ``data``.

    The note is an entry of ``external_data`` with the key ``token``: field number, offset and length, joined by
    commas (a field that is there twice leaves two). Values that are no plain little-endian bytes (varints, text)
    stay. Raises as :func:`strip_values`.
    """
    out: list[Buffer] = []
    length = _Stripper(data, token).strip("model", 0, len(data), 0, out)
    if length > limits.MAX_GRAPH_BYTES:
        raise LimitError(
            f"the graph and the values that cannot be mapped take {length} bytes; at most "
            f"{limits.MAX_GRAPH_BYTES} are read"
        )
    return b"".join(out)
