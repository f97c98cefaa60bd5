"""Write an EditableModel to a file, one weight after another: nothing but the graph is held in memory.

The graph is serialised without weights, and each weight's message is appended to it as a field of its own; in
protobuf's wire format the fields of a message may come in any order, and lengths can be told ahead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import onnx

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import OutputError
from gkestimator.core.records import frozen
from gkestimator.merging.editing.cut_short import expect_whole
from gkestimator.merging.editing.form import EditableModel, Models, Weight
from gkestimator.merging.editing.protos import to_proto
from gkestimator.merging.editing.tensors import raw_bytes, tensor_proto
from gkestimator.merging.editing.values import Mapped, Values, open_same
from gkestimator.onnx_io.reading.wire import varint
from gkestimator.tables.together import write_together

INLINE_BELOW = (1 << 31) - (1 << 20)  # protobuf refuses messages of 2 GiB
_SMALL = 4_096  # such a weight is inline always: shape inference wants to see it
_ALIGNMENT = 4_096  # a page: runtimes map external data
_SLICE = 8 << 20
_GRAPH = varint(7 << 3 | 2)  # ModelProto.graph
_INITIALIZER = varint(5 << 3 | 2)  # GraphProto.initializer
_RAW_DATA = varint(9 << 3 | 2)  # TensorProto.raw_data


@frozen
class _Piece:
    """Hold a weight's place in the model's file: what stands before its values, and whether those follow."""

    head: bytes
    weight: Weight | None


def write_editable(model: EditableModel, path: Path, *, keep: Models = ()) -> tuple[Path, ...]:
    """Write ``model`` to ``path``; the files written, the model's first.

    Values stand in the file itself, or, where it would reach 2 GiB, in ``<path>.data`` beside it. Both are
    written aside and renamed, so that until then the old ones stay. They are not forced to disk: a merged
    model can be made again, and waiting for a disk takes longer than merging. Raises OutputError (a device
    that is full, a file that the weights of ``model`` or of a model of ``keep`` are read from), ModelError
    where a file of weights was changed meanwhile; nothing is left behind.
    """
    # the graph is small beside its weights: it alone is held in memory
    graph, rest = _bare(model)
    data = path.with_name(path.name + ".data")
    inline = [_inline(weight) for weight in model.weights.values()]
    if _total(graph, inline) < INLINE_BELOW:
        _refuse_sources((model, *keep), (path,))
        write_together({path: lambda out: _write_model(out, rest, graph, inline)}, flush=False)
        return (path,)
    _refuse_sources((model, *keep), (path, data))
    pieces, outside = _external(model, data.name)
    if _total(graph, pieces) >= INLINE_BELOW:
        raise OutputError(
            f"{path}: the graph without its weights takes {len(graph)} bytes; below 2 GiB was expected"
        )
    write_together(
        {
            data: lambda out: _write_data(out, outside),
            path: lambda out: _write_model(out, rest, graph, pieces),
        },
        flush=False,
    )
    return (path, data)


def _bare(model: EditableModel) -> tuple[bytes, bytes]:
    """Return the graph without weights, and the rest of the model, serialised."""
    proto = to_proto(model, large="none")
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    return graph, proto.SerializeToString(deterministic=True)


def _inline(weight: Weight) -> _Piece:
    if weight.dtype is DType.STRING:
        body = tensor_proto(weight, values=True).SerializeToString(deterministic=True)
        return _Piece(head=_INITIALIZER + varint(len(body)) + body, weight=None)
    header = tensor_proto(weight, values=False).SerializeToString(deterministic=True)
    header += _RAW_DATA + varint(weight.nbytes)
    return _Piece(head=_INITIALIZER + varint(len(header) + weight.nbytes) + header, weight=weight)


def _external(model: EditableModel, location: str) -> tuple[list[_Piece], list[tuple[int, Weight]]]:
    """Return large weights as references into the file ``location``, and where each is in it."""
    pieces = []
    outside = []
    at = 0
    for weight in model.weights.values():
        if weight.dtype is DType.STRING or weight.nbytes <= _SMALL:
            pieces.append(_inline(weight))
            continue
        # the next page: what lies at a page's start can be mapped
        at = -(-at // _ALIGNMENT) * _ALIGNMENT
        proto = tensor_proto(weight, values=False)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", at), ("length", weight.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        body = proto.SerializeToString(deterministic=True)
        pieces.append(_Piece(head=_INITIALIZER + varint(len(body)) + body, weight=None))
        outside.append((at, weight))
        at += weight.nbytes
    return pieces, outside


def _length(graph: bytes, pieces: Sequence[_Piece]) -> int:
    return len(graph) + sum(
        len(piece.head) + (piece.weight.nbytes if piece.weight else 0) for piece in pieces
    )


def _total(graph: bytes, pieces: Sequence[_Piece]) -> int:
    return _length(graph, pieces) + 64 + 4_096


def _write_model(out: IO[bytes], rest: bytes, graph: bytes, pieces: Sequence[_Piece]) -> None:
    out.write(rest + _GRAPH + varint(_length(graph, pieces)) + graph)
    for piece in pieces:
        out.write(piece.head)
        if piece.weight is not None:
            _write_values(out, piece.weight)
    _expect_unchanged(piece.weight for piece in pieces if piece.weight is not None)


def _write_data(out: IO[bytes], outside: Sequence[tuple[int, Weight]]) -> None:
    at = 0
    for offset, weight in outside:
        out.write(bytes(offset - at))
        _write_values(out, weight)
        at = offset + weight.nbytes
    _expect_unchanged(weight for _, weight in outside)


def _write_values(out: IO[bytes], weight: Weight) -> None:
    """Write the values of ``weight``, as many bytes as its type and shape say, in slices where they are many."""
    values = weight.values
    if isinstance(values, Mapped) and values.nbytes == weight.nbytes > _SLICE >> 4 and _copied(out, values):
        return
    if weight.nbytes <= _SLICE:
        raw = raw_bytes(weight)
        _expect(weight, len(raw))
        out.write(raw)
        return
    written = 0
    for part in _slices(values.array()):
        written += part.nbytes
        out.write(part.reshape(-1).view(np.uint8).data)
    _expect(weight, written)


def _expect_unchanged(weights: Iterable[Weight]) -> None:
    """Raise ModelError where a file was written to while its weights were copied: what was copied may be of
    both.
    """
    expect_whole()
    for path, identity in dict.fromkeys(
        (m.path, m.identity) for name in weights for m in _mapped(name.values)
    ):
        os.close(open_same(path, identity))


def _expect(weight: Weight, found: int) -> None:
    if found != weight.nbytes:
        raise OutputError(
            f"weight {weight.name!r} has {found} bytes of values; {weight.nbytes} were expected"
        )


def _slices(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield ``array`` in order, in contiguous parts of some megabytes at most."""
    if array.nbytes <= _SLICE or array.ndim == 0:
        yield np.ascontiguousarray(array)
        return
    rows = max(1, _SLICE * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        part = array[start : start + rows]
        if rows == 1:
            yield from _slices(part[0])
        else:
            yield np.ascontiguousarray(part)


def _copied(out: IO[bytes], values: Mapped) -> bool:
    """Let the system copy the bytes from file to file; False where it cannot, and nothing was written then."""
    copy = getattr(os, "copy_file_range", None)
    if copy is None:
        return False
    out.flush()
    source = open_same(values.path, values.identity)
    try:
        at = values.offset
        left = values.nbytes
        while left:
            try:
                done = copy(source, out.fileno(), left, at)
            except OSError:
                if left == values.nbytes:
                    return False  # another file system, or a kernel that does not copy here
                raise
            if not done:
                raise OutputError(f"{values.path.name}: ended before its weights did")
            at += done
            left -= done
    finally:
        os.close(source)
    return True


def _refuse_sources(models: Models, targets: Sequence[Path]) -> None:
    """Refuse to write over a file that is read from: a model written over the file that its own weights, or
    another's, are read from is a slip that costs it.
    """
    sources = {
        m.path for model in models for weight in model.weights.values() for m in _mapped(weight.values)
    }
    for target in targets:
        for source in sources:
            try:
                same = os.path.samefile(target, source)
            except (OSError, ValueError):
                same = False
            if same:
                raise OutputError(f"{target}: weights are read from this file; expected another to write to")


def _mapped(values: Values) -> Iterator[Mapped]:
    """Yield the part of a file that ``values`` are made of, if they are."""
    base: Values | None = values
    while base is not None:
        if isinstance(base, Mapped):
            yield base
        base = getattr(base, "base", None)
