"""The raw folder of a run: what lies where. One process writes it (``running``); anyone reads it.

::

    RAW/run.json                    RunInfo: how it was run, on what, with which versions
    RAW/plan.json                   the plan that is worked off, as read
    RAW/lock                        locked while a process writes here
    RAW/chunks/000012-cuda0-timeline/   one committed chunk: entries measured by one child under one collector
        chunk.json                  ChunkInfo
        records.jsonl               one EntryRecord a line
        environment.jsonl           samples of clocks, power, temperature and tenants during the chunk (may be absent)
        capture.sqlite, capture.nsys-rep | counters.ncu-rep (or counters.csv) | trace.json.gz    what the collector made
        child.log                   the end of the child's output
    RAW/chunks/.aside-*             a chunk in the making; left by a killed run, removed by the next

A chunk is committed by renaming its folder, after its collector said that the capture is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.core.errors import TableError
from gkestimator.core.files import FileWords, input_errors, read_bytes
from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.profiling.type_names import Fields, Names, NumberByName, TextByName

RAW_VERSION = 1
_MAX_BYTES = 16 * 2**20
_WORDS = FileWords(error=TableError, too_large="too large for what it should be")


@frozen
class DeviceFacts:
    """Hold what measured: ``kind`` gpu or cpu; ``name`` as the driver says it (NVIDIA H200, or the CPU's model name).
    Unknown is None. ``clocks_mhz``: maximum SM and memory clocks (``sm``, ``memory``). ``limits``: what the device
    tells of itself by the names of GpuSpec's fields (``sms``, ``l2_bytes``, ...), in its units."""

    kind: str
    name: str
    index: int = 0
    uuid: str | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    memory_bytes: int | None = None
    clocks_mhz: NumberByName = field(default_factory=dict)
    limits: NumberByName = field(default_factory=dict)


@frozen
class EnvironmentSample:
    """Hold the device at one moment. ``throttled``: reasons why the driver holds clocks down (empty: none; None: not
    told). ``tenants``: other processes with a context on the GPU; ``others_bytes``: what they hold; ``others_sm_pct``:
    the share of the time in which their kernels ran."""

    unix_ns: int
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: Names | None = None
    tenants: int | None = None
    others_bytes: int | None = None
    others_sm_pct: float | None = None


@frozen
class RunInfo:
    """Say how a folder came about. ``versions``: of libraries and tools by name (``torch``, ``cudnn``, ``nsys``, ...);
    ``plan_digest``: of the plan worked off; ``command``: for people."""

    schema_version: int
    plan_digest: str
    executor: str
    collector: str
    devices: tuple[DeviceFacts, ...]
    versions: TextByName
    started: str
    host: str
    command: str = ""


@frozen
class ChunkInfo:
    """Hold one chunk. ``pass_name``: latency, timeline or counters; ``attempt``: 1, or more where entries are
    measured again because they were noisy; ``collector``: the one that really ran; ``files``: the captures it
    made; ``problems``: one line each; ``entries``: the ids that were asked for."""

    number: int
    pass_name: str
    attempt: int
    executor: str
    collector: str
    collector_version: str | None
    device: DeviceFacts
    clock_control: str | None
    entries: Names
    files: Names
    started: str
    ended: str
    problems: Names = ()


T = TypeVar("T")


def run_folders(path: Path) -> list[Path]:
    """Return the raw folders at ``path``: itself, or those up to two levels below (several machines' in one place)."""
    below = {*path.glob("*/run.json"), *path.glob("*/*/run.json")}
    folders = sorted(file.parent for file in below)
    if (path / "run.json").is_file():
        return [path, *folders]
    return folders


def chunk_folders(raw: Path) -> list[Path]:
    """Return the committed chunks of a raw folder, in the order they were made."""
    return sorted(p.parent for p in (raw / "chunks").glob("[0-9]*/chunk.json"))


def read_run(raw: Path) -> RunInfo:
    """Return what ``run.json`` says. Raises TableError."""
    document = _json(raw / "run.json")
    if document.get("schema_version") != RAW_VERSION:
        raise TableError(
            f"{raw / 'run.json'}: schema_version: found {document.get('schema_version')!r}, expected {RAW_VERSION}"
        )
    devices = document.get("devices")
    if not isinstance(devices, list):
        raise TableError(f"{raw / 'run.json'}: devices: expected a list")
    made = tuple(_build(DeviceFacts, d, raw / "run.json") for d in devices)
    return _build(RunInfo, {**document, "devices": made}, raw / "run.json")


def read_chunk(folder: Path) -> ChunkInfo:
    """Return what ``chunk.json`` says of a committed chunk. Raises TableError."""
    path = folder / "chunk.json"
    document = _json(path)
    device = _build(DeviceFacts, document.get("device"), path)
    return _build(ChunkInfo, {**document, "device": device}, path)


def read_environment(folder: Path) -> Iterator[EnvironmentSample]:
    """Yield the samples of a chunk in order of time; a last line cut short is dropped. Raises TableError."""
    path = folder / "environment.jsonl"
    if not path.is_file():
        return
    try:
        whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
        for line in whole.split("\n") if whole else ():
            yield _build(EnvironmentSample, parse_json(line), path)
    except (OSError, ValueError) as e:
        raise TableError(f"{path}: cannot be read: {e}") from e


def document_of(value: RunInfo | ChunkInfo | EnvironmentSample) -> Fields:
    """Return ``value`` as JSON values."""
    return asdict(value)


def _json(path: Path) -> Fields:
    with input_errors(path, ValueError):
        document = parse_json(read_bytes(path, _WORDS, _MAX_BYTES))
    if not isinstance(document, dict):
        raise TableError(f"{path}: found {type(document).__name__}, expected an object")
    return document


def _build(kind: type[T], document: Any, path: Path) -> T:
    # A field of a newer version may change what the others mean: refused.
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(document, dict) or not document.keys() <= names:
        raise TableError(f"{path}: no {kind.__name__}: expected an object of {', '.join(sorted(names))}")
    values = {}
    for name, value in document.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except TypeError as e:
        raise TableError(f"{path}: no {kind.__name__}: {e}") from e
