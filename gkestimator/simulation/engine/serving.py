"""Serve on replicas, servers and GPUs: queues, turns, copies, service."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.dropping import drop_late, drop_waiting, take_waiting
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.sequences import join_sequences
from gkestimator.simulation.engine.sharing import change_speeds
from gkestimator.simulation.engine.state import EngineState


@part
def take_batch(s: EngineState, r: int) -> int:
    """Take a free batch, for replica ``r``."""
    b = s.free.batch
    batch = s.batches[b]
    s.free.batch = batch.next
    s.free.batches -= 1
    batch.replica = r
    batch.size = 0
    batch.head = -1
    batch.tail = -1
    batch.next = -1
    batch.timed_out = 0
    return b


@part
def free_batch(s: EngineState, b: int) -> None:
    """Free ``b``, which may be used again; its requests are gone before."""
    batch = s.batches[b]
    batch.state = codes.FREE
    batch.next = s.free.batch
    s.free.batch = b
    s.free.batches += 1


@part
def reach(s: EngineState, b: int, now: float) -> int:
    """Take note that batch ``b`` is at its replica.

    Returns the server that has something new, -1 where none has.
    """
    batch = s.batches[b]
    r = batch.replica
    replica = s.replicas[r]
    batch.reached_ms = now
    if replica.singly == 1:
        i = batch.head
        request = s.requests[i]
        request.left_ms = batch.left_ms
        request.reached_ms = now
        free_batch(s, b)
        if replica.waiting == 0:
            replica.head = i
        else:
            s.requests[replica.tail].next = i
        replica.tail = i
        replica.waiting += 1
        if replica.late == 1:
            request.order = s.loop.order
            s.loop.order += 1
            return replica.server
        if replica.due == codes.NO_TURN:
            expect_turn(s, r, now)
    elif replica.iterator >= 0:
        i = batch.head
        request = s.requests[i]
        request.left_ms = batch.left_ms
        request.reached_ms = now
        free_batch(s, b)
        join_sequences(s, r, i, now)
    elif s.options.copy == codes.COPY_OVERLAP and replica.copies == 1:
        gpu = s.gpus[replica.gpu]
        if gpu.copy_head < 0:
            gpu.copy_head = b
            start_copy(s, b, now)
        else:
            s.batches[gpu.copy_tail].next = b
        gpu.copy_tail = b
    else:
        return join_queue(s, b)
    return -1


@part
def start_copy(s: EngineState, b: int, now: float) -> None:
    """Start the copy of ``b`` on the GPU's copy engine."""
    batch = s.batches[b]
    takes = s.curves[s.replicas[batch.replica].curve + batch.size].copy_ms
    order = s.loop.order
    s.loop.order = order + 1
    push_event(s, now + takes, codes.REACH, order, 4 * b + codes.COPIED)


@part
def copied(s: EngineState, b: int, now: float) -> int:
    """End the copy of ``b``, the first of its GPU's; the next begins, ``b`` may be served.

    Returns its server.
    """
    batch = s.batches[b]
    gpu = s.gpus[s.replicas[batch.replica].gpu]
    following = batch.next
    gpu.copy_head = following
    if following >= 0:
        start_copy(s, following, now)
    batch.next = -1
    return join_queue(s, b)


@part
def join_queue(s: EngineState, b: int) -> int:
    """Let ``b`` be served from now on, after those before it. Returns its server."""
    v = s.replicas[s.batches[b].replica].server
    server = s.servers[v]
    if server.head < 0:
        server.head = b
    else:
        s.batches[server.tail].next = b
    server.tail = b
    return v


@part
def expect_turn(s: EngineState, r: int, now: float) -> None:
    """Put the first turn of ``r`` that is still to come on the heap: not before now and not before it is
    available; later than the turn it took last; later than now where this moment's turns are over.
    """
    replica = s.replicas[r]
    offset = replica.offset_ms
    cycle = replica.cycle_ms
    least = max(now, replica.available_ms)
    after = replica.taken_ms
    if s.loop.kind > codes.TURN:
        after = max(after, now)
    # A float, as time over a short cycle may be beyond whole numbers; from there on 1 more is no more.
    k = max(0.0, float(np.floor((least - offset) / cycle)) - 1.0)
    step = 1.0
    while offset + k * cycle < least or offset + k * cycle <= after:
        k += step
        if k > codes.WHOLE:
            step *= 2.0
    replica.due = codes.TURN_COMES
    push_event(s, offset + k * cycle, codes.TURN, r, r)


@part
def turn(s: EngineState, r: int) -> int:
    """Take note that it is the turn of ``r``, and requests wait for it (turns of nothing are not on the
    heap).

    Returns its server.
    """
    replica = s.replicas[r]
    v = replica.server
    server = s.servers[v]
    replica.due = codes.TURN_DUE
    replica.next_due = -1
    if server.due < 0:
        server.due = r
    else:
        s.replicas[server.due_tail].next_due = r
    server.due_tail = r
    return v


@part
def serve(s: EngineState, v: int, now: float) -> None:
    """Serve, where server ``v`` is free, the turn that is due longest, else the first batch whose replica is
    available, else a batch of what waits at the replica that is to batch late.
    """
    server = s.servers[v]
    while server.running < 0:
        r = server.due
        if r >= 0:
            replica = s.replicas[r]
            server.due = replica.next_due
            if s.options.drop == 1:
                drop_waiting(s, r, now)
            if replica.waiting > 0:
                start(s, gather(s, r), now)
            end_turn(s, r, now)
            continue
        r = oldest_waiting(s, v, now)
        if r >= 0:
            if s.options.drop == 1:
                drop_waiting(s, r, now)
            if s.replicas[r].waiting > 0:
                start(s, gather(s, r), now)
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
    server = s.servers[v]
    before = -1
    b = server.head
    while b >= 0 and s.replicas[s.batches[b].replica].available_ms > now:
        before = b
        b = s.batches[b].next
    if b < 0:
        return b
    batch = s.batches[b]
    following = batch.next
    if before < 0:
        server.head = following
    else:
        s.batches[before].next = following
    if following < 0:
        server.tail = before
    batch.next = -1
    server.ticks -= int(s.curves[s.replicas[batch.replica].curve + batch.size].ticks)
    return b


@part
def oldest_waiting(s: EngineState, v: int, now: float) -> int:
    """Return that available replica of server ``v`` which batches late and whose oldest request waits longest; -1:
    none has any."""
    chosen = -1
    oldest = -1
    r = s.servers[v].late
    while r >= 0:
        replica = s.replicas[r]
        if replica.waiting > 0 and replica.available_ms <= now:
            order = s.requests[replica.head].order
            if oldest < 0 or order < oldest:
                oldest = order
                chosen = r
        r = replica.next_late
    return chosen


@part
def end_turn(s: EngineState, r: int, now: float) -> None:
    """Take note that ``r`` took its turn, and expect the next where anything waits."""
    replica = s.replicas[r]
    replica.due = codes.NO_TURN
    replica.taken_ms = now
    if replica.waiting > 0:
        expect_turn(s, r, now)


@part
def gather(s: EngineState, r: int) -> int:
    """Return the batch that ``r`` takes of the oldest requests that wait at it, at most a full one."""
    replica = s.replicas[r]
    b = take_batch(s, r)
    batch = s.batches[b]
    size = min(replica.batch_size, replica.waiting)
    i = replica.head
    batch.head = i
    for _ in range(size - 1):
        i = s.requests[i].next
    batch.tail = i
    batch.size = size
    last = s.requests[i]
    replica.head = last.next
    last.next = -1
    take_waiting(s, r, size)
    return b


@part
def start(s: EngineState, b: int, now: float) -> None:
    """Start the service of ``b``."""
    batch = s.batches[b]
    replica = s.replicas[batch.replica]
    curve = s.curves[replica.curve + batch.size]
    work = curve.latency_ms * replica.factor
    if s.options.exponential == 1:
        work *= s.draws[s.loop.draw]
        s.loop.draw += 1
    if s.options.copy == codes.COPY_SERIAL or (s.options.copy == codes.COPY_OVERLAP and replica.singly == 1):
        work += curve.copy_ms
    order = s.loop.order
    s.loop.order = order + 1
    s.servers[replica.server].running = b
    batch.state = codes.RUNNING
    batch.order = order
    batch.start_ms = now
    batch.since_ms = now
    batch.work_ms = work
    g = replica.gpu
    gpu = s.gpus[g]
    if gpu.running == 0:
        gpu.since_ms = now
    gpu.running += 1
    if s.options.law == 0:
        batch.slowdown = 1.0
        batch.ends_ms = now + work
        push_event(s, now + work, codes.END, order, b)
        return
    batch.slowdown = 0.0
    last = gpu.last
    batch.before = last
    batch.beside = -1
    if last < 0:
        gpu.first = b
    else:
        s.batches[last].beside = b
    gpu.last = b
    change_speeds(s, g, now)


@part
def ended(s: EngineState, b: int, now: float) -> int:
    """End the service of ``b``: counted by replica and GPU. Returns its server, which is free."""
    batch = s.batches[b]
    replica = s.replicas[batch.replica]
    model = s.models[replica.model]
    g = replica.gpu
    gpu = s.gpus[g]
    v = replica.server
    size = batch.size
    batch.state = codes.ANSWERING
    replica.batches += 1
    replica.requests += size
    replica.given -= size
    replica.last_ms = now
    from_ms = s.options.from_ms
    until = s.options.until_ms
    within = min(now, until) - max(batch.start_ms, from_ms)
    if within > 0.0:
        replica.busy_ms += within
    else:
        within = 0.0
    gpu.creq_ms += within * replica.creq_pct
    if s.requests[batch.head].origin_ms >= from_ms:
        model.batches += 1
        if size == replica.batch_size:
            model.full += 1
        model.timed_out += batch.timed_out
    gpu.running -= 1
    if gpu.running == 0:
        within = min(now, until) - max(gpu.since_ms, from_ms)
        if within > 0.0:
            gpu.busy_ms += within
    if s.options.law != 0:
        before = batch.before
        beside = batch.beside
        if before < 0:
            gpu.first = beside
        else:
            s.batches[before].beside = beside
        if beside < 0:
            gpu.last = before
        else:
            s.batches[beside].before = before
        change_speeds(s, g, now)
    s.servers[v].running = -1
    return v
