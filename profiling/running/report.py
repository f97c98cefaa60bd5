"""What a run did, in numbers and in words."""

from __future__ import annotations

from gkestimator.core.records import frozen


@frozen
class ModelCounts:
    """Of the entries that are whole models (``models`` of them): those with a latency, and those with a timeline.
    ``timelines_failed``, ``timelines_left``: of those that have a latency, whose timeline could not be measured, and
    whose turn did not come."""

    models: int
    latencies: int
    timelines: int
    timelines_failed: int
    timelines_left: int

    def __add__(self, other: ModelCounts) -> ModelCounts:
        """Both together."""
        return ModelCounts(
            models=self.models + other.models,
            latencies=self.latencies + other.latencies,
            timelines=self.timelines + other.timelines,
            timelines_failed=self.timelines_failed + other.timelines_failed,
            timelines_left=self.timelines_left + other.timelines_left,
        )


NO_MODELS = ModelCounts(models=0, latencies=0, timelines=0, timelines_failed=0, timelines_left=0)


@frozen
class RunReport:
    """What a run did, earlier runs into the same folder included. A whole model counts by its latency. ``noisy``: of
    the ok entries, those whose best measurement is not good; ``left``: not reached; ``counters``: entries with
    hardware counters, ``counters_left``: whose turn did not come; ``stopped``: why it ended before the plan did (None:
    it did not), ``stop_status`` the exit status that goes with it; ``whole``: of whole models."""

    raw: str
    entries: int
    ok: int
    failed: int
    skipped: int
    noisy: int
    left: int
    counters: int
    chunks: int
    minutes: float
    stopped: str | None = None
    stop_status: int = 0
    problems: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    parts: tuple[RunReport, ...] = ()
    counters_left: int = 0
    whole: ModelCounts = NO_MODELS

    @property
    def exit_code(self) -> int:
        """0 all measured, skipped with a reason, or left because the time that was given is over; 1 partly failed; 2
        nothing could be done; 130 interrupted."""
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
        """One line: where it lies, and the counts."""
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

    def words(self) -> tuple[str, ...]:
        """Closing lines for people."""
        if self.parts:
            return tuple(w for p in self.parts for w in p.words())
        lines = [f"{self.chunks} chunks in {self.minutes:.1f} minutes"]
        if self.stopped:
            lines.append(self.stopped)
        if self.left:
            lines.append(f"{self.left} entries are left; the same command goes on where this one ended")
        if self.whole.timelines_left:
            lines.append(
                f"timelines of {self.whole.timelines_left} whole models are left; the same command goes on with them"
            )
        if self.counters_left:
            lines.append(
                f"counters of {self.counters_left} entries are left; the same command goes on with them"
            )
        if self.whole.timelines_failed:
            lines.append(
                f"{self.whole.timelines_failed} whole models have a latency and no timeline, which failed: nothing "
                "is known of their launches"
            )
        if self.noisy:
            lines.append(f"{self.noisy} entries stay noisy or throttled: they are marked, not left out")
        if self.whole.latencies:
            lines.append(f"next: gkest profile table {self.raw} -o measured.parquet")
        if self.ok > self.whole.latencies:
            lines.append(f"next: gkest profile build {self.raw} -o DATASET.parquet")
        return tuple(lines)
