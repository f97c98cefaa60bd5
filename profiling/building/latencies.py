"""One chunk of a raw folder, read without trust: its records, its samples, and what is odd about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gkestimator.core.errors import TableError
from gkestimator.core.files import input_errors
from gkestimator.core.records import frozen
from gkestimator.profiling.building.contents import NotMeasured, Problems, RawContents, Tools
from gkestimator.profiling.building.entries import MeasuredLatency, meanwhile
from gkestimator.profiling.building.soundness import sound_record, sound_sample
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.raw import ChunkInfo, EnvironmentSample, read_environment
from gkestimator.profiling.records import EntryRecord, read_records
from gkestimator.profiling.variation import judged_variation

MAX_RECORDS_BYTES = 512 * 2**20


@frozen
class RawChunk:
    """Name one chunk: ``info`` says what it is of, ``entries`` are those of the plan that are wanted and
    ``others`` the ids that are passed over; what it holds goes to ``contents``, what is wrong with it to
    ``problems``. ``where``: its name for people."""

    where: str
    folder: Path
    info: ChunkInfo
    contents: RawContents
    entries: dict[str, PlanEntry]
    others: frozenset[str]
    tools: Tools
    problems: Problems

    @property
    def on_cpu(self) -> bool:
        """Return whether a CPU measured."""
        return self.info.device.kind == "cpu"

    def say(self, what: str, entry_id: str, detail: str = "") -> None:
        """Say that something is wrong with an entry."""
        self.problems.of_entry(self.where, what, entry_id[:80], detail)

    def remark(self, what: str, entry_id: str, detail: str) -> None:
        """Say that something is odd about an entry, and spoils nothing."""
        self.contents.remarks.of_entry(self.where, what, entry_id[:80], detail)

    def records(self) -> list[EntryRecord]:
        """Return the sound records of entries that are wanted, one of each. Raises TableError."""
        path = self.folder / "records.jsonl"
        with input_errors(path):
            if path.stat().st_size > MAX_RECORDS_BYTES:
                raise TableError(
                    f"{path}: more than {MAX_RECORDS_BYTES:,} bytes, expected records of one chunk"
                )
        records: dict[str, EntryRecord] = {}
        for record in read_records(path):
            name = record.entry_id
            if name in self.others:
                continue
            if name not in self.entries:
                self.say("a record for an entry that is not in the plan", name)
            elif name in records:
                self.say("two records for one entry, expected one; the first is kept", name)
            elif not sound_record(record):
                self.say("a record whose times or repeats are no numbers from 0", name)
            else:
                records[name] = record
        return list(records.values())

    def measured(self, records: Sequence[EntryRecord]) -> Iterator[EntryRecord]:
        """Yield those that were measured; note the others, and what the chunk says of itself."""
        contents = self.contents
        for problem in self.info.problems:
            contents.remarks.of_entry(contents.path.name, problem, self.folder.name)
        for record in records:
            if record.status == "ok":
                yield record
                continue
            reason = record.reason or "no reason given"
            contents.not_measured.append(
                NotMeasured(entry_id=record.entry_id, status=record.status, reason=reason)
            )

    def samples(self) -> list[EnvironmentSample]:
        """Return sound samples in order of time; without them the measurements stand, their surroundings are not
        known."""
        remarks = self.contents.remarks
        try:
            samples = list(read_environment(self.folder))
        except TableError as e:
            remarks.line(str(e))
            return []
        sound = sorted(filter(sound_sample, samples), key=lambda s: s.unix_ns)
        if len(sound) < len(samples):
            unsound = len(samples) - len(sound)
            remarks.line(f"{self.where}: {unsound} samples of the environment that make no sense")
        self.contents.environment.setdefault(self.info.device.name, []).extend(sound)
        return sound


def read_latencies(chunk: RawChunk, seen: set[str]) -> None:
    """Add the latencies of whole models to the contents, and the ids of all records to ``seen``. Raises
    TableError."""
    records = chunk.records()
    seen.update(record.entry_id for record in records)
    measured = list(chunk.measured(records))
    samples = chunk.samples()
    for record in measured:
        latency = _latency(chunk, record, samples)
        if latency is not None:
            chunk.contents.latencies.append(latency)


def _latency(
    chunk: RawChunk, record: EntryRecord, samples: Sequence[EnvironmentSample]
) -> MeasuredLatency | None:
    times = record.latency_us
    if not times or not min(times) > 0:
        chunk.say("measured, but without latencies above 0", record.entry_id)
        return None
    if record.repeats is not None and record.repeats != len(times):
        chunk.say("latencies and repeats disagree", record.entry_id, f"{len(times)} and {record.repeats}")
        return None
    cv = judged_variation(record, None)
    near = chunk.tools.during(samples, record)
    # A sample beside the repeats, which will do for clocks, has the power of an idle device.
    began = record.started_unix_ns
    ended = record.ended_unix_ns
    inside = []
    if began is not None and ended is not None:
        inside = [s for s in near if began <= s.unix_ns <= ended]
    return MeasuredLatency(
        entry=chunk.entries[record.entry_id],
        record=record,
        chunk=chunk.info,
        run=chunk.contents.run,
        origin=chunk.where,
        latency_us=times,
        cv=cv,
        quality=chunk.tools.judge(samples, record, cv, chunk.on_cpu),
        power_w=meanwhile(inside).power_w,
        tenants=meanwhile(near).tenants,
    )
