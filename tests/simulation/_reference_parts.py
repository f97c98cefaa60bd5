"""What the reference simulator moves about: requests, batches, replicas, servers, GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gkestimator.interference.base import FEATURES
from gkestimator.simulation.system import SimGpu, SimReplica


def curve(batches: Sequence[int], values: Sequence[float] | None, size: int) -> float:
    """Linear between ``batches``, constant beyond; 0 where there is no curve."""
    if values is None:
        return 0.0
    if size <= batches[0]:
        return values[0]
    for low, high, at_low, at_high in zip(batches, batches[1:], values, values[1:], strict=False):
        if size < high:
            return (at_high - at_low) / (high - low) * (size - low) + at_low
    return values[-1]


@dataclass(eq=False)
class Job:
    """A source's request: how often each stage is asked, how many answers it lacks, which are done."""

    source: int
    arrived: float
    asked: list[int | None]
    lacking: list[int]
    dropped: bool = False

    def done(self, stage: int) -> bool:
        return self.asked[stage] is not None and self.lacking[stage] == 0


@dataclass(eq=False)
class Request:
    """One execution of a stage: a request to one model."""

    job: Job
    stage: int
    model: int
    arrived: float
    left: float = 0.0
    reached: float = 0.0


@dataclass(eq=False)
class Batch:
    replica: Replica
    requests: list[Request] = field(default_factory=list)
    timed_out: bool = False
    closed: bool = False
    # While it runs: the work left at `since`, done at 1 / `slow` of full speed; it ends at `end`.
    order: int = 0
    start: float = 0.0
    since: float = 0.0
    work: float = 0.0
    slow: float = 0.0
    end: float = 0.0

    @property
    def size(self) -> int:
        return len(self.requests)

    def left(self, now: float) -> float:
        return self.work - (now - self.since) / self.slow


@dataclass(eq=False)
class Gpu:
    what: SimGpu
    running: list[Batch] = field(default_factory=list)
    busy_since: float = 0.0
    to_copy: list[Batch] = field(default_factory=list)  # the first is being copied


@dataclass(eq=False)
class Server:
    """A partition, or what a replica has for itself. ``queue``: batches that could start; ``given``: those and the ones
    on their way; ``due``: replicas whose turn came; ``late``: requests, by replica, that reached those which batch late."""

    queue: list[Batch] = field(default_factory=list)
    given: list[Batch] = field(default_factory=list)
    due: list[tuple[float, int]] = field(default_factory=list)
    late: list[tuple[Replica, Request]] = field(default_factory=list)
    running: Batch | None = None


@dataclass(eq=False)
class Replica:
    index: int
    what: SimReplica
    server: Server
    gpu: Gpu
    available: float
    late: bool = False  # its batches are formed when its server is free
    dealt: float = 0.0
    retired: bool = False
    became_available: bool = False
    waiting: list[Request] = field(default_factory=list)  # of one that takes turns: reached it, not taken
    coming: int = 0  # of one that takes turns or batches late: dealt to it, not taken
    turns: int = 0
    last_turn: float = -1.0

    @property
    def takes_turns(self) -> bool:
        return self.what.duty_cycle_ms is not None

    @property
    def singly(self) -> bool:
        """Requests are given to it one by one."""
        return self.takes_turns or self.late

    @property
    def deal(self) -> float:
        if self.singly:
            return 1
        return self.what.batch_size if self.what.deal is None else self.what.deal

    def at(self, values: Sequence[float] | None, size: int) -> float:
        return curve(self.what.batches, values, size)

    def features(self, size: int) -> np.ndarray:
        rows = self.what.features
        if rows is None:
            return np.zeros(FEATURES)
        return np.array([self.at([row[i] for row in rows], size) for i in range(FEATURES)])


@dataclass(eq=False)
class Copied:
    batch: Batch


@dataclass(eq=False)
class Answer:
    batch: Batch
