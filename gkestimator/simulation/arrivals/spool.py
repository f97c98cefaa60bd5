"""Keep requests by source while a trace is read once: few in memory, many in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.traces.ordering import append_temporary

# Ascending times in seconds and, where they are kept, lengths in tokens.
Piece = tuple[Floats, Ints | None]
Pieces: TypeAlias = Iterator[Piece]
_FLUSH = 8192
_PIECE = 65_536
_IN_MEMORY = 2**24


def sliced(lengths: Ints | None, part: slice | Ints) -> Ints | None:
    """Return the ``part`` of lengths, where they are kept."""
    if lengths is None:
        return None
    return lengths[part]


class Spool:
    """Keep ``lanes`` sequences of requests.

    ``counts``: how many are in each; ``first_s`` and ``last_s`` of all (nan: none). It takes 8 bytes a
    request (16 with lengths), beyond 16 MiB in a temporary file that is gone with the object.
    """

    def __init__(self, lanes: int, *, lengths: bool = False) -> None:
        # Kept open for as long as the lanes may be read.
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._lengths = lengths
        self._end = 0
        self._waiting: list[list[Piece]] = [[] for _ in range(lanes)]
        self._held = [0] * lanes
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        self.counts = np.zeros(lanes, np.int64)
        self.first_s = self.last_s = float("nan")

    def add(self, lane: Ints, times_s: Floats, lengths: Ints | None = None) -> None:
        """Append requests, each to its lane; times ascend from call to call.

        Raises OutputError where the temporary file cannot be written.
        """
        if len(lane) == 0:
            return
        if self.counts.sum() == 0:
            self.first_s = float(times_s[0])
        self.last_s = float(times_s[-1])
        counts = np.bincount(lane, minlength=len(self.counts))
        self.counts += counts
        # Numbers of 16 bits are sorted by radix, in time that does not grow with their logarithm.
        if len(self.counts) < 2**16:
            lane = lane.astype(np.uint16)
        order = np.argsort(lane, kind="stable")
        times_s = times_s[order]
        lengths = sliced(lengths, order) if self._lengths else None
        ends = np.cumsum(counts)
        for i in np.flatnonzero(counts).tolist():
            part = slice(ends[i] - counts[i], ends[i])
            self._waiting[i].append((times_s[part], sliced(lengths, part)))
            self._held[i] += int(counts[i])
            if self._held[i] >= _FLUSH:
                self._flush(i)

    def pieces(self, lane: int) -> Pieces:
        """Yield the requests of ``lane`` from the first."""
        if self._waiting[lane]:
            self._flush(lane)
        for offset, count in self._pieces[lane]:
            self._file.seek(offset)
            data = self._file.read(count * (16 if self._lengths else 8))
            lengths = None
            if self._lengths:
                lengths = np.frombuffer(data, np.int64, offset=count * 8)
            yield np.frombuffer(data, np.float64, count=count), lengths

    def _flush(self, lane: int) -> None:
        parts = self._waiting[lane]
        times = np.concatenate([times for times, _ in parts])
        lengths = None
        if self._lengths:
            lengths = np.concatenate([n for _, n in parts if n is not None])
        for start in range(0, len(times), _PIECE):
            part = slice(start, start + _PIECE)
            data = times[part].tobytes()
            if lengths is not None:
                data += lengths[part].tobytes()
            append_temporary(self._file, data)
            self._pieces[lane].append((self._end, len(times[part])))
            self._end += len(data)
        self._waiting[lane] = []
        self._held[lane] = 0
