"""What raw folders of strangers must hold before their numbers are used: kinds of values, field by field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from gkestimator.core.errors import TableError
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.profiling.collectors import collector_names
from gkestimator.profiling.raw import ChunkInfo, DeviceFacts, EnvironmentSample, RunInfo
from gkestimator.profiling.records import EntryRecord

_MOST_TEXT = 4096


def check_run(run: RunInfo, path: Path) -> None:
    """Raises TableError naming ``path`` and the field."""
    if run.executor not in tuple(RUNTIMES):  # a stranger's value may be no text
        raise _fail(path, "executor", run.executor, " or ".join(sorted(RUNTIMES)))
    for name in ("plan_digest", "collector", "started", "host", "command"):
        if not _is_text(getattr(run, name)):
            raise _fail(path, name, getattr(run, name), "a text")
    if not isinstance(run.versions, dict) or not all(_is_text(t) for i in run.versions.items() for t in i):
        raise _fail(path, "versions", run.versions, "an object of texts")
    for device in run.devices:
        _check_device(device, path, "devices")


def check_chunk(info: ChunkInfo, path: Path) -> None:
    """Raises TableError naming ``path`` and the field."""
    for name in ("pass_name", "started", "ended"):
        if not _is_text(getattr(info, name)):
            raise _fail(path, name, getattr(info, name), "a text")
    for name in ("collector_version", "clock_control"):
        if not (getattr(info, name) is None or _is_text(getattr(info, name))):
            raise _fail(path, name, getattr(info, name), "a text or null")
    for name in ("number", "attempt"):
        if not _is_whole(getattr(info, name)):
            raise _fail(path, name, getattr(info, name), "a whole number")
    for name in ("entries", "files", "problems"):
        if not _are_texts(getattr(info, name)):
            raise _fail(path, name, getattr(info, name), "a list of texts")
    if info.executor not in RUNTIMES:
        raise _fail(path, "executor", info.executor, " or ".join(sorted(RUNTIMES)))
    collectors = collector_names()
    if info.collector not in collectors:
        raise _fail(path, "collector", info.collector, f"one of {', '.join(collectors)}")
    for name in info.files:
        if Path(name).name != name or name in ("", ".", "..") or "\0" in name:
            raise _fail(path, "files", name, "names of files beside it")
    _check_device(info.device, path, "device")


def _check_device(facts: DeviceFacts, path: Path, field: str) -> None:
    if facts.kind not in ("cpu", "gpu"):
        raise _fail(path, f"{field}.kind", facts.kind, "cpu or gpu")
    if not _is_text(facts.name) or not facts.name.strip() or not facts.name.isprintable():
        raise _fail(path, f"{field}.name", facts.name, "a name")
    for name in ("uuid", "compute_capability", "driver", "cuda"):
        value = getattr(facts, name)
        if not (value is None or _is_text(value)):
            raise _fail(path, f"{field}.{name}", value, "a text or null")
    if not (facts.memory_bytes is None or _is_whole(facts.memory_bytes)):
        raise _fail(path, f"{field}.memory_bytes", facts.memory_bytes, "bytes or null")
    for name in ("clocks_mhz", "limits"):
        value = getattr(facts, name)
        if not isinstance(value, dict) or not all(_is_text(k) and _is_number(v) for k, v in value.items()):
            raise _fail(path, f"{field}.{name}", value, "an object of numbers from 0")


def sound_sample(sample: EnvironmentSample) -> bool:
    """Whether the values of a sample are of their kinds."""
    numbers = (
        sample.sm_clock_mhz,
        sample.memory_clock_mhz,
        sample.power_w,
        sample.temperature_c,
        sample.others_sm_pct,
    )
    return (
        _is_whole(sample.unix_ns)
        and all(v is None or _is_number(v) for v in numbers)
        and all(v is None or _is_whole(v) for v in (sample.tenants, sample.others_bytes))
        and (sample.throttled is None or _are_texts(sample.throttled))
    )


def sound_record(record: EntryRecord) -> bool:
    """Whether the numbers of a record are numbers of the right kind."""
    numbers: Iterable[object] = (
        *(record.host_us or ()),
        *(d for k in record.kernels or () for d in k.durations_us),
        record.elapsed_us if record.elapsed_us is not None else 0.0,
    )
    whole = (record.repeats, record.started_unix_ns, record.ended_unix_ns, record.workspace_bytes)
    return (
        all(_is_number(v) for v in numbers)
        and all(v is None or _is_whole(v) for v in whole)
        and record.repeats != 0
        and (record.reason is None or _is_text(record.reason))
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(_is_text(v) for v in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value < 1e18
    )


def _fail(path: Path, field: str, found: object, expected: str) -> TableError:
    if isinstance(found, Mapping | list | tuple):
        shown = f"a {type(found).__name__}"
    else:
        shown = repr(found)[:60]
    return TableError(f"{path}: {field}: found {shown}, expected {expected}")
