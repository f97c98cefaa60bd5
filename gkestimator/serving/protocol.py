"""The V2 inference protocol ("Open Inference Protocol" of KServe and Triton): requests and answers as bytes.

A request is a JSON object; with the binary tensor extension (header ``Inference-Header-Content-Length``) the object is
followed by the bytes of its tensors, little-endian, in order. Every tensor begins with the batch axis: samples of shape
[3, 224, 224] are sent as [n, 3, 224, 224].

Sources: docs.kserve.io "Open Inference Protocol (V2)"; Triton's extension_binary_data.md. Nothing here opens a socket:
strangers' bytes go in, arrays or a RefusedError of one line come out.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from gkestimator.core.errors import one_line
from gkestimator.core.records import NamedValues, frozen
from gkestimator.core.texts import parse_json
from gkestimator.serving.backend import Arrays, RefusedError, ServedSignature, ServedTensor

HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"
# Words of the protocol, and the types that their bytes are; BYTES has no one size.
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_LENGTH = struct.Struct("<I")
_WORDS_BYTES = 64 * 2**10  # names, shapes and parameters around the tensors
_JSON_VALUE_BYTES = 32  # the longest a float64 is written, with its comma and some room
_MOST_JSON_BYTES = 8 * 2**20
_MOST_DIMENSIONS = 32
_MOST_ID = 256


@frozen
class WantedOutput:
    """Name an output that a request asks for, and whether as bytes (``binary``) or as JSON numbers."""

    name: str
    binary: bool


@frozen
class InferRequest:
    """Hold a request: its samples, the outputs that it asks for, and the client's own limit of time (None: none)."""

    id: str
    samples: list[Arrays]
    outputs: tuple[WantedOutput, ...]
    timeout_ms: float | None


def refuse(words: str, status: int = 400) -> NoReturn:
    """Raise RefusedError with ``words`` on one line."""
    raise RefusedError(status, one_line(words, limit=300))


def shown(text: object) -> str:
    """Return a stranger's text for a message: quoted, in ASCII alone, and short."""
    return ascii(text if isinstance(text, str) else type(text).__name__)[:80]


def body_limit(signature: ServedSignature, *, binary: bool, most_bytes: int) -> int:
    """Return how many bytes a request may have: the most that its tensors can, and room for words around them;
    ``most_bytes`` where the signature leaves a length open. As JSON at most 8 MiB: reading more holds up all others.
    """
    total = _WORDS_BYTES
    for tensor in signature.inputs:
        if tensor.datatype not in _DTYPES or None in tensor.shape:
            total = most_bytes
            break
        size = _DTYPES[tensor.datatype].itemsize if binary else _JSON_VALUE_BYTES
        total += signature.max_batch * size * math.prod(n for n in tensor.shape if n is not None)
    most = most_bytes if binary else min(most_bytes, _MOST_JSON_BYTES)
    return min(total, most)


def model_metadata(name: str, signature: ServedSignature) -> NamedValues:
    """Return what ``GET /v2/models/NAME`` answers: shapes with the batch axis, -1 for any length."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "onnxruntime_onnx",
        "inputs": [_described(tensor) for tensor in signature.inputs],
        "outputs": [_described(tensor) for tensor in signature.outputs],
    }


def _described(tensor: ServedTensor) -> NamedValues:
    shape = [-1, *(-1 if size is None else size for size in tensor.shape)]
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": shape}


def header_length(value: str | None, body_bytes: int) -> int | None:
    """Return the length of the JSON part that the header names; None where the whole body is JSON. Raises
    RefusedError."""
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 12) or int(value) > body_bytes:
        refuse(f"{HEADER_LENGTH}: found {shown(value)}, expected at most the {body_bytes} bytes of the body")
    return int(value)


def parse_request(body: bytes, json_bytes: int | None, signature: ServedSignature) -> InferRequest:
    """Return the request in ``body``, whose JSON part has ``json_bytes`` (None: all of it), checked against
    ``signature``. The arrays are views of ``body``. Raises RefusedError."""
    document = _json_object(body if json_bytes is None else body[:json_bytes])
    binary = memoryview(b"") if json_bytes is None else memoryview(body)[json_bytes:]
    parameters = _parameters(document, "the request")
    entries = _objects(document, "inputs")
    known = {tensor.name: tensor for tensor in signature.inputs}
    tensors: Arrays = {}
    for entry in entries:
        name = entry.get("name")
        tensor = known.get(name) if isinstance(name, str) else None
        if tensor is None or name in tensors:
            refuse(f"inputs: found {shown(name)}, expected each of {sorted(known)} once")
        size = _parameters(entry, f"input {name}").get("binary_data_size")
        raw = None
        if size is not None:
            if not _is_whole(size) or not 0 <= size <= len(binary):
                refuse(f"input {name}: binary_data_size: {len(binary)} bytes are left, found {size!r:.30}")
            raw, binary = binary[:size], binary[size:]
        tensors[tensor.name] = _tensor(entry, tensor, raw)
    if len(tensors) < len(known):
        refuse(f"inputs: {sorted(known.keys() - tensors.keys())} are missing")
    if binary.nbytes:
        refuse(f"the body has {binary.nbytes} bytes more than its inputs")
    return InferRequest(
        id=_id(document),
        samples=_samples(tensors, signature),
        outputs=_wanted(document, parameters, signature),
        timeout_ms=_timeout_ms(parameters),
    )


def _json_object(raw: bytes) -> NamedValues:
    try:
        document = parse_json(raw)
    except ValueError as e:
        refuse(f"the request is no JSON: {e}")
    if not isinstance(document, dict):
        refuse("the request: expected a JSON object")
    return document


def _parameters(document: NamedValues, where: str) -> NamedValues:
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        refuse(f"{where}: parameters: expected an object")
    return parameters


def _objects(document: NamedValues, field: str) -> list[NamedValues]:
    entries = document.get(field)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        refuse(f"{field}: expected a list of objects")
    return entries


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _id(document: NamedValues) -> str:
    value = document.get("id", "")
    if not isinstance(value, str) or len(value) > _MOST_ID:
        refuse(f"id: expected a text of at most {_MOST_ID} characters")
    return value


def _timeout_ms(parameters: NamedValues) -> float | None:
    """Return the client's limit; ``timeout`` is in microseconds, as Triton has it."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if not _is_whole(value) or not 0 < value < 2**53:
        refuse("parameters: timeout: expected a whole number of microseconds above 0")
    return float(value) / 1e3


def _tensor(entry: NamedValues, tensor: ServedTensor, raw: memoryview | None) -> np.ndarray[Any, Any]:
    """Return the values of one input, of the shape that it names, which must be the model's."""
    where = f"input {tensor.name}"
    if entry.get("datatype") != tensor.datatype:
        refuse(f"{where}: datatype: found {shown(entry.get('datatype'))}, expected {tensor.datatype}")
    shape = entry.get("shape")
    # A sample's own sizes are checked before anything of that size is made.
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not _fits(shape, tensor.shape):
        expected = ["n", *("any" if size is None else size for size in tensor.shape)]
        refuse(f"{where}: shape: found {str(shape)[:60]}, expected [{', '.join(map(str, expected))}]")
    count = math.prod(shape)
    if raw is None:
        values = _from_json(entry.get("data"), tensor, count, where)
    elif "data" in entry:
        refuse(f"{where}: found both data and binary_data_size, expected one of them")
    elif tensor.datatype == "BYTES":
        values = _texts(raw, count, where)
    else:
        values = _from_bytes(raw, tensor, count, where)
    return values.reshape(shape)


def _fits(shape: list[Any], expected: Sequence[int | None]) -> bool:
    if len(shape) != len(expected) + 1:
        return False
    for size, wanted in zip(shape, (None, *expected), strict=True):
        if not _is_whole(size) or not 0 < size < 2**31 or size != (wanted or size):
            return False
    return True


def _from_bytes(raw: memoryview, tensor: ServedTensor, count: int, where: str) -> np.ndarray[Any, Any]:
    dtype = _DTYPES[tensor.datatype]
    if raw.nbytes != count * dtype.itemsize:
        refuse(
            f"{where}: found {raw.nbytes} bytes, expected {count * dtype.itemsize} of {tensor.datatype} in its shape"
        )
    if tensor.datatype != "BOOL":
        return np.frombuffer(raw, dtype=dtype)
    flags = np.frombuffer(raw, dtype=np.uint8)
    if flags.max() > 1:
        refuse(f"{where}: found bytes other than 0 and 1, expected BOOL")
    return flags.view(np.bool_)


def _texts(raw: memoryview, count: int, where: str) -> np.ndarray[Any, Any]:
    """Return texts, each of which is preceded by its length in four bytes."""
    texts: list[str] = []
    at = 0
    while at + _LENGTH.size <= raw.nbytes and len(texts) < count:
        (size,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        text = bytes(raw[at : at + size])
        at += size
        try:
            texts.append(text.decode())
        except UnicodeDecodeError as e:
            refuse(f"{where}: found no UTF-8: {e.reason}")
    if len(texts) != count or at != raw.nbytes:
        refuse(f"{where}: expected {count} texts, each after its length in four bytes, and nothing more")
    values = np.empty(count, dtype=np.object_)
    values[:] = texts
    return values


def _from_json(data: object, tensor: ServedTensor, count: int, where: str) -> np.ndarray[Any, Any]:
    """Return the values of ``data``, flat or nested lists, in the tensor's type."""
    if not isinstance(data, list):
        refuse(f"{where}: data: expected a list")
    try:
        if tensor.datatype == "BYTES":
            values = np.array(data, dtype=np.object_)
        else:
            values = np.asarray(data)
            if values.dtype.kind == "f" and tensor.datatype == "UINT64":
                values = _whole_numbers(data)
    except (TypeError, ValueError, OverflowError):
        refuse(f"{where}: data: expected a list, or lists of equal length")
    if values.size != count:
        refuse(f"{where}: data: found {values.size} values, expected {count}")
    if tensor.datatype == "BYTES":
        if not all(isinstance(value, str) for value in values.flat):
            refuse(f"{where}: data: expected texts")
        return values
    return _converted(values, tensor, where)


def _whole_numbers(data: list[Any]) -> np.ndarray[Any, Any]:
    """Return whole numbers above int64 beside small ones, of which NumPy makes floats. Raises ValueError and
    OverflowError for others."""
    values = np.array(data, dtype=np.object_)
    if not all(map(_is_whole, values.flat)):
        raise ValueError("no whole numbers")
    return values.astype(np.uint64)


def _converted(values: np.ndarray[Any, Any], tensor: ServedTensor, where: str) -> np.ndarray[Any, Any]:
    """Return JSON numbers in the tensor's type; none is rounded to a whole one, wrapped, or made infinite."""
    dtype = _DTYPES[tensor.datatype]
    kinds = {"b": "b", "f": "iuf"}.get(dtype.kind, "iuf")
    with np.errstate(all="ignore"):
        if values.dtype.kind in kinds:
            exact = values.astype(dtype)
            if dtype.kind == "f" and np.isfinite(exact).all():
                return exact
            if dtype.kind != "f" and np.array_equal(exact, values):
                return exact
    refuse(f"{where}: data: found values that are no {tensor.datatype}")


def _samples(tensors: Arrays, signature: ServedSignature) -> list[Arrays]:
    """Return the samples of a request, whose inputs must have the same number of them."""
    counts = {name: len(values) for name, values in tensors.items()}
    batch = next(iter(counts.values()))
    if set(counts.values()) != {batch}:
        refuse(f"inputs: shape: found different numbers of samples, {counts}")
    if batch > signature.max_batch:
        refuse(f"inputs: shape: found {batch} samples, expected at most {signature.max_batch}")
    return [{name: values[number] for name, values in tensors.items()} for number in range(batch)]


def _wanted(
    document: NamedValues, parameters: NamedValues, signature: ServedSignature
) -> tuple[WantedOutput, ...]:
    every = bool(parameters.get("binary_data_output", False))
    if not document.get("outputs"):
        return tuple(WantedOutput(name=tensor.name, binary=every) for tensor in signature.outputs)
    known = [tensor.name for tensor in signature.outputs]
    wanted: dict[str, WantedOutput] = {}
    for entry in _objects(document, "outputs"):
        name = entry.get("name")
        if name not in known or name in wanted:
            refuse(f"outputs: found {shown(name)}, expected some of {sorted(known)}, each once")
        binary = bool(_parameters(entry, f"output {name}").get("binary_data", every))
        wanted[name] = WantedOutput(name=name, binary=binary)
    return tuple(wanted.values())


def write_response(
    model: str, request: InferRequest, answers: Sequence[Arrays], signature: ServedSignature
) -> tuple[list[bytes], int | None]:
    """Return the parts of the answer to ``request``, JSON first, and the length of that where bytes follow.

    Raises RefusedError where JSON cannot hold a value (not a number, infinite)."""
    outputs = []
    binary = []
    datatypes = {tensor.name: tensor.datatype for tensor in signature.outputs}
    for wanted in request.outputs:
        values = np.stack([answer[wanted.name] for answer in answers])
        entry: NamedValues = {
            "name": wanted.name,
            "datatype": datatypes[wanted.name],
            "shape": list(values.shape),
        }
        if wanted.binary:
            part = _to_bytes(values, datatypes[wanted.name])
            entry["parameters"] = {"binary_data_size": len(part)}
            binary.append(part)
        else:
            entry["data"] = values.ravel().tolist()
        outputs.append(entry)
    document: NamedValues = {"model_name": model, "model_version": VERSION, "outputs": outputs}
    if request.id:
        document["id"] = request.id
    try:
        head = json.dumps(document, allow_nan=False).encode()
    except ValueError:
        refuse("outputs: found values that JSON cannot hold (NaN or infinite); ask for binary data", 422)
    if not binary:
        return [head], None
    return [head, *binary], len(head)


def _to_bytes(values: np.ndarray[Any, Any], datatype: str) -> bytes:
    if datatype != "BYTES":
        return np.ascontiguousarray(values, dtype=_DTYPES[datatype]).tobytes()
    parts = []
    for value in values.flat:
        text = value if isinstance(value, bytes) else str(value).encode()
        parts += [_LENGTH.pack(len(text)), text]
    return b"".join(parts)
