"""Give requests with a length, in chunks: lengths drawn on any arrival process, or times and lengths of a trace."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import (
    Floats,
    Ints,
    Series,
    all_at_least,
    ascend_from_zero,
    count_below,
    generator_of,
)
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.replay import Replay, replay_lengths

# Children 0 to 3 of the seed are the simulator's and the arrivals'.
_SPAWN = 4
_LONGEST = 1_000_000


@frozen
class LengthChunk:
    """Hold all requests that come from the end of the chunk before (0 for the first) up to ``end_ms``, not
    included.

    They are ascending times and each request's length in tokens (at least 1).
    """

    end_ms: float
    times_ms: Floats
    lengths: Ints


class LengthRequests(abc.ABC):
    """Give a stream of requests with lengths."""

    @abc.abstractmethod
    def chunks(self, until_ms: float) -> Iterator[LengthChunk]:
        """Yield chunks up to ``until_ms``, the last one's end; called again, the same."""


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Hold a distribution of lengths.

    ``values`` (tokens, ascending) and ``below``, the chance of each or a shorter one (ascending, the last 1).
    """

    values: Ints
    below: Floats

    @classmethod
    def lognormal(cls, *, median: float, quantile: float, value: float, maximum: int) -> Lengths:
        """Return lengths by two quantiles: ``median``, and ``value`` at ``quantile`` (above 0.5).

        The logarithm is normal with mean ln(median) and deviation ln(value / median) / z, z the standard
        normal's quantile; rounded up to whole tokens, so that both quantiles hold as they stand. Longer ones
        than ``maximum`` are cut to it. Raises UsageError: not 1 <= median < value <= maximum, or a quantile
        not between 0.5 and 1.
        """
        if not (0.5 < quantile < 1 and 1 <= median < value <= maximum <= _LONGEST):
            raise UsageError(
                f"lengths: found median {median:g}, {value:g} at quantile {quantile:g} and at most {maximum:,}, "
                f"expected 1 <= median < value <= maximum <= {_LONGEST:,} and a quantile between 0.5 and 1"
            )
        deviation = math.log(value / median) / NormalDist().inv_cdf(quantile)
        normal = NormalDist(math.log(median), deviation)
        below = np.array([*(normal.cdf(math.log(n)) for n in range(1, maximum)), 1.0])
        return cls(values=np.arange(1, maximum + 1), below=below)

    @classmethod
    def listed(cls, lengths: Sequence[int], weights: Series) -> Lengths:
        """Return ``lengths`` (ascending) with chances in proportion to ``weights``.

        Raises UsageError: lists of unlike or no length, lengths that do not ascend from 1 on, a negative
        weight or none above 0.
        """
        values = np.asarray(lengths, np.int64)
        chances = np.asarray(weights, np.float64)
        if not len(values) or len(values) != len(chances):
            raise UsageError(
                f"lengths: found {len(values)} values and {len(chances)} weights, expected as many, at least one"
            )
        if values[0] < 1 or not (np.diff(values) > 0).all():
            raise UsageError("lengths: expected ascending whole numbers of at least 1")
        if not (all_at_least(0.0, chances) and chances.sum() > 0):
            raise UsageError("lengths: expected finite weights of at least 0, one of them above 0")
        below = np.cumsum(chances) / chances.sum()
        below[-1] = 1.0
        return cls(values=values, below=below)

    def at(self, chances: Floats) -> Ints:
        """Return the quantiles at ``chances`` (0 to 1)."""
        quantiles: Ints = self.values[np.searchsorted(self.below, chances, side="left")]
        return quantiles

    def shares(self, longest: Sequence[int]) -> Floats:
        """Return the chance of a length up to each of ``longest`` (ascending) and above the one before.

        Raises UsageError where a length is above the last.
        """
        if self.values[-1] > longest[-1]:
            raise UsageError(
                f"lengths up to {int(self.values[-1]):,}, expected none above the longest runtime, {longest[-1]:,}"
            )
        count = np.searchsorted(self.values, np.asarray(longest), side="right")
        below = np.concatenate(([0.0], self.below))[count]
        shares: Floats = np.diff(below, prepend=0.0)
        return shares


class Drawn(LengthRequests):
    """Give times of ``arrivals`` lengths that are drawn from ``lengths``.

    Where the arrivals have several sources, source k of K asks for the lengths between the quantiles k / K
    and (k + 1) / K: all together they have the distribution, and a burst of one moves the mix. One ``seed``,
    one stream.
    """

    def __init__(self, arrivals: Arrivals, lengths: Lengths, *, seed: int) -> None:
        self._arrivals = arrivals
        self._lengths = lengths
        self._seed = seed

    def chunks(self, until_ms: float) -> Iterator[LengthChunk]:
        """Yield chunks as :class:`LengthRequests` says."""
        sources = self._arrivals.sources
        generators = [generator_of(self._seed, _SPAWN, k) for k in range(sources)]
        for chunk in self._arrivals.chunks(until_ms):
            parts = []
            for k, (own, generator) in enumerate(zip(chunk.times_ms, generators, strict=True)):
                chances = (k + generator.random(len(own))) / sources
                parts.append(self._lengths.at(chances))
            times = np.concatenate(chunk.times_ms)
            lengths = np.concatenate(parts)
            if sources > 1:
                order = np.argsort(times, kind="stable")
                times = times[order]
                lengths = lengths[order]
            yield LengthChunk(end_ms=chunk.end_ms, times_ms=times, lengths=lengths)


class RequestsInMemory(LengthRequests):
    """Hold requests in memory.

    Raises UsageError: lists of unlike lengths, times that do not ascend from 0 on, lengths below 1.
    """

    def __init__(self, times_ms: Series | Floats, lengths: Sequence[int] | Ints) -> None:
        self._times = np.asarray(times_ms, np.float64)
        self._lengths = np.asarray(lengths, np.int64)
        if self._times.shape != self._lengths.shape or self._times.ndim != 1:
            raise UsageError(
                f"requests: found {self._times.size} times and {self._lengths.size} lengths, expected as many"
            )
        if not ascend_from_zero(self._times):
            raise UsageError("requests: expected finite ascending times of at least 0 ms")
        if (self._lengths < 1).any():
            raise UsageError("requests: found a length below 1, expected at least one token")

    def chunks(self, until_ms: float) -> Iterator[LengthChunk]:
        """Yield one chunk with all."""
        end = count_below(self._times, until_ms)
        yield LengthChunk(end_ms=until_ms, times_ms=self._times[:end], lengths=self._lengths[:end])


class ReplayedRequests(LengthRequests):
    """Replay a trace with lengths (:func:`gkestimator.simulation.arrivals.replay.replay_lengths`).

    ``rate_rps``: the mean rate it is scaled to (None: as recorded). ``longest``: what the longest runtime
    takes; with ``truncate`` longer requests are cut to it, without they are an error (DocumentError naming
    the trace).
    """

    def __init__(
        self,
        path: Path,
        *,
        replay: Replay,
        rate_rps: float | None,
        seed: int,
        longest: int,
        truncate: bool,
    ) -> None:
        self._path = path
        self._replay = replay
        self._rate = rate_rps
        self._seed = seed
        self._longest = longest
        self._truncate = truncate
        self.truncated = 0

    def chunks(self, until_ms: float) -> Iterator[LengthChunk]:
        """Yield chunks as :class:`LengthRequests` says; ``truncated`` counts the requests that were cut."""
        self.truncated = 0
        for times, lengths in replay_lengths(
            self._path, replay=self._replay, rate_rps=self._rate, seed=self._seed, until_ms=until_ms
        ):
            longer = int(np.count_nonzero(lengths > self._longest))
            if longer and not self._truncate:
                raise DocumentError(
                    f"{self._path}: found a request of {int(lengths.max()):,} tokens, expected at most "
                    f"{self._longest:,}, the longest runtime (longer: truncate cuts them)"
                )
            self.truncated += longer
            lengths = np.clip(lengths, 1, self._longest)
            yield LengthChunk(end_ms=float(times[-1]), times_ms=times, lengths=lengths)
        yield LengthChunk(end_ms=until_ms, times_ms=np.empty(0), lengths=np.empty(0, np.int64))
