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
    replica = s.replicas[r]
    if replica.turns == 1:
        return int(np.rint(codes.TICKS * replica.coming * replica.cycle_ms / replica.batch_size))
    server = s.servers[replica.server]
    load = server.ticks
    if server.running >= 0:
        batch = s.batches[server.running]
        left = batch.work_ms - (now - batch.since_ms) / batch.slowdown
        load += int(np.rint(codes.TICKS * left))
    return load


@part
def choose(s: EngineState, m: int, now: float) -> int:
    """Return the replica that model ``m``'s next batch is for, which is dealt it; -1 where the model has none."""
    model = s.models[m]
    first = model.first_target
    count = model.available
    in_order = count > 0
    if not in_order:
        count = model.targets
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
    replica = s.replicas[best]
    dealt = replica.dealt / replica.weight
    for k in range(first + 1, first + count):
        r = s.targets[k]
        replica = s.replicas[r]
        load = load_of(s, r, now)
        if load > least:
            continue
        its = replica.dealt / replica.weight
        if load < least or its < dealt or (its == dealt and r < best):
            best = r
            least = load
            dealt = its
    return int(best)


@part
def deal(s: EngineState, r: int) -> None:
    """Deal replica ``r`` a batch's worth of its model's requests."""
    replica = s.replicas[r]
    replica.dealt += replica.deal
    replica.key = (replica.dealt + replica.deal) / replica.weight


@part
def available(s: EngineState, r: int) -> int:
    """Let replica ``r`` serve from now on. Returns its server.

    It does not catch up on what its model's others were dealt before.
    """
    replica = s.replicas[r]
    replica.available = 1
    if replica.retired == 0:
        model = s.models[replica.model]
        first = model.first_target
        count = model.available
        least = math.inf
        for k in range(first, first + count):
            other = s.replicas[s.targets[k]]
            least = min(least, other.dealt / other.weight)
        if least < math.inf:
            replica.dealt = max(replica.dealt, replica.weight * least)
        replica.key = (replica.dealt + replica.deal) / replica.weight
        at = count
        while s.targets[first + at] != r:
            at += 1
        s.targets[first + at] = s.targets[first + count]
        s.targets[first + count] = r
        model.available = count + 1
        lift_target(s.targets, s.replicas, first, count)
    return replica.server


@part
def leave(s: EngineState, b: int, now: float) -> int:
    """Let batch ``b`` leave the router for its replica. Returns it where it is there at once, else -1."""
    batch = s.batches[b]
    replica = s.replicas[batch.replica]
    size = batch.size
    curve = s.curves[replica.curve + size]
    batch.state = codes.GIVEN
    batch.left_ms = now
    replica.given += size
    if replica.turns == 1:
        replica.coming += size
    elif replica.late == 1:
        s.servers[replica.server].ticks += size * replica.request_ticks
    else:
        s.servers[replica.server].ticks += int(curve.ticks)
    if replica.request_delay == 1:
        order = s.loop.order
        s.loop.order = order + 1
        push_event(s, now + curve.request_ms, codes.REACH, order, 4 * b + codes.AT_REPLICA)
        return -1
    return b


@part
def take_request(s: EngineState, m: int, arrived: float, origin: float, x: int) -> int:
    """Take a free request for source ``x`` to model ``m``."""
    i = s.free.request
    request = s.requests[i]
    s.free.request = request.next
    s.free.requests -= 1
    request.next = -1
    request.source = x
    request.job = -1
    request.model = m
    request.arrived_ms = arrived
    request.origin_ms = origin
    return i


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
    model = s.models[m]
    b = model.batch
    if b < 0:
        r = choose(s, m, now)
        if r < 0:
            if model.head < 0:
                model.head = i
            else:
                s.requests[model.tail].next = i
            model.tail = i
            return -1
        b = take_batch(s, r)
        batch = s.batches[b]
        replica = s.replicas[r]
        model.batch = b
        batch.head = i
        if replica.singly == 0 and replica.max_wait_ms > 0.0:
            order = s.loop.order
            s.loop.order = order + 1
            batch.order = order
            batch.state = codes.OPEN
            if replica.batch_size > 1:
                push_event(s, now + replica.max_wait_ms, codes.TIMEOUT, order, b)
    else:
        batch = s.batches[b]
        replica = s.replicas[batch.replica]
        s.requests[batch.tail].next = i
    batch.tail = i
    batch.size += 1
    full = replica.singly == 1 or batch.size >= replica.batch_size
    if not full and replica.max_wait_ms > 0.0:
        return -1
    if not full:
        batch.timed_out = 1
    model.batch = -1
    return leave(s, b, now)


@part
def time_out(s: EngineState, b: int, order: int, now: float) -> int:
    """Let batch ``b`` leave at the time-out that was set as ``order``-th, unless it left before.

    Returns it where it is at its replica at once, else -1.
    """
    batch = s.batches[b]
    if batch.state != codes.OPEN or batch.order != order:
        return -1
    s.models[s.replicas[batch.replica].model].batch = -1
    batch.timed_out = 1
    return leave(s, b, now)


@part
def next_of_source(s: EngineState, x: int) -> tuple[float, int]:
    """Return time and key of the next event of source ``x``: a request, or what it does to a streamed model's batch."""
    source = s.sources[x]
    at = source.at
    stop = source.stop
    arrival = (codes.ARRIVAL << codes.KIND_SHIFT) + x
    model = s.models[source.model]
    if source.kind != codes.STREAM:
        if at == stop:
            return math.inf, arrival
        if source.kind == codes.PLAIN and s.arrivals[at] < model.resumed_ms:
            return model.resumed_ms, x
        return s.arrivals[at], arrival
    if model.open_for < 0:
        if at == stop or model.targets == 0:
            return math.inf, arrival
        if s.arrivals[at] < model.resumed_ms:
            return model.resumed_ms, x  # it waited until there was a replica
        return s.arrivals[at], arrival
    # A batch is open: the request that fills it, or its time-out.
    replica = s.replicas[model.open_for]
    late = model.opened_ms + replica.max_wait_ms
    last = at + replica.batch_size - 1
    if last < stop and s.arrivals[last] < late:
        if s.arrivals[last] < model.resumed_ms:
            return model.resumed_ms, x
        return s.arrivals[last], arrival
    return late, (codes.TIMEOUT << codes.KIND_SHIFT) + model.order


@part
def form(s: EngineState, x: int, now: float) -> int:
    """Do what :func:`next_of_source` foretold for a source whose model is streamed.

    A batch is opened, or leaves with all that came meanwhile. Requests within a batch are no events. Returns
    the batch that is at its replica, or -1.
    """
    source = s.sources[x]
    model = s.models[source.model]
    at = source.at
    r = model.open_for
    size = 1
    if r < 0:
        r = choose(s, source.model, now)
        replica = s.replicas[r]
        if replica.max_wait_ms > 0.0:
            model.order = s.loop.order
            s.loop.order += 1
            if replica.batch_size > 1:
                model.open_for = r
                model.opened_ms = now
                return -1
    else:
        replica = s.replicas[r]
        late = model.opened_ms + replica.max_wait_ms
        most = min(replica.batch_size, source.stop - at)
        while size < most and s.arrivals[at + size] < late:
            size += 1
        model.open_for = -1
    b = take_batch(s, r)
    batch = s.batches[b]
    i = s.free.request
    batch.head = i
    last = i
    for k in range(at, at + size):
        request = s.requests[i]
        request.arrived_ms = s.came[k]
        request.origin_ms = s.came[k]
        request.source = x
        request.job = -1
        last = i
        i = request.next
    s.requests[last].next = -1
    s.free.request = i
    s.free.requests -= size
    batch.tail = last
    batch.size = size
    batch.timed_out = 0 if size == replica.batch_size else 1
    source.at = at + size
    return leave(s, b, now)
