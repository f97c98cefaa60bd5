"""Count what is known of requests and batches, when they are done."""

from __future__ import annotations

import math

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.histogram import BINS, LOWEST_MS, RATIO

BIN_PER_LOG = 1.0 / math.log(RATIO)
LOG_LOWEST = math.log(LOWEST_MS)
LAST_BIN = BINS - 1


@part
def bin_of(time: float, edges: c.Floats) -> int:
    """Return the bin of ``time`` in the histograms.

    The logarithm guesses, the edges decide, so every machine counts alike.
    """
    if time < LOWEST_MS:
        return 0
    at = min(int((math.log(time) - LOG_LOWEST) * BIN_PER_LOG) + 1, LAST_BIN)
    while time < edges[at]:
        at -= 1
    while at < LAST_BIN and time >= edges[at + 1]:
        at += 1
    return at


@part
def window_of(s: c.EngineState, time: float) -> int:
    """Return the timeline's window that ``time`` lies in."""
    # Less than all windows before it is made whole: the last answers may come after any number of them.
    at = int(min(time / s.f[c.F_WINDOW], float(s.z[c.Z_WINDOWS])))
    if at * s.f[c.F_WINDOW] > time:
        at -= 1
    return int(min(at, s.z[c.Z_WINDOWS] - 1))


@part
def keeps_pace(s: c.EngineState, i: int, now: float) -> int:
    """Return 1 where sequence ``i``, which ends now, kept the objectives of its first token and of those after it."""
    m = s.i[i, c.I_MODEL]
    first = s.qf[i, c.QF_FIRST]
    after = (s.q[i, c.Q_ANSWER] - 1) * s.mf[m, c.MF_SLO_TPOT]
    late = first - s.if_[i, c.IF_ARRIVED] > s.mf[m, c.MF_SLO_TTFT] * c.SLACK
    return 0 if late or now - first > after * c.SLACK else 1


@part
def count_pace(s: c.EngineState, i: int, now: float) -> None:
    """Count the time to the first token of sequence ``i``, which ends now, and the mean time of those after it."""
    m = s.i[i, c.I_MODEL]
    first = s.qf[i, c.QF_FIRST]
    ttft = first - s.if_[i, c.IF_ARRIVED]
    s.mf[m, c.MF_TTFT] += ttft
    s.token_histograms[m, c.TTFT, bin_of(ttft, s.edges)] += 1
    answer = s.q[i, c.Q_ANSWER]
    if answer > 1:
        tpot = (now - first) / (answer - 1)
        s.m[m, c.M_SPREAD] += 1
        s.mf[m, c.MF_TPOT] += tpot
        s.token_histograms[m, c.TPOT, bin_of(tpot, s.edges)] += 1


@part
def count_answered(s: c.EngineState, b: int, now: float) -> None:
    """Count every request of batch ``b``, whose answer reaches the clients at ``now``."""
    s.f[c.F_LAST] = max(s.f[c.F_LAST], now)
    r = s.b[b, c.B_REPLICA]
    m = s.r[r, c.R_MODEL]
    turns = s.r[r, c.R_TURNS] == 1
    size = s.b[b, c.B_SIZE]
    start = s.bf[b, c.BF_START]
    ended = s.bf[b, c.BF_ENDS]
    left = s.bf[b, c.BF_LEFT]
    reached = s.bf[b, c.BF_REACHED]
    back = now - ended
    gpu = ended - start
    latest = s.mf[m, c.MF_SLO] * c.SLACK
    from_ms = s.f[c.F_FROM]
    edges = s.edges
    histograms = s.histograms
    counted = 0
    paced = s.m[m, c.M_SEQUENCES] == 1
    i = s.b[b, c.B_HEAD]
    while i >= 0:
        arrived = s.if_[i, c.IF_ARRIVED]
        wait = start - arrived
        total = now - arrived
        on_time = 1 if total <= latest else 0
        if paced:
            on_time = keeps_pace(s, i, now)
        window = window_of(s, arrived)
        s.windows[m, 1, window] += on_time
        s.windows[m, 2, window] += 1
        s.window_waits[m, window] += wait
        if s.if_[i, c.IF_ORIGIN] >= from_ms:
            counted += 1
            if paced:
                count_pace(s, i, now)
            if turns:
                left = s.if_[i, c.IF_LEFT]
                reached = s.if_[i, c.IF_REACHED]
                queue = start - reached
                network = (reached - left) + back
                s.mf[m, c.MF_QUEUE] += queue
                s.mf[m, c.MF_NETWORK] += network
                histograms[m, 2, bin_of(queue, edges)] += 1
                histograms[m, 1, bin_of(network, edges)] += 1
            router = left - arrived
            s.m[m, c.M_ON_TIME] += on_time
            s.mf[m, c.MF_WAIT] += wait
            s.mf[m, c.MF_ROUTER] += router
            s.mf[m, c.MF_TOTAL] += total
            histograms[m, 0, bin_of(router, edges)] += 1
            histograms[m, 4, bin_of(total, edges)] += 1
            if s.z[c.Z_KEEP] == 1:
                k = s.z[c.Z_KEPT]
                s.z[c.Z_KEPT] = k + 1
                s.kept[k, c.K_SOURCE] = s.i[i, c.I_SOURCE]
                s.kept[k, c.K_MODEL] = m
                s.kept[k, c.K_REPLICA] = r
                s.kept[k, c.K_BATCH] = size
                s.kept_floats[k, c.KF_ARRIVED] = arrived
                s.kept_floats[k, c.KF_ROUTER] = router
                s.kept_floats[k, c.KF_NETWORK] = (reached - left) + back
                s.kept_floats[k, c.KF_QUEUE] = start - reached
                s.kept_floats[k, c.KF_GPU] = gpu
                if paced:
                    s.kept_floats[k, c.KF_FIRST] = s.qf[i, c.QF_FIRST] - arrived
        i = s.i[i, c.I_NEXT]
    if from_ms <= now <= s.f[c.F_UNTIL]:
        s.m[m, c.M_BY_END] += size
    if counted == 0:
        return
    s.m[m, c.M_DONE] += counted
    s.mf[m, c.MF_GPU] += counted * gpu
    histograms[m, 3, bin_of(gpu, edges)] += counted
    if not turns:
        queue = start - reached
        network = (reached - left) + back
        s.mf[m, c.MF_QUEUE] += counted * queue
        s.mf[m, c.MF_NETWORK] += counted * network
        histograms[m, 2, bin_of(queue, edges)] += counted
        histograms[m, 1, bin_of(network, edges)] += counted


@part
def count_source(s: c.EngineState, x: int, arrived: float, now: float) -> None:
    """Count a request of source ``x`` all of whose stages are done."""
    if s.f[c.F_FROM] <= now <= s.f[c.F_UNTIL]:
        s.x[x, c.X_BY_END] += 1
    if arrived < s.f[c.F_FROM]:
        return
    total = now - arrived
    s.x[x, c.X_DONE] += 1
    if total <= s.xf[x, c.XF_SLO] * c.SLACK:
        s.x[x, c.X_ON_TIME] += 1
    s.xf[x, c.XF_SUM] += total
    s.source_histograms[x, bin_of(total, s.edges)] += 1
