"""What is queued of a run's entries, pass by pass, and what is known of each pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from gkestimator.core.records import frozen
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.running.jobs import MAX_CHUNK_ENTRIES

# Queues in the order in which they are worked off, and what is said of each while it is.
_STAGES = {
    "latencies": "latency",
    "models": "timeline",
    "operators": "timeline",
    "again": "again",
    "counters": "counters",
    "alone": "last",
}


@frozen
class PendingPass:
    """Hold one pass of one entry that is to be measured. ``again``: a repeat of what came out noisy;
    ``most``: how many entries its next chunk may hold, after captures of larger ones were lost; ``alone``:
    its own capture was lost as well, so it comes last, and then it is settled."""

    entry: PlanEntry
    pass_name: str
    attempt: int = 1
    again: bool = False
    losses: int = 0
    most: int = MAX_CHUNK_ENTRIES
    alone: bool = False

    @property
    def whole(self) -> bool:
        """Return whether it is a whole model's."""
        return self.entry.model is not None

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what all of one chunk have in common: one pass, one attempt, and models or operators alone, which
        are timed differently."""
        return self.pass_name, self.attempt, self.most, self.whole

    @property
    def queue(self) -> str:
        """Return the name of the queue that it waits in."""
        if self.alone:
            return "alone"
        if self.again:
            return "again"
        if self.pass_name == "latency":
            return "latencies"
        if self.pass_name == "counters":
            return "counters"
        return "models" if self.whole else "operators"


class PassQueues:
    """Hold what waits to be measured, in queues that are worked off one after the other."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[PendingPass]] = {name: deque() for name in _STAGES}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[PendingPass]:
        return chain.from_iterable(self._queues.values())

    def add(self, item: PendingPass) -> None:
        """Queue ``item`` behind others of its kind."""
        self._queues[item.queue].append(item)

    def put_back(self, items: Iterable[PendingPass]) -> None:
        """Queue what was not measured before others of its kind; what is to be measured alone comes last."""
        # From the back, so that the first ends up in front.
        for item in reversed(list(items)):
            if item.alone:
                self.add(item)
            else:
                self._queues[item.queue].appendleft(item)

    def drop(self, pass_name: str) -> None:
        """Give up all that waits for that pass."""
        for name, queue in self._queues.items():
            self._queues[name] = deque(item for item in queue if item.pass_name != pass_name)

    def current(self) -> deque[PendingPass]:
        """Return the queue that is worked off now; an empty one where nothing waits."""
        return next(filter(None, self._queues.values()), self._queues["alone"])

    def stage(self) -> str:
        """Say what is measured now."""
        return next((_STAGES[name] for name, queue in self._queues.items() if queue), "last")


@dataclass(slots=True)
class Known:
    """Hold what is known of one pass of one entry. ``status``: None: not measured; ``ok`` outweighs all.
    ``good``: an ok record of quality ok. ``asked``: this run has seen to it."""

    status: str | None = None
    good: bool = False
    attempts: int = 0
    asked: bool = False

    def take(self, attempt: int, status: str, quality: str) -> None:
        """Take in one more record."""
        self.attempts = max(self.attempts, attempt)
        self.good = self.good or (status == quality == "ok")
        if self.status != "ok":
            self.status = status
