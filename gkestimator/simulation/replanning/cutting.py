"""Arrivals cut at the times at which somebody looks."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.arrays import Floats
from gkestimator.simulation.arrivals.base import Arrivals, Chunk


class Cutter:
    """The chunks of ``arrivals`` up to ``until_ms``, cut anew: :meth:`take` gives what comes up to any time. One
    chunk of the arrivals is in memory at a time, beside what is taken."""

    def __init__(self, arrivals: Arrivals, until_ms: float) -> None:
        self._chunks = iter(arrivals.chunks(until_ms))
        self._held: tuple[Floats, ...] = (np.empty(0),) * arrivals.sources
        self._held_to = 0.0

    def take(self, end_ms: float) -> Chunk:
        """What comes from the end of the last one taken up to ``end_ms``, not included; nothing beyond the end of
        the arrivals."""
        parts: list[list[Floats]] = [[] for _ in self._held]
        while True:
            rest = []
            for times, found in zip(self._held, parts, strict=True):
                cut = int(np.searchsorted(times, end_ms, side="left"))
                if cut:
                    found.append(times[:cut])
                rest.append(times[cut:])
            self._held = tuple(rest)
            if self._held_to >= end_ms:
                break
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._held = chunk.times_ms
            self._held_to = chunk.end_ms
        return Chunk(
            end_ms=end_ms,
            times_ms=tuple(np.concatenate(p) if p else np.empty(0) for p in parts),
        )
