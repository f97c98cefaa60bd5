"""Make more or fewer requests of the same shape.

Two ways, because none keeps everything:

- ``copies``: time stays. A factor below 1 keeps each request with that chance. Above 1 each request stands for that
  many (the fraction at random): itself, and others at random in the gap to the source's next request. The rate as a
  function of time is multiplied, down to the recorded gaps, so bursts last as long as they did; within a gap the
  requests come like a Poisson process's.
- ``time``: time runs faster. Every gap shrinks alike, so their distribution and order stay as recorded, and bursts
  last shorter.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.arrivals.spool import Piece, Pieces, sliced

MAX_FACTOR = 1e6
_OUT = 65_536


def strided(pieces: Pieces, first: int, step: int) -> Pieces:
    """Yield every ``step``-th request from number ``first`` on: the part of one of ``step`` models dealt in turn."""
    before = 0
    for times, lengths in pieces:
        part = slice((first - before) % step, None, step)
        before += len(times)
        yield times[part], sliced(lengths, part)


def copied(pieces: Pieces, factor: float, end_s: float, draw: Generator) -> Pieces:
    """Yield ``pieces`` with ``factor`` times as many requests, as said above; the last gap ends at ``end_s``.

    Factor 1 changes nothing and draws nothing.
    """
    if factor == 1:
        yield from pieces
        return
    size = max(int(_OUT / max(factor, 1)), 1)
    for times, lengths, following in _with_next(pieces, end_s):
        for start in range(0, len(times), size):
            part = slice(start, start + size)
            yield _multiplied(times[part], sliced(lengths, part), following[part], factor, draw)


def _multiplied(
    times: Floats,
    lengths: Ints | None,
    following: Floats,
    factor: float,
    draw: Generator,
) -> Piece:
    whole = int(factor)
    counts = whole + (draw.random(len(times)) < factor - whole)
    origin = np.repeat(np.arange(len(times)), counts)
    copies = times[origin]
    if whole:
        more = np.ones(len(origin), bool)
        more[np.cumsum(counts) - counts] = False
        gaps = (following - times)[origin[more]]
        copies[more] += draw.random(len(gaps)) * gaps
        order = np.argsort(copies, kind="stable")
        copies = copies[order]
        origin = origin[order]
    return copies, sliced(lengths, origin)


def _with_next(pieces: Pieces, end_s: float) -> Iterator[tuple[Floats, Ints | None, Floats]]:
    """Yield each piece with the time of the request after each; its last goes to the next, where that is known."""
    times = np.empty(0)
    lengths = None
    for more, more_lengths in pieces:
        if len(more) == 0:
            continue
        times = np.concatenate([times, more])
        if more_lengths is not None:
            if lengths is None:
                lengths = more_lengths
            else:
                lengths = np.concatenate([lengths, more_lengths])
        yield times[:-1], sliced(lengths, slice(-1)), times[1:]
        times = times[-1:]
        lengths = sliced(lengths, slice(-1, None))
    if len(times):
        yield times, lengths, np.maximum(end_s, times)
