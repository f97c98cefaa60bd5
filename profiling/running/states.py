"""What a campaign knows of each entry, pass by pass, and what it queues of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gkestimator.core.records import frozen
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.running.jobs import MAX_CHUNK_ENTRIES


@frozen
class PendingPass:
    """One pass of one entry that is to be measured. ``again``: a repeat of what came out noisy; ``most``: how many
    entries its next chunk may hold, after captures of larger ones were lost; ``alone``: its own capture was lost as
    well, so it comes last, and then it is settled."""

    entry: PlanEntry
    pass_name: str
    attempt: int = 1
    again: bool = False
    losses: int = 0
    most: int = MAX_CHUNK_ENTRIES
    alone: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is a whole model's."""
        return self.entry.model is not None

    def goes_with(self, other: PendingPass) -> bool:
        """Whether one chunk may hold both: it has one pass and one attempt, and models are timed otherwise than
        operators."""
        return (self.pass_name, self.attempt, self.most, self.whole) == (
            other.pass_name,
            other.attempt,
            other.most,
            other.whole,
        )


@dataclass(slots=True)
class Known:
    """Of one pass of one entry. ``status``: None: not measured; ``ok`` outweighs all. ``good``: an ok record of quality
    ok. ``asked``: this run has seen to it."""

    status: str | None = None
    good: bool = False
    attempts: int = 0
    asked: bool = False

    def take(self, attempt: int, status: str, quality: str) -> None:
        """One record more."""
        self.attempts = max(self.attempts, attempt)
        self.good = self.good or (status == "ok" and quality == "ok")
        if self.status != "ok":
            self.status = status


@dataclass(slots=True)
class EntryState:
    """Of one entry, by pass."""

    latency: Known = field(default_factory=Known)
    timeline: Known = field(default_factory=Known)
    counters: Known = field(default_factory=Known)

    def of(self, pass_name: str) -> Known:
        """What is known of that pass."""
        if pass_name == "latency":
            return self.latency
        if pass_name == "counters":
            return self.counters
        return self.timeline

    def first(self, entry: PlanEntry) -> Known:
        """The pass that says whether the entry is measured: a whole model's latency, an operator's timeline."""
        if entry.model is None:
            return self.timeline
        return self.latency
