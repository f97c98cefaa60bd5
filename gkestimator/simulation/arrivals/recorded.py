"""Keep what a trace holds for each source: single requests in a spool, or counts per minute."""

from __future__ import annotations

import abc
import math
from pathlib import Path

import numpy as np
from numpy.random import Generator

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Ints, NumberOrNone, Texts
from gkestimator.simulation.arrivals.scaling import copied, strided
from gkestimator.simulation.arrivals.spool import Pieces, Spool, sliced
from gkestimator.simulation.traces.reading import Trace

_MINUTE = 60.0
_MAX_PER_MINUTE = 20_000_000
_PART = 2**20  # requests of a minute that are drawn at a time


class Recorded(abc.ABC):
    """Hold the part of a trace that is used.

    ``counts``: requests of each source; ``period_s``: how long the part lasts, from its start; ``first_s``:
    when its first request comes (where counts per minute are recorded: its minute begins).
    """

    counts: Ints
    period_s: float
    first_s: float

    @abc.abstractmethod
    def scaled(self, source: int, factor: float, draw: Generator) -> Pieces:
        """Yield one round of the source's requests, seconds from the start, ``factor`` times as many."""

    @abc.abstractmethod
    def gap_cv(self, source: int) -> NumberOrNone:
        """Return standard deviation over mean of the times between the source's requests (None: not known)."""


@frozen
class _Share:
    """Hold a source's part of a lane: every ``step``-th request from number ``first`` on."""

    lane: int
    first: int
    step: int


def record(
    path: Path,
    names: Texts,
    *,
    form: str | None,
    assign: str,
    start_s: float,
    duration_s: NumberOrNone,
    lengths: bool = False,
) -> Recorded:
    """Read the trace at ``path`` for the sources ``names``; arguments as in
    :class:`~gkestimator.simulation.arrivals.replay.Replay`. ``lengths``: keep them. Raises DocumentError."""
    trace = Trace(path, form=form)
    by_name = assign == "names" or (assign == "auto" and trace.form.names and trace.keyed)
    if by_name:
        if not (trace.form.names and trace.keyed):
            raise UsageError(f"{path}: requests are to go by names, expected a plain CSV with a column model")
        trace.known = tuple(names)
    if lengths and not trace.has_lengths:
        raise DocumentError(f"{path}: found no column of lengths, expected a trace that records them")
    if trace.form.clock == "minutes":
        if assign == "requests":
            raise UsageError(f"{path}: counts per minute are dealt by streams, not by single requests")
        return _Minutes(trace, len(names), start_s, duration_s)
    return _Requests(trace, names, "names" if by_name else assign, start_s, duration_s, lengths)


class _Requests(Recorded):
    def __init__(
        self,
        trace: Trace,
        names: Texts,
        assign: str,
        start_s: float,
        duration_s: NumberOrNone,
        lengths: bool,
    ) -> None:
        count = len(names)
        self._spool = Spool(count, lengths=lengths)
        end = math.inf
        if duration_s is not None:
            end = start_s + duration_s
        sources = {name: i for i, name in enumerate(names)}
        in_turn = assign == "requests" or not trace.keyed
        dealt = 0
        last = math.nan
        for rows in trace.rows():
            low, high = np.searchsorted(rows.times_s, (start_s, end), side="left").tolist()
            last = float(rows.times_s[-1])
            if in_turn:
                lanes = (dealt + np.arange(high - low)) % count
                dealt += high - low
            elif assign == "names":
                by_stream = np.array([sources[name] for name in trace.streams])
                lanes = by_stream[rows.streams[low:high]]
            else:
                lanes = rows.streams[low:high] % count
            lengths_here = sliced(rows.lengths, slice(low, high))
            self._spool.add(lanes, rows.times_s[low:high] - start_s, lengths_here)
            if high < len(rows.times_s):
                break
        total = int(self._spool.counts.sum())
        if total == 0:
            known = ""
            if math.isfinite(last):
                known = f" (the last comes at {last:g} s)"
            raise DocumentError(
                f"{trace.path}: found no request from {start_s:g} s to {end:g} s{known}, expected at least one"
            )
        streams = count
        if not in_turn and assign != "names":
            streams = min(len(trace.streams), count)
        self._shares = _shares(streams, count)
        counts = []
        for share in self._shares:
            lane_count = int(self._spool.counts[share.lane])
            counts.append(len(range(share.first, lane_count, share.step)))
        self.counts = np.array(counts, np.int64)
        self.period_s = _period(trace.path, self._spool, total, last, start_s, duration_s)
        self.first_s = self._spool.first_s

    def scaled(self, source: int, factor: float, draw: Generator) -> Pieces:
        return copied(self._pieces(source), factor, self.period_s, draw)

    def gap_cv(self, source: int) -> NumberOrNone:
        count = int(self.counts[source])
        if count < 3:
            return None
        first = last = math.nan
        for times, _ in self._pieces(source):
            if len(times):
                if math.isnan(first):
                    first = float(times[0])
                last = float(times[-1])
        mean = (last - first) / (count - 1)
        if mean == 0:
            return None
        # About the mean gap, which the ends tell: sums of squares of deviations lose no digits.
        squares = 0.0
        before = first
        for times, _ in self._pieces(source):
            if len(times):
                gaps = np.diff(times, prepend=before)
                squares += float(((gaps - mean) ** 2).sum())
                before = float(times[-1])
        # The first gap of all was taken as 0.
        squares = max(squares - mean**2, 0.0)
        return math.sqrt(squares / (count - 1)) / mean

    def _pieces(self, source: int) -> Pieces:
        share = self._shares[source]
        pieces = self._spool.pieces(share.lane)
        if share.step == 1:
            return pieces
        return strided(pieces, share.first, share.step)


class _Minutes(Recorded):
    """Spread the requests of each minute at random over it: of more is nothing known."""

    def __init__(self, trace: Trace, count: int, start_s: float, duration_s: NumberOrNone) -> None:
        for what, seconds in (("start", start_s), ("duration", duration_s or 0.0)):
            if seconds % _MINUTE:
                raise UsageError(
                    f"{trace.path}: counts per minute with a {what} of {seconds:g} s, expected whole minutes"
                )
        first = int(start_s / _MINUTE)
        until = None
        if duration_s is not None:
            until = first + int(duration_s / _MINUTE)
        lanes: Ints | None = None
        streams = 0
        for block in trace.minutes():
            counts = block.counts[:, first:until]
            if lanes is None:
                lanes = np.zeros((count, counts.shape[1]), np.int64)
            np.add.at(lanes, (streams + np.arange(len(counts))) % count, counts)
            streams += len(counts)
        if lanes is None or lanes.sum() == 0:
            raise DocumentError(
                f"{trace.path}: found no request from minute {first + 1} on, expected at least one"
            )
        minutes = []
        for share in _shares(min(streams, count), count):
            lane = lanes[share.lane]
            minutes.append(lane // share.step + (lane % share.step > share.first))
        self._minutes = np.array(minutes, np.int64)
        most = self._minutes.max()
        if most > _MAX_PER_MINUTE:
            raise DocumentError(
                f"{trace.path}: found {most:,} requests to one model in a minute, expected at most "
                f"{_MAX_PER_MINUTE:,}"
            )
        self.counts = self._minutes.sum(axis=1)
        self.period_s = lanes.shape[1] * _MINUTE
        self.first_s = int(lanes.any(axis=0).argmax()) * _MINUTE

    def scaled(self, source: int, factor: float, draw: Generator) -> Pieces:
        whole = int(factor)
        for minute, count in enumerate(self._minutes[source]):
            # Places in the minute are independent, so copies and thinning may be done on the count.
            left = int(count) * whole
            if factor > whole:
                left += int(draw.binomial(count, factor - whole))
            # Drawn part of the minute by part: the later of uniform places depend on no other. One part is the rule.
            parts = max(math.ceil(left / _PART), 1)
            for part in range(parts):
                here = left
                if part < parts - 1:
                    here = int(draw.binomial(left, 1 / (parts - part)))
                left -= here
                span = _MINUTE / parts
                times = np.sort(draw.random(here)) * span + part * span
                yield minute * _MINUTE + times, None

    def gap_cv(self, source: int) -> NumberOrNone:
        return None


def _shares(streams: int, sources: int) -> list[_Share]:
    """Give source i stream i mod ``streams``; where several have one, they are dealt its requests in turn."""
    shares = []
    for source in range(sources):
        first, lane = divmod(source, streams)
        takers = len(range(lane, sources, streams))
        shares.append(_Share(lane=lane, first=first, step=takers))
    return shares


def _period(
    path: Path, spool: Spool, total: int, last_s: float, start_s: float, duration_s: NumberOrNone
) -> float:
    """Return how long the used part lasts: as asked, or to the trace's last request and a mean gap."""
    if duration_s is not None and last_s >= start_s + duration_s:
        return duration_s
    extent = spool.last_s - spool.first_s
    if total < 2 or extent == 0:
        raise DocumentError(
            f"{path}: found {total} requests, all at one time, expected at least two times to know a rate by"
        )
    ended = spool.last_s + extent / (total - 1)
    if duration_s is None:
        return ended
    return min(ended, duration_s)
