"""What a trace holds for each source: single requests in a spool, or counts per minute."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Ints
from gkestimator.simulation.arrivals.scaling import copied, strided
from gkestimator.simulation.arrivals.spool import Piece, Spool
from gkestimator.simulation.traces.reading import Trace

_MINUTE = 60.0
_MAX_PER_MINUTE = 20_000_000


class Recorded(abc.ABC):
    """``counts``: requests of each source; ``period_s``: how long the used part lasts, from its start; ``first_s``:
    when its first request comes (where counts per minute are recorded: its minute begins)."""

    counts: Ints
    period_s: float
    first_s: float

    @abc.abstractmethod
    def scaled(self, source: int, factor: float, draw: np.random.Generator) -> Iterator[Piece]:
        """One round of the source's requests, seconds from the start, ``factor`` times as many."""

    @abc.abstractmethod
    def gap_cv(self, source: int) -> float | None:
        """Standard deviation over mean of the times between the source's requests (None: not known)."""


@frozen
class _Share:
    """Of lane ``lane`` every ``step``-th request from ``first`` on."""

    lane: int
    first: int
    step: int


def record(
    path: Path,
    names: Sequence[str],
    *,
    form: str | None,
    assign: str,
    start_s: float,
    duration_s: float | None,
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
        names: Sequence[str],
        assign: str,
        start_s: float,
        duration_s: float | None,
        lengths: bool,
    ) -> None:
        count = len(names)
        self._spool = Spool(count, lengths=lengths)
        end = math.inf if duration_s is None else start_s + duration_s
        index = {name: i for i, name in enumerate(names)}
        in_turn = assign == "requests" or not trace.keyed
        dealt = 0
        last = math.nan
        for rows in trace.rows():
            low, high = (int(i) for i in np.searchsorted(rows.times_s, (start_s, end), side="left"))
            last = float(rows.times_s[-1])
            if in_turn:
                lane = (dealt + np.arange(high - low)) % count
                dealt += high - low
            elif assign == "names":
                lane = np.array([index[name] for name in trace.streams])[rows.streams[low:high]]
            else:
                lane = rows.streams[low:high] % count
            self._spool.add(
                lane,
                rows.times_s[low:high] - start_s,
                None if rows.lengths is None else rows.lengths[low:high],
            )
            if high < len(rows.times_s):
                break
        total = int(self._spool.counts.sum())
        if total == 0:
            raise DocumentError(
                f"{trace.path}: found no request from {start_s:g} s to {end:g} s"
                + (f" (the last comes at {last:g} s)" if math.isfinite(last) else "")
                + ", expected at least one"
            )
        if in_turn or assign == "names":
            streams = count
        else:
            streams = min(len(trace.streams), count)
        self._shares = _shares(streams, count)
        self.counts = np.array(
            [len(range(s.first, int(self._spool.counts[s.lane]), s.step)) for s in self._shares], np.int64
        )
        self.period_s = _period(trace.path, self._spool, total, last, start_s, duration_s)
        self.first_s = self._spool.first_s

    def scaled(self, source: int, factor: float, draw: np.random.Generator) -> Iterator[Piece]:
        return copied(self._pieces(source), factor, self.period_s, draw)

    def gap_cv(self, source: int) -> float | None:
        # About the mean gap, which the ends tell: sums of squares of deviations lose no digits.
        count = int(self.counts[source])
        if count < 3:
            return None
        first = last = math.nan
        for times, _ in self._pieces(source):
            if len(times):
                first = float(times[0]) if math.isnan(first) else first
                last = float(times[-1])
        mean = (last - first) / (count - 1)
        if mean == 0:
            return None
        squares = 0.0
        before = first
        for times, _ in self._pieces(source):
            if len(times):
                squares += float(((np.diff(times, prepend=before) - mean) ** 2).sum())
                before = float(times[-1])
        # The first gap of all was taken as 0.
        return math.sqrt(max(squares - mean**2, 0.0) / (count - 1)) / mean

    def _pieces(self, source: int) -> Iterator[Piece]:
        share = self._shares[source]
        pieces = self._spool.pieces(share.lane)
        if share.step == 1:
            return pieces
        return strided(pieces, share.first, share.step)


class _Minutes(Recorded):
    """Requests are spread at random over their minute: of more is nothing known."""

    def __init__(self, trace: Trace, count: int, start_s: float, duration_s: float | None) -> None:
        for what, seconds in (("start", start_s), ("duration", duration_s or 0.0)):
            if seconds % _MINUTE:
                raise UsageError(
                    f"{trace.path}: counts per minute with a {what} of {seconds:g} s, expected whole minutes"
                )
        first = int(start_s / _MINUTE)
        if duration_s is None:
            until = None
        else:
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
        shares = _shares(min(streams, count), count)
        self._minutes = np.array(
            [lanes[s.lane] // s.step + (lanes[s.lane] % s.step > s.first) for s in shares], np.int64
        )
        if self._minutes.max() > _MAX_PER_MINUTE:
            raise DocumentError(
                f"{trace.path}: found {self._minutes.max():,} requests to one model in a minute, expected at most "
                f"{_MAX_PER_MINUTE:,}"
            )
        self.counts = self._minutes.sum(axis=1)
        self.period_s = lanes.shape[1] * _MINUTE
        self.first_s = int(lanes.any(axis=0).argmax()) * _MINUTE

    def scaled(self, source: int, factor: float, draw: np.random.Generator) -> Iterator[Piece]:
        whole = int(factor)
        for minute, count in enumerate(self._minutes[source]):
            # Places in the minute are independent, so copies and thinning may be done on the count.
            scaled = int(count) * whole + (int(draw.binomial(count, factor - whole)) if factor > whole else 0)
            left = scaled
            # Drawn part of the minute by part: the later of uniform places depend on no other. One part is the rule.
            parts = max(math.ceil(scaled / 2**20), 1)
            for part in range(parts):
                if part == parts - 1:
                    here = left
                else:
                    here = int(draw.binomial(left, 1 / (parts - part)))
                left -= here
                times = np.sort(draw.random(here)) * (_MINUTE / parts) + part * (_MINUTE / parts)
                yield minute * _MINUTE + times, None

    def gap_cv(self, source: int) -> float | None:
        return None


def _shares(streams: int, sources: int) -> list[_Share]:
    """Source i has stream i mod ``streams``; where several have one, they are dealt its requests in turn."""
    return [
        _Share(lane=i % streams, first=i // streams, step=len(range(i % streams, sources, streams)))
        for i in range(sources)
    ]


def _period(
    path: Path, spool: Spool, total: int, last_s: float, start_s: float, duration_s: float | None
) -> float:
    """How long the used part lasts: as asked, or (where the trace ends before) to its last request and a mean gap."""
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
