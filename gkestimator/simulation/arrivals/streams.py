"""Cut streams of blocks side by side into chunks, and chunks anew at the times at which somebody looks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.limits import check_amount
from gkestimator.simulation.arrays import Floats, ascend_from_zero, count_below
from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.arrivals.rates import Block

CHUNK_REQUESTS = 262_144
# A chunk holds all requests of one time; a trace in which more have one is no trace.
MAX_AT_ONCE = 2**24


class Streams(Arrivals):
    """Hold independent streams, one for each source.

    ``openers[i]()`` gives source i's blocks from the start, anew at each call. ``rate_rps``: that of all
    streams together (the peak, where it varies), by which chunks are made so long. ``mean_rps``, and the changes of
    rate per second of all streams together: as far as they are known before, for the limits ``requests`` and
    ``rate_changes``.
    """

    def __init__(
        self,
        openers: Sequence[Callable[[], Iterator[Block]]],
        *,
        rate_rps: float,
        mean_rps: float = 0.0,
        changes_per_s: float = 0.0,
    ) -> None:
        self._mean_rps = mean_rps
        self._changes_per_s = changes_per_s
        self._openers = tuple(openers)
        self.sources = len(self._openers)
        self.span_ms = np.inf
        if rate_rps > 0:
            self.span_ms = CHUNK_REQUESTS / rate_rps * 1e3

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Yield chunks as :class:`Arrivals` says.

        A chunk ends at a multiple of the time that ``CHUNK_REQUESTS`` take at that rate, or before, where
        more than twice as many are known. Raises UsageError where more than MAX_AT_ONCE come at one time, and beyond
        the limits ``requests`` and ``rate_changes``: at once where the mean rate is known.
        """
        check_amount("arrivals", "requests", self._mean_rps * until_ms / 1e3)
        check_amount("arrivals", "rate_changes", self._changes_per_s * until_ms / 1e3)
        given = 0
        streams = [_Stream(opener()) for opener in self._openers]
        end = 0.0
        number = 1
        while end < until_ms:
            number += number * self.span_ms <= end
            end = _read(streams, end, min(number * self.span_ms, until_ms))
            chunk = Chunk(end_ms=end, times_ms=tuple(s.before(end) for s in streams))
            given += sum(map(len, chunk.times_ms))
            check_amount("arrivals", "requests", given)
            yield chunk


class _Stream:
    """Read blocks as far as is asked for."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self.blocks = blocks
        self.parts: list[Floats] = [np.empty(0)]
        self.known_ms = 0.0

    def read(self) -> int:
        """Read one block more; return how many requests the last one held."""
        block = next(self.blocks, None)
        held = len(self.parts[-1])
        if block is None:
            self.known_ms = np.inf
        else:
            self.parts.append(block[0])
            self.known_ms = block[1]
        return held

    def before(self, end_ms: float) -> Floats:
        """Return the times not given yet that are before ``end_ms``."""
        times = np.concatenate(self.parts)
        split = count_below(times, end_ms)
        # A copy: a view would keep the whole block.
        self.parts = [times[split:].copy()]
        return times[:split]


def _read(streams: Sequence[_Stream], begin_ms: float, target_ms: float) -> float:
    """Read streams, the one that is known least far first, until all are known up to ``target_ms`` or there
    is enough.

    Returns how far they are known, past ``begin_ms``. Raises UsageError: that takes more than MAX_AT_ONCE
    requests.
    """
    queue = [(s.known_ms, i) for i, s in enumerate(streams)]
    heapq.heapify(queue)
    held = 0
    while queue and queue[0][0] < target_ms:
        if held > 2 * CHUNK_REQUESTS and queue[0][0] > begin_ms:
            return queue[0][0]
        if held > MAX_AT_ONCE:
            raise UsageError(
                f"arrivals: found more than {MAX_AT_ONCE:,} requests at {begin_ms / 1e3:g} s, expected fewer at one "
                "time"
            )
        stream = streams[queue[0][1]]
        held += stream.read()
        heapq.heapreplace(queue, (stream.known_ms, queue[0][1]))
    return target_ms


class TimesInMemory(Arrivals):
    """Hold times in memory: ``times_ms[i]`` of source i, ascending, at least 0. Raises UsageError else."""

    def __init__(self, times_ms: Sequence[Iterable[float]]) -> None:
        self._times = tuple(np.asarray(list(t), np.float64) for t in times_ms)
        self.sources = len(self._times)
        for i, times in enumerate(self._times):
            if not ascend_from_zero(times):
                raise UsageError(f"times of source {i}: expected finite ascending times of at least 0 ms")

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Yield one chunk with all."""
        times = tuple(t[: np.searchsorted(t, until_ms, side="left")] for t in self._times)
        yield Chunk(end_ms=until_ms, times_ms=times)


class Cutter:
    """Cut the chunks of ``arrivals`` up to ``until_ms`` anew: :meth:`take` gives what comes up to any time.

    One chunk of the arrivals is in memory at a time, beside what is taken.
    """

    def __init__(self, arrivals: Arrivals, until_ms: float) -> None:
        self._chunks = iter(arrivals.chunks(until_ms))
        self._held = Chunk(end_ms=0.0, times_ms=(np.empty(0),) * arrivals.sources)

    def take(self, end_ms: float) -> Chunk:
        """Return what comes from the end of the last one taken up to ``end_ms``, not included.

        Beyond the end of the arrivals nothing comes.
        """
        held = self._held
        while held.end_ms < end_ms:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            pairs = zip(held.times_ms, chunk.times_ms, strict=True)
            held = Chunk(end_ms=chunk.end_ms, times_ms=tuple(np.concatenate(pair) for pair in pairs))
        taken = []
        rest = []
        for times in held.times_ms:
            cut = count_below(times, end_ms)
            taken.append(times[:cut])
            rest.append(times[cut:])
        self._held = Chunk(end_ms=held.end_ms, times_ms=tuple(rest))
        return Chunk(end_ms=end_ms, times_ms=tuple(taken))
