"""Raw folders to measured entries: what can be read is, and what cannot is said in one line each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.core.records import frozen
from gkestimator.profiling.building.entries import (
    MeasuredEntry,
    MeasuredLatency,
    host_launches,
    launches_of,
    typical,
)
from gkestimator.profiling.building.environment_means import meanwhile
from gkestimator.profiling.building.problems import Problems
from gkestimator.profiling.building.soundness import check_chunk, check_run, sound_record, sound_sample
from gkestimator.profiling.building.tools import Tools
from gkestimator.profiling.captures import Capture, EntryRange
from gkestimator.profiling.collectors import collector_class, records_launches
from gkestimator.profiling.collectors.claims import false_claim
from gkestimator.profiling.plan import PlanEntry, SweepPlan, read_plan
from gkestimator.profiling.raw import (
    ChunkInfo,
    EnvironmentSample,
    RunInfo,
    chunk_folders,
    read_chunk,
    read_environment,
    read_run,
)
from gkestimator.profiling.records import EntryRecord, read_records
from gkestimator.profiling.variation import judged_variation

MAX_RECORDS_BYTES = 512 * 2**20


@frozen
class NotMeasured:
    """An entry that a child recorded as failed or skipped."""

    entry_id: str
    status: str
    reason: str


@dataclass(slots=True, kw_only=True)
class RawContents:
    """What a raw folder holds of operators, or of whole models. ``planned``: how many of them the plan has; ``others``:
    entries of the other kind, which were passed over. ``measured``: every attempt of a timeline; ``latencies``: every
    attempt of whole models without a profiler. ``unstable``: entries whose repeats launched different kernels, with
    what differs. ``silent``: entries that launched nothing. ``unreached``: planned entries without any record (of whole
    models: of their latency). ``unjoined``: launches that belong to no entry, by reason. ``environment``: all samples,
    by device name. ``remarks``: oddities that spoil nothing."""

    path: Path
    run: RunInfo
    plan: SweepPlan
    planned: int = 0
    others: int = 0
    measured: list[MeasuredEntry] = field(default_factory=list)
    latencies: list[MeasuredLatency] = field(default_factory=list)
    not_measured: list[NotMeasured] = field(default_factory=list)
    unstable: dict[str, str] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    unreached: int = 0
    chunks: int = 0
    unfinished: int = 0
    unjoined: dict[str, int] = field(default_factory=dict)
    launches: int = 0
    counted: int = 0
    environment: dict[str, list[EnvironmentSample]] = field(default_factory=dict)
    remarks: Problems = field(default_factory=Problems)


def read_raw(raw: Path, tools: Tools, problems: Problems, *, whole: bool = False) -> RawContents:
    """The folder's measurements of operators; ``whole``: of whole models instead. Raises TableError or UsageError where
    the folder as a whole cannot be read."""
    run = read_run(raw)
    check_run(run, raw / "run.json")
    plan = read_plan(raw / "plan.json")
    contents = RawContents(path=raw, run=run, plan=plan)
    contents.unfinished = _unfinished(raw)
    entries = {entry.id: entry for entry in plan.entries if (entry.model is not None) == whole}
    others = frozenset(entry.id for entry in plan.entries) - entries.keys()
    contents.planned, contents.others = len(entries), len(others)
    counters: list[tuple[str, Capture]] = []
    seen: set[str] = set()
    for folder in chunk_folders(raw):
        where = f"{raw.name}/{folder.name}"
        try:
            info = read_chunk(folder)
            check_chunk(info, folder / "chunk.json")
            if info.entries and others.issuperset(info.entries):
                continue  # all of the other kind: its captures need not be read
            contents.chunks += 1
            if info.pass_name == "counters":
                capture = None if whole else _capture(folder, info, tools)
                if capture is not None:
                    counters.append((where, capture))
                continue
            chunk = _Chunk(where, folder, info, contents, entries, others, tools, problems)
            if info.pass_name == "latency":
                chunk.read_latencies(seen)
            elif not whole:
                chunk.read(seen)
            elif info.device.kind == "gpu":  # a CPU's tells nothing that a row of a whole model has
                chunk.read(set())  # what has a timeline alone was not reached
        except GkestimatorError as e:
            problems.line(str(e))
    _join_counters(contents, counters, tools, problems)
    contents.unreached = sum(entry_id not in seen for entry_id in entries)
    return contents


def _unfinished(raw: Path) -> int:
    try:
        return sum(
            p.name.startswith(".aside-") or (p.name[:1].isdigit() and not (p / "chunk.json").is_file())
            for p in (raw / "chunks").iterdir()
        )
    except OSError:
        return 0


def _capture(folder: Path, info: ChunkInfo, tools: Tools) -> Capture | None:
    """Return the parsed capture of a chunk; None where its collector records nothing, or where it was lost."""
    suffixes = collector_class(info.collector).suffixes
    if not suffixes or not info.files:
        return None
    for suffix in suffixes:
        for name in info.files:
            if name.endswith(suffix):
                return tools.parse(info.collector, folder / name)
    raise TableError(
        f"{folder / 'chunk.json'}: files: found {', '.join(info.files) or 'none'}, expected a "
        f"{' or '.join(suffixes)} of {info.collector}"
    )


class _Chunk:
    """One chunk of the timeline pass or of the latency pass."""

    def __init__(
        self,
        where: str,
        folder: Path,
        info: ChunkInfo,
        contents: RawContents,
        entries: dict[str, PlanEntry],
        others: frozenset[str],
        tools: Tools,
        problems: Problems,
    ) -> None:
        self._where = where
        self._folder = folder
        self._info = info
        self._contents = contents
        self._entries = entries
        self._others = others
        self._tools = tools
        self._problems = problems

    def read(self, seen: set[str]) -> None:
        """Add what the chunk measured to the contents; ids of its records to ``seen``."""
        records = self._records()
        seen.update(record.entry_id for record in records)
        capture = _capture(self._folder, self._info, self._tools)
        self._say_problems()
        ranges: dict[str, list[EntryRange]] = {}
        if capture is not None:
            for found in capture.ranges:
                if found.entry_id in self._others:
                    continue
                ranges.setdefault(found.entry_id, []).append(found)
                self._contents.launches += len(found.launches)
            _add(self._contents.unjoined, capture.unjoined)
            self._contents.remarks.lines(f"{self._where}: {line}" for line in capture.problems)
        samples = self._samples()
        for record in self._done(records):
            recorded = records_launches(self._info.collector)
            measured = self._entry(record, ranges.get(record.entry_id, []) if recorded else None, samples)
            if measured is not None:
                self._contents.measured.append(measured)

    def read_latencies(self, seen: set[str]) -> None:
        """Add the latencies of whole models to the contents; ids of its records to ``seen``."""
        records = self._records()
        seen.update(record.entry_id for record in records)
        self._say_problems()
        samples = self._samples()
        for record in self._done(records):
            measured = self._latency(record, samples)
            if measured is not None:
                self._contents.latencies.append(measured)

    def _say_problems(self) -> None:
        for problem in self._info.problems:
            self._contents.remarks.of_entry(self._contents.path.name, problem, self._folder.name)

    def _done(self, records: Sequence[EntryRecord]) -> Iterator[EntryRecord]:
        """Those that were measured; the others are noted."""
        for record in records:
            if record.status == "ok":
                yield record
            else:
                self._contents.not_measured.append(
                    NotMeasured(
                        entry_id=record.entry_id,
                        status=record.status,
                        reason=record.reason or "no reason given",
                    )
                )

    def _latency(self, record: EntryRecord, samples: Sequence[EnvironmentSample]) -> MeasuredLatency | None:
        times = record.latency_us
        if not times or not min(times) > 0:
            self._say("measured, but without latencies above 0", record.entry_id)
            return None
        if record.repeats is not None and record.repeats != len(times):
            self._say("latencies and repeats disagree", record.entry_id, f"{len(times)} and {record.repeats}")
            return None
        cv = judged_variation(record, None)
        near = self._tools.during(samples, record)
        # A sample beside the repeats, which will do for clocks, has the power of an idle device.
        inside = [s for s in near if _within(s, record)]
        return MeasuredLatency(
            entry=self._entries[record.entry_id],
            record=record,
            chunk=self._info,
            run=self._contents.run,
            origin=self._where,
            latency_us=times,
            cv=cv,
            quality=self._tools.judge(samples, record, cv, self._info.device.kind == "cpu"),
            power_w=meanwhile(inside)[1],
            tenants=meanwhile(near)[2],
        )

    def _samples(self) -> list[EnvironmentSample]:
        """Sound samples in order of time; without them the measurements stand, their surroundings are not known."""
        try:
            found = list(read_environment(self._folder))
        except TableError as e:
            self._contents.remarks.line(str(e))
            return []
        sound = sorted((s for s in found if sound_sample(s)), key=lambda s: s.unix_ns)
        if len(sound) < len(found):
            self._contents.remarks.line(
                f"{self._where}: {len(found) - len(sound)} samples of the environment that make no sense"
            )
        self._contents.environment.setdefault(self._info.device.name, []).extend(sound)
        return sound

    def _records(self) -> list[EntryRecord]:
        path = self._folder / "records.jsonl"
        try:
            if path.stat().st_size > MAX_RECORDS_BYTES:
                raise TableError(
                    f"{path}: more than {MAX_RECORDS_BYTES:,} bytes, expected records of one chunk"
                )
        except OSError as e:
            raise TableError(f"{path}: cannot be read: {e.strerror}") from e
        kept: dict[str, EntryRecord] = {}
        for record in read_records(path):
            if record.entry_id in self._others:
                continue
            if record.entry_id not in self._entries:
                self._say("a record for an entry that is not in the plan", record.entry_id)
            elif record.entry_id in kept:
                self._say("two records for one entry, expected one; the first is kept", record.entry_id)
            elif not sound_record(record):
                self._say("a record whose times or repeats are no numbers from 0", record.entry_id)
            else:
                kept[record.entry_id] = record
        return list(kept.values())

    def _say(self, what: str, entry_id: str, detail: str = "") -> None:
        self._problems.of_entry(self._where, what, entry_id[:80], detail)

    def _entry(
        self, record: EntryRecord, ranges: list[EntryRange] | None, samples: Sequence[EnvironmentSample]
    ) -> MeasuredEntry | None:
        if ranges is not None and not self._range_fits(record, ranges):
            return None
        calls = 1
        if self._info.device.kind == "cpu":
            launches, problem = host_launches(record)
            if problem is not None:
                self._say("the executor's profile cannot be used", record.entry_id, problem)
                return None
        else:
            if ranges is None:
                self._say("measured on a GPU without a collector: no launches", record.entry_id)
                return None
            cut, problem = self._tools.split(ranges[0])
            if cut is not None:
                if problem is not None:
                    self._contents.remarks.of_entry(
                        self._where, "launches that come once are left out", record.entry_id[:80], problem
                    )
                launches = launches_of(cut)
            else:
                reason = problem or "its repeats differ"
                self._contents.unstable[record.entry_id] = reason
                if self._entries[record.entry_id].model is None:
                    self._say("repeats launched different kernels", record.entry_id, reason)
                    return None
                # Sums over all calls tell of a whole model what they would tell of one.
                calls = ranges[0].repeats
                launches = launches_of([ranges[0].launches])
        if not launches:
            self._contents.silent.append(record.entry_id)
            return None
        if any(d < 0 or not math.isfinite(d) for m in launches for d in m.durations_us):
            self._say("a launch with a negative duration", record.entry_id)
            return None
        totals = [math.fsum(each) / calls for each in zip(*(m.durations_us for m in launches), strict=True)]
        cv = judged_variation(record, totals)
        clock, power, tenants = meanwhile(self._tools.during(samples, record))
        return MeasuredEntry(
            entry=self._entries[record.entry_id],
            record=record,
            chunk=self._info,
            run=self._contents.run,
            origin=self._where,
            launches=launches,
            entry_us=typical(totals, kind=launches[0].kind),
            cv=cv,
            repeats=len(totals),
            quality=self._tools.judge(samples, record, cv, False),
            sm_clock_mhz=clock,
            power_w=power,
            tenants=tenants,
            calls=calls,
        )

    def _range_fits(self, record: EntryRecord, ranges: list[EntryRange]) -> bool:
        """Whether there is the one range that the entry should have; a problem is said."""
        if not ranges:
            self._say("measured, but the capture holds no NVTX range of it", record.entry_id)
        elif len(ranges) > 1:
            self._say(
                "several NVTX ranges of one entry, expected one", record.entry_id, f"found {len(ranges)}"
            )
        elif record.repeats is not None and ranges[0].repeats != record.repeats:
            self._say(
                "range and record disagree about the repeats",
                record.entry_id,
                f"{ranges[0].repeats} and {record.repeats}",
            )
        else:
            on_cpu = self._info.device.kind == "cpu"
            problem = false_claim(ranges[0], timed=True, on_cpu=on_cpu, record=record)
            if problem is None:
                return True
            self._say(f"{self._info.collector} claims what cannot be", record.entry_id, problem)
        return False


def _within(sample: EnvironmentSample, record: EntryRecord) -> bool:
    began = record.started_unix_ns
    ended = record.ended_unix_ns
    return began is not None and ended is not None and began <= sample.unix_ns <= ended


def _join_counters(
    contents: RawContents, counters: list[tuple[str, Capture]], tools: Tools, problems: Problems
) -> None:
    """Give the launches their hardware counters. Every attempt of an entry gets them: which one is kept is decided
    later."""
    for where, capture in counters:
        wanted = {r.entry_id for r in capture.ranges}
        at = [i for i, m in enumerate(contents.measured) if m.entry.id in wanted]
        have = {contents.measured[i].entry.id for i in at}
        for entry_id in sorted(wanted - have):
            problems.of_entry(where, "counters of an entry without a timeline", entry_id[:80])
        contents.remarks.lines(f"{where}: {line}" for line in capture.problems)
        _add(contents.unjoined, capture.unjoined)
        capture = _believable(where, capture, problems)
        for attempt in _distinct(contents.measured, at):
            timeline = Capture(
                tool="timeline",
                tool_version=None,
                schema=None,
                ranges=tuple(contents.measured[i].first_repeat() for i in attempt),
            )
            ids = {contents.measured[i].entry.id for i in attempt}
            mine = replace(
                capture,
                ranges=tuple(r for r in capture.ranges if r.entry_id in ids),
                unjoined={},
                problems=(),
            )
            joined = tools.join(timeline, mine)
            by_id = {r.entry_id: r for r in joined.ranges}
            _add(contents.unjoined, joined.unjoined)
            contents.remarks.lines(f"{where}: {line}" for line in joined.problems)
            for i in attempt:
                _give(contents, i, by_id.get(contents.measured[i].entry.id))


def _believable(where: str, capture: Capture, problems: Problems) -> Capture:
    """Return ``capture`` without the ranges whose counters cannot be."""
    ranges = []
    for counted in capture.ranges:
        problem = false_claim(counted, timed=False, on_cpu=False)
        if problem is None:
            ranges.append(counted)
        else:
            problems.of_entry(where, "counters that cannot be", counted.entry_id[:80], problem)
    return replace(capture, ranges=tuple(ranges))


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for reason, count in more.items():
        to[reason] = to.get(reason, 0) + count


def _distinct(measured: Sequence[MeasuredEntry], at: Sequence[int]) -> list[list[int]]:
    """Indices ``at`` in groups within which every entry stands once."""
    groups: list[list[int]] = []
    nth: dict[str, int] = {}
    for i in at:
        turn = nth.get(measured[i].entry.id, 0)
        nth[measured[i].entry.id] = turn + 1
        if turn == len(groups):
            groups.append([])
        groups[turn].append(i)
    return groups


def _give(contents: RawContents, i: int, found: EntryRange | None) -> None:
    entry = contents.measured[i]
    if found is None or len(found.launches) != len(entry.launches):
        return
    pairs = zip(entry.launches, found.launches, strict=True)
    # What one capture told stays where another has nothing to add.
    launches = tuple(replace(m, counters=launch.counters or m.counters) for m, launch in pairs)
    if any(m.counters for m in launches):
        contents.counted += 1
    contents.measured[i] = replace(entry, launches=launches)
