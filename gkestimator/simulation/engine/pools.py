"""Make room for what is under way between the calls of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.columns import EngineState, Floats, Ints

# The least number of draws that are made at once, and of rows of kept requests.
AT_ONCE = 1 << 16
Array = TypeVar("Array", Ints, Floats)


class Draws:
    """Draw random numbers ahead, for the kernel to take: the same ones as if each were drawn when it is needed."""

    def __init__(self, draw: Callable[[int], Floats]) -> None:
        self._draw = draw

    def filled(self, ahead: Floats, z: Ints, place: int, need: int) -> Floats:
        """Return ``ahead`` from its next number (``z[place]``) on, and as many more as the kernel may want soon."""
        if len(ahead) - z[place] >= z[need]:
            return ahead
        left = ahead[z[place] :]
        z[place] = 0
        return np.concatenate((left, self._draw(max(AT_ONCE, 4 * int(z[need])))))

    def take(self, s: EngineState, count: int) -> Floats:
        """Take ``count`` of the uniforms, outside of the kernel."""
        at = int(s.z[c.Z_UNIFORM])
        taken = s.uniforms[at : at + count]
        s.z[c.Z_UNIFORM] += len(taken)
        return np.concatenate((taken, self._draw(count - len(taken))))


def with_needs(s: EngineState, most_asked: int) -> EngineState:
    """Note what one event may take at most, from the largest batch and the most that a request becomes
    (``most_asked``).

    The answers of a full batch may each begin stages that ask for ``most_asked`` requests (they are routed
    one by one, each after a look at the room); with interference a start puts the ends of all that run on its
    GPU anew.
    """
    largest = int(max(s.r[:, c.R_SIZE].max(initial=1), s.w[:, c.W_MOST].max(initial=1)))
    beside = 1
    if s.z[c.Z_LAW] and len(s.r):
        servers = np.unique(s.r[:, [c.R_GPU, c.R_SERVER]], axis=0)
        beside = int(np.bincount(servers[:, 0]).max())
    s.z[c.Z_BATCH_MOST] = largest
    s.z[c.Z_ITEMS_NEED] = largest * (1 + most_asked) + 1
    s.z[c.Z_EVENTS_NEED] = 2 * beside + 8
    s.z[c.Z_DRAWS_NEED] = s.z[c.Z_EXPONENTIAL]
    s.z[c.Z_UNIFORMS_NEED] = largest * max(1, len(s.t)) + 1 if most_asked else 0
    return s


def _more(array: Array, rows: int) -> Array:
    """Return ``array`` with ``rows`` rows of zeros below."""
    return np.concatenate((array, np.zeros((rows, *array.shape[1:]), array.dtype)))


def _more_free(array: Ints, rows: int, link: int, first_free: int) -> Ints:
    """Return ``array`` with ``rows`` free rows below, each linked to the next and the last to ``first_free``."""
    below = np.zeros((rows, array.shape[1]), np.int64)
    below[:, link] = np.arange(len(array) + 1, len(array) + rows + 1)
    below[-1, link] = first_free
    return np.concatenate((array, below))


def fit_pools(s: EngineState) -> EngineState:
    """Return ``s`` with room for one event at least; what is short is doubled."""
    z = s.z
    if z[c.Z_ITEMS] < z[c.Z_ITEMS_NEED]:
        more = max(len(s.i), int(z[c.Z_ITEMS_NEED]), 1024)
        items = _more_free(s.i, more, c.I_NEXT, int(z[c.Z_ITEM]))
        z[c.Z_ITEM], z[c.Z_ITEMS] = len(s.i), z[c.Z_ITEMS] + more
        s = s._replace(i=items, if_=_more(s.if_, more))
        if z[c.Z_SEQUENCES]:
            s = s._replace(q=_more(s.q, more), qf=_more(s.qf, more))
    if z[c.Z_BATCHES] < c.BATCHES_NEED:
        more = max(len(s.b), 256)
        batches = _more_free(s.b, more, c.B_NEXT, int(z[c.Z_BATCH]))
        z[c.Z_BATCH], z[c.Z_BATCHES] = len(s.b), z[c.Z_BATCHES] + more
        s = s._replace(b=batches, bf=_more(s.bf, more))
    if z[c.Z_JOBS] < 1:
        more = max(len(s.j), 256)
        jobs = _more_free(s.j, more, c.J_OPEN, int(z[c.Z_JOB]))
        z[c.Z_JOB], z[c.Z_JOBS] = len(s.j), z[c.Z_JOBS] + more
        s = s._replace(j=jobs, jf=_more(s.jf, more))
    room = len(s.event_times) - int(z[c.Z_EVENTS])
    if room < z[c.Z_EVENTS_NEED]:
        more = max(len(s.event_times), int(z[c.Z_EVENTS_NEED]), 1024)
        s = s._replace(
            event_times=_more(s.event_times, more),
            event_keys=_more(s.event_keys, more),
            event_what=_more(s.event_what, more),
        )
    if z[c.Z_KEEP] and len(s.kept) < AT_ONCE + z[c.Z_BATCH_MOST]:
        more = AT_ONCE + int(z[c.Z_BATCH_MOST]) - len(s.kept)
        s = s._replace(kept=_more(s.kept, more), kept_floats=_more(s.kept_floats, more))
    return s


def count_windows(s: EngineState, m: int, times: Floats) -> None:
    """Count requests to model ``m`` at ``times``, by window of the timeline."""
    window = float(s.f[c.F_WINDOW])
    last = int(s.z[c.Z_WINDOWS]) - 1
    at = np.minimum(times / window, last + 1).astype(np.int64)
    at -= at * window > times
    counts = np.bincount(np.minimum(at, last))
    s.windows[m, 0, : len(counts)] += counts
