"""Serve on replicas, servers and GPUs: queues, turns, copies, service."""

from __future__ import annotations

import numpy as np

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.dropping import drop_late, drop_waiting
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.sequences import join_sequences
from gkestimator.simulation.engine.sharing import change_speeds


@part
def take_batch(s: c.EngineState, r: int) -> int:
    """Take a free batch, for replica ``r``."""
    b = s.z[c.Z_BATCH]
    s.z[c.Z_BATCH] = s.b[b, c.B_NEXT]
    s.z[c.Z_BATCHES] -= 1
    s.b[b, c.B_REPLICA] = r
    s.b[b, c.B_SIZE] = 0
    s.b[b, c.B_HEAD] = -1
    s.b[b, c.B_TAIL] = -1
    s.b[b, c.B_NEXT] = -1
    s.b[b, c.B_TIMED_OUT] = 0
    return int(b)


@part
def free_batch(s: c.EngineState, b: int) -> None:
    """Free ``b``, which may be used again; its requests are gone before."""
    s.b[b, c.B_STATE] = c.FREE
    s.b[b, c.B_NEXT] = s.z[c.Z_BATCH]
    s.z[c.Z_BATCH] = b
    s.z[c.Z_BATCHES] += 1


@part
def reach(s: c.EngineState, b: int, now: float) -> int:
    """Take note that batch ``b`` is at its replica.

    Returns the server that has something new, -1 where none has.
    """
    r = s.b[b, c.B_REPLICA]
    s.bf[b, c.BF_REACHED] = now
    if s.r[r, c.R_TURNS] == 1:
        i = s.b[b, c.B_HEAD]
        s.if_[i, c.IF_LEFT] = s.bf[b, c.BF_LEFT]
        s.if_[i, c.IF_REACHED] = now
        free_batch(s, b)
        if s.r[r, c.R_WAITING] == 0:
            s.r[r, c.R_HEAD] = i
        else:
            s.i[s.r[r, c.R_TAIL], c.I_NEXT] = i
        s.r[r, c.R_TAIL] = i
        s.r[r, c.R_WAITING] += 1
        if s.r[r, c.R_DUE] == 0:
            expect_turn(s, r, now)
    elif s.r[r, c.R_ITERATES] >= 0:
        i = s.b[b, c.B_HEAD]
        s.if_[i, c.IF_LEFT] = s.bf[b, c.BF_LEFT]
        s.if_[i, c.IF_REACHED] = now
        free_batch(s, b)
        join_sequences(s, r, i, now)
    elif s.z[c.Z_COPY] == 2 and s.r[r, c.R_COPIES] == 1:
        g = s.r[r, c.R_GPU]
        if s.g[g, c.G_COPY_HEAD] < 0:
            s.g[g, c.G_COPY_HEAD] = b
            start_copy(s, b, now)
        else:
            s.b[s.g[g, c.G_COPY_TAIL], c.B_NEXT] = b
        s.g[g, c.G_COPY_TAIL] = b
    else:
        return join_queue(s, b)
    return -1


@part
def start_copy(s: c.EngineState, b: int, now: float) -> None:
    """Start the copy of ``b`` on the GPU's copy engine."""
    r = s.b[b, c.B_REPLICA]
    takes = s.curves[s.r[r, c.R_CURVE] + s.b[b, c.B_SIZE], c.C_COPY]
    order = s.z[c.Z_ORDER]
    s.z[c.Z_ORDER] = order + 1
    push_event(s, now + takes, c.REACH, order, 4 * b + c.COPIED)


@part
def copied(s: c.EngineState, b: int, now: float) -> int:
    """End the copy of ``b``, the first of its GPU's; the next begins, ``b`` may be served.

    Returns its server.
    """
    g = s.r[s.b[b, c.B_REPLICA], c.R_GPU]
    following = s.b[b, c.B_NEXT]
    s.g[g, c.G_COPY_HEAD] = following
    if following >= 0:
        start_copy(s, following, now)
    s.b[b, c.B_NEXT] = -1
    return join_queue(s, b)


@part
def join_queue(s: c.EngineState, b: int) -> int:
    """Let ``b`` be served from now on, after those before it. Returns its server."""
    v = s.r[s.b[b, c.B_REPLICA], c.R_SERVER]
    if s.v[v, c.V_HEAD] < 0:
        s.v[v, c.V_HEAD] = b
    else:
        s.b[s.v[v, c.V_TAIL], c.B_NEXT] = b
    s.v[v, c.V_TAIL] = b
    return int(v)


@part
def expect_turn(s: c.EngineState, r: int, now: float) -> None:
    """Put the first turn of ``r`` that is still to come on the heap: not before now and not before it is
    available; later than the turn it took last; later than now where this moment's turns are over.
    """
    offset = s.rf[r, c.RF_OFFSET]
    cycle = s.rf[r, c.RF_CYCLE]
    least = max(now, s.rf[r, c.RF_AVAILABLE])
    after = s.rf[r, c.RF_TAKEN]
    if s.z[c.Z_KIND] > c.TURN:
        after = max(after, now)
    # A float, as time over a short cycle may be beyond whole numbers; from there on 1 more is no more.
    k = max(0.0, float(np.floor((least - offset) / cycle)) - 1.0)
    step = 1.0
    while offset + k * cycle < least or offset + k * cycle <= after:
        k += step
        if k > c.WHOLE:
            step *= 2.0
    s.r[r, c.R_DUE] = 1
    push_event(s, offset + k * cycle, c.TURN, r, r)


@part
def turn(s: c.EngineState, r: int) -> int:
    """Take note that it is the turn of ``r``, and requests wait for it (turns of nothing are not on the
    heap).

    Returns its server.
    """
    v = s.r[r, c.R_SERVER]
    s.r[r, c.R_DUE] = 2
    s.r[r, c.R_NEXT_DUE] = -1
    if s.v[v, c.V_DUE] < 0:
        s.v[v, c.V_DUE] = r
    else:
        s.r[s.v[v, c.V_DUE_TAIL], c.R_NEXT_DUE] = r
    s.v[v, c.V_DUE_TAIL] = r
    return int(v)


@part
def serve(s: c.EngineState, v: int, now: float) -> None:
    """Serve, where server ``v`` is free, the turn that is due longest, else the first batch whose replica is
    available.
    """
    while s.v[v, c.V_RUNNING] < 0:
        r = s.v[v, c.V_DUE]
        if r >= 0:
            s.v[v, c.V_DUE] = s.r[r, c.R_NEXT_DUE]
            if s.z[c.Z_DROP] == 1:
                drop_waiting(s, r, now)
            if s.r[r, c.R_WAITING] > 0:
                start(s, gather(s, r, now), now)
            else:
                s.r[r, c.R_DUE] = 0
                s.rf[r, c.RF_TAKEN] = now
            continue
        b = next_batch(s, v, now)
        if b < 0:
            return
        if s.z[c.Z_DROP] == 1:
            drop_late(s, b, now)
        if s.b[b, c.B_SIZE] > 0:
            start(s, b, now)
        else:
            free_batch(s, b)


@part
def next_batch(s: c.EngineState, v: int, now: float) -> int:
    """Take the first batch whose replica is available out of the queue of server ``v``; -1: there is none."""
    before = -1
    b = s.v[v, c.V_HEAD]
    while b >= 0 and s.rf[s.b[b, c.B_REPLICA], c.RF_AVAILABLE] > now:
        before = b
        b = s.b[b, c.B_NEXT]
    if b < 0:
        return int(b)
    following = s.b[b, c.B_NEXT]
    if before < 0:
        s.v[v, c.V_HEAD] = following
    else:
        s.b[before, c.B_NEXT] = following
    if following < 0:
        s.v[v, c.V_TAIL] = before
    s.b[b, c.B_NEXT] = -1
    s.v[v, c.V_TICKS] -= int(s.curves[s.r[s.b[b, c.B_REPLICA], c.R_CURVE] + s.b[b, c.B_SIZE], c.C_TICKS])
    return int(b)


@part
def gather(s: c.EngineState, r: int, now: float) -> int:
    """Return the batch that ``r`` takes at a turn: of what waits, at most a full batch."""
    b = take_batch(s, r)
    size = min(s.r[r, c.R_SIZE], s.r[r, c.R_WAITING])
    i = s.r[r, c.R_HEAD]
    s.b[b, c.B_HEAD] = i
    for _ in range(size - 1):
        i = s.i[i, c.I_NEXT]
    s.b[b, c.B_TAIL] = i
    s.b[b, c.B_SIZE] = size
    s.r[r, c.R_HEAD] = s.i[i, c.I_NEXT]
    s.i[i, c.I_NEXT] = -1
    s.r[r, c.R_WAITING] -= size
    s.r[r, c.R_COMING] -= size
    s.r[r, c.R_DUE] = 0
    s.rf[r, c.RF_TAKEN] = now
    if s.r[r, c.R_WAITING] > 0:
        expect_turn(s, r, now)
    return int(b)


@part
def start(s: c.EngineState, b: int, now: float) -> None:
    """Start the service of ``b``."""
    r = s.b[b, c.B_REPLICA]
    at = s.r[r, c.R_CURVE] + s.b[b, c.B_SIZE]
    work = s.curves[at, c.C_LATENCY] * s.rf[r, c.RF_FACTOR]
    if s.z[c.Z_EXPONENTIAL] == 1:
        work *= s.draws[s.z[c.Z_DRAW]]
        s.z[c.Z_DRAW] += 1
    if s.z[c.Z_COPY] == 1 or (s.z[c.Z_COPY] == 2 and s.r[r, c.R_TURNS] == 1):
        work += s.curves[at, c.C_COPY]
    order = s.z[c.Z_ORDER]
    s.z[c.Z_ORDER] = order + 1
    s.v[s.r[r, c.R_SERVER], c.V_RUNNING] = b
    s.b[b, c.B_STATE] = c.RUNNING
    s.b[b, c.B_ORDER] = order
    s.bf[b, c.BF_START] = now
    s.bf[b, c.BF_SINCE] = now
    s.bf[b, c.BF_WORK] = work
    g = s.r[r, c.R_GPU]
    if s.g[g, c.G_RUNNING] == 0:
        s.gf[g, c.GF_SINCE] = now
    s.g[g, c.G_RUNNING] += 1
    if s.z[c.Z_LAW] == 0:
        s.bf[b, c.BF_SLOW] = 1.0
        s.bf[b, c.BF_ENDS] = now + work
        push_event(s, now + work, c.END, order, b)
        return
    s.bf[b, c.BF_SLOW] = 0.0
    last = s.g[g, c.G_LAST]
    s.b[b, c.B_BEFORE] = last
    s.b[b, c.B_BESIDE] = -1
    if last < 0:
        s.g[g, c.G_FIRST] = b
    else:
        s.b[last, c.B_BESIDE] = b
    s.g[g, c.G_LAST] = b
    change_speeds(s, g, now)


@part
def ended(s: c.EngineState, b: int, now: float) -> int:
    """End the service of ``b``: counted by replica and GPU. Returns its server, which is free."""
    r = s.b[b, c.B_REPLICA]
    m = s.r[r, c.R_MODEL]
    g = s.r[r, c.R_GPU]
    v = s.r[r, c.R_SERVER]
    size = s.b[b, c.B_SIZE]
    s.b[b, c.B_STATE] = c.ANSWERING
    s.r[r, c.R_BATCHES] += 1
    s.r[r, c.R_REQUESTS] += size
    s.r[r, c.R_GIVEN] -= size
    s.rf[r, c.RF_LAST] = now
    from_ms = s.f[c.F_FROM]
    until = s.f[c.F_UNTIL]
    within = min(now, until) - max(s.bf[b, c.BF_START], from_ms)
    if within > 0.0:
        s.rf[r, c.RF_BUSY] += within
    else:
        within = 0.0
    s.gf[g, c.GF_CREQ] += within * s.rf[r, c.RF_CREQ]
    if s.if_[s.b[b, c.B_HEAD], c.IF_ORIGIN] >= from_ms:
        s.m[m, c.M_BATCHES] += 1
        if size == s.r[r, c.R_SIZE]:
            s.m[m, c.M_FULL] += 1
        s.m[m, c.M_TIMED_OUT] += s.b[b, c.B_TIMED_OUT]
    s.g[g, c.G_RUNNING] -= 1
    if s.g[g, c.G_RUNNING] == 0:
        within = min(now, until) - max(s.gf[g, c.GF_SINCE], from_ms)
        if within > 0.0:
            s.gf[g, c.GF_BUSY] += within
    if s.z[c.Z_LAW] != 0:
        before = s.b[b, c.B_BEFORE]
        beside = s.b[b, c.B_BESIDE]
        if before < 0:
            s.g[g, c.G_FIRST] = beside
        else:
            s.b[before, c.B_BESIDE] = beside
        if beside < 0:
            s.g[g, c.G_LAST] = before
        else:
            s.b[beside, c.B_BEFORE] = before
        change_speeds(s, g, now)
    s.v[v, c.V_RUNNING] = -1
    return int(v)
