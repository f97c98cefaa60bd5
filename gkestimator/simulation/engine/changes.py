"""Change the engine's arrays between the calls of the event loop: replicas that come, sources set up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.state import EngineState


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function behind a compiled one: a few calls are not worth compiling it for."""
    plain: Callable[..., Any] = getattr(function, "py_func", function)
    return plain


def join_servers(s: EngineState, replicas: list[int]) -> None:
    """Let the servers of ``replicas``, new, know those that batch late, and what their requests count for as load."""
    for k in replicas:
        replica = s.replicas[k]
        if replica.late == 0:
            continue
        server = s.servers[replica.server]
        replica.next_late = server.late
        server.late = k
        full_ms = s.curves[replica.curve + replica.batch_size].latency_ms
        replica.request_ticks = int(np.rint(codes.TICKS * full_ms / replica.batch_size))


def make_available(s: EngineState, replicas: list[int]) -> None:
    """Let ``replicas``, new, serve from now on: one after the other takes its place in the round robin, where
    it does not catch up on what its model's others were dealt before (as ``routing.available``).
    """
    before = s.replicas
    old = np.flatnonzero((before["available"] == 1) & (before["retired"] == 0))
    least = np.full(len(s.models), math.inf)
    np.minimum.at(least, before["model"][old], before["dealt"][old] / before["weight"][old])
    for k in replicas:
        replica = s.replicas[k]
        least_dealt = least[replica.model]
        if least_dealt < math.inf:
            replica.dealt = replica.weight * least_dealt
        replica.key = (replica.dealt + replica.deal) / replica.weight
        replica.available = 1
        least[replica.model] = min(least_dealt, replica.dealt / replica.weight)


def expect_available(s: EngineState, r: int) -> None:
    """Push the event that replica ``r`` is available."""
    from gkestimator.simulation.engine.heaps import push_event

    order = int(s.loop.order)
    s.loop.order += 1
    _plain(push_event)(s, float(s.replicas[r].available_ms), codes.REACH, order, 4 * r + codes.AVAILABLE)


def unstream(s: EngineState, m: int) -> None:
    """Let requests of model ``m`` come one by one, since a replica of it takes turns now: its batch under
    construction, if any, is made one of requests that came (all of the arrivals at hand).
    """
    from gkestimator.simulation.engine.heaps import push_event
    from gkestimator.simulation.engine.routing import take_request
    from gkestimator.simulation.engine.serving import take_batch

    model = s.models[m]
    source = s.sources[model.source]
    model.streamed = 0
    source.kind = codes.PLAIN
    r = int(model.open_for)
    if r < 0:
        return
    model.open_for = -1
    b = _plain(take_batch)(s, r)
    batch = s.batches[b]
    last = -1
    for arrived in s.came[source.at : source.stop]:
        i = _plain(take_request)(s, m, arrived, arrived, model.source)
        if last < 0:
            batch.head = i
        else:
            s.requests[last].next = i
        last = i
        batch.size += 1
    batch.tail = last
    batch.state = codes.OPEN
    batch.order = model.order
    model.batch = b
    source.at = source.stop
    late = float(model.opened_ms + s.replicas[r].max_wait_ms)
    _plain(push_event)(s, late, codes.TIMEOUT, int(model.order), b)


def fill_streams(s: EngineState) -> None:
    """Make the heap of sources anew (a sorted list is a heap)."""
    from gkestimator.simulation.engine.routing import next_of_source

    s.loop.streams = len(s.sources)
    events = sorted((*_plain(next_of_source)(s, x), x) for x in range(len(s.sources)))
    for at, (time, key, x) in enumerate(events):
        s.stream_times[at], s.stream_keys[at], s.stream_what[at] = time, key, x


def resumes(s: EngineState) -> bool:
    """Say whether requests waited that a replica was there, which is now."""
    waits = (s.models["head"] >= 0) & (s.models["targets"] > 0)
    return bool(
        waits.any() or (s.stream_keys[0] >> codes.KIND_SHIFT == codes.RESUME and s.stream_times[0] < math.inf)
    )
