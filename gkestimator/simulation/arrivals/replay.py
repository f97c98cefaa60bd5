"""Replay a recorded trace as arrivals: its streams dealt to the sources, its rates scaled, once or again and again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats, Ints, NumberOrNone, Series, Texts, count_below
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.arrivals.processes import generator
from gkestimator.simulation.arrivals.rates import Block
from gkestimator.simulation.arrivals.recorded import Recorded, record
from gkestimator.simulation.arrivals.scaling import MAX_FACTOR
from gkestimator.simulation.arrivals.streams import Streams
from gkestimator.simulation.options import ASSIGNMENTS, RATES, SCALINGS, check_fields

__all__ = ["ASSIGNMENTS", "RATES", "SCALINGS", "Recording", "Replay", "ReplayedArrivals", "replay_lengths"]


@frozen
class Replay:
    """Hold how a trace is replayed.

    ``form``: its format (None: known by its columns). ``start_s`` and ``duration_s``: the part of it that is
    used (None: to its end), seconds from its first request (formats that count seconds or minutes: from their
    0). ``loop``: begin again at its end; else a simulation that lasts longer is refused, and one that ends
    before the first request.

    ``assign``: which source a request is for. ``names``: the one that the plain CSV's column ``model`` names.
    ``streams``: the streams (functions, models and log types) in order of first appearance, round robin over
    the sources, as in USHER (Shubha et al., OSDI 2024; our reading); with fewer streams than sources, source
    i has stream i mod streams, and the requests of a stream go to its sources in turn. ``requests``: all
    requests in turn, as those of a trace without streams always do. ``auto``: names where there is such a
    column, else streams.

    ``rates``: ``plan``: each source's requests are scaled so that their mean over the used part is the
    source's rate; ``trace``: as recorded. Either times the rate scale. ``scaling``: ``copies`` or ``time``
    (:mod:`gkestimator.simulation.arrivals.scaling`). With ``time`` one factor speeds up all, so that the
    rates of all together are right, and what is left for a single source is done by copies.
    """

    form: str | None = None
    start_s: float = 0.0
    duration_s: NumberOrNone = None
    loop: bool = False
    assign: str = "auto"
    rates: str = "plan"
    scaling: str = "copies"

    def __post_init__(self) -> None:
        words = {"assign": ASSIGNMENTS, "rates": RATES, "scaling": SCALINGS}
        check_fields(self, words, prefix="replay: ")
        if not 0 <= self.start_s < np.inf:
            raise UsageError(f"replay: found a start of {self.start_s:g} s, expected at least 0 s")
        if self.duration_s is not None and not 0 < self.duration_s < np.inf:
            raise UsageError(f"replay: found a duration of {self.duration_s:g} s, expected above 0 s")


@frozen
class Recording:
    """Hold what a trace has for one source.

    ``requests``, their ``mean_rps`` over the used part, ``gap_cv``: standard deviation over mean of the times
    between them (1: Poisson; more: bursts; None: fewer than three requests, or times are known to the minute
    alone), and the ``factor`` by which ``copies`` multiplies them.
    """

    name: str
    requests: int
    mean_rps: float
    gap_cv: NumberOrNone
    factor: float


class ReplayedArrivals(Streams):
    """Replay the trace at ``path`` as arrivals of ``names`` with mean rates ``rates_rps``.

    The part that is used is read once, here: what is wrong in it is said before anything is simulated.
    ``length_ms``: how long one round lasts.

    Raises DocumentError: the trace is malformed, has no requests in the used part, none for a source with a
    rate, or too few to know a rate by; UsageError: a factor above 1e6.
    """

    def __init__(
        self,
        path: Path,
        names: Texts,
        rates_rps: Series,
        *,
        replay: Replay,
        seed: int,
        rate_scale: float,
    ) -> None:
        self.path = path
        self.replay = replay
        self.names = tuple(names)
        self._recorded = record(
            path,
            self.names,
            form=replay.form,
            assign=replay.assign,
            start_s=replay.start_s,
            duration_s=replay.duration_s,
        )
        means = self._recorded.counts / self._recorded.period_s
        wanted = means * rate_scale
        if replay.rates == "plan":
            wanted = np.asarray(rates_rps, np.float64) * rate_scale
        for name, mean, rate in zip(self.names, means, wanted, strict=True):
            if rate > 0 and mean == 0:
                raise DocumentError(
                    f"{path}: found no request for {name!r} in the part that is replayed, expected at least one for "
                    f"each of {len(self.names)} models and applications"
                )
        self._speed = 1.0
        if replay.scaling == "time" and wanted.sum() > 0:
            self._speed = float(wanted.sum() / means.sum())
        self._factors = np.divide(wanted, means * self._speed, out=np.zeros_like(wanted), where=means > 0)
        # Requests that do not divide evenly among the sources, and rounding, are no reason to drop or copy one.
        off = np.abs(self._factors - 1)
        self._factors[(off * self._recorded.counts < 1) & (off < 0.01)] = 1.0
        if self._factors.max() > MAX_FACTOR:
            most = int(self._factors.argmax())
            raise UsageError(
                f"{path}: {self.names[most]!r} has {means[most]:g} req/s in the trace and is to have {wanted[most]:g}, "
                f"expected a factor of at most {MAX_FACTOR:g}"
            )
        self.length_ms = self._recorded.period_s * 1e3 / self._speed
        openers = [partial(self._blocks, i, seed) for i in range(len(self.names))]
        super().__init__(openers, rate_rps=float(wanted.sum()), mean_rps=float(wanted.sum()))

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Yield chunks as :class:`Arrivals` says.

        Raises DocumentError where the trace is shorter and does not begin again, or has nothing before
        ``until_ms``.
        """
        _check_span(self.path, self._recorded, self._speed, until_ms, loop=self.replay.loop)
        return super().chunks(until_ms)

    def recordings(self) -> tuple[Recording, ...]:
        """Return what the trace has for each source."""
        recordings = []
        for i, name in enumerate(self.names):
            requests = int(self._recorded.counts[i])
            recording = Recording(
                name=name,
                requests=requests,
                mean_rps=requests / self._recorded.period_s,
                gap_cv=self._recorded.gap_cv(i),
                factor=float(self._factors[i]),
            )
            recordings.append(recording)
        return tuple(recordings)

    def _blocks(self, source: int, seed: int) -> Iterator[Block]:
        if self._factors[source] == 0:
            return
        draw = generator(seed, source, 2)
        factor = float(self._factors[source])
        unit_ms = 1e3 / self._speed
        for times, _, known in _rounds(self._recorded, source, factor, self.replay.loop, draw):
            yield times * unit_ms, known * unit_ms


def replay_lengths(
    path: Path,
    *,
    replay: Replay | None = None,
    rate_rps: NumberOrNone = None,
    seed: int = 0,
    until_ms: NumberOrNone = None,
) -> Iterator[tuple[Floats, Ints]]:
    """Return all requests of a trace with lengths as one source.

    They are blocks of (times in ms, ascending; lengths in tokens). ``rate_rps``: mean rate that they are
    scaled to (None: as recorded); a copy has its request's length. ``until_ms``: where to stop (None: one
    round). Raises DocumentError as :class:`ReplayedArrivals` does, and for a format without lengths.
    """
    how = replay or Replay()
    recorded = record(
        path,
        ("all",),
        form=how.form,
        assign="requests",
        start_s=how.start_s,
        duration_s=how.duration_s,
        lengths=True,
    )
    mean = float(recorded.counts[0]) / recorded.period_s
    scale = speed = 1.0
    if rate_rps is not None:
        scale = rate_rps / mean
    if not 0 < scale <= MAX_FACTOR:
        raise UsageError(
            f"{path}: found a mean of {mean:g} req/s, expected {rate_rps:g}: a factor of at most {MAX_FACTOR:g}"
        )
    if how.scaling == "time":
        speed = scale
    unit_ms = 1e3 / speed
    end = until_ms
    if end is None:
        end = recorded.period_s * 1e3 / speed
    _check_span(path, recorded, speed, end, loop=how.loop)

    def blocks() -> Iterator[tuple[Floats, Ints]]:
        draw = generator(seed, 0, 2)
        for times, lengths, known in _rounds(recorded, 0, scale / speed, how.loop, draw):
            times = times * unit_ms
            stop = count_below(times, end)
            if stop and lengths is not None:
                yield times[:stop], lengths[:stop]
            if known * unit_ms >= end:
                return

    return blocks()


def _check_span(path: Path, recorded: Recorded, speed: float, until_ms: float, *, loop: bool) -> None:
    """Raise DocumentError where a simulation of ``until_ms`` is longer than the trace, or ends before it begins."""
    length_s = recorded.period_s / speed
    first_s = recorded.first_s / speed
    until_s = until_ms / 1e3
    if not loop and until_s > length_s * (1 + 1e-9):
        raise DocumentError(
            f"{path}: the part that is replayed ends after {length_s:.6g} s, expected {until_s:.6g} s (a shorter "
            "duration, or the trace in a loop)"
        )
    if until_s <= first_s:
        raise DocumentError(
            f"{path}: the first request comes {first_s:.6g} s after the start of the part that is replayed, expected "
            f"one in the {until_s:.6g} s that are simulated (a later start)"
        )


def _rounds(
    recorded: Recorded, source: int, factor: float, loop: bool, draw: np.random.Generator
) -> Iterator[tuple[Floats, Ints | None, float]]:
    """Yield the source's requests round after round where it is a loop, else once.

    Each piece has times in seconds from the start of the replay, lengths, and up to when all are known.
    """
    number = 0
    while number == 0 or loop:
        for times, lengths in recorded.scaled(source, factor, draw):
            if len(times):
                times = times + number * recorded.period_s
                yield times, lengths, float(times[-1])
        number += 1
        # A round may have been thinned to nothing.
        yield np.empty(0), None, number * recorded.period_s
