"""Route requests to models: batches under construction, the replica that the next one is for."""

from __future__ import annotations

import math

import numpy as np

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.heaps import lift_target, push_event, sink_target
from gkestimator.simulation.engine.part import inlined, part
from gkestimator.simulation.engine.serving import take_batch


@part
def load_of(s: c.EngineState, r: int, now: float) -> int:
    """Return the outstanding work of replica ``r`` (of its server, unless it takes turns), in ticks."""
    if s.r[r, c.R_TURNS] == 1:
        return int(np.rint(c.TICKS * s.r[r, c.R_COMING] * s.rf[r, c.RF_CYCLE] / s.r[r, c.R_SIZE]))
    v = s.r[r, c.R_SERVER]
    load = s.v[v, c.V_TICKS]
    b = s.v[v, c.V_RUNNING]
    if b >= 0:
        left = s.bf[b, c.BF_WORK] - (now - s.bf[b, c.BF_SINCE]) / s.bf[b, c.BF_SLOW]
        load += int(np.rint(c.TICKS * left))
    return int(load)


@part
def choose(s: c.EngineState, m: int, now: float) -> int:
    """Return the replica that model ``m``'s next batch is for, which is dealt it; -1 where the model has none."""
    first = s.m[m, c.M_FIRST]
    count = s.m[m, c.M_AVAILABLE]
    in_order = count > 0
    if not in_order:
        count = s.m[m, c.M_TARGETS]
    if count == 0:
        return -1
    chosen = int(s.targets[first])
    if s.z[c.Z_LEAST_LOAD] == 1:
        chosen = least_loaded(s, first, count, now)
    elif not in_order:
        for k in range(first + 1, first + count):
            r = s.targets[k]
            key = s.rf[r, c.RF_KEY]
            best = s.rf[chosen, c.RF_KEY]
            if key < best or (key == best and r < chosen):
                chosen = int(r)
    deal(s, chosen)
    if in_order and s.z[c.Z_LEAST_LOAD] == 0:
        sink_target(s.targets, s.rf, first, count, 0)
    return chosen


@inlined
def least_loaded(s: c.EngineState, first: int, count: int, now: float) -> int:
    """Return that of ``count`` targets with the least work; of equals the one that was dealt least, then the first."""
    best = s.targets[first]
    least = load_of(s, best, now)
    dealt = s.rf[best, c.RF_DEALT] / s.rf[best, c.RF_WEIGHT]
    for k in range(first + 1, first + count):
        r = s.targets[k]
        load = load_of(s, r, now)
        if load > least:
            continue
        its = s.rf[r, c.RF_DEALT] / s.rf[r, c.RF_WEIGHT]
        if load < least or its < dealt or (its == dealt and r < best):
            best = r
            least = load
            dealt = its
    return int(best)


@part
def deal(s: c.EngineState, r: int) -> None:
    """Deal replica ``r`` a batch's worth of its model's requests."""
    s.rf[r, c.RF_DEALT] += s.rf[r, c.RF_DEAL]
    s.rf[r, c.RF_KEY] = (s.rf[r, c.RF_DEALT] + s.rf[r, c.RF_DEAL]) / s.rf[r, c.RF_WEIGHT]


@part
def available(s: c.EngineState, r: int) -> int:
    """Let replica ``r`` serve from now on. Returns its server.

    It does not catch up on what its model's others were dealt before.
    """
    s.r[r, c.R_AVAILABLE] = 1
    if s.r[r, c.R_RETIRED] == 0:
        m = s.r[r, c.R_MODEL]
        first = s.m[m, c.M_FIRST]
        count = s.m[m, c.M_AVAILABLE]
        least = math.inf
        for k in range(first, first + count):
            other = s.targets[k]
            least = min(least, s.rf[other, c.RF_DEALT] / s.rf[other, c.RF_WEIGHT])
        if least < math.inf:
            s.rf[r, c.RF_DEALT] = max(s.rf[r, c.RF_DEALT], s.rf[r, c.RF_WEIGHT] * least)
        s.rf[r, c.RF_KEY] = (s.rf[r, c.RF_DEALT] + s.rf[r, c.RF_DEAL]) / s.rf[r, c.RF_WEIGHT]
        at = count
        while s.targets[first + at] != r:
            at += 1
        s.targets[first + at] = s.targets[first + count]
        s.targets[first + count] = r
        s.m[m, c.M_AVAILABLE] = count + 1
        lift_target(s.targets, s.rf, first, count)
    return int(s.r[r, c.R_SERVER])


@part
def leave(s: c.EngineState, b: int, now: float) -> int:
    """Let batch ``b`` leave the router for its replica. Returns it where it is there at once, else -1."""
    r = s.b[b, c.B_REPLICA]
    size = s.b[b, c.B_SIZE]
    at = s.r[r, c.R_CURVE] + size
    s.b[b, c.B_STATE] = c.GIVEN
    s.bf[b, c.BF_LEFT] = now
    s.r[r, c.R_GIVEN] += size
    if s.r[r, c.R_TURNS] == 1:
        s.r[r, c.R_COMING] += size
    else:
        s.v[s.r[r, c.R_SERVER], c.V_TICKS] += int(s.curves[at, c.C_TICKS])
    if s.r[r, c.R_REQUEST_DELAY] == 1:
        order = s.z[c.Z_ORDER]
        s.z[c.Z_ORDER] = order + 1
        push_event(s, now + s.curves[at, c.C_REQUEST], c.REACH, order, 4 * b + c.AT_REPLICA)
        return -1
    return b


@part
def take_item(s: c.EngineState, m: int, arrived: float, origin: float, x: int) -> int:
    """Take a free request for source ``x`` to model ``m``."""
    i = s.z[c.Z_ITEM]
    s.z[c.Z_ITEM] = s.i[i, c.I_NEXT]
    s.z[c.Z_ITEMS] -= 1
    s.i[i, c.I_NEXT] = -1
    s.i[i, c.I_SOURCE] = x
    s.i[i, c.I_JOB] = -1
    s.i[i, c.I_MODEL] = m
    s.if_[i, c.IF_ARRIVED] = arrived
    s.if_[i, c.IF_ORIGIN] = origin
    return int(i)


@part
def ask(s: c.EngineState, i: int) -> None:
    """Ask for request ``i`` to be routed before the next event, after those that were asked for before."""
    if s.z[c.Z_ASKED] < 0:
        s.z[c.Z_ASKED] = i
    else:
        s.i[s.z[c.Z_ASKED_LAST], c.I_NEXT] = i
    s.z[c.Z_ASKED_LAST] = i


@part
def route(s: c.EngineState, i: int, now: float) -> int:
    """Bring request ``i`` to the router of its model (which is not streamed).

    Returns the batch that reached its replica by that, or -1.
    """
    m = s.i[i, c.I_MODEL]
    b = s.m[m, c.M_BATCH]
    if b < 0:
        r = choose(s, m, now)
        if r < 0:
            if s.m[m, c.M_HEAD] < 0:
                s.m[m, c.M_HEAD] = i
            else:
                s.i[s.m[m, c.M_TAIL], c.I_NEXT] = i
            s.m[m, c.M_TAIL] = i
            return -1
        b = take_batch(s, r)
        s.m[m, c.M_BATCH] = b
        s.b[b, c.B_HEAD] = i
        if s.r[r, c.R_TURNS] == 0 and s.rf[r, c.RF_WAIT] > 0.0:
            order = s.z[c.Z_ORDER]
            s.z[c.Z_ORDER] = order + 1
            s.b[b, c.B_ORDER] = order
            s.b[b, c.B_STATE] = c.OPEN
            if s.r[r, c.R_SIZE] > 1:
                push_event(s, now + s.rf[r, c.RF_WAIT], c.TIMEOUT, order, b)
    else:
        r = s.b[b, c.B_REPLICA]
        s.i[s.b[b, c.B_TAIL], c.I_NEXT] = i
    s.b[b, c.B_TAIL] = i
    s.b[b, c.B_SIZE] += 1
    full = s.r[r, c.R_TURNS] == 1 or s.b[b, c.B_SIZE] >= s.r[r, c.R_SIZE]
    if not full and s.rf[r, c.RF_WAIT] > 0.0:
        return -1
    if not full:
        s.b[b, c.B_TIMED_OUT] = 1
    s.m[m, c.M_BATCH] = -1
    return leave(s, b, now)


@part
def time_out(s: c.EngineState, b: int, order: int, now: float) -> int:
    """Let batch ``b`` leave at the time-out that was set as ``order``-th, unless it left before.

    Returns it where it is at its replica at once, else -1.
    """
    if s.b[b, c.B_STATE] != c.OPEN or s.b[b, c.B_ORDER] != order:
        return -1
    s.m[s.r[s.b[b, c.B_REPLICA], c.R_MODEL], c.M_BATCH] = -1
    s.b[b, c.B_TIMED_OUT] = 1
    return leave(s, b, now)


@part
def next_of_source(s: c.EngineState, x: int) -> tuple[float, int]:
    """Return time and key of the next event of source ``x``: a request, or what it does to a streamed model's batch."""
    at = s.x[x, c.X_AT]
    stop = s.x[x, c.X_STOP]
    arrival = (c.ARRIVAL << c.KIND_SHIFT) + x
    m = s.x[x, c.X_MODEL]
    if s.x[x, c.X_KIND] != c.STREAM:
        if at == stop:
            return math.inf, arrival
        if s.x[x, c.X_KIND] == c.PLAIN and s.arrivals[at] < s.mf[m, c.MF_RESUMED]:
            return s.mf[m, c.MF_RESUMED], x
        return s.arrivals[at], arrival
    r = s.m[m, c.M_OPEN]
    if r < 0:
        if at == stop or s.m[m, c.M_TARGETS] == 0:
            return math.inf, arrival
        if s.arrivals[at] < s.mf[m, c.MF_RESUMED]:
            return s.mf[m, c.MF_RESUMED], x  # it waited until there was a replica
        return s.arrivals[at], arrival
    # A batch is open: the request that fills it, or its time-out.
    opened = s.mf[m, c.MF_OPENED]
    late = opened + s.rf[r, c.RF_WAIT]
    last = at + s.r[r, c.R_SIZE] - 1
    if last < stop and s.arrivals[last] < late:
        if s.arrivals[last] < s.mf[m, c.MF_RESUMED]:
            return s.mf[m, c.MF_RESUMED], x
        return s.arrivals[last], arrival
    return late, (c.TIMEOUT << c.KIND_SHIFT) + s.m[m, c.M_ORDER]


@part
def form(s: c.EngineState, x: int, now: float) -> int:
    """Do what :func:`next_of_source` foretold for a source whose model is streamed.

    A batch is opened, or leaves with all that came meanwhile. Requests within a batch are no events. Returns
    the batch that is at its replica, or -1.
    """
    m = s.x[x, c.X_MODEL]
    at = s.x[x, c.X_AT]
    r = s.m[m, c.M_OPEN]
    size = 1
    if r < 0:
        r = choose(s, m, now)
        if s.rf[r, c.RF_WAIT] > 0.0:
            s.m[m, c.M_ORDER] = s.z[c.Z_ORDER]
            s.z[c.Z_ORDER] += 1
            if s.r[r, c.R_SIZE] > 1:
                s.m[m, c.M_OPEN] = r
                s.mf[m, c.MF_OPENED] = now
                return -1
    else:
        late = s.mf[m, c.MF_OPENED] + s.rf[r, c.RF_WAIT]
        most = min(s.r[r, c.R_SIZE], s.x[x, c.X_STOP] - at)
        while size < most and s.arrivals[at + size] < late:
            size += 1
        s.m[m, c.M_OPEN] = -1
    b = take_batch(s, r)
    i = s.z[c.Z_ITEM]
    s.b[b, c.B_HEAD] = i
    last = i
    for k in range(at, at + size):
        s.if_[i, c.IF_ARRIVED] = s.arrivals[k]
        s.if_[i, c.IF_ORIGIN] = s.arrivals[k]
        s.i[i, c.I_SOURCE] = x
        s.i[i, c.I_JOB] = -1
        last = i
        i = s.i[i, c.I_NEXT]
    s.i[last, c.I_NEXT] = -1
    s.z[c.Z_ITEM] = i
    s.z[c.Z_ITEMS] -= size
    s.b[b, c.B_TAIL] = last
    s.b[b, c.B_SIZE] = size
    s.b[b, c.B_TIMED_OUT] = 0 if size == s.r[r, c.R_SIZE] else 1
    s.x[x, c.X_AT] = at + size
    return leave(s, b, now)
