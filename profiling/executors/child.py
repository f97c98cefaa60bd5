"""The child of a run: measures the entries of one chunk, one after the other, and writes a record of each at once.

``python -m gkestimator.profiling.executors.child --entries FILE.json --records FILE.jsonl --executor NAME --device D``.
Exit status 0 even when entries failed (their records say so); 3 where the device takes no more work (the rest is not
done); 2 for wrong usage. Before each entry its id is written to ``<records>.current``, so that whoever started the
child knows what it was at when it was killed.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NoReturn

from gkestimator.core.errors import GkestimatorError, OutputError, UsageError, one_line
from gkestimator.profiling.captures import NVTX_DOMAIN
from gkestimator.profiling.collectors.base import PASSES
from gkestimator.profiling.executors import EXECUTORS, make_executor
from gkestimator.profiling.executors.base import DeviceLostError, EntryUnsupportedError, Executor
from gkestimator.profiling.executors.device_memory import device_memory
from gkestimator.profiling.executors.faults import judged
from gkestimator.profiling.executors.host_memory import available_host_bytes, require_host_memory
from gkestimator.profiling.executors.kineto import KinetoTrace
from gkestimator.profiling.executors.measuring import Clocks, Effort, Ranges, measure, measure_latency
from gkestimator.profiling.executors.nvtx_package import make_ranges
from gkestimator.profiling.plan import PlanEntry, read_plan
from gkestimator.profiling.records import EntryRecord, record_line
from gkestimator.tables.files import output_errors

_MOST_CALLS = 10_000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the entries that ``arguments`` name and return the exit status."""
    try:
        return _run(_arguments(arguments))
    except GkestimatorError as e:
        print(f"gkest child: {e}", file=sys.stderr)
        return e.exit_code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Arguments(argparse.Namespace):
    """Hold the command line, checked."""

    entries: Path
    records: Path
    executor: str
    device: str
    warmup: int
    repeats: int | None
    min_ms: float
    seed: int
    kineto: Path | None
    pass_name: str

    @property
    def latency(self) -> bool:
        """Return True in the pass of whole models' latencies."""
        return self.pass_name == "latency"

    @property
    def effort(self) -> Effort:
        """Return how often to call."""
        counters = self.pass_name == "counters"
        return Effort(warmup=self.warmup, repeats=self.repeats, min_ms=self.min_ms, counters=counters)


def _arguments(arguments: Sequence[str] | None) -> _Arguments:
    """Return the command line. Raises UsageError."""
    parser = _Parser(prog="gkest child", allow_abbrev=False)
    parser.add_argument("--entries", required=True, type=Path)
    parser.add_argument("--records", required=True, type=Path)
    parser.add_argument("--executor", required=True, choices=tuple(EXECUTORS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--warmup", type=int, default=Effort().warmup)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--min-ms", type=float, default=Effort().min_ms)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kineto", type=Path)
    parser.add_argument("--pass", dest="pass_name", choices=PASSES, default="timeline")
    asked = parser.parse_args(arguments, namespace=_Arguments())
    if not 1 <= asked.warmup <= _MOST_CALLS:
        raise UsageError(f"--warmup: found {asked.warmup}, expected 1 to {_MOST_CALLS:,}")
    if asked.repeats is not None and not 1 <= asked.repeats <= _MOST_CALLS:
        raise UsageError(f"--repeats: found {asked.repeats}, expected 1 to {_MOST_CALLS:,}")
    if not (math.isfinite(asked.min_ms) and asked.min_ms >= 0):
        raise UsageError(f"--min-ms: found {asked.min_ms}, expected milliseconds from 0")
    return asked


def _entries(asked: _Arguments) -> tuple[PlanEntry, ...]:
    """Return what to measure. Raises UsageError for what the latency pass does not measure."""
    entries = read_plan(asked.entries).entries
    if not asked.latency:
        return entries
    if asked.kineto is not None:
        raise UsageError("--kineto: found with --pass latency, which no profiler may disturb")
    for entry in entries:
        if entry.model is None:
            raise UsageError(f"--pass latency: {entry.id} is an operator, expected whole models alone")
    return entries


def _run(asked: _Arguments) -> int:
    entries = _entries(asked)
    # First of all: what is on the GPU before CUDA starts here is others'.
    held_bytes = device_memory(asked.device) if asked.latency else None
    nvtx = make_ranges(NVTX_DOMAIN)
    if asked.kineto is None:
        trace = None
    else:
        trace = KinetoTrace(asked.kineto, cuda=asked.device != "cpu")
    executor = make_executor(asked.executor, asked.device, held_bytes=held_bytes)
    gc.freeze()  # what the libraries made at import stays: collecting around each entry is quick

    @contextmanager
    def ranges(text: str) -> Iterator[None]:
        with ExitStack() as stack:
            if trace is not None:
                stack.enter_context(trace.range(text))
            stack.enter_context(nvtx.range(text))
            yield

    current = asked.records.with_name(asked.records.name + ".current")
    # What kineto saw is written at the end alone: told to end, the child finishes the entry at hand and writes it.
    with _opened(asked.records) as records, _ends_when_told(trace is not None) as ended:
        if trace is not None:
            trace.start()
        lost = False
        for entry in entries:
            if ended():
                break
            _write_aside(asked.records, ".current", entry.id)
            record, lost = _record(executor, entry, asked, ranges)
            _append(records, record)
            if lost:
                print(f"gkest child: {entry.id}: {record.reason}", file=sys.stderr)
                break
        if trace is not None:
            _stop(trace, lost)
    if lost:
        return DeviceLostError.exit_code
    current.unlink(missing_ok=True)
    return 0


@contextmanager
def _ends_when_told(listens: bool) -> Iterator[Callable[[], bool]]:
    """Give what says that SIGTERM came, where the child ``listens`` for it."""
    came: list[int] = []
    if not listens or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)


def _record(
    executor: Executor, entry: PlanEntry, asked: _Arguments, ranges: Ranges
) -> tuple[EntryRecord, bool]:
    """Return the record of ``entry``, and whether the device is lost."""
    try:
        require_host_memory(entry, asked.device, available_host_bytes())
        if asked.latency:
            record = measure_latency(executor, entry, effort=asked.effort, seed=asked.seed, clocks=Clocks())
        else:
            record = measure(
                executor, entry, effort=asked.effort, seed=asked.seed, ranges=ranges, clocks=Clocks()
            )
        return record, False
    except OutputError:
        raise  # the machine's fault, not the entry's: it is measured again
    except OSError as e:
        if e.errno in _DISK_FULL:
            raise OutputError(f"{e.filename or 'a temporary file'}: cannot be written: {e.strerror}") from e
        error = judged(e)
    except Exception as e:  # noqa: BLE001 - an operator of a stranger's model in any runtime: its failure is a result
        error = judged(e)
    status = "skipped" if isinstance(error, EntryUnsupportedError) else "failed"
    failed = EntryRecord(entry_id=entry.id, status=status, reason=one_line(error))
    return failed, isinstance(error, DeviceLostError)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open the records for appending; what a killed child left of a line is cut off first. Raises OutputError."""
    with output_errors(path), open(path, "a+b") as stream:
        stream.seek(0)
        whole = stream.read()
        stream.truncate(whole.rfind(b"\n") + 1)
        yield stream


def _append(stream: IO[bytes], record: EntryRecord) -> None:
    # Buffered, so that a line of ordinary length reaches the file in one write: whole, or not at all.
    stream.write(record_line(record).encode())
    stream.flush()
    os.fsync(stream.fileno())


def _write_aside(records: Path, suffix: str, text: str) -> None:
    path = records.with_name(records.name + suffix)
    aside = path.with_name(path.name + ".aside")
    with output_errors(path):
        aside.write_text(text + "\n", encoding="ascii")
        os.replace(aside, path)


def _stop(trace: KinetoTrace, lost: bool) -> None:
    try:
        trace.stop()
    except OutputError as e:
        if not lost:
            raise
        print(f"gkest child: {e}", file=sys.stderr)  # the lost device is what matters


if __name__ == "__main__":
    # A child that is told to end, ends (but see _ends_when_told): no handler of Python's, none ignored by inheritance.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()  # a crash leaves the Python stack in the child's log
    sys.exit(main())
