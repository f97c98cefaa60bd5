"""What a run did, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.records import frozen
from gkestimator.profiling.type_names import Fields, Names


@frozen
class ModelCounts:
    """Count the entries that are whole models (``models``), those with a latency, and those with a timeline.
    ``timelines_failed``, ``timelines_left``: of those that have a latency, whose timeline could not be
    measured, and whose turn did not come."""

    models: int = 0
    latencies: int = 0
    timelines: int = 0
    timelines_failed: int = 0
    timelines_left: int = 0


NO_MODELS = ModelCounts()


@frozen
class RunReport:
    """Say what a run did, earlier runs into the same folder included. A whole model counts by its latency.
    ``noisy``: of the ok entries, those whose best measurement is not good; ``left``: not reached;
    ``counters``: entries with hardware counters, ``counters_left``: whose turn did not come; ``stopped``: why
    it ended before the plan did (None: it did not), ``stop_status`` the exit status that goes with it;
    ``whole``: of whole models."""

    raw: str
    entries: int
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    noisy: int = 0
    left: int
    counters: int = 0
    chunks: int = 0
    minutes: float = 0.0
    stopped: str | None = None
    stop_status: int = 0
    problems: Names = ()
    messages: Names = ()
    parts: tuple[RunReport, ...] = ()
    counters_left: int = 0
    whole: ModelCounts = NO_MODELS

    @property
    def exit_code(self) -> int:
        """Return 0: all measured, skipped with a reason, or left because the time that was given is over; 1: partly
        failed; 2: nothing could be done; 130: interrupted."""
        if self.parts:
            codes = {p.exit_code for p in self.parts}
            if len(codes) == 1:
                return codes.pop()
            if 130 in codes:
                return 130
            return 1
        if self.stop_status:
            return self.stop_status
        left = self.left + self.whole.timelines_left
        if self.failed or self.whole.timelines_failed or (left and self.stopped is None):
            return 1
        return 0

    def summary(self) -> str:
        """Say in one line where it lies, and the counts."""
        line = (
            f"{self.raw}: {self.ok} ok ({self.noisy} noisy), {self.failed} failed, {self.skipped} skipped, "
            f"{self.left} left of {self.entries} entries; counters of {self.counters}"
        )
        if self.whole.models:
            line += (
                f"; of {self.whole.models} whole models {self.whole.latencies} with latency, "
                f"{self.whole.timelines} with timeline"
            )
        return line

    def words(self) -> Names:
        """Return closing lines for people."""
        if self.parts:
            return tuple(w for p in self.parts for w in p.words())
        whole = self.whole
        lines = [f"{self.chunks} chunks in {self.minutes:.1f} minutes"]
        if self.stopped:
            lines.append(self.stopped)
        if self.left:
            lines.append(f"{self.left} entries are left; the same command goes on where this one ended")
        for count, what in (
            (whole.timelines_left, f"timelines of {whole.timelines_left} whole models"),
            (self.counters_left, f"counters of {self.counters_left} entries"),
        ):
            if count:
                lines.append(f"{what} are left; the same command goes on with them")
        if whole.timelines_failed:
            lines.append(
                f"{whole.timelines_failed} whole models have a latency and no timeline, which failed: nothing is known "
                "of their launches"
            )
        if self.noisy:
            lines.append(f"{self.noisy} entries stay noisy or throttled: they are marked, not left out")
        if whole.latencies:
            lines.append(f"next: gkest profile table {self.raw} -o measured.parquet")
        if self.ok > whole.latencies:
            lines.append(f"next: gkest profile build {self.raw} -o DATASET.parquet")
        return tuple(lines)


def together(raw: str, parts: tuple[RunReport, ...]) -> RunReport:
    """Return the report of a run whose parts have reports of their own: their counts summed."""
    wholes = [part.whole for part in parts]
    counts = _sums(parts, _COUNTS)
    models = _sums(wholes, _MODEL_COUNTS)
    minutes = max(part.minutes for part in parts)
    return RunReport(raw=raw, minutes=minutes, parts=parts, whole=ModelCounts(**models), **counts)


def _sums(records: Sequence[object], names: Sequence[str]) -> Fields:
    return {name: sum(getattr(record, name) for record in records) for name in names}


_MODEL_COUNTS = ("models", "latencies", "timelines", "timelines_failed", "timelines_left")
_COUNTS = ("entries", "ok", "failed", "skipped", "noisy", "left", "counters", "chunks")
