"""Keep the instances of a model's runtimes: in service, loading, going; and the GPUs under them."""

from __future__ import annotations

import heapq

import numpy as np

from gkestimator.simulation.arrays import Wholes
from gkestimator.simulation.lengths.dispatch import push, take_head
from gkestimator.simulation.lengths.runtimes import Ladder

_ROOM = 16


class InstanceFleet:
    """Hold instances by level (runtime, shortest first), one GPU each.

    They are in the arrays that :func:`gkestimator.simulation.lengths.dispatch.dispatch` takes: ``heaps``,
    ``sizes``, ``free_ms``.

    ``counts``: instances of each level, loading ones included. ``gpus``: GPUs held now.
    """

    def __init__(self, ladder: Ladder, counts: Wholes) -> None:
        levels = len(ladder.runtimes)
        self.free_ms = np.zeros(_ROOM)
        self.heaps = np.zeros((levels, _ROOM), np.int64)
        self.sizes = np.zeros(levels, np.int64)
        self.counts = [0] * levels
        self.gpus = 0
        self._instances = 0
        self._loading: list[tuple[float, int, int]] = []  # available, instance, level
        self._begun: list[float] = []
        self._ended: list[float] = []
        for level, count in enumerate(counts):
            for _ in range(count):
                self.grow(level, 0.0, 0.0)
        self.activate(0.0)

    @property
    def next_ms(self) -> float:
        """Return when the next instance has loaded; infinite where none is loading."""
        if self._loading:
            return self._loading[0][0]
        return np.inf

    @property
    def loading(self) -> int:
        """Return how many instances are not in service yet."""
        return len(self._loading)

    def activate(self, now_ms: float) -> None:
        """Take what has loaded by ``now_ms`` into service."""
        while self._loading and self._loading[0][0] <= now_ms:
            _, instance, level = heapq.heappop(self._loading)
            push(self.heaps[level], int(self.sizes[level]), instance, self.free_ms)
            self.sizes[level] += 1

    def grow(self, level: int, now_ms: float, available_ms: float) -> None:
        """Add a GPU from ``now_ms`` on, with an instance of ``level`` in service from ``available_ms`` on."""
        self.gpus += 1
        self._begun.append(now_ms)
        self._add(level, available_ms)

    def shrink(self, level: int, now_ms: float) -> None:
        """Let the least busy instance of ``level`` answer what it was given; then its GPU goes."""
        self._ended.append(max(now_ms, self._retire(level)))
        self.gpus -= 1

    def replace(self, source: int, target: int, now_ms: float, load_ms: float) -> None:
        """Let the least busy instance of ``source`` answer what it was given, then load ``target``'s runtime."""
        self._add(target, max(now_ms, self._retire(source)) + load_ms)

    def spare(self, level: int) -> bool:
        """Say whether an instance of ``level`` may go.

        One must be in service, and of the longest runtime a second one, since it alone takes any request.
        """
        return bool(self.sizes[level] > (level == len(self.counts) - 1))

    def gpu_ms(self, until_ms: float) -> float:
        """Return the GPU time held from 0 to ``until_ms``."""
        ends = [min(end, until_ms) for end in self._ended] + [until_ms] * self.gpus
        starts = [min(start, until_ms) for start in self._begun]
        return sum(ends) - sum(starts)

    def _add(self, level: int, available_ms: float) -> None:
        if self._instances == len(self.free_ms):
            self.free_ms = np.concatenate([self.free_ms, np.zeros_like(self.free_ms)])
        if self.counts[level] == self.heaps.shape[1]:
            self.heaps = np.concatenate([self.heaps, np.zeros_like(self.heaps)], axis=1)
        self.free_ms[self._instances] = available_ms
        heapq.heappush(self._loading, (available_ms, self._instances, level))
        self._instances += 1
        self.counts[level] += 1

    def _retire(self, level: int) -> float:
        """Take the head of ``level`` out of service; return when it will have answered all it was given."""
        instance = take_head(self.heaps[level], int(self.sizes[level]), self.free_ms)
        self.sizes[level] -= 1
        self.counts[level] -= 1
        return float(self.free_ms[instance])
