"""Requests kept by source while a trace is read once: small ones in memory, large ones in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np

from gkestimator.core.errors import OutputError
from gkestimator.simulation.arrays import Floats, Ints

# Ascending times in seconds and, where they are kept, lengths in tokens.
Piece = tuple[Floats, Ints | None]
_FLUSH = 8192
_PIECE = 65_536
_IN_MEMORY = 2**24


class Spool:
    """``lanes`` sequences of requests. ``counts``: how many are in each; ``first_s`` and ``last_s`` of all (nan: none).
    Takes 8 bytes a request (16 with lengths), beyond 16 MiB in a temporary file that is gone with the object."""

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
        """Append requests, each to its lane; times ascend from call to call. Raises OutputError where the temporary
        file cannot be written."""
        if len(lane) == 0:
            return
        if self.counts.sum() == 0:
            self.first_s = float(times_s[0])
        self.last_s = float(times_s[-1])
        found = np.bincount(lane, minlength=len(self.counts))
        self.counts += found
        # Numbers of 16 bits are sorted by radix, in time that does not grow with their logarithm.
        order = np.argsort(lane.astype(np.uint16) if len(self.counts) < 2**16 else lane, kind="stable")
        times_s = times_s[order]
        if lengths is not None and self._lengths:
            lengths = lengths[order]
        else:
            lengths = None
        ends = np.cumsum(found)
        for i in np.flatnonzero(found):
            part = slice(ends[i] - found[i], ends[i])
            self._waiting[i].append((times_s[part], None if lengths is None else lengths[part]))
            self._held[i] += int(found[i])
            if self._held[i] >= _FLUSH:
                self._flush(int(i))

    def pieces(self, lane: int) -> Iterator[Piece]:
        """The requests of ``lane`` from the first."""
        if self._waiting[lane]:
            self._flush(lane)
        for offset, count in self._pieces[lane]:
            self._file.seek(offset)
            data = self._file.read(count * (16 if self._lengths else 8))
            if self._lengths:
                lengths = np.frombuffer(data, np.int64, offset=count * 8)
            else:
                lengths = None
            yield np.frombuffer(data, np.float64, count=count), lengths

    def _flush(self, lane: int) -> None:
        parts = self._waiting[lane]
        times = np.concatenate([t for t, _ in parts])
        if self._lengths:
            lengths = np.concatenate([n for _, n in parts if n is not None])
        else:
            lengths = None
        for start in range(0, len(times), _PIECE):
            part = slice(start, start + _PIECE)
            data = times[part].tobytes() + (b"" if lengths is None else lengths[part].tobytes())
            try:
                self._file.seek(self._end)
                self._file.write(data)
            except OSError as e:
                raise OutputError(
                    f"temporary file in {tempfile.gettempdir()}: cannot be written: {e.strerror} (TMPDIR says where)"
                ) from e
            self._pieces[lane].append((self._end, len(times[part])))
            self._end += len(data)
        self._waiting[lane], self._held[lane] = [], 0
