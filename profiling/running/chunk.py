"""One chunk: run the child under its collector, then say what became of every entry."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, OutputError, TableError, one_line
from gkestimator.jobs.children import last_words, log_end
from gkestimator.jobs.disk import is_disk_full
from gkestimator.profiling.captures import Capture, EntryRange, RangesByEntry
from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.collectors.claims import false_claim
from gkestimator.profiling.plan import SweepPlan, write_plan
from gkestimator.profiling.raw import ChunkInfo, EnvironmentSample, document_of, read_environment
from gkestimator.profiling.records import EntryRecord, read_records, record_line
from gkestimator.profiling.running.folder import QUALITY_FILE
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.running.machine import Machine, child_device
from gkestimator.profiling.running.salvage import keep_files, write_draft
from gkestimator.profiling.running.supervise import Ending, StopReason, supervise
from gkestimator.profiling.type_names import Floats, Names, Texts
from gkestimator.profiling.variation import judged_variation
from gkestimator.tables import write_bytes

RECORDS = "records.jsonl"
LOG = "child.log"
_ENVIRONMENT = "environment.jsonl"
_WORK = "work"
_LOG_KEPT_BYTES = 64 * 1024
_MOST_CAPTURE_PROBLEMS = 50
DEVICE_UNUSABLE, USAGE = 3, 2  # exit statuses of the child


@dataclass(slots=True)
class _Outcome:
    """Hold what a chunk came to, while it is being judged."""

    kind: str
    records: dict[str, EntryRecord]
    line: str | None = None
    files: Names = ()
    capture: Capture | None = None
    problems: list[str] = field(default_factory=list)
    qualities: Texts = field(default_factory=dict)

    def fail(self, entries: Iterable[str], reason: str) -> None:
        """Record that ``entries`` failed."""
        self.records |= {i: EntryRecord(entry_id=i, status="failed", reason=reason) for i in entries}


def run_job(job: ChunkJob, folder: Path, machine: Machine, stop: StopReason) -> ChunkResult:
    """Measure the entries of ``job`` into ``folder`` (empty, on the disk of the raw folder). ``stop`` as for
    :func:`supervise`. What is in ``folder`` afterwards is a chunk if the result has statuses, else rubbish.

    Raises UsageError and CollectorError only for what no other chunk would fare better with.
    """
    try:
        collector = machine.collector(job.collector, job.device, job.pass_name)
        info = _info(job, collector)
        write_draft(folder, info)
        ending = _run(job, folder, machine, collector, stop)
        outcome = _judge(job, folder, ending, collector)
        _ask_device(job, machine, outcome)
        _ask_profiler(job, machine, collector, outcome)
        shutil.rmtree(folder / _WORK, ignore_errors=True)
        if outcome.records:
            _make_ready(job, folder, machine, outcome, info)
    except (OSError, OutputError) as e:
        if is_disk_full(e) or _disk_is_full(job, folder):
            return ChunkResult(kind="disk")
        raise
    if outcome.kind != "whole" and _disk_is_full(job, folder):
        return ChunkResult(kind="disk")  # not the entry's fault
    records = outcome.records
    return ChunkResult(
        kind=outcome.kind,
        statuses={i: r.status for i, r in records.items()},
        qualities=outcome.qualities,
        reasons={i: r.reason or "" for i, r in records.items() if r.status == "failed"},
        line=outcome.line,
        working_s=ending.working_s,
    )


def _ask_device(job: ChunkJob, machine: Machine, outcome: _Outcome) -> None:
    """A child that died, or says that the device is unusable, may have broken its own context or lost the
    GPU: ask the device. In the latter case the entry at which it happened is not to blame and is measured
    again."""
    if outcome.kind in ("whole", "stopped", "usage"):
        return
    present = machine.present(job.facts)
    if present or (present is None and outcome.kind != "device"):
        outcome.kind = "crashed" if outcome.kind == "device" else outcome.kind
        return
    # Records are in the order of measuring: the last failed one is where the device went away.
    last = next(reversed(outcome.records.values()), None)
    if last is not None and last.status == "failed":
        del outcome.records[last.entry_id]
    outcome.kind = "device"
    outcome.line = f"{job.device} ({job.facts.name}) does not answer any more"


def _ask_profiler(job: ChunkJob, machine: Machine, collector: Collector, outcome: _Outcome) -> None:
    """A capture that was lost may be the profiler's fault (nsys 2023.4 on a loaded machine now and then records no
    range at all): try it out. Only one that works otherwise makes it the entry's."""
    if outcome.kind != "lost" or not job.probe_if_lost:
        return
    reason = machine.probe(job.collector, job.device)
    if reason is not None:
        outcome.kind = "profiler"
        outcome.line = f"{collector.name} records nothing any more: {reason}"
    elif job.settle:
        reason = f"its capture was lost three times while others were not: {outcome.line}"
        outcome.fail([e.id for e in job.entries if e.id not in outcome.records], one_line(reason))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _disk_is_full(job: ChunkJob, folder: Path) -> bool:
    return shutil.disk_usage(folder).free < job.options.min_free_mb * 2**20


def _run(job: ChunkJob, folder: Path, machine: Machine, collector: Collector, stop: StopReason) -> Ending:
    options = job.options
    work = folder / _WORK
    work.mkdir()
    entries = work / "entries.json"
    write_plan(SweepPlan(runtime=job.runtime, entries=job.entries, seed=options.seed), entries)
    device, variables = child_device(job.device, job.facts)
    records = folder / RECORDS
    arguments = {
        "entries": entries.resolve(),
        "records": records.resolve(),
        "executor": job.executor,
        "device": device,
        "seed": options.seed,
        "pass": job.pass_name,
        "warmup": options.warmup,
        "repeats": options.repeats,
        "min-ms": options.min_ms,
    }
    # Options that are None are the child's to choose.
    child = machine.child_command()
    for name, value in arguments.items():
        if value is not None:
            child += [f"--{name}", str(value)]
    with machine.sampler(job.facts, folder / _ENVIRONMENT):
        return supervise(
            collector.command(child, folder.resolve()),
            child=child,
            records=records,
            log=folder / LOG,
            folder=work,
            environment=os.environ | dict(collector.environment()) | variables,
            limits=job.limits,
            stop=stop,
        )


def _judge(job: ChunkJob, folder: Path, ending: Ending, collector: Collector) -> _Outcome:
    """Return which entries count, what the capture is worth, and whose fault it was."""
    outcome = _Outcome("whole", {})
    try:
        if (folder / RECORDS).exists():
            written = {r.entry_id: r for r in read_records(folder / RECORDS)}
            outcome.records = {e.id: written[e.id] for e in job.entries if e.id in written}
    except TableError as e:
        outcome.problems.append(str(e))
    log = log_end(folder / LOG, _LOG_KEPT_BYTES).replace("\r", "\n")
    outcome.kind, line = _kind(job, ending, len(job.entries) - len(outcome.records), collector, log)
    outcome.line = line
    if outcome.kind == "crashed" and line is not None:
        asked = (e.id for e in job.entries)
        # The child names an entry before it begins it: without a record, that is where it died.
        outcome.fail([i for i in asked if i == ending.entry and i not in outcome.records], line)
    ok = [i for i, r in outcome.records.items() if r.status == "ok"]
    if ok:
        _finish(job, folder, outcome, ok, collector, log, tool_hung=ending.tool_hung)
    return outcome


def _kind(
    job: ChunkJob, ending: Ending, missing: int, collector: Collector, log: str
) -> tuple[str, str | None]:
    """Return the kind of a result of which so many records are missing, and the line that explains it."""
    status = ending.status
    limits = job.limits
    last = last_words(log)
    if ending.why == "stopped":
        return "stopped", None
    if ending.why == "start-limit":
        return "crashed", f"no entry begun within {limits.start_s:g} s under {collector.name}: {last}"
    if ending.why == "entry-limit":
        return "crashed", f"no result within {limits.entry_s:g} s"
    if status == DEVICE_UNUSABLE:
        return "device", f"{job.device} is unusable: {last}"
    if not missing:
        return "whole", None  # a status that profilers put on top does not unmake the records
    if status == USAGE:  # also midway, where it cannot write: the entry at hand has no record and no blame
        return "usage", f"the executor's process gave up: {last}"
    if status == 0:
        return "crashed", f"ended without a record of {missing} entries: {last}"
    words = f"status {status}"
    if status > 128:
        with contextlib.suppress(ValueError):
            words = signal.Signals(status - 128).name
    return "crashed", f"the executor's process died ({words}): {last}"


def _finish(
    job: ChunkJob,
    folder: Path,
    outcome: _Outcome,
    ok: list[str],
    collector: Collector,
    log: str,
    *,
    tool_hung: bool,
) -> None:
    """Have the collector finish; without a whole capture the ``ok`` records are worth nothing and go."""
    try:
        if tool_hung:
            raise CollectorError(
                f"{collector.name}: still at work {job.limits.finish_s:g} s after its program had ended, and killed"
            )
        _take_capture(folder.resolve(), outcome, ok, collector, log)
        _check_claims(job, outcome, collector)
    except (GkestimatorError, OSError, sqlite3.Error, ValueError) as e:
        if is_disk_full(e):
            raise OutputError(f"{folder}: disk full") from e
        line = one_line(str(e) or type(e).__name__)
        outcome.files = ()
        outcome.capture = None
        outcome.problems.append(line)
        for entry in ok:
            outcome.records.pop(entry, None)
        if outcome.kind == "whole":
            outcome.kind = "lost"
            outcome.line = line


def _take_capture(folder: Path, outcome: _Outcome, ok: list[str], collector: Collector, log: str) -> None:
    """Take files and capture, with a range for each of ``ok``. A child that was killed may take its last
    ranges with it (nsys, both releases that were tried): then those entries go, and the others count."""
    try:
        outcome.files = collector.finish(folder, ok, log)
        outcome.capture = collector.capture(folder)
        missing = sorted(set(ok) - _ranged(outcome.capture, ok))
        if missing:
            raise CollectorError(
                f"{collector.name}: the capture holds no range of {len(missing)} of {len(ok)} entries, such as "
                f"{missing[0]}"
            )
    except CollectorError:
        if outcome.kind not in ("crashed", "stopped", "device"):
            raise
        outcome.capture = collector.capture(folder)
        ranged = _ranged(outcome.capture, ())
        left = [i for i in ok if i in ranged]
        if not left:
            raise
        outcome.files = collector.finish(folder, left, log)
        for entry in set(ok) - ranged:
            del outcome.records[entry]


def _ranged(capture: Capture | None, otherwise: Iterable[str]) -> set[str]:
    """Return the entries of which a capture holds ranges; ``otherwise`` where there is none."""
    return set(otherwise) if capture is None else {r.entry_id for r in capture.ranges}


def _check_claims(job: ChunkJob, outcome: _Outcome, collector: Collector) -> None:
    """Raise CollectorError where the capture tells what cannot have happened."""
    asked = {e.id for e in job.entries}
    for claimed in outcome.capture.ranges if outcome.capture is not None else ():
        problem = false_claim(
            claimed,
            timed=job.pass_name == "timeline",
            on_cpu=job.facts.kind == "cpu",
            record=outcome.records.get(claimed.entry_id),
        )
        if claimed.entry_id not in asked:
            problem = "it was not asked for"
        if problem is not None:
            raise CollectorError(f"{collector.name}: {claimed.entry_id[:80]}: {problem}")


def _make_ready(job: ChunkJob, folder: Path, machine: Machine, outcome: _Outcome, info: ChunkInfo) -> None:
    """Leave in the folder what a chunk holds, and nothing else."""
    # Profilers leave streams and scratch files that nobody reads again.
    keep_files(folder, {RECORDS, LOG, _ENVIRONMENT, *outcome.files})
    log = folder / LOG
    if log.exists() and log.stat().st_size > _LOG_KEPT_BYTES:
        write_bytes(log, log_end(log, _LOG_KEPT_BYTES).replace("\r", "\n").encode())
    write_bytes(folder / RECORDS, "".join(map(record_line, outcome.records.values())).encode())
    _judge_qualities(job, folder, machine, outcome)
    _write_document(folder / QUALITY_FILE, outcome.qualities)
    told = () if outcome.capture is None else outcome.capture.problems[:_MOST_CAPTURE_PROBLEMS]
    problems = dict.fromkeys(filter(None, (outcome.line, *outcome.problems, *told)))
    done = replace(
        info,
        entries=tuple(outcome.records),
        files=outcome.files,
        problems=tuple(problems),
        ended=_now(),
    )
    _write_document(folder / "chunk.json", document_of(done))


def _write_document(path: Path, document: object) -> None:
    write_bytes(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def _info(job: ChunkJob, collector: Collector) -> ChunkInfo:
    now = _now()
    return ChunkInfo(
        number=job.number,
        pass_name=job.pass_name,
        attempt=job.attempt,
        executor=job.executor,
        collector=collector.name,
        collector_version=collector.version(),
        device=job.facts,
        clock_control=collector.clock_control(),
        entries=tuple(e.id for e in job.entries),
        files=(),
        started=now,
        ended=now,
    )


def _judge_qualities(job: ChunkJob, folder: Path, machine: Machine, outcome: _Outcome) -> None:
    try:
        samples: list[EnvironmentSample] = list(read_environment(folder))
    except TableError as e:
        samples = []
        outcome.problems.append(str(e))
    ranges = ranges_of(outcome.capture)
    on_cpu = job.facts.kind == "cpu"
    for entry, record in outcome.records.items():
        if record.status == "ok":
            variation = judged_variation(record, repeat_totals_us(record, ranges.get(entry, [])))
            outcome.qualities[entry] = machine.judge(samples, record, variation, on_cpu)


def repeat_totals_us(record: EntryRecord, ranges: Sequence[EntryRange]) -> Floats | None:
    """Return the microseconds of each repeat: of its launches on the device where a collector saw them and
    their number divides evenly, else of the executor's own pieces, else what the host took. None where
    nothing tells."""
    for measured in ranges:
        launches = measured.launches
        repeats = measured.repeats
        if launches and repeats > 1 and len(launches) % repeats == 0:
            each = len(launches) // repeats
            totals = []
            for start in range(0, len(launches), each):
                repeat = launches[start : start + each]
                totals.append(sum(launch.duration_ns for launch in repeat) / 1e3)
            return tuple(totals)
    if record.kernels:
        durations = [kernel.durations_us for kernel in record.kernels]
        lengths = set(map(len, durations))
        if len(lengths) == 1 and lengths.pop() > 1:
            return tuple(map(sum, zip(*durations, strict=True)))
    if record.host_us and len(record.host_us) > 1:
        return record.host_us
    return None


def ranges_of(capture: Capture | None) -> RangesByEntry:
    """Return the ranges of a capture by entry."""
    by_entry: RangesByEntry = defaultdict(list)
    if capture is not None:
        for measured in capture.ranges:
            by_entry[measured.entry_id].append(measured)
    return by_entry
