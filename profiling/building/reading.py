"""Raw folders to measured entries: what can be read is, and what cannot is said in one line each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.core.values import is_number
from gkestimator.profiling.building.contents import Problems, RawContents, Tools
from gkestimator.profiling.building.entries import (
    MeasuredEntry,
    RepeatedLaunches,
    host_launches,
    launches_of,
    meanwhile,
    typical,
)
from gkestimator.profiling.building.latencies import RawChunk, read_latencies
from gkestimator.profiling.building.soundness import check_chunk, check_run
from gkestimator.profiling.captures import Capture, EntryRange, RangesByEntry
from gkestimator.profiling.collectors import collector_class, records_launches
from gkestimator.profiling.collectors.claims import false_claim
from gkestimator.profiling.plan import read_plan
from gkestimator.profiling.raw import ChunkInfo, EnvironmentSample, chunk_folders, read_chunk, read_run
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.variation import judged_variation


def read_raw(raw: Path, tools: Tools, problems: Problems, *, whole: bool = False) -> RawContents:
    """Return the folder's measurements of operators; ``whole``: of whole models instead. Raises TableError or
    UsageError where the folder as a whole cannot be read."""
    run = read_run(raw)
    check_run(run, raw / "run.json")
    plan = read_plan(raw / "plan.json")
    contents = RawContents(path=raw, run=run, plan=plan)
    contents.unfinished = _unfinished(raw)
    entries = {entry.id: entry for entry in plan.entries if (entry.model is not None) == whole}
    # Operators and whole models of one plan end in different tables.
    others = frozenset(entry.id for entry in plan.entries) - entries.keys()
    contents.planned = len(entries)
    contents.others = len(others)
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
            chunk = RawChunk(
                where=where,
                folder=folder,
                info=info,
                contents=contents,
                entries=entries,
                others=others,
                tools=tools,
                problems=problems,
            )
            if info.pass_name == "counters":
                capture = None if whole else _capture(folder, info, tools)
                if capture is not None:
                    counters.append((where, capture))
            elif info.pass_name == "latency":
                read_latencies(chunk, seen)
            elif not whole:
                _read_timeline(chunk, seen)
            elif info.device.kind == "gpu":  # a CPU's tells nothing that a row of a whole model has
                _read_timeline(chunk, set())  # what has a timeline alone was not reached
        except GkestimatorError as e:
            problems.line(str(e))
    # At the end: counters may lie in chunks before the timeline that they belong to.
    for where, capture in counters:
        _join_counters(contents, where, capture, tools, problems)
    contents.unreached = len(entries.keys() - seen)
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


def _read_timeline(chunk: RawChunk, seen: set[str]) -> None:
    """Add what a chunk of the timeline pass measured to the contents, and the ids of all records to ``seen``.
    Raises TableError."""
    contents = chunk.contents
    records = chunk.records()
    seen.update(record.entry_id for record in records)
    capture = _capture(chunk.folder, chunk.info, chunk.tools)
    measured = list(chunk.measured(records))
    ranges: RangesByEntry = {}
    if capture is not None:
        for each in capture.ranges:
            if each.entry_id not in chunk.others:
                ranges.setdefault(each.entry_id, []).append(each)
                contents.launches += len(each.launches)
        contents.unjoined.update(capture.unjoined)
        contents.remarks.lines(chunk.where, capture.problems)
    samples = chunk.samples()
    recorded = records_launches(chunk.info.collector)
    for record in measured:
        own = ranges.get(record.entry_id, [])
        if recorded and not _range_fits(chunk, record, own):
            continue
        measured_range = None
        if recorded:
            measured_range = own[0]
        launches, calls = _launches(chunk, record, measured_range)
        if not all(is_number(d, 0, 1e18) for m in launches for d in m.durations_us):
            chunk.say("a launch with a negative duration", record.entry_id)
        elif launches:
            contents.measured.append(_measured(chunk, record, samples, launches, calls))


def _measured(
    chunk: RawChunk,
    record: EntryRecord,
    samples: Sequence[EnvironmentSample],
    launches: RepeatedLaunches,
    calls: int,
) -> MeasuredEntry:
    repeats = zip(*(m.durations_us for m in launches), strict=True)
    totals = [math.fsum(each) / calls for each in repeats]
    cv = judged_variation(record, totals)
    around = meanwhile(chunk.tools.during(samples, record))
    return MeasuredEntry(
        entry=chunk.entries[record.entry_id],
        record=record,
        chunk=chunk.info,
        run=chunk.contents.run,
        origin=chunk.where,
        launches=launches,
        entry_us=typical(totals, kind=launches[0].kind),
        cv=cv,
        repeats=len(totals),
        quality=chunk.tools.judge(samples, record, cv, False),
        sm_clock_mhz=around.sm_clock_mhz,
        power_w=around.power_w,
        tenants=around.tenants,
        calls=calls,
    )


def _launches(
    chunk: RawChunk, record: EntryRecord, measured: EntryRange | None
) -> tuple[RepeatedLaunches, int]:
    """Return the launches of an entry, and of how many calls they are; none, with what is wrong said, where
    it cannot be used."""
    name = record.entry_id
    contents = chunk.contents
    calls = 1
    if chunk.on_cpu:
        launches, problem = host_launches(record)
        if problem is not None:
            chunk.say("the executor's profile cannot be used", name, problem)
            return (), calls
    elif measured is None:
        chunk.say("measured on a GPU without a collector: no launches", name)
        return (), calls
    else:
        repeats, problem = chunk.tools.split(measured)
        if repeats is None:
            reason = problem or "its repeats differ"
            contents.unstable[name] = reason
            if chunk.entries[name].model is None:
                chunk.say("repeats launched different kernels", name, reason)
                return (), calls
            # Sums over all calls tell of a whole model what they would tell of one.
            calls = measured.repeats
            repeats = [measured.launches]
        elif problem is not None:
            chunk.remark("launches that come once are left out", name, problem)
        launches = launches_of(repeats)
    if not launches:
        contents.silent.append(name)
    return launches, calls


def _range_fits(chunk: RawChunk, record: EntryRecord, ranges: Sequence[EntryRange]) -> bool:
    """Return whether there is the one range that the entry should have; a problem is said."""
    name = record.entry_id
    if not ranges:
        chunk.say("measured, but the capture holds no NVTX range of it", name)
    elif len(ranges) > 1:
        chunk.say("several NVTX ranges of one entry, expected one", name, f"found {len(ranges)}")
    elif record.repeats is not None and ranges[0].repeats != record.repeats:
        repeats = f"{ranges[0].repeats} and {record.repeats}"
        chunk.say("range and record disagree about the repeats", name, repeats)
    else:
        problem = false_claim(ranges[0], timed=True, on_cpu=chunk.on_cpu, record=record)
        if problem is None:
            return True
        chunk.say(f"{chunk.info.collector} claims what cannot be", name, problem)
    return False


def _join_counters(
    contents: RawContents, where: str, capture: Capture, tools: Tools, problems: Problems
) -> None:
    """Give the launches their hardware counters. Every attempt of an entry gets them: which one is kept is decided
    later."""
    wanted = {r.entry_id for r in capture.ranges}
    measured = [i for i, m in enumerate(contents.measured) if m.entry.id in wanted]
    for entry_id in sorted(wanted - {contents.measured[i].entry.id for i in measured}):
        problems.of_entry(where, "counters of an entry without a timeline", entry_id[:80])
    contents.remarks.lines(where, capture.problems)
    contents.unjoined.update(capture.unjoined)
    counted = _believable(where, capture, problems)
    for attempt in _attempts(contents.measured, measured):
        timeline = Capture(
            tool="timeline",
            tool_version=None,
            schema=None,
            ranges=tuple(contents.measured[i].first_repeat() for i in attempt.values()),
        )
        ranges = tuple(r for r in counted if r.entry_id in attempt)
        joined = tools.join(timeline, replace(capture, ranges=ranges, unjoined={}, problems=()))
        contents.unjoined.update(joined.unjoined)
        contents.remarks.lines(where, joined.problems)
        for each in joined.ranges:
            _give(contents, attempt[each.entry_id], each)


def _believable(where: str, capture: Capture, problems: Problems) -> list[EntryRange]:
    """Return the ranges of a capture without those whose counters cannot be."""
    ranges = []
    for counted in capture.ranges:
        problem = false_claim(counted, timed=False, on_cpu=False)
        if problem is None:
            ranges.append(counted)
        else:
            problems.of_entry(where, "counters that cannot be", counted.entry_id[:80], problem)
    return ranges


def _attempts(measured: Sequence[MeasuredEntry], indices: Sequence[int]) -> list[dict[str, int]]:
    """Return ``indices`` by their entries, in groups within which every entry stands once."""
    attempts: list[dict[str, int]] = []
    turns: Counter[str] = Counter()
    for i in indices:
        name = measured[i].entry.id
        if turns[name] == len(attempts):
            attempts.append({})
        attempts[turns[name]][name] = i
        turns[name] += 1
    return attempts


def _give(contents: RawContents, i: int, counted: EntryRange) -> None:
    entry = contents.measured[i]
    if len(counted.launches) != len(entry.launches):
        return
    pairs = zip(entry.launches, counted.launches, strict=True)
    # What one capture told stays where another has nothing to add.
    launches = tuple(replace(m, counters=launch.counters or m.counters) for m, launch in pairs)
    contents.counted += any(m.counters for m in launches)
    contents.measured[i] = replace(entry, launches=launches)
