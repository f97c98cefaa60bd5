"""Make room for what is under way between the calls of the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from gkestimator.simulation.arrays import Floats
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.records import Record, Records, with_zeros
from gkestimator.simulation.engine.state import EngineState

# The least number of draws that are made at once, and of rows of kept requests.
AT_ONCE = 1 << 16
Row = TypeVar("Row", bound=Record)


class Draws:
    """Draw random numbers ahead, for the kernel to take: the same ones as if each were drawn when it is needed."""

    def __init__(self, draw: Callable[[int], Floats]) -> None:
        self._draw = draw

    def filled(self, left: Floats, need: int) -> Floats:
        """Return ``left`` and as many more as the kernel may want soon, which takes ``need`` at once."""
        return np.concatenate((left, self._draw(max(AT_ONCE, 4 * need))))

    def take(self, s: EngineState, count: int) -> Floats:
        """Take ``count`` of the uniforms, outside of the kernel."""
        at = int(s.loop.uniform)
        taken = s.uniforms[at : at + count]
        s.loop.uniform += len(taken)
        return np.concatenate((taken, self._draw(count - len(taken))))


def with_needs(s: EngineState, most_asked: int) -> EngineState:
    """Note what one event may take at most, from the largest batch and the most that a request becomes
    (``most_asked``).

    The answers of a full batch may each begin stages that ask for ``most_asked`` requests (they are routed
    one by one, each after a look at the room), or be followed by the client's next request; with interference a start
    puts the ends of all that run on its GPU anew.
    """
    largest = int(max(s.replicas["batch_size"].max(initial=1), s.iterators["most_sequences"].max(initial=1)))
    beside = 1
    if s.options.law and len(s.replicas):
        pairs = np.stack((s.replicas["gpu"], s.replicas["server"]), axis=1)
        servers = np.unique(pairs, axis=0)
        beside = int(np.bincount(servers[:, 0]).max())
    s.needs.largest_batch = largest
    s.needs.requests = largest * (1 + most_asked) + 1
    s.needs.events = 2 * beside + 8
    if s.sources["closed"].any():
        s.needs.events += largest
    s.needs.draws = s.options.exponential
    s.needs.uniforms = largest * max(1, len(s.stages)) + 1 if most_asked else 0
    return s


def with_free(array: Records[Row], count: int, link: str, first_free: int) -> Records[Row]:
    """Return ``array`` with ``count`` free rows below, each linked by field ``link`` to the next and the last to
    ``first_free``."""
    first = len(array)
    array = with_zeros(array, count)
    links = array[link][first:]
    links[:] = np.arange(first + 1, first + count + 1)
    links[-1] = first_free
    return array


def fit_pools(s: EngineState) -> EngineState:
    """Return ``s`` with room for one event at least; what is short is doubled."""
    free = s.free
    needs = s.needs
    if free.requests < needs.requests:
        first = len(s.requests)
        more = max(first, int(needs.requests), 1024)
        s = s._replace(requests=with_free(s.requests, more, "next", free.request))
        if s.options.sequences:
            s = s._replace(sequences=with_zeros(s.sequences, more))
        free.request = first
        free.requests += more
    if free.batches < codes.BATCHES_NEED:
        first = len(s.batches)
        more = max(first, 256)
        s = s._replace(batches=with_free(s.batches, more, "next", free.batch))
        free.batch = first
        free.batches += more
    if free.jobs < 1:
        first = len(s.jobs)
        more = max(first, 256)
        s = s._replace(
            jobs=with_free(s.jobs, more, "open", free.job),
            asked=with_zeros(s.asked, more),
            lacking=with_zeros(s.lacking, more),
        )
        free.job = first
        free.jobs += more
    events = len(s.event_times)
    if events - s.loop.events < needs.events:
        more = max(events, int(needs.events), 1024)
        s = s._replace(
            event_times=with_zeros(s.event_times, more),
            event_keys=with_zeros(s.event_keys, more),
            event_what=with_zeros(s.event_what, more),
        )
    room = AT_ONCE + int(needs.largest_batch)
    if s.options.keep and len(s.kept) < room:
        s = s._replace(kept=with_zeros(s.kept, room - len(s.kept)))
    return s


def bytes_under_way(s: EngineState) -> int:
    """Return the bytes that the pools hold, for all that is under way and as much room as that took once."""
    records = s.requests.nbytes + s.sequences.nbytes + s.batches.nbytes + s.jobs.nbytes
    events = s.event_times.nbytes + s.event_keys.nbytes + s.event_what.nbytes
    return records + s.asked.nbytes + s.lacking.nbytes + events


def count_windows(s: EngineState, m: int, times: Floats) -> None:
    """Count requests to model ``m`` at ``times``, by window of the timeline."""
    window = float(s.options.window_ms)
    last = int(s.options.windows) - 1
    at = np.minimum(times / window, last + 1).astype(np.int64)
    at -= at * window > times
    counts = np.bincount(np.minimum(at, last))
    s.windows[m, codes.CAME, : len(counts)] += counts
