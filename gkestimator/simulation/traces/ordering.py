"""Put any number of rows in order of time with bounded memory: sorted runs on disk, then merged.

Two passes over the disk rather than a heap of what may still move: durations bound how far starts are out of
order only where the file is in order of its ends, which nobody promises.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import IO

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.errors import OutputError
from gkestimator.simulation.arrays import Floats, Ints

_RUN = 2_000_000
_ROW = np.dtype([("time", "f8"), ("stream", "i8")])
Pair = tuple[Floats, Ints]


def in_order(blocks: Iterator[Pair], *, run: int = _RUN) -> Iterator[Pair]:
    """Yield the rows of ``blocks`` (times, streams) by ascending time, those of one time in their first
    order.

    At most about ``run`` rows are in memory; more go to a temporary file (16 bytes a row, gone at the end).
    Raises OutputError where that cannot be written.
    """
    parts: list[Pair] = []
    held = 0
    with tempfile.TemporaryFile() as disk:
        bounds = [0]
        for block in blocks:
            parts.append(block)
            held += len(block[0])
            if held >= run:
                append_temporary(disk, _sorted(parts).tobytes())
                bounds.append(bounds[-1] + held)
                parts = []
                held = 0
        if len(bounds) == 1:
            yield from _cut(_sorted(parts), 2**16)
            return
        if held:
            append_temporary(disk, _sorted(parts).tobytes())
            bounds.append(bounds[-1] + held)
        yield from _merged(disk, bounds, max(run // (len(bounds) - 1), 1))


def _sorted(parts: list[Pair]) -> NDArray[np.void]:
    if not parts:
        return np.empty(0, _ROW)
    times = np.concatenate([t for t, _ in parts])
    order = np.argsort(times, kind="stable")
    rows = np.empty(len(times), _ROW)
    rows["time"] = times[order]
    rows["stream"] = np.concatenate([s for _, s in parts])[order]
    return rows


def _cut(rows: NDArray[np.void], size: int) -> Iterator[Pair]:
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield part["time"].copy(), part["stream"].copy()


def append_temporary(disk: IO[bytes], data: bytes) -> None:
    """Append ``data`` to a temporary file. Raises OutputError where that cannot be written."""
    try:
        disk.seek(0, os.SEEK_END)
        disk.write(data)
    except OSError as e:
        raise OutputError(
            f"temporary file in {tempfile.gettempdir()}: cannot be written: {e.strerror} (TMPDIR says where)"
        ) from e


def _merged(disk: IO[bytes], bounds: list[int], size: int) -> Iterator[Pair]:
    """Merge the sorted runs between ``bounds`` (rows on ``disk``), ``size`` rows of each at a time."""
    runs = list(pairwise(bounds))
    at = [start for start, _ in runs]
    held = [np.empty(0, _ROW) for _ in runs]
    while True:
        for i, (_, end) in enumerate(runs):
            if len(held[i]) == 0 and at[i] < end:
                disk.seek(at[i] * _ROW.itemsize)
                count = min(size, end - at[i])
                held[i] = np.frombuffer(disk.read(count * _ROW.itemsize), _ROW)
                at[i] += count
        left = [i for i, rows in enumerate(held) if len(rows)]
        if not left:
            return
        # Up to the first end of what is read of an unfinished run, all is known. Of rows of that very time the ones in
        # later runs wait, so that the first order stays.
        unread = [(float(held[i]["time"][-1]), i) for i in left if at[i] < runs[i][1]]
        limit, first = min(unread) if unread else (np.inf, len(runs))
        parts = []
        for i in left:
            split = int(np.searchsorted(held[i]["time"], limit, side="right" if i <= first else "left"))
            parts.append(held[i][:split])
            held[i] = held[i][split:]
        rows = np.concatenate(parts)
        rows = rows[np.argsort(rows["time"], kind="stable")]
        yield from _cut(rows, 2**16)
