"""Serve on replicas, servers and GPUs: queues, turns, copies, service."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.dropping import drop_late, drop_waiting
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.sequences import join_sequences
from gkestimator.simulation.engine.sharing import change_speeds
from gkestimator.simulation.engine.state import EngineState


@part
def take_batch(s: EngineState, r: int) -> int:
    """Take a free batch, for replica ``r``."""
    b = s.free.batch
    s.free.batch = s.batches[b].next
    s.free.batches -= 1
    s.batches[b].replica = r
    s.batches[b].size = 0
    s.batches[b].head = -1
    s.batches[b].tail = -1
    s.batches[b].next = -1
    s.batches[b].timed_out = 0
    return int(b)


@part
def free_batch(s: EngineState, b: int) -> None:
    """Free ``b``, which may be used again; its requests are gone before."""
    s.batches[b].state = codes.FREE
    s.batches[b].next = s.free.batch
    s.free.batch = b
    s.free.batches += 1


@part
def reach(s: EngineState, b: int, now: float) -> int:
    """Take note that batch ``b`` is at its replica.

    Returns the server that has something new, -1 where none has.
    """
    r = s.batches[b].replica
    s.batches[b].reached_ms = now
    if s.replicas[r].turns == 1:
        i = s.batches[b].head
        s.requests[i].left_ms = s.batches[b].left_ms
        s.requests[i].reached_ms = now
        free_batch(s, b)
        if s.replicas[r].waiting == 0:
            s.replicas[r].head = i
        else:
            s.requests[s.replicas[r].tail].next = i
        s.replicas[r].tail = i
        s.replicas[r].waiting += 1
        if s.replicas[r].due == codes.NO_TURN:
            expect_turn(s, r, now)
    elif s.replicas[r].iterator >= 0:
        i = s.batches[b].head
        s.requests[i].left_ms = s.batches[b].left_ms
        s.requests[i].reached_ms = now
        free_batch(s, b)
        join_sequences(s, r, i, now)
    elif s.options.copy == codes.COPY_OVERLAP and s.replicas[r].copies == 1:
        g = s.replicas[r].gpu
        if s.gpus[g].copy_head < 0:
            s.gpus[g].copy_head = b
            start_copy(s, b, now)
        else:
            s.batches[s.gpus[g].copy_tail].next = b
        s.gpus[g].copy_tail = b
    else:
        return join_queue(s, b)
    return -1


@part
def start_copy(s: EngineState, b: int, now: float) -> None:
    """Start the copy of ``b`` on the GPU's copy engine."""
    r = s.batches[b].replica
    takes = s.curves[s.replicas[r].curve + s.batches[b].size].copy_ms
    order = s.loop.order
    s.loop.order = order + 1
    push_event(s, now + takes, codes.REACH, order, 4 * b + codes.COPIED)


@part
def copied(s: EngineState, b: int, now: float) -> int:
    """End the copy of ``b``, the first of its GPU's; the next begins, ``b`` may be served.

    Returns its server.
    """
    g = s.replicas[s.batches[b].replica].gpu
    following = s.batches[b].next
    s.gpus[g].copy_head = following
    if following >= 0:
        start_copy(s, following, now)
    s.batches[b].next = -1
    return join_queue(s, b)


@part
def join_queue(s: EngineState, b: int) -> int:
    """Let ``b`` be served from now on, after those before it. Returns its server."""
    v = s.replicas[s.batches[b].replica].server
    if s.servers[v].head < 0:
        s.servers[v].head = b
    else:
        s.batches[s.servers[v].tail].next = b
    s.servers[v].tail = b
    return int(v)


@part
def expect_turn(s: EngineState, r: int, now: float) -> None:
    """Put the first turn of ``r`` that is still to come on the heap: not before now and not before it is
    available; later than the turn it took last; later than now where this moment's turns are over.
    """
    offset = s.replicas[r].offset_ms
    cycle = s.replicas[r].cycle_ms
    least = max(now, s.replicas[r].available_ms)
    after = s.replicas[r].taken_ms
    if s.loop.kind > codes.TURN:
        after = max(after, now)
    # A float, as time over a short cycle may be beyond whole numbers; from there on 1 more is no more.
    k = max(0.0, float(np.floor((least - offset) / cycle)) - 1.0)
    step = 1.0
    while offset + k * cycle < least or offset + k * cycle <= after:
        k += step
        if k > codes.WHOLE:
            step *= 2.0
    s.replicas[r].due = codes.TURN_COMES
    push_event(s, offset + k * cycle, codes.TURN, r, r)


@part
def turn(s: EngineState, r: int) -> int:
    """Take note that it is the turn of ``r``, and requests wait for it (turns of nothing are not on the
    heap).

    Returns its server.
    """
    v = s.replicas[r].server
    s.replicas[r].due = codes.TURN_DUE
    s.replicas[r].next_due = -1
    if s.servers[v].due < 0:
        s.servers[v].due = r
    else:
        s.replicas[s.servers[v].due_tail].next_due = r
    s.servers[v].due_tail = r
    return int(v)


@part
def serve(s: EngineState, v: int, now: float) -> None:
    """Serve, where server ``v`` is free, the turn that is due longest, else the first batch whose replica is
    available.
    """
    while s.servers[v].running < 0:
        r = s.servers[v].due
        if r >= 0:
            s.servers[v].due = s.replicas[r].next_due
            if s.options.drop == 1:
                drop_waiting(s, r, now)
            if s.replicas[r].waiting > 0:
                start(s, gather(s, r, now), now)
            else:
                s.replicas[r].due = codes.NO_TURN
                s.replicas[r].taken_ms = now
            continue
        b = next_batch(s, v, now)
        if b < 0:
            return
        if s.options.drop == 1:
            drop_late(s, b, now)
        if s.batches[b].size > 0:
            start(s, b, now)
        else:
            free_batch(s, b)


@part
def next_batch(s: EngineState, v: int, now: float) -> int:
    """Take the first batch whose replica is available out of the queue of server ``v``; -1: there is none."""
    before = -1
    b = s.servers[v].head
    while b >= 0 and s.replicas[s.batches[b].replica].available_ms > now:
        before = b
        b = s.batches[b].next
    if b < 0:
        return int(b)
    following = s.batches[b].next
    if before < 0:
        s.servers[v].head = following
    else:
        s.batches[before].next = following
    if following < 0:
        s.servers[v].tail = before
    s.batches[b].next = -1
    s.servers[v].ticks -= int(s.curves[s.replicas[s.batches[b].replica].curve + s.batches[b].size].ticks)
    return int(b)


@part
def gather(s: EngineState, r: int, now: float) -> int:
    """Return the batch that ``r`` takes at a turn: of what waits, at most a full batch."""
    b = take_batch(s, r)
    size = min(s.replicas[r].batch_size, s.replicas[r].waiting)
    i = s.replicas[r].head
    s.batches[b].head = i
    for _ in range(size - 1):
        i = s.requests[i].next
    s.batches[b].tail = i
    s.batches[b].size = size
    s.replicas[r].head = s.requests[i].next
    s.requests[i].next = -1
    s.replicas[r].waiting -= size
    s.replicas[r].coming -= size
    s.replicas[r].due = codes.NO_TURN
    s.replicas[r].taken_ms = now
    if s.replicas[r].waiting > 0:
        expect_turn(s, r, now)
    return int(b)


@part
def start(s: EngineState, b: int, now: float) -> None:
    """Start the service of ``b``."""
    r = s.batches[b].replica
    at = s.replicas[r].curve + s.batches[b].size
    work = s.curves[at].latency_ms * s.replicas[r].factor
    if s.options.exponential == 1:
        work *= s.draws[s.loop.draw]
        s.loop.draw += 1
    if s.options.copy == codes.COPY_SERIAL or (
        s.options.copy == codes.COPY_OVERLAP and s.replicas[r].turns == 1
    ):
        work += s.curves[at].copy_ms
    order = s.loop.order
    s.loop.order = order + 1
    s.servers[s.replicas[r].server].running = b
    s.batches[b].state = codes.RUNNING
    s.batches[b].order = order
    s.batches[b].start_ms = now
    s.batches[b].since_ms = now
    s.batches[b].work_ms = work
    g = s.replicas[r].gpu
    if s.gpus[g].running == 0:
        s.gpus[g].since_ms = now
    s.gpus[g].running += 1
    if s.options.law == 0:
        s.batches[b].slowdown = 1.0
        s.batches[b].ends_ms = now + work
        push_event(s, now + work, codes.END, order, b)
        return
    s.batches[b].slowdown = 0.0
    last = s.gpus[g].last
    s.batches[b].before = last
    s.batches[b].beside = -1
    if last < 0:
        s.gpus[g].first = b
    else:
        s.batches[last].beside = b
    s.gpus[g].last = b
    change_speeds(s, g, now)


@part
def ended(s: EngineState, b: int, now: float) -> int:
    """End the service of ``b``: counted by replica and GPU. Returns its server, which is free."""
    r = s.batches[b].replica
    m = s.replicas[r].model
    g = s.replicas[r].gpu
    v = s.replicas[r].server
    size = s.batches[b].size
    s.batches[b].state = codes.ANSWERING
    s.replicas[r].batches += 1
    s.replicas[r].requests += size
    s.replicas[r].given -= size
    s.replicas[r].last_ms = now
    from_ms = s.options.from_ms
    until = s.options.until_ms
    within = min(now, until) - max(s.batches[b].start_ms, from_ms)
    if within > 0.0:
        s.replicas[r].busy_ms += within
    else:
        within = 0.0
    s.gpus[g].creq_ms += within * s.replicas[r].creq_pct
    if s.requests[s.batches[b].head].origin_ms >= from_ms:
        s.models[m].batches += 1
        if size == s.replicas[r].batch_size:
            s.models[m].full += 1
        s.models[m].timed_out += s.batches[b].timed_out
    s.gpus[g].running -= 1
    if s.gpus[g].running == 0:
        within = min(now, until) - max(s.gpus[g].since_ms, from_ms)
        if within > 0.0:
            s.gpus[g].busy_ms += within
    if s.options.law != 0:
        before = s.batches[b].before
        beside = s.batches[b].beside
        if before < 0:
            s.gpus[g].first = beside
        else:
            s.batches[before].beside = beside
        if beside < 0:
            s.gpus[g].last = before
        else:
            s.batches[beside].before = before
        change_speeds(s, g, now)
    s.servers[v].running = -1
    return int(v)
