"""Replicas that batch, simulated request by request: what the formulas of gkestimator.placement.queueing are checked by.

It shares nothing with them but the description of a replica. Arrivals are Poisson, thinned to the admitted rate. One batch is
filled for the model; it is for the replica whose turn it is (by full batches a second: round robin among alike ones) and leaves
for it when it is as large as that replica takes, or when its first request has waited that replica's time-out. A replica serves its batches in order of
arrival, each for the latency of the batch's actual size. A replica that takes turns is dealt single requests; at its turn it
takes as many as wait, at most a batch.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(kw_only=True)
class Replica:
    """One replica. ``latencies_ms[i]`` at ``batches[i]``, linear between; ``wait_ms`` is its time-out."""

    batch_size: int
    batches: Sequence[int]
    latencies_ms: Sequence[float]
    wait_ms: float
    duty_cycle_ms: float | None = None
    free_at: float = 0.0
    taken: int = 0
    phase: float = 0.0

    def latency_ms(self, size: int) -> float:
        """Of a batch of ``size``."""
        if size <= self.batches[0]:
            return self.latencies_ms[0]
        if size >= self.batches[-1]:
            return self.latencies_ms[-1]
        i = bisect_right(self.batches, size) - 1
        low, high = self.batches[i], self.batches[i + 1]
        part = (size - low) / (high - low)
        return self.latencies_ms[i] + part * (self.latencies_ms[i + 1] - self.latencies_ms[i])

    @property
    def capacity(self) -> float:
        """Requests a millisecond at the full batch."""
        return self.batch_size / max(self.latency_ms(self.batch_size), self.duty_cycle_ms or 0.0)


def on_time_share(
    replicas: Sequence[Replica], rate_rps: float, slo_ms: float, *, requests: int = 20_000, seed: int = 0
) -> float:
    """Share of ``requests`` Poisson requests (``rate_rps`` of them admitted a second) answered within ``slo_ms``. The first
    tenth is not counted."""
    rng = random.Random(seed)
    per_ms = rate_rps / 1e3
    turns = {id(r): deque[tuple[int, float]]() for r in replicas if r.duty_cycle_ms is not None}
    for r in replicas:
        r.free_at, r.taken, r.phase = 0.0, 0, rng.random() * (r.duty_cycle_ms or 0.0)
    capacity = [r.capacity for r in replicas]
    # One deal is a full batch, or a single request where the replica takes turns.
    size = [r.batch_size if r.duty_cycle_ms is None else 1 for r in replicas]
    response: list[float] = [0.0] * requests
    filling: list[tuple[int, float]] = []
    target: Replica | None = None

    def serve(r: Replica, batch: list[tuple[int, float]], leaves: float) -> None:
        start = max(leaves, r.free_at)
        r.free_at = start + r.latency_ms(len(batch))
        for i, arrived in batch:
            response[i] = r.free_at - arrived

    def turn(r: Replica, until: float) -> None:
        queue = turns[id(r)]
        while r.phase <= until:
            batch = [queue.popleft() for _ in range(min(r.batch_size, len(queue)))]
            for i, arrived in batch:
                response[i] = r.phase + r.latency_ms(len(batch)) - arrived
            r.phase += r.duty_cycle_ms or 1.0

    now = 0.0
    for i in range(requests):
        now += rng.expovariate(per_ms)
        if target is not None and filling and now >= filling[0][1] + target.wait_ms:
            serve(target, filling, filling[0][1] + target.wait_ms)
            filling, target = [], None
        if target is None:
            at = min(range(len(replicas)), key=lambda k: (replicas[k].taken + size[k]) / capacity[k])
            target = replicas[at]
            target.taken += size[at]
        if target.duty_cycle_ms is not None:
            turn(target, now)
            turns[id(target)].append((i, now))
            target = None
            continue
        filling.append((i, now))
        if len(filling) >= target.batch_size or target.wait_ms <= 0:
            serve(target, filling, now)
            filling, target = [], None
    if filling and target is not None:
        serve(target, filling, filling[0][1] + target.wait_ms)
    for r in replicas:
        if r.duty_cycle_ms is not None:
            while turns[id(r)]:
                turn(r, r.phase)
    counted = response[requests // 10 :]
    return sum(t <= slo_ms * (1 + 1e-12) for t in counted) / len(counted)
