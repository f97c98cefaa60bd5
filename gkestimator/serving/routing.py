"""Choose who answers a request: the replica whose lane has the least outstanding work, in expected milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gkestimator.serving.backend import Arrays
from gkestimator.serving.served import ServedReplica

_MOST_WAITING = 10_000


class RequestLine(Protocol):
    """Take requests to a worker, while that is ``alive``."""

    alive: bool

    def send(self, request: PendingRequest) -> None:
        """Give a request to the worker."""
        ...


class LaneLoad:
    """Hold the work that is under way on one lane: replicas that take turns wait for each other."""

    __slots__ = ("work_ms",)

    def __init__(self) -> None:
        self.work_ms = 0.0


class ReplicaLoad:
    """Count what one replica has to answer, and know how long that takes: full batches, then what is left."""

    __slots__ = ("_full_ms", "_part_ms", "count", "lane", "limit", "link", "replica")

    def __init__(
        self,
        replica: ServedReplica,
        link: RequestLine,
        lane: LaneLoad,
        *,
        limit: int | None,
        timeout_s: float,
    ) -> None:
        """Take at most ``limit`` requests at a time (None: as many as can be answered until the time-out)."""
        self.replica = replica
        self.link = link
        self.lane = lane
        self.count = 0
        self._part_ms = [0.0, *(replica.time_ms(n) for n in range(1, replica.cap + 1))]
        self._full_ms = self._part_ms[-1]
        if limit is None:
            batches = timeout_s * 1e3 / self._full_ms
            limit = int(min(_MOST_WAITING, max(2.0, batches) * replica.cap))
        self.limit = limit

    @property
    def least_ms(self) -> float:
        """Return the time of a batch of one."""
        return self._part_ms[1]

    def work_ms(self, count: int) -> float:
        """Return the time of ``count`` requests in batches as large as they may be."""
        full, part = divmod(count, self.replica.cap)
        return full * self._full_ms + self._part_ms[part]

    def score_ms(self) -> float:
        """Return the work of the lane if it took one request more."""
        return self.lane.work_ms + self.work_ms(self.count + 1) - self.work_ms(self.count)

    def add(self, count: int) -> None:
        """Take note of ``count`` requests more (below 0: fewer)."""
        self.lane.work_ms += self.work_ms(self.count + count) - self.work_ms(self.count)
        self.count += count


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Hold a request from its arrival to its answer. Times are those of ``time.monotonic``, in seconds.

    ``deadline``: when its objective is over; ``expires``: when it is answered by a time-out. ``sent``: when it went to
    ``load``, the replica that has it now; ``tries``: how many have had it.
    """

    number: int
    model: str
    sample: Arrays
    arrived: float
    deadline: float
    expires: float
    answer: asyncio.Future[Arrays]
    load: ReplicaLoad | None = None
    sent: float | None = None
    tries: int = 0
    version: int = 0
    timer: asyncio.TimerHandle | None = None


class Routes:
    """Hold the replicas that get requests, by model. A new plan is a new object, put in the place of the old."""

    def __init__(
        self, loads: Iterable[ReplicaLoad], objectives_ms: Mapping[str, float], version: int
    ) -> None:
        self.version = version
        self.objectives_ms = dict(objectives_ms)
        self.by_model: dict[str, list[ReplicaLoad]] = {name: [] for name in objectives_ms}
        for load in loads:
            self.by_model[load.replica.model].append(load)
        self._turn = 0

    def live(self, model: str) -> list[ReplicaLoad]:
        """Return the replicas of ``model`` whose workers run."""
        return [load for load in self.by_model[model] if load.link.alive]

    def choose(self, model: str) -> ReplicaLoad | None:
        """Return the replica of ``model`` with the least work; of equals, each in turn; None where none runs."""
        loads = self.live(model)
        if not loads:
            return None
        self._turn += 1
        first = self._turn % len(loads)
        return min(loads[first:] + loads[:first], key=ReplicaLoad.score_ms)

    def ready(self) -> bool:
        """Return whether every model that the plan places has a replica that runs."""
        placed = [model for model, loads in self.by_model.items() if loads]
        return bool(placed) and all(self.live(model) for model in placed)
