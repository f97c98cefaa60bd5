"""Streams of blocks side by side, cut into chunks; chunks cut at given times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gkestimator.errors import UsageError
from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.arrivals.rates import Block

__all__ = ["Given", "Streams", "sliced"]

Floats = NDArray[np.float64]
CHUNK_REQUESTS = 262_144


class Streams(Arrivals):
    """Independent streams, one for each source. ``openers[i]()`` gives source i's blocks from the start, anew at each
    call. ``peak_rps``: the highest rate of all streams together, by which the length of chunks is chosen."""

    def __init__(self, openers: Sequence[Callable[[], Iterator[Block]]], *, peak_rps: float) -> None:
        self._openers = tuple(openers)
        self.sources = len(self._openers)
        self.span_ms = CHUNK_REQUESTS / peak_rps * 1e3 if peak_rps > 0 else np.inf

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """As in :class:`Arrivals`; a chunk is as long as ``CHUNK_REQUESTS`` take at the peak rate."""
        open_streams = [_Stream(opener()) for opener in self._openers]
        number = 0
        end = 0.0
        while end < until_ms:
            number += 1
            end = min(number * self.span_ms, until_ms)
            yield Chunk(end_ms=end, times_ms=tuple(s.before(end) for s in open_streams))


class _Stream:
    """Blocks that are read as far as is asked for."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.blocks = blocks
        self.left: Floats = np.empty(0)
        self.known_ms = 0.0

    def before(self, end_ms: float) -> Floats:
        """The times not given yet that are before ``end_ms``."""
        parts = [self.left]
        while self.known_ms < end_ms:
            block = next(self.blocks, None)
            if block is None:
                self.known_ms = np.inf
                break
            parts.append(block[0])
            self.known_ms = block[1]
        times = np.concatenate(parts) if len(parts) > 1 else self.left
        split = int(np.searchsorted(times, end_ms, side="left"))
        self.left = times[split:].copy()
        return times[:split]


class Given(Arrivals):
    """Times that are in memory: ``times_ms[i]`` of source i, ascending, at least 0. Raises UsageError else."""

    def __init__(self, times_ms: Sequence[Iterable[float]]) -> None:
        self._times = tuple(np.asarray(list(t), np.float64) for t in times_ms)
        self.sources = len(self._times)
        for i, times in enumerate(self._times):
            if not (np.isfinite(times).all() and (times >= 0).all() and (np.diff(times) >= 0).all()):
                raise UsageError(f"times of source {i}: expected finite ascending times of at least 0 ms")

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """As in :class:`Arrivals`; all in one chunk."""
        yield Chunk(
            end_ms=until_ms,
            times_ms=tuple(t[: np.searchsorted(t, until_ms, side="left")] for t in self._times),
        )


def sliced(arrivals: Arrivals, until_ms: float, every_ms: float) -> Iterator[Chunk]:
    """The chunks of ``arrivals`` up to ``until_ms``, cut so that one ends at each multiple of ``every_ms`` too. The
    requests are the same. Raises UsageError where ``every_ms`` is not above 0."""
    if not every_ms > 0:
        raise UsageError(f"cut every {every_ms:g} ms, expected above 0")
    number = 1
    for chunk in arrivals.chunks(until_ms):
        begin = [0] * len(chunk.times_ms)
        while True:
            end = min(number * every_ms, chunk.end_ms)
            split = [int(np.searchsorted(t, end, side="left")) for t in chunk.times_ms]
            yield Chunk(
                end_ms=end,
                times_ms=tuple(t[a:b] for t, a, b in zip(chunk.times_ms, begin, split, strict=True)),
            )
            begin = split
            number += number * every_ms <= end
            if end >= chunk.end_ms:
                break
