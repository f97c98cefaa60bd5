"""Replicas that form a batch when they are free, simulated request by request: what the formulas of
gkestimator.placement.late are checked by.

It shares nothing with them but the description of a replica. Arrivals are Poisson. A request is given at once to the replica
with the least outstanding work: what is left of its running batch, and the latencies of the batches that its waiting requests
make. A replica that is free serves the oldest of its requests, at most its largest batch. With ``shed`` those that would not
be answered in time by the batch about to run are refused instead.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class LateReplica:
    """One replica. ``latencies_ms[i]`` at ``batches[i]``, linear between; ``factor`` is what its batches really take of them."""

    batch_size: int
    batches: Sequence[int]
    latencies_ms: Sequence[float]
    factor: float = 1.0
    free_at: float = 0.0
    waiting: deque[float] = field(default_factory=deque)
    table: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = [0.0, *(self._latency(size) for size in range(1, self.batch_size + 1))]

    def _latency(self, size: int) -> float:
        if size <= self.batches[0]:
            return self.latencies_ms[0]
        if size >= self.batches[-1]:
            return self.latencies_ms[-1]
        i = bisect_right(self.batches, size) - 1
        part = (size - self.batches[i]) / (self.batches[i + 1] - self.batches[i])
        return self.latencies_ms[i] + part * (self.latencies_ms[i + 1] - self.latencies_ms[i])

    def work(self, now: float) -> float:
        """What it still has to do (ms)."""
        full, rest = divmod(len(self.waiting), self.batch_size)
        return max(0.0, self.free_at - now) + full * self.table[-1] + self.table[rest]


def late_share(
    replicas: Sequence[LateReplica],
    rate_rps: float,
    slo_ms: float,
    *,
    requests: int = 20_000,
    seed: int = 0,
    shed: bool = True,
) -> float:
    """Share of ``requests`` Poisson requests (``rate_rps`` a second) answered within ``slo_ms``. The first tenth is not
    counted."""
    rng = random.Random(seed)
    per_ms = rate_rps / 1e3
    limit = slo_ms * (1 + 1e-12)
    events: list[tuple[float, int]] = []
    now = 0.0
    begin = 0.0
    on_time = 0
    counted = requests - requests // 10

    def start(number: int, at: float) -> None:
        nonlocal on_time
        r = replicas[number]
        queue = r.waiting
        if shed:
            while queue and at + r.table[min(len(queue), r.batch_size)] > queue[0] + limit:
                queue.popleft()
        size = min(len(queue), r.batch_size)
        if not size:
            return
        r.free_at = at + r.table[size] * r.factor
        for _ in range(size):
            arrived = queue.popleft()
            if arrived >= begin and r.free_at - arrived <= limit:
                on_time += 1
        heapq.heappush(events, (r.free_at, number))

    for r in replicas:
        r.free_at = 0.0
        r.waiting.clear()
    # From here on requests are counted: known once so many have arrived.
    arrivals = []
    for _ in range(requests):
        now += rng.expovariate(per_ms)
        arrivals.append(now)
    begin = arrivals[requests - counted]
    for now in arrivals:
        while events and events[0][0] <= now:
            at, number = heapq.heappop(events)
            start(number, at)
        least = min(range(len(replicas)), key=lambda k: (replicas[k].work(now), k))
        replicas[least].waiting.append(now)
        if replicas[least].free_at <= now:
            start(least, now)
    while events:
        at, number = heapq.heappop(events)
        start(number, at)
    return on_time / counted
