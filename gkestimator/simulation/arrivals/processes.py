"""Draw arrivals: Poisson, Markov-modulated Poisson, evenly spaced; at one rate or along a profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np
from numpy.random import Generator

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats, generator_of
from gkestimator.simulation.arrivals.rates import Block, Bursts, Profile, bent

PROCESSES = ("poisson", "mmpp", "constant")
# Requests drawn at a time. The times depend on it in the last digit, so it is fixed, whatever the chunks.
_BLOCK = 4096
# The seed's third child (0 to 2 are the simulator's own) is the arrivals'; its children are the sources.
_SPAWN = 3


def generator(seed: int, source: int, part: int = 0) -> Generator:
    """Return the generator of ``part`` (0: requests, 1: states of the rate, 2: replays) of source number ``source``."""
    return generator_of(seed, _SPAWN, source, part)


@frozen
class ArrivalProcess:
    """Draw one source's stream.

    ``kind``: ``poisson``; ``mmpp``: Poisson whose rate jumps between the states of ``bursts``, in the mean
    ``rate``; ``constant``: evenly spaced, the first at a random part of the first interval (so that sources
    of one rate do not come in step). ``rate``: requests per second, or a profile (``poisson`` and
    ``constant``; spacing is even in requests expected then).

    The same ``seed`` and ``source`` (number) give the same times; sources and seeds are independent. Raises
    UsageError: an unknown kind, a rate that is negative or not finite, a profile with ``mmpp``.
    """

    kind: str
    rate: float | Profile
    source: int
    seed: int
    bursts: Bursts = field(default_factory=Bursts)

    def __post_init__(self) -> None:
        if self.kind not in PROCESSES:
            raise UsageError(f"arrivals {self.kind!r} are not known, expected one of {', '.join(PROCESSES)}")
        if isinstance(self.rate, Profile):
            if self.kind == "mmpp":
                raise UsageError("arrivals mmpp take a mean rate, found a rate profile")
        elif not 0 <= self.rate < np.inf:
            raise UsageError(f"rate of source {self.source}: found {self.rate} req/s, expected at least 0")

    @property
    def peak_rps(self) -> float:
        """Return the highest rate at any time, requests per second."""
        if isinstance(self.rate, Profile):
            return self.rate.peak_rps
        if self.kind == "mmpp":
            return self.rate * max(self.bursts.relative)
        return self.rate

    @property
    def changes_per_s(self) -> float:
        """Return how often a drawn rate changes, in the mean."""
        return self.bursts.changes_per_s if self.kind == "mmpp" else 0.0

    def blocks(self) -> Iterator[Block]:
        """Yield the stream from its start, block by block."""
        if self.peak_rps == 0:
            return
        draw = generator(self.seed, self.source)
        units = _random(draw)
        if self.kind == "constant":
            units = _even(draw)
        if isinstance(self.rate, Profile):
            yield from bent(units, iter([self.rate.segments()]))
        elif self.kind == "mmpp":
            states = generator(self.seed, self.source, 1)
            yield from bent(units, self.bursts.stretches(self.rate, states))
        else:
            interval = 1e3 / self.rate
            for block in units:
                times = block * interval
                yield times, float(times[-1])


def _random(draw: Generator) -> Iterator[Floats]:
    """Yield times of a Poisson process of rate 1."""
    last = 0.0
    while True:
        times = draw.standard_exponential(_BLOCK)
        times[0] += last
        np.cumsum(times, out=times)
        last = float(times[-1])
        yield times


def _even(draw: Generator) -> Iterator[Floats]:
    """Yield times one apart, the first at random before 1."""
    phase = draw.random()
    first = 0
    while True:
        yield np.arange(first, first + _BLOCK, dtype=np.float64) + phase
        first += _BLOCK
