"""One chunk: run the child under its collector, then say what became of every entry."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, OutputError, TableError, one_line
from gkestimator.jobs.disk import is_disk_full
from gkestimator.profiling.captures import Capture
from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.collectors.claims import false_claim
from gkestimator.profiling.plan import SweepPlan, write_plan
from gkestimator.profiling.raw import ChunkInfo, EnvironmentSample, document_of, read_environment
from gkestimator.profiling.records import EntryRecord, read_records, record_line
from gkestimator.profiling.running.folder import QUALITY_FILE
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.running.machine import Machine, child_device
from gkestimator.profiling.running.salvage import write_draft
from gkestimator.profiling.running.spread import ranges_of, repeat_totals_us
from gkestimator.profiling.running.supervise import Ending, supervise
from gkestimator.profiling.variation import judged_variation
from gkestimator.tables import write_bytes

RECORDS = "records.jsonl"
LOG = "child.log"
_WORK = "work"
_LOG_KEPT_BYTES = 64 * 1024
DEVICE_UNUSABLE, USAGE = 3, 2  # exit statuses of the child


@dataclass(slots=True)
class _Found:
    """What a chunk came to, while it is being judged."""

    kind: str
    records: dict[str, EntryRecord]
    line: str | None = None
    files: tuple[str, ...] = ()
    capture: Capture | None = None
    problems: list[str] = field(default_factory=list)


def run_job(job: ChunkJob, folder: Path, machine: Machine, stop: Callable[[], str | None]) -> ChunkResult:
    """Measure the entries of ``job`` into ``folder`` (empty, on the disk of the raw folder). ``stop`` as for
    :func:`supervise`. What is in ``folder`` afterwards is a chunk if the result has statuses, else rubbish.

    Raises UsageError and CollectorError only for what no other chunk would fare better with.
    """
    started = _now()
    try:
        collector = machine.collector(job.collector, job.device, job.pass_name)
        write_draft(folder, _info(job, collector, started, [e.id for e in job.entries]))
        ending = _run(job, folder, machine, collector, stop)
        found = _judge(job, folder, ending, collector)
        _ask_device(job, machine, found)
        _ask_profiler(job, machine, collector, found)
        _commit_ready(job, folder, machine, collector, found, started)
    except (OSError, OutputError) as e:
        if is_disk_full(e) or _disk_is_full(job, folder):
            return ChunkResult(kind="disk")
        raise
    if found.kind != "whole" and _disk_is_full(job, folder):
        return ChunkResult(kind="disk")  # not the entry's fault
    return ChunkResult(
        kind=found.kind,
        statuses={i: r.status for i, r in found.records.items()},
        qualities=_read_qualities(folder),
        reasons={i: r.reason or "" for i, r in found.records.items() if r.status == "failed"},
        line=found.line,
        working_s=ending.working_s,
    )


def _ask_device(job: ChunkJob, machine: Machine, found: _Found) -> None:
    """A child that died, or says that the device is unusable, may have broken its own context or lost the GPU. In
    the latter case the entry at which it happened is not to blame and is measured again."""
    if found.kind in ("whole", "stopped", "usage"):
        return
    present = machine.present(job.facts)
    if present or (present is None and found.kind != "device"):
        found.kind = "crashed" if found.kind == "device" else found.kind
        return
    for entry in [i for i, r in found.records.items() if r.status == "failed"][-1:]:
        if entry == list(found.records)[-1]:
            del found.records[entry]
    found.kind = "device"
    found.line = f"{job.device} ({job.facts.name}) does not answer any more"


def _ask_profiler(job: ChunkJob, machine: Machine, collector: Collector, found: _Found) -> None:
    """A capture that was lost may be the profiler's fault (nsys 2023.4 on a loaded machine now and then records no
    range at all): only one that works otherwise makes it the entry's."""
    if found.kind != "lost" or not job.probe_if_lost:
        return
    reason = machine.probe(job.collector, job.device)
    if reason is not None:
        found.kind = "profiler"
        found.line = f"{collector.name} records nothing any more: {reason}"
    elif job.settle:
        reason = f"its capture was lost three times while others were not: {found.line}"
        lost = [e.id for e in job.entries if e.id not in found.records]
        found.records |= {i: EntryRecord(entry_id=i, status="failed", reason=one_line(reason)) for i in lost}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _disk_is_full(job: ChunkJob, folder: Path) -> bool:
    return shutil.disk_usage(folder).free < job.min_free_bytes


def _run(
    job: ChunkJob, folder: Path, machine: Machine, collector: Collector, stop: Callable[[], str | None]
) -> Ending:
    work = folder / _WORK
    work.mkdir()
    write_plan(SweepPlan(runtime=job.runtime, entries=job.entries, seed=job.seed), work / "entries.json")
    told, variables = child_device(job.device, job.facts)
    records = folder / RECORDS
    child = machine.child_command()
    child += ["--entries", str((work / "entries.json").resolve()), "--records", str(records.resolve())]
    child += ["--executor", job.executor, "--device", told, "--seed", str(job.seed), "--pass", job.pass_name]
    for option, value in (("--warmup", job.warmup), ("--repeats", job.repeats), ("--min-ms", job.min_ms)):
        if value is not None:
            child += [option, str(value)]
    with machine.sampler(folder / "environment.jsonl", job.facts):
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


def _judge(job: ChunkJob, folder: Path, ending: Ending, collector: Collector) -> _Found:
    """Which entries count, what the capture is worth, and whose fault it was."""
    asked = [e.id for e in job.entries]
    problems: list[str] = []
    try:
        if (folder / RECORDS).exists():
            written = {r.entry_id: r for r in read_records(folder / RECORDS)}
        else:
            written = {}
    except TableError as e:
        written = {}
        problems = [str(e)]
    records = {i: written[i] for i in asked if i in written}
    log = _log_end(folder / LOG)
    found = _Found(kind="whole", records=records, problems=problems)
    if ending.entry in asked and ending.entry not in records:
        culprit = ending.entry
    else:
        culprit = None
    found.kind, found.line = _kind(job, ending, records, culprit, collector, log)
    if found.kind == "crashed" and culprit is not None:
        found.records[culprit] = EntryRecord(entry_id=culprit, status="failed", reason=found.line)
    _finish(job, folder, found, collector, log, tool_hung=ending.tool_hung)
    return found


def _kind(
    job: ChunkJob,
    ending: Ending,
    records: dict[str, EntryRecord],
    culprit: str | None,
    collector: Collector,
    log: str,
) -> tuple[str, str | None]:
    status = ending.status
    limits = job.limits
    if log.strip():
        last = one_line(log.strip().splitlines()[-1], limit=200)
    else:
        last = "no word"
    if ending.why == "stopped":
        return "stopped", None
    if ending.why == "start-limit":
        return "crashed", f"no entry begun within {limits.start_s:g} s under {collector.name}: {last}"
    if ending.why == "entry-limit":
        return "crashed", f"no result within {limits.entry_s:g} s"
    if status == DEVICE_UNUSABLE:
        return "device", f"{job.device} is unusable: {last}"
    if len(records) == len(job.entries):
        return "whole", None  # a status that profilers put on top does not unmake the records
    if status == USAGE:  # also midway, where it cannot write: the entry at hand has no record and no blame
        return "usage", f"the executor's process gave up: {last}"
    if status == 0:
        return "crashed", f"ended without a record of {len(job.entries) - len(records)} entries: {last}"
    return "crashed", f"the executor's process died ({_status_words(status)}): {last}"


def _status_words(status: int) -> str:
    if status > 128:
        with contextlib.suppress(ValueError):
            return signal.Signals(status - 128).name
    return f"status {status}"


def _finish(
    job: ChunkJob, folder: Path, found: _Found, collector: Collector, log: str, *, tool_hung: bool
) -> None:
    """Have the collector finish; without a whole capture the ok records are worth nothing and go."""
    ok = [i for i, r in found.records.items() if r.status == "ok"]
    if not ok:
        return
    try:
        if tool_hung:
            raise CollectorError(
                f"{collector.name}: still at work {job.limits.finish_s:g} s after its program had ended, and killed"
            )
        found.files, found.capture, ok = _whole(folder.resolve(), found, ok, collector, log)
        _check_claims(job, found, collector)
    except (GkestimatorError, OSError, sqlite3.Error, ValueError) as e:
        if is_disk_full(e):
            raise OutputError(f"{folder}: disk full") from e
        line = one_line(str(e) or type(e).__name__)
        found.files = ()
        found.capture = None
        found.problems.append(line)
        for entry in ok:
            del found.records[entry]
        if found.kind == "whole":
            found.kind = "lost"
            found.line = line


def _whole(
    folder: Path, found: _Found, ok: list[str], collector: Collector, log: str
) -> tuple[tuple[str, ...], Capture | None, list[str]]:
    """Files and capture with a range for each of ``ok``. A child that was killed may take its last ranges with it
    (nsys, both releases that were tried): then those entries go, and the others count."""
    try:
        files = collector.finish(folder, ok, log)
        capture = collector.capture(folder)
        _check_ranges(capture, ok, collector)
        return files, capture, ok
    except CollectorError:
        if found.kind not in ("crashed", "stopped", "device"):
            raise
        capture = collector.capture(folder)
        if capture is not None:
            there = {r.entry_id for r in capture.ranges}
        else:
            there = set()
        kept = [i for i in ok if i in there]
        if not kept:
            raise
        files = collector.finish(folder, kept, log)
        for entry in set(ok) - set(kept):
            del found.records[entry]
        return files, capture, kept


def _check_ranges(capture: Capture | None, ok: Sequence[str], collector: Collector) -> None:
    if capture is None:
        return
    missing = sorted(set(ok) - {r.entry_id for r in capture.ranges})
    if missing:
        raise CollectorError(
            f"{collector.name}: the capture holds no range of {len(missing)} of {len(ok)} entries, such as {missing[0]}"
        )


def _check_claims(job: ChunkJob, found: _Found, collector: Collector) -> None:
    """Raise CollectorError where the capture tells what cannot have happened."""
    if found.capture is None:
        return
    asked = {e.id for e in job.entries}
    for claimed in found.capture.ranges:
        problem = false_claim(
            claimed,
            timed=job.pass_name == "timeline",
            on_cpu=job.facts.kind == "cpu",
            record=found.records.get(claimed.entry_id),
        )
        if claimed.entry_id not in asked:
            problem = "it was not asked for"
        if problem is not None:
            raise CollectorError(f"{collector.name}: {claimed.entry_id[:80]}: {problem}")


def _commit_ready(
    job: ChunkJob, folder: Path, machine: Machine, collector: Collector, found: _Found, started: str
) -> None:
    """Leave in the folder what a chunk holds, and nothing else."""
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    if not found.records:
        return
    kept = {RECORDS, LOG, "environment.jsonl", *found.files}
    for path in list(folder.iterdir()):
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        else:
            path.chmod(path.stat().st_mode & ~0o022)  # nsys lets its target write files that anyone may write
    _cut_log(folder / LOG)
    write_bytes(folder / RECORDS, "".join(record_line(r) for r in found.records.values()).encode())
    qualities = _qualities(folder, machine, found, on_cpu=job.facts.kind == "cpu")
    write_bytes(folder / QUALITY_FILE, (json.dumps(qualities, indent=1) + "\n").encode())
    problems = dict.fromkeys(filter(None, (found.line, *found.problems, *_capture_problems(found.capture))))
    info = replace(
        _info(job, collector, started, list(found.records)), files=found.files, problems=tuple(problems)
    )
    write_bytes(
        folder / "chunk.json", (json.dumps(document_of(info), indent=1, allow_nan=False) + "\n").encode()
    )


def _info(job: ChunkJob, collector: Collector, started: str, entries: list[str]) -> ChunkInfo:
    return ChunkInfo(
        number=job.number,
        pass_name=job.pass_name,
        attempt=job.attempt,
        executor=job.executor,
        collector=collector.name,
        collector_version=collector.version(),
        device=job.facts,
        clock_control=collector.clock_control(),
        entries=tuple(entries),
        files=(),
        started=started,
        ended=_now(),
    )


def _capture_problems(capture: Capture | None) -> tuple[str, ...]:
    if capture is None:
        return ()
    return capture.problems[:50]


def _qualities(folder: Path, machine: Machine, found: _Found, *, on_cpu: bool) -> dict[str, str]:
    try:
        samples: list[EnvironmentSample] = list(read_environment(folder))
    except TableError as e:
        samples = []
        found.problems.append(str(e))
    ranges = ranges_of(found.capture)
    judged = {}
    for entry, record in found.records.items():
        if record.status == "ok":
            totals = repeat_totals_us(record, ranges.get(entry, []))
            judged[entry] = machine.judge(samples, record, judged_variation(record, totals), on_cpu)
    return judged


def _read_qualities(folder: Path) -> dict[str, str]:
    path = folder / QUALITY_FILE
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def _log_end(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_KEPT_BYTES))
            return stream.read().decode("utf-8", errors="replace").replace("\r", "\n")
    except OSError:
        return ""


def _cut_log(path: Path) -> None:
    if path.exists() and path.stat().st_size > _LOG_KEPT_BYTES:
        write_bytes(path, _log_end(path).encode())
