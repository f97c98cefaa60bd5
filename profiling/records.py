"""What an executor's child writes of each entry: one JSON line, as soon as the entry is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gkestimator.core.errors import TableError
from gkestimator.core.files import FileWords, input_errors, read_bytes
from gkestimator.core.limits import allowed
from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.profiling.type_names import Floats, Ints

HostKernels: TypeAlias = "tuple[HostKernel, ...]"

STATUSES = ("ok", "failed", "skipped")
"""Measured; could not be measured (``reason`` says why: out of memory, crashed, hung, the runtime's error); not
something this executor runs (an operator it does not cover, a precision the device lacks)."""


@frozen
class HostKernel:
    """Hold a piece of an operator as a CPU executor's own profiler saw it: ``durations_us``, one per repeat."""

    name: str
    durations_us: Floats


@frozen
class MemoryUse:
    """Hold the device memory of a whole model, in bytes, at its peak over all calls so far, weights and
    inputs included, as in a process that runs nothing else; copies that loading needs are not counted.
    ``reserved_bytes``: what the runtime's allocator took from the driver (torch's ``max_memory_reserved``);
    ``allocated_bytes``: what of it was in use at most; ``device_bytes``: what the process held of the GPU,
    its context and the libraries' handles included. None where the runtime or the driver does not tell."""

    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    device_bytes: int | None = None


@frozen
class EntryRecord:
    """Hold what one child measured of one entry. Times: ``started_unix_ns`` and ``ended_unix_ns`` on the wall
    clock; ``host_us`` is what one call took on the host, one per repeat (without waiting for the device);
    ``elapsed_us`` the repeats from the first call until the device was done, divided by ``repeats``.
    ``output_shapes``: of the fragment's outputs. ``workspace_bytes``: peak memory of a call beyond inputs,
    weights and outputs. ``kernels``: on the CPU, what the runtime's profiler says ran; None on a GPU, where
    the collector says it. In the latency pass (whole models, without a profiler): ``latency_us``, one per
    repeat, from the beginning of a call until the device is done, each call alone; ``memory``; ``cpu_nodes``,
    the nodes that a runtime on a GPU gave to the CPU. What was not measured is None."""

    entry_id: str
    status: str
    reason: str | None = None
    repeats: int | None = None
    started_unix_ns: int | None = None
    ended_unix_ns: int | None = None
    host_us: Floats | None = None
    elapsed_us: float | None = None
    output_shapes: tuple[Ints, ...] | None = None
    workspace_bytes: int | None = None
    kernels: HostKernels | None = None
    latency_us: Floats | None = None
    memory: MemoryUse | None = None
    cpu_nodes: int | None = None


_MOST_BYTES = 2**50
_MOST_US = 1e12  # eleven days
_NAMES = frozenset(f.name for f in fields(EntryRecord))
_MEMORY = frozenset(f.name for f in fields(MemoryUse))
_WORDS = FileWords(error=TableError)


def record_line(record: EntryRecord) -> str:
    """Return the record as one line of JSON, with its newline."""
    return json.dumps(asdict(record), allow_nan=False, separators=(",", ":")) + "\n"


def read_records(path: Path) -> Iterator[EntryRecord]:
    """Yield the records of a file. A last line without its newline (the child was killed) is dropped,
    anything else that is no record refused with TableError."""
    with input_errors(path, UnicodeDecodeError):
        text = read_bytes(path, _WORDS, allowed("table_bytes")).decode()
    # A killed child leaves half a line; the entry is measured again.
    whole, _, _ = text.rpartition("\n")
    for number, line in enumerate(whole.split("\n") if whole else (), start=1):
        try:
            yield _record(parse_json(line))
        except (ValueError, TypeError, KeyError, OverflowError) as e:
            raise TableError(f"{path}: line {number} is no record of an entry: {e}") from e


def _record(document: Any) -> EntryRecord:
    if not isinstance(document, dict) or not document.keys() <= _NAMES:
        raise ValueError("unknown fields")
    if document.get("status") not in STATUSES:
        raise ValueError(f"status {document.get('status')!r}, expected one of {', '.join(STATUSES)}")
    fields_read = {**document, "entry_id": str(document["entry_id"])}
    for name, read in _READERS.items():
        if document.get(name) is not None:
            fields_read[name] = read(document[name])
    latency = fields_read.get("latency_us")
    if latency is not None and len(latency) != document.get("repeats"):
        raise ValueError(f"latency_us: found {len(latency)} times, expected one for each repeat")
    return EntryRecord(**fields_read)


def _floats(values: Any) -> Floats:
    return tuple(map(float, values))


def _shapes(shapes: Any) -> tuple[Ints, ...]:
    return tuple(tuple(map(int, shape)) for shape in shapes)


def _kernels(kernels: Any) -> HostKernels:
    pieces = []
    for kernel in kernels:
        durations = _floats(kernel["durations_us"])
        pieces.append(HostKernel(name=str(kernel["name"]), durations_us=durations))
    return tuple(pieces)


def _latency(values: Any) -> Floats:
    if not isinstance(values, list):
        raise ValueError(f"latency_us: found {type(values).__name__}, expected a list of microseconds")
    if not values:
        raise ValueError("latency_us: found 0 times, expected one for each repeat")
    for value in values:
        # bool is an int to Python; NaN compares false with everything
        if type(value) not in (int, float) or not 0 <= value <= _MOST_US:
            raise ValueError(f"latency_us: found {str(value)[:40]!r}, expected microseconds from 0")
    return _floats(values)


def _memory(sizes: Any) -> MemoryUse:
    if not isinstance(sizes, dict) or not sizes.keys() <= _MEMORY:
        raise ValueError(f"memory: expected an object of {', '.join(sorted(_MEMORY))}")
    for name, size in sizes.items():
        if size is not None:
            _count(size, f"memory.{name}")
    return MemoryUse(**sizes)


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_BYTES:
        raise ValueError(f"{name}: found {str(value)[:40]!r}, expected a whole number from 0, or null")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "kernels": _kernels,
    "output_shapes": _shapes,
    "host_us": _floats,
    "latency_us": _latency,
    "memory": _memory,
    "cpu_nodes": partial(_count, name="cpu_nodes"),
}
"""How the fields are read that are not taken as they are; none of them where it is null."""
