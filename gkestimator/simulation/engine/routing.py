"""Route requests to models: batches under construction, the replica that the next one is for."""

from __future__ import annotations

import math

import numpy as np

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.heaps import lift_target, push_event, sink_target
from gkestimator.simulation.engine.part import inlined, part
from gkestimator.simulation.engine.serving import take_batch
from gkestimator.simulation.engine.state import EngineState


@part
def load_of(s: EngineState, r: int, now: float) -> int:
    """Return the outstanding work of replica ``r`` (of its server, unless it takes turns), in ticks."""
    if s.replicas[r].turns == 1:
        return int(
            np.rint(codes.TICKS * s.replicas[r].coming * s.replicas[r].cycle_ms / s.replicas[r].batch_size)
        )
    v = s.replicas[r].server
    load = s.servers[v].ticks
    b = s.servers[v].running
    if b >= 0:
        left = s.batches[b].work_ms - (now - s.batches[b].since_ms) / s.batches[b].slowdown
        load += int(np.rint(codes.TICKS * left))
    return int(load)


@part
def choose(s: EngineState, m: int, now: float) -> int:
    """Return the replica that model ``m``'s next batch is for, which is dealt it; -1 where the model has none."""
    first = s.models[m].first_target
    count = s.models[m].available
    in_order = count > 0
    if not in_order:
        count = s.models[m].targets
    if count == 0:
        return -1
    chosen = int(s.targets[first])
    if s.options.least_load == 1:
        chosen = least_loaded(s, first, count, now)
    elif not in_order:
        for k in range(first + 1, first + count):
            r = s.targets[k]
            key = s.replicas[r].key
            best = s.replicas[chosen].key
            if key < best or (key == best and r < chosen):
                chosen = int(r)
    deal(s, chosen)
    if in_order and s.options.least_load == 0:
        sink_target(s.targets, s.replicas, first, count, 0)
    return chosen


@inlined
def least_loaded(s: EngineState, first: int, count: int, now: float) -> int:
    """Return that of ``count`` targets with the least work; of equals the one that was dealt least, then the first."""
    best = s.targets[first]
    least = load_of(s, best, now)
    dealt = s.replicas[best].dealt / s.replicas[best].weight
    for k in range(first + 1, first + count):
        r = s.targets[k]
        load = load_of(s, r, now)
        if load > least:
            continue
        its = s.replicas[r].dealt / s.replicas[r].weight
        if load < least or its < dealt or (its == dealt and r < best):
            best = r
            least = load
            dealt = its
    return int(best)


@part
def deal(s: EngineState, r: int) -> None:
    """Deal replica ``r`` a batch's worth of its model's requests."""
    s.replicas[r].dealt += s.replicas[r].deal
    s.replicas[r].key = (s.replicas[r].dealt + s.replicas[r].deal) / s.replicas[r].weight


@part
def available(s: EngineState, r: int) -> int:
    """Let replica ``r`` serve from now on. Returns its server.

    It does not catch up on what its model's others were dealt before.
    """
    s.replicas[r].available = 1
    if s.replicas[r].retired == 0:
        m = s.replicas[r].model
        first = s.models[m].first_target
        count = s.models[m].available
        least = math.inf
        for k in range(first, first + count):
            other = s.targets[k]
            least = min(least, s.replicas[other].dealt / s.replicas[other].weight)
        if least < math.inf:
            s.replicas[r].dealt = max(s.replicas[r].dealt, s.replicas[r].weight * least)
        s.replicas[r].key = (s.replicas[r].dealt + s.replicas[r].deal) / s.replicas[r].weight
        at = count
        while s.targets[first + at] != r:
            at += 1
        s.targets[first + at] = s.targets[first + count]
        s.targets[first + count] = r
        s.models[m].available = count + 1
        lift_target(s.targets, s.replicas, first, count)
    return int(s.replicas[r].server)


@part
def leave(s: EngineState, b: int, now: float) -> int:
    """Let batch ``b`` leave the router for its replica. Returns it where it is there at once, else -1."""
    r = s.batches[b].replica
    size = s.batches[b].size
    at = s.replicas[r].curve + size
    s.batches[b].state = codes.GIVEN
    s.batches[b].left_ms = now
    s.replicas[r].given += size
    if s.replicas[r].turns == 1:
        s.replicas[r].coming += size
    else:
        s.servers[s.replicas[r].server].ticks += int(s.curves[at].ticks)
    if s.replicas[r].request_delay == 1:
        order = s.loop.order
        s.loop.order = order + 1
        push_event(s, now + s.curves[at].request_ms, codes.REACH, order, 4 * b + codes.AT_REPLICA)
        return -1
    return b


@part
def take_request(s: EngineState, m: int, arrived: float, origin: float, x: int) -> int:
    """Take a free request for source ``x`` to model ``m``."""
    i = s.free.request
    s.free.request = s.requests[i].next
    s.free.requests -= 1
    s.requests[i].next = -1
    s.requests[i].source = x
    s.requests[i].job = -1
    s.requests[i].model = m
    s.requests[i].arrived_ms = arrived
    s.requests[i].origin_ms = origin
    return int(i)


@part
def ask(s: EngineState, i: int) -> None:
    """Ask for request ``i`` to be routed before the next event, after those that were asked for before."""
    if s.loop.asked < 0:
        s.loop.asked = i
    else:
        s.requests[s.loop.asked_last].next = i
    s.loop.asked_last = i


@part
def route(s: EngineState, i: int, now: float) -> int:
    """Bring request ``i`` to the router of its model (which is not streamed).

    Returns the batch that reached its replica by that, or -1.
    """
    m = s.requests[i].model
    b = s.models[m].batch
    if b < 0:
        r = choose(s, m, now)
        if r < 0:
            if s.models[m].head < 0:
                s.models[m].head = i
            else:
                s.requests[s.models[m].tail].next = i
            s.models[m].tail = i
            return -1
        b = take_batch(s, r)
        s.models[m].batch = b
        s.batches[b].head = i
        if s.replicas[r].turns == 0 and s.replicas[r].max_wait_ms > 0.0:
            order = s.loop.order
            s.loop.order = order + 1
            s.batches[b].order = order
            s.batches[b].state = codes.OPEN
            if s.replicas[r].batch_size > 1:
                push_event(s, now + s.replicas[r].max_wait_ms, codes.TIMEOUT, order, b)
    else:
        r = s.batches[b].replica
        s.requests[s.batches[b].tail].next = i
    s.batches[b].tail = i
    s.batches[b].size += 1
    full = s.replicas[r].turns == 1 or s.batches[b].size >= s.replicas[r].batch_size
    if not full and s.replicas[r].max_wait_ms > 0.0:
        return -1
    if not full:
        s.batches[b].timed_out = 1
    s.models[m].batch = -1
    return leave(s, b, now)


@part
def time_out(s: EngineState, b: int, order: int, now: float) -> int:
    """Let batch ``b`` leave at the time-out that was set as ``order``-th, unless it left before.

    Returns it where it is at its replica at once, else -1.
    """
    if s.batches[b].state != codes.OPEN or s.batches[b].order != order:
        return -1
    s.models[s.replicas[s.batches[b].replica].model].batch = -1
    s.batches[b].timed_out = 1
    return leave(s, b, now)


@part
def next_of_source(s: EngineState, x: int) -> tuple[float, int]:
    """Return time and key of the next event of source ``x``: a request, or what it does to a streamed model's batch."""
    at = s.sources[x].at
    stop = s.sources[x].stop
    arrival = (codes.ARRIVAL << codes.KIND_SHIFT) + x
    m = s.sources[x].model
    if s.sources[x].kind != codes.STREAM:
        if at == stop:
            return math.inf, arrival
        if s.sources[x].kind == codes.PLAIN and s.arrivals[at] < s.models[m].resumed_ms:
            return s.models[m].resumed_ms, x
        return s.arrivals[at], arrival
    r = s.models[m].open_for
    if r < 0:
        if at == stop or s.models[m].targets == 0:
            return math.inf, arrival
        if s.arrivals[at] < s.models[m].resumed_ms:
            return s.models[m].resumed_ms, x  # it waited until there was a replica
        return s.arrivals[at], arrival
    # A batch is open: the request that fills it, or its time-out.
    opened = s.models[m].opened_ms
    late = opened + s.replicas[r].max_wait_ms
    last = at + s.replicas[r].batch_size - 1
    if last < stop and s.arrivals[last] < late:
        if s.arrivals[last] < s.models[m].resumed_ms:
            return s.models[m].resumed_ms, x
        return s.arrivals[last], arrival
    return late, (codes.TIMEOUT << codes.KIND_SHIFT) + s.models[m].order


@part
def form(s: EngineState, x: int, now: float) -> int:
    """Do what :func:`next_of_source` foretold for a source whose model is streamed.

    A batch is opened, or leaves with all that came meanwhile. Requests within a batch are no events. Returns
    the batch that is at its replica, or -1.
    """
    m = s.sources[x].model
    at = s.sources[x].at
    r = s.models[m].open_for
    size = 1
    if r < 0:
        r = choose(s, m, now)
        if s.replicas[r].max_wait_ms > 0.0:
            s.models[m].order = s.loop.order
            s.loop.order += 1
            if s.replicas[r].batch_size > 1:
                s.models[m].open_for = r
                s.models[m].opened_ms = now
                return -1
    else:
        late = s.models[m].opened_ms + s.replicas[r].max_wait_ms
        most = min(s.replicas[r].batch_size, s.sources[x].stop - at)
        while size < most and s.arrivals[at + size] < late:
            size += 1
        s.models[m].open_for = -1
    b = take_batch(s, r)
    i = s.free.request
    s.batches[b].head = i
    last = i
    for k in range(at, at + size):
        s.requests[i].arrived_ms = s.arrivals[k]
        s.requests[i].origin_ms = s.arrivals[k]
        s.requests[i].source = x
        s.requests[i].job = -1
        last = i
        i = s.requests[i].next
    s.requests[last].next = -1
    s.free.request = i
    s.free.requests -= size
    s.batches[b].tail = last
    s.batches[b].size = size
    s.batches[b].timed_out = 0 if size == s.replicas[r].batch_size else 1
    s.sources[x].at = at + size
    return leave(s, b, now)
