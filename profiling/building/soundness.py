"""What raw folders of strangers must hold before their numbers are used: kinds of values, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from gkestimator.core.errors import TableError
from gkestimator.core.escaping import is_line
from gkestimator.core.values import is_number, is_whole
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.profiling.collectors import collector_names
from gkestimator.profiling.raw import ChunkInfo, DeviceFacts, EnvironmentSample, RunInfo
from gkestimator.profiling.records import EntryRecord

_MOST_TEXT = 4096


def check_run(run: RunInfo, path: Path) -> None:
    """Raise TableError naming ``path`` and the field."""
    _check_executor(run.executor, path)
    for name in ("plan_digest", "collector", "started", "host", "command"):
        _require(_is_text, getattr(run, name), path, name, "a text")
    _require(_is_object_of(_is_text), run.versions, path, "versions", "an object of texts")
    for device in run.devices:
        _check_device(device, path, "devices")


def check_chunk(info: ChunkInfo, path: Path) -> None:
    """Raise TableError naming ``path`` and the field."""
    for names, kind, expected in (
        (("pass_name", "started", "ended"), _is_text, "a text"),
        (("collector_version", "clock_control"), _or_null(_is_text), "a text or null"),
        (("number", "attempt"), _is_whole, "a whole number"),
        (("entries", "files", "problems"), _are_texts, "a list of texts"),
    ):
        for name in names:
            _require(kind, getattr(info, name), path, name, expected)
    _check_executor(info.executor, path)
    collectors = collector_names()
    _require(collectors.__contains__, info.collector, path, "collector", f"one of {', '.join(collectors)}")
    for name in info.files:
        _require(_is_file_name, name, path, "files", "names of files beside it")
    _check_device(info.device, path, "device")


def _check_executor(executor: object, path: Path) -> None:
    runtimes = sorted(RUNTIMES)  # a list: a stranger's value may be no text
    _require(runtimes.__contains__, executor, path, "executor", " or ".join(runtimes))


def _check_device(facts: DeviceFacts, path: Path, field: str) -> None:
    checks: dict[str, tuple[Kind, str]] = {
        "kind": (("cpu", "gpu").__contains__, "cpu or gpu"),
        "name": (_is_name, "a name"),
        **dict.fromkeys(
            ("uuid", "compute_capability", "driver", "cuda"), (_or_null(_is_text), "a text or null")
        ),
        "memory_bytes": (_or_null(_is_whole), "bytes or null"),
        **dict.fromkeys(("clocks_mhz", "limits"), (_is_object_of(_is_number), "an object of numbers from 0")),
    }
    for name, (kind, expected) in checks.items():
        _require(kind, getattr(facts, name), path, f"{field}.{name}", expected)


def sound_sample(sample: EnvironmentSample) -> bool:
    """Return whether the values of a sample are of their kinds."""
    numbers = (
        sample.sm_clock_mhz,
        sample.memory_clock_mhz,
        sample.power_w,
        sample.temperature_c,
        sample.others_sm_pct,
    )
    return (
        _is_whole(sample.unix_ns)
        and all(map(_or_null(_is_number), numbers))
        and all(map(_or_null(_is_whole), (sample.tenants, sample.others_bytes)))
        and _or_null(_are_texts)(sample.throttled)
    )


def sound_record(record: EntryRecord) -> bool:
    """Return whether the numbers of a record are numbers of the right kind."""
    pieces = (k.durations_us for k in record.kernels or ())
    numbers: Iterable[object] = (*(record.host_us or ()), *chain(*pieces))
    whole = (record.repeats, record.started_unix_ns, record.ended_unix_ns, record.workspace_bytes)
    return (
        all(map(_is_number, numbers))
        and _or_null(_is_number)(record.elapsed_us)
        and all(map(_or_null(_is_whole), whole))
        and record.repeats != 0
        and _or_null(_is_text)(record.reason)
    )


Kind = Callable[[Any], bool]


def _or_null(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


def _is_object_of(kind: Kind) -> Kind:
    def is_object(value: object) -> bool:
        return isinstance(value, dict) and all(map(_is_text, value)) and all(map(kind, value.values()))

    return is_object


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


def _is_name(value: object) -> bool:
    return is_line(value, _MOST_TEXT) and bool(value.strip())


def _is_file_name(value: str) -> bool:
    return Path(value).name == value and value not in ("", ".", "..") and "\0" not in value


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


def _is_whole(value: object) -> bool:
    return is_whole(value, 0, 2**63 - 1)


def _is_number(value: object) -> bool:
    return is_number(value, 0, 1e18)


def _require(kind: Kind, value: object, path: Path, field: str, expected: str) -> None:
    """Raise TableError where a value is not of its kind."""
    if kind(value):
        return
    shown = repr(value)[:60]
    if isinstance(value, Mapping | list | tuple):
        shown = f"a {type(value).__name__}"
    raise TableError(f"{path}: {field}: found {shown}, expected {expected}")
