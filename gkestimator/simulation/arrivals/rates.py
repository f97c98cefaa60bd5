"""Rates that vary in time, given (profiles) or drawn (Markov-modulated); how a stream of rate 1 is bent to them.

A Poisson process of varying rate ``r(t)`` is one of rate 1 seen on another clock: its times are ``L^-1(E)``, with ``E``
the times of the process of rate 1 and ``L`` the integral of ``r`` (Lewis and Shedler, 1979). The same clock bends
evenly spaced requests.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats

# Ascending times in ms, and the time up to which all are known: those that follow come then or later.
Block = tuple[Floats, float]
# Sojourns drawn at a time. The times depend on it in the last digit, so it is fixed.
_SOJOURNS = 1024


@frozen
class Segments:
    """A stretch of rate, piecewise linear; arrays of one length. ``units``: requests expected up to the beginning of
    each segment; ``start_ms``; ``rate`` there (requests per ms) and its ``slope`` (per ms squared); ``end_units`` and
    ``end_ms`` of the stretch (infinite when the last rate holds for ever)."""

    units: Floats
    start_ms: Floats
    rate: Floats
    slope: Floats
    end_units: float
    end_ms: float


@frozen
class Profile:
    """A rate over time: ``rates_rps[i]`` at ``times_s[i]``. ``ramp`` False: it holds until the next time; True: it goes
    to the next on a straight line. Before the first time nothing comes; after the last time the last rate holds.

    Raises UsageError: no points, lengths that differ, times that do not ascend, negative or infinite figures.
    """

    times_s: tuple[float, ...]
    rates_rps: tuple[float, ...]
    ramp: bool = False

    def __post_init__(self) -> None:
        times = np.asarray(self.times_s, np.float64)
        rates = np.asarray(self.rates_rps, np.float64)
        if len(times) == 0 or len(times) != len(rates):
            raise UsageError(
                f"rate profile: found {len(times)} times and {len(rates)} rates, expected as many rates as times"
            )
        if not (np.isfinite(times).all() and times[0] >= 0 and (np.diff(times) > 0).all()):
            raise UsageError("rate profile: expected ascending finite times of at least 0 s")
        if not (np.isfinite(rates).all() and (rates >= 0).all()):
            raise UsageError("rate profile: expected finite rates of at least 0 req/s")

    @property
    def peak_rps(self) -> float:
        """The highest rate, requests per second."""
        return max(self.rates_rps)

    def scaled(self, factor: float) -> Profile:
        """The profile with every rate times ``factor``."""
        return Profile(
            times_s=self.times_s, rates_rps=tuple(r * factor for r in self.rates_rps), ramp=self.ramp
        )

    def segments(self) -> Segments:
        """The whole profile as one stretch."""
        start = np.asarray(self.times_s) * 1e3
        rate = np.asarray(self.rates_rps) / 1e3
        slope = np.zeros(len(rate))
        if self.ramp and len(rate) > 1:
            slope[:-1] = np.diff(rate) / np.diff(start)
        width = np.diff(start)
        units = np.concatenate([[0.0], np.cumsum((rate[:-1] + slope[:-1] * width / 2) * width)])
        if rate[-1] > 0:
            end = np.inf
        else:
            end = float(units[-1])
        return Segments(
            units=units, start_ms=start, rate=rate, slope=slope, end_units=float(end), end_ms=np.inf
        )


@frozen
class Bursts:
    """The states of a Markov-modulated Poisson process: ``factors`` are their rates relative to each other,
    ``sojourns_s`` the means of the exponential times spent in them; the next state is any other, all alike. The
    first is drawn by the share of time that each has in the long run, so the process is stationary from the start.

    The long-run mean is the rate that is asked for, whatever the factors: the shares of time are in proportion to the
    sojourns (each state is entered equally often), and the factors are divided by their mean over these shares. The
    default is calm for 8 s at half the rate, then a burst of 2 s at three times the rate.

    Raises UsageError: fewer than two states, lengths that differ, no factor above 0, sojourns not above 0.
    """

    factors: tuple[float, ...] = (0.5, 3.0)
    sojourns_s: tuple[float, ...] = (8.0, 2.0)

    def __post_init__(self) -> None:
        factors = np.asarray(self.factors, np.float64)
        sojourns = np.asarray(self.sojourns_s, np.float64)
        if len(factors) < 2 or len(factors) != len(sojourns):
            raise UsageError(
                f"bursts: found {len(factors)} factors and {len(sojourns)} sojourns, expected as many, at least two"
            )
        if not (np.isfinite(factors).all() and (factors >= 0).all() and factors.max() > 0):
            raise UsageError("bursts: expected finite factors of at least 0, one of them above 0")
        if not (np.isfinite(sojourns).all() and (sojourns > 0).all()):
            raise UsageError("bursts: expected finite sojourns above 0 s")

    @classmethod
    def of(cls, *, factor: float, share: float, burst_s: float) -> Bursts:
        """Two states: bursts of ``burst_s`` seconds in the mean, at ``factor`` times the mean rate, for ``share`` of
        the time. Raises UsageError where the bursts alone would exceed the mean rate (factor x share above 1)."""
        if not (0 < share < 1 and factor > 1 and factor * share <= 1 and burst_s > 0):
            raise UsageError(
                f"bursts: found factor {factor:g}, share {share:g} and {burst_s:g} s, expected a factor above 1, a "
                "share between 0 and 1, their product at most 1, and a length above 0 s"
            )
        calm = (1 - factor * share) / (1 - share)
        return cls(factors=(calm, factor), sojourns_s=(burst_s * (1 - share) / share, burst_s))

    @property
    def relative(self) -> tuple[float, ...]:
        """The rates of the states over the mean rate."""
        mean = sum(f * s for f, s in zip(self.factors, self.sojourns_s, strict=True)) / sum(self.sojourns_s)
        return tuple(f / mean for f in self.factors)

    def stretches(self, rate_rps: float, draw: np.random.Generator) -> Iterator[Segments]:
        """A drawn path, stretch after stretch, without end."""
        rates = np.asarray(self.relative) * rate_rps / 1e3
        sojourns = np.asarray(self.sojourns_s) * 1e3
        count = len(rates)
        state = int(np.searchsorted(np.cumsum(sojourns / sojourns.sum())[:-1], draw.random(), side="right"))
        units = start = 0.0
        while True:
            # A step of 1 to count - 1 states onwards: any other state, all alike.
            if count > 2:
                steps = draw.integers(1, count, size=_SOJOURNS)
            else:
                steps = np.ones(_SOJOURNS, np.int64)
            path = (state + np.concatenate([[0], np.cumsum(steps)])) % count
            state = int(path[-1])
            path = path[:-1]
            lengths = draw.standard_exponential(_SOJOURNS) * sojourns[path]
            rate = rates[path]
            starts = start + np.concatenate([[0.0], np.cumsum(lengths)])
            sums = units + np.concatenate([[0.0], np.cumsum(lengths * rate)])
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
    """The times in ms at which a process of rate 1 with times ``units`` (ascending blocks) fires on the clock of
    ``stretches``; ends where these do."""
    stretch: Segments | None = next(stretches, None)
    last = 0.0
    for block in units:
        while len(block):
            if stretch is None:
                return
            split = int(np.searchsorted(block, stretch.end_units, side="left"))
            if split:
                times = _inverse(block[:split], stretch)
            else:
                times = np.empty(0)
            if split:
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
    """When each of ``units`` (ascending, inside ``s``, at least one) is reached."""
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
    root = np.sqrt(np.maximum(rate * rate + 2 * s.slope[which] * over, 0.0))
    step = np.divide(2 * over, rate + root, out=np.zeros_like(over), where=over > 0)
    ends = np.append(s.start_ms[1:], s.end_ms)
    found: Floats = np.minimum(s.start_ms[which] + step, ends[which])
    return found
