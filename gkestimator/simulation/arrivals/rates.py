"""Bend a stream of rate 1 to rates that vary in time: profiles, or drawn ones (Markov-modulated).

A Poisson process of varying rate ``r(t)`` is one of rate 1 seen on another clock: its times are ``L^-1(E)``,
with ``E`` the times of the process of rate 1 and ``L`` the integral of ``r`` (Lewis and Shedler, 1979). The
same clock bends evenly spaced requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats, Numbers, all_at_least, count_below

# Ascending times in ms, and the time up to which all are known: those that follow come then or later.
Block = tuple[Floats, float]
# Sojourns drawn at a time. The times depend on it in the last digit, so it is fixed.
_SOJOURNS = 1024


@frozen
class Segments:
    """Hold a stretch of rate, piecewise linear, in arrays of one length.

    ``units``: requests expected up to the beginning of each segment; ``start_ms``; ``rate`` there (requests
    per ms) and its ``slope`` (per ms squared); ``end_units`` and ``end_ms`` of the stretch (infinite when the
    last rate holds for ever).
    """

    units: Floats
    start_ms: Floats
    rate: Floats
    slope: Floats
    end_units: float
    end_ms: float


@frozen
class Profile:
    """Hold a rate over time: ``rates_rps[i]`` at ``times_s[i]``.

    ``ramp`` False: it holds until the next time; True: it goes to the next on a straight line. Before the
    first time nothing comes; after the last time the last rate holds.

    Raises UsageError: no points, lengths that differ, times that do not ascend, negative or infinite figures.
    """

    times_s: Numbers
    rates_rps: Numbers
    ramp: bool = False

    def __post_init__(self) -> None:
        times = np.asarray(self.times_s, np.float64)
        rates = np.asarray(self.rates_rps, np.float64)
        if len(times) == 0 or len(times) != len(rates):
            raise UsageError(
                f"rate profile: found {len(times)} times and {len(rates)} rates, expected as many rates as times"
            )
        if not (all_at_least(0.0, times) and (np.diff(times) > 0).all()):
            raise UsageError("rate profile: expected ascending finite times of at least 0 s")
        if not all_at_least(0.0, rates):
            raise UsageError("rate profile: expected finite rates of at least 0 req/s")

    @property
    def peak_rps(self) -> float:
        """Return the highest rate, requests per second."""
        return max(self.rates_rps)

    def scaled(self, factor: float) -> Profile:
        """Return the profile with every rate times ``factor``."""
        return replace(self, rates_rps=tuple(rate * factor for rate in self.rates_rps))

    def segments(self) -> Segments:
        """Return the whole profile as one stretch."""
        start = np.asarray(self.times_s) * 1e3
        rate = np.asarray(self.rates_rps) / 1e3
        slope = np.zeros(len(rate))
        if self.ramp and len(rate) > 1:
            slope[:-1] = np.diff(rate) / np.diff(start)
        width = np.diff(start)
        mean_rate = rate[:-1] + slope[:-1] * width / 2
        units = _sums_from(0.0, mean_rate * width)
        end_units = float(units[-1])
        if rate[-1] > 0:
            end_units = np.inf
        return Segments(
            units=units, start_ms=start, rate=rate, slope=slope, end_units=end_units, end_ms=np.inf
        )


@frozen
class Bursts:
    """Hold the states of a Markov-modulated Poisson process.

    ``factors`` are their rates relative to each other, ``sojourns_s`` the means of the exponential times
    spent in them; the next state is any other, all alike. The first is drawn by the share of time that each
    has in the long run, so the process is stationary from the start.

    The long-run mean is the rate that is asked for, whatever the factors: the shares of time are in
    proportion to the sojourns (each state is entered equally often), and the factors are divided by their
    mean over these shares. The default is calm for 8 s at half the rate, then a burst of 2 s at three times
    the rate.

    Raises UsageError: fewer than two states, lengths that differ, no factor above 0, sojourns not above 0.
    """

    factors: Numbers = (0.5, 3.0)
    sojourns_s: Numbers = (8.0, 2.0)

    def __post_init__(self) -> None:
        factors = np.asarray(self.factors, np.float64)
        sojourns = np.asarray(self.sojourns_s, np.float64)
        if len(factors) < 2 or len(factors) != len(sojourns):
            raise UsageError(
                f"bursts: found {len(factors)} factors and {len(sojourns)} sojourns, expected as many, at least two"
            )
        if not (all_at_least(0.0, factors) and factors.max() > 0):
            raise UsageError("bursts: expected finite factors of at least 0, one of them above 0")
        if not (np.isfinite(sojourns).all() and (sojourns > 0).all()):
            raise UsageError("bursts: expected finite sojourns above 0 s")

    @classmethod
    def of(cls, *, factor: float, share: float, burst_s: float) -> Bursts:
        """Return two states: calm, and bursts of ``burst_s`` seconds in the mean.

        Bursts come at ``factor`` times the mean rate, for ``share`` of the time. Raises UsageError where they
        alone would exceed the mean rate (factor x share above 1).
        """
        if not (0 < share < 1 and factor > 1 and factor * share <= 1 and burst_s > 0):
            raise UsageError(
                f"bursts: found factor {factor:g}, share {share:g} and {burst_s:g} s, expected a factor above 1, a "
                "share between 0 and 1, their product at most 1, and a length above 0 s"
            )
        calm = (1 - factor * share) / (1 - share)
        return cls(factors=(calm, factor), sojourns_s=(burst_s * (1 - share) / share, burst_s))

    @property
    def relative(self) -> Numbers:
        """Return the rates of the states over the mean rate."""
        weighted = sum(f * s for f, s in zip(self.factors, self.sojourns_s, strict=True))
        mean = weighted / sum(self.sojourns_s)
        return tuple(factor / mean for factor in self.factors)

    @property
    def changes_per_s(self) -> float:
        """Return how often the rate changes, in the mean: each state is entered equally often."""
        return len(self.sojourns_s) / sum(self.sojourns_s)

    def stretches(self, rate_rps: float, draw: np.random.Generator) -> Iterator[Segments]:
        """Yield a drawn path, stretch after stretch, without end."""
        rates = np.asarray(self.relative) * rate_rps / 1e3
        sojourns = np.asarray(self.sojourns_s) * 1e3
        count = len(rates)
        shares = np.cumsum(sojourns / sojourns.sum())
        state = int(np.searchsorted(shares[:-1], draw.random(), side="right"))
        units = start = 0.0
        while True:
            # A step of 1 to count - 1 states onwards: any other state, all alike.
            steps = np.ones(_SOJOURNS, np.int64)
            if count > 2:
                steps = draw.integers(1, count, size=_SOJOURNS)
            visited = (state + np.concatenate([[0], np.cumsum(steps)])) % count
            state = int(visited[-1])
            path = visited[:-1]
            lengths = draw.standard_exponential(_SOJOURNS) * sojourns[path]
            rate = rates[path]
            starts = _sums_from(start, lengths)
            sums = _sums_from(units, lengths * rate)
            start = float(starts[-1])
            units = float(sums[-1])
            yield Segments(
                units=sums[:-1],
                start_ms=starts[:-1],
                rate=rate,
                slope=np.zeros(_SOJOURNS),
                end_units=units,
                end_ms=start,
            )


def bent(units: Iterator[Floats], stretches: Iterator[Segments]) -> Iterator[Block]:
    """Yield the times in ms at which a process of rate 1 with times ``units`` fires on the clock of
    ``stretches``.

    ``units`` are ascending blocks. It ends where the stretches do.
    """
    stretch = next(stretches, None)
    last = 0.0
    for block in units:
        while len(block):
            if stretch is None:
                return
            split = count_below(block, stretch.end_units)
            times: Floats = np.empty(0)
            if split:
                times = _inverse(block[:split], stretch)
                # Rounding must not turn the order round.
                times[0] = max(times[0], last)
                np.maximum.accumulate(times, out=times)
                last = float(times[-1])
            block = block[split:]
            if len(block):
                last = max(last, stretch.end_ms)
                stretch = next(stretches, None)
            yield times, last


def _inverse(units: Floats, s: Segments) -> Floats:
    """Return when each of ``units`` (ascending, inside ``s``, at least one) is reached."""
    low = int(np.searchsorted(s.units, units[0], side="right")) - 1
    high = int(np.searchsorted(s.units, units[-1], side="right"))
    # Which segment each is in: a search for the segments' few bounds costs less than one for each request.
    bounds = np.searchsorted(units, s.units[low + 1 : high], side="left")
    which = np.repeat(np.arange(low, high), np.diff(bounds, prepend=0, append=len(units)))
    over = units - s.units[which]
    rate = s.rate[which]
    if not s.slope[low:high].any():
        return s.start_ms[which] + over / rate
    # rate x + slope x^2 / 2 = over, solved in the form that loses no digits where slope is small
    square = rate * rate + 2 * s.slope[which] * over
    root = np.sqrt(np.maximum(square, 0.0))
    step = np.divide(2 * over, rate + root, out=np.zeros_like(over), where=over > 0)
    ends = np.append(s.start_ms[1:], s.end_ms)
    times: Floats = np.minimum(s.start_ms[which] + step, ends[which])
    return times


def _sums_from(start: float, steps: Floats) -> Floats:
    """Return ``start`` and, after each of ``steps``, the sum so far."""
    return start + np.concatenate([[0.0], np.cumsum(steps)])
