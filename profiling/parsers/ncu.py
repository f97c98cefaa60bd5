"""Nsight Compute: a report (.ncu-rep) or its raw page (.csv) as a capture.

A report is read by NVIDIA's ``ncu_report`` in a process of its own; where that is missing or fails, ``ncu
--import`` prints the raw page. Counters are in base units: ns, bytes, per second, percent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from gkestimator.core.errors import GkestimatorError, TableError, one_line
from gkestimator.core.files import FileWords, input_errors, opened
from gkestimator.core.leftovers import scratch_folder
from gkestimator.profiling.captures import Capture, CapturedLaunch, Dim3, EntryRange
from gkestimator.profiling.parsers.ncu_blocks import MAGIC, count_results
from gkestimator.profiling.parsers.ncu_child import NOT_INSTALLED
from gkestimator.profiling.parsers.ncu_csv import read_csv
from gkestimator.profiling.parsers.ncu_values import Action, ReadReport, unit_factor
from gkestimator.profiling.parsers.spans import Facts, parse_label, printable_name
from gkestimator.profiling.tools import NCU, find_tool, missing_tool
from gkestimator.profiling.type_names import NumberByName, Paths

DURATION = "gpu__time_duration.sum"
LIMIT_S = 600.0
_WORDS = FileWords(error=TableError)
MAX_REPORT_BYTES = 8 * 2**30
MAX_OUTPUT_BYTES = 4 * 2**30
_CHILD = "gkestimator.profiling.parsers.ncu_child"
_DEVICE = "device__attribute_"


class _ReaderMissingError(TableError):
    """Say that this way of reading is not installed here."""


def parse_ncu(path: Path, *, ncu: Path | None = None, limit_s: float = LIMIT_S) -> Capture:
    """Return the capture in the report or CSV file at ``path``. Neighbouring kernels of one NVTX range are
    one range; ncu replays kernels and tells no times, so ``start_ns`` is the position in the report.
    ``duration_ns`` is gpu__time_duration.sum, which must have been collected. ``device``: the
    device__attribute_* metrics. ``ncu``: the executable for the second way, looked for where none is given.
    Raises TableError."""
    with opened(path, _WORDS) as file:
        magic = file.read(len(MAGIC))
        size = os.fstat(file.fileno()).st_size
    if path.suffix.lower() == ".csv" or not (magic == MAGIC or path.suffix.lower() == ".ncu-rep"):
        return _capture(path, read_csv(path))
    if size > MAX_REPORT_BYTES:
        raise TableError(f"{path}: {size:,} bytes, expected at most {MAX_REPORT_BYTES:,}")
    try:
        return _capture(path, read_report_by_library(path, limit_s=limit_s))
    except TableError as first:
        try:
            return _capture(path, read_report_by_tool(path, ncu=ncu, limit_s=limit_s))
        except _ReaderMissingError as second:
            if isinstance(first, _ReaderMissingError):
                raise TableError(
                    f"{path}: neither ncu_report (pip install ncu-report) nor ncu is here to read it"
                ) from second
            raise first from second


def read_report_by_library(path: Path, *, limit_s: float = LIMIT_S) -> ReadReport:
    """Return the report through ncu_report. Raises TableError."""
    expected = _expected(path)
    command = [sys.executable, "-P", "-m", _CHILD, str(path.absolute()), *map(str, shipped_readers())]
    with tempfile.TemporaryFile() as output:
        status, said = _run(path, command, output, limit_s)
        if status == NOT_INSTALLED:
            raise _ReaderMissingError(f"{path}: ncu_report is not installed: {said}")
        if status != 0:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise TableError(f"{path}: ncu_report cannot read it ({how}): {said}")
        try:
            lines = iter(output)
            version = json.loads(next(lines))["version"]
            actions = tuple(_action(json.loads(line)) for line in lines)
        except (ValueError, KeyError, TypeError, StopIteration) as e:
            raise TableError(f"{path}: ncu_report gave no actions: {e!r}") from e
    return _complete(path, expected, ReadReport(reader=f"ncu_report {version}", actions=actions))


def shipped_readers() -> Paths:
    """Return folders with the ncu_report that comes with the ncu of this machine: for where the package is
    not installed."""
    try:
        tool = find_tool(NCU)
    except GkestimatorError:
        return ()
    if tool is None:
        return ()
    places = dict.fromkeys(p / "extras" / "python" for p in (tool.parent, tool.resolve().parent))
    return tuple(place for place in places if (place / "ncu_report.py").is_file())


def read_report_by_tool(path: Path, *, ncu: Path | None = None, limit_s: float = LIMIT_S) -> ReadReport:
    """Return the report through ``ncu --import``, which must be as new as the ncu that wrote it. Raises
    TableError."""
    expected = _expected(path)
    tool = ncu if ncu is not None else find_tool(NCU)
    if tool is None:
        raise _ReaderMissingError(f"{path}: {missing_tool(NCU)}")
    command = [str(tool), "--import", str(path.absolute()), "--page", "raw", "--csv", "--print-units", "base"]
    with scratch_folder("gkest-ncu") as folder:
        printed = folder / "raw.csv"
        with printed.open("w+b") as output:
            status, said = _run(path, command, output, limit_s)
            output.seek(0)
            lines = [line.decode(errors="replace") for line in output.readlines(2**16)]
        errors = [line for line in lines if line.startswith("==ERROR==")]
        if status != 0 or errors:
            reasons = (*errors, said or f"status {status}")
            raise TableError(f"{path}: ncu cannot read it: {reasons[0]}")
        try:
            read = read_csv(printed)
        except TableError as e:
            raise TableError(
                f"{path}: as {tool.name} prints it: {str(e).removeprefix(f'{printed}: ')}"
            ) from e
    return _complete(path, expected, replace(read, reader="ncu --import"))


def _expected(path: Path) -> int | None:
    """Return how many kernels the report says it holds; None for a format that begins otherwise (a later
    version's, a packed one): then NVIDIA's reader alone judges it."""
    with input_errors(path), path.open("rb") as file:
        known = MAGIC.startswith(file.read(len(MAGIC)))
    return count_results(path) if known else None


def _complete(path: Path, expected: int | None, read: ReadReport) -> ReadReport:
    """Return ``read`` if it is all that the report holds: a reader that gives less does not say so."""
    without = sum(not action.metrics for action in read.actions)
    if expected is None and read.actions and not without:
        unknown = "a report of unknown format: whether it is whole, its reader alone says"
        return replace(read, problems=(*read.problems, unknown))
    if len(read.actions) != expected or without:
        wanted = "at least 1" if expected is None else expected
        raise TableError(
            f"{path}: {read.reader} gave {len(read.actions)} kernels, {without} of them without a metric, expected "
            f"{wanted} with metrics"
        )
    return read


def _run(path: Path, command: Sequence[str], output: IO[bytes], limit_s: float) -> tuple[int, str]:
    """Return exit status and the end of what was said on stderr. The command's whole group is killed at the
    limits of time and of output."""
    environment = {**os.environ, "LC_ALL": "C"}
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as e:
            raise _ReaderMissingError(f"{path}: {command[0]} cannot be started: {e.strerror}") from e
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired as e:
            raise TableError(f"{path}: {Path(command[0]).name} took more than {limit_s:g} s; ended") from e
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if os.fstat(output.fileno()).st_size > MAX_OUTPUT_BYTES:
            raise TableError(f"{path}: {Path(command[0]).name} printed more than {MAX_OUTPUT_BYTES:,} bytes")
        output.seek(0)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
        lines = errors.read().decode(errors="replace").strip().splitlines() or [""]
    return status, one_line(lines[-1], limit=200)


def _action(document: Any) -> Action:
    metrics = {}
    for name, (value, unit) in document["numbers"].items():
        factor = unit_factor(unit)
        if factor is not None:
            metrics[sys.intern(name)] = float(value) * factor
    return Action(
        name=str(document["name"]),
        workload=str(document["workload"]),
        ranges=tuple((str(domain), str(text)) for domain, text in document["ranges"]),
        metrics=metrics,
        words={str(k): str(v) for k, v in document["words"].items()},
    )


def _capture(path: Path, read: ReadReport) -> Capture:
    unjoined: Counter[str] = Counter()
    problems = list(read.problems)
    ranges = tuple(_ranges(path, read.actions, unjoined))
    if not ranges:
        problems.append("no kernel lies in an NVTX range of ours (ncu records ranges with --nvtx)")
    return Capture(
        tool="ncu",
        tool_version=None,
        schema=read.reader,
        ranges=ranges,
        device=_device(read.actions, problems),
        unjoined=dict(unjoined),
        problems=tuple(problems),
    )


def _ranges(path: Path, actions: Sequence[Action], unjoined: Counter[str]) -> Iterator[EntryRange]:
    label: tuple[str, int] | None = None
    launches: list[CapturedLaunch] = []
    for position, action in enumerate(actions):
        here = _label(action, unjoined)
        if here != label and label is not None:
            yield _entry_range(label, launches)
            launches = []
        label = here
        if here is not None:
            launches.append(_launch(path, position, action))
    if label is not None:
        yield _entry_range(label, launches)


def _label(action: Action, unjoined: Counter[str]) -> tuple[str, int] | None:
    """Return the range of ours that a kernel lies in; None, counted, where it lies in none or in several."""
    ours = {parse_label(text, domain=domain) for domain, text in action.ranges} - {None}
    if action.workload != "kernel":
        unjoined[f"profiled as a whole ({action.workload})"] += 1
        return None
    if len(ours) == 1:
        return ours.pop()
    unjoined["in several ranges of ours" if ours else "outside the ranges of entries"] += 1
    return None


def _entry_range(label: tuple[str, int], launches: list[CapturedLaunch]) -> EntryRange:
    return EntryRange(
        entry_id=label[0],
        repeats=label[1],
        start_ns=launches[0].start_ns,
        end_ns=launches[-1].start_ns + 1,
        launches=tuple(launches),
    )


def _launch(path: Path, position: int, action: Action) -> CapturedLaunch:
    metrics = action.metrics
    if DURATION not in metrics:
        raise TableError(
            f"{path}: kernel {position} ({action.name[:60]}): lacks {DURATION}, which must be collected"
        )
    static = _whole(metrics, "launch__shared_mem_per_block_static")
    dynamic = _whole(metrics, "launch__shared_mem_per_block_dynamic")
    shared = None
    if static is not None and dynamic is not None:
        shared = static + dynamic
    return CapturedLaunch(
        kind="kernel",
        name=printable_name(action.name),
        start_ns=position,
        duration_ns=round(metrics[DURATION]),
        stream=_whole(metrics, "launch__stream_id"),
        device=_whole(metrics, "launch__device_id"),
        grid=_triple(metrics, "launch__grid_dim"),
        block=_triple(metrics, "launch__block_dim"),
        registers_per_thread=_whole(metrics, "launch__registers_per_thread"),
        static_smem_bytes=static,
        dynamic_smem_bytes=dynamic,
        smem_bytes=shared,
        counters={name: value for name, value in metrics.items() if not name.startswith(_DEVICE)},
    )


def _whole(metrics: NumberByName, name: str) -> int | None:
    value = metrics.get(name)
    return None if value is None else round(value)


def _triple(metrics: NumberByName, name: str) -> Dim3 | None:
    x, y, z = (_whole(metrics, f"{name}_{axis}") for axis in "xyz")
    if x is None or y is None or z is None:
        return None
    return (x, y, z)


def _device(actions: Sequence[Action], problems: list[str]) -> Facts:
    """Return the attributes that all kernels' devices share: all of them where there is one device."""
    shared: set[tuple[str, str | float]] | None = None
    for action in actions:
        facts: set[tuple[str, str | float]] = set()
        for name, value in action.metrics.items():
            if name.startswith(_DEVICE):
                facts.add((name, value))
        for name, word in action.words.items():
            if name.startswith(_DEVICE):
                facts.add((name, one_line(word, limit=200)))
        shared = facts if shared is None else shared & facts
    if len({a.words.get(f"{_DEVICE}display_name") for a in actions}) > 1:
        problems.append("kernels of several GPUs; facts are those that they share")
    device: Facts = {}
    for name, fact in sorted(shared or (), key=lambda pair: pair[0]):
        whole = isinstance(fact, float) and fact.is_integer()
        device[name] = int(fact) if whole else fact
    return device
