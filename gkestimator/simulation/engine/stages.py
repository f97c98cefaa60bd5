"""Serve applications: stages that follow others, each asked as often as it fans out."""

from __future__ import annotations

import math

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.counting import count_answered, count_source, window_of
from gkestimator.simulation.engine.dropping import release_job
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.routing import ask, take_item
from gkestimator.simulation.engine.serving import free_batch


@part
def begin_job(s: c.EngineState, x: int, now: float) -> None:
    """Begin a request of source ``x``, an application."""
    j = s.z[c.Z_JOB]
    s.z[c.Z_JOB] = s.j[j, c.J_OPEN]
    s.z[c.Z_JOBS] -= 1
    stages = s.x[x, c.X_STAGES]
    s.j[j, c.J_SOURCE] = x
    s.j[j, c.J_OPEN] = stages
    s.j[j, c.J_ASKED] = 0
    s.j[j, c.J_DROPPED] = 0
    s.jf[j] = now
    for k in range(stages):
        s.j[j, c.J_STAGES + 2 * k] = -1
        s.j[j, c.J_STAGES + 2 * k + 1] = 0
    begin_stages(s, j, now)


@part
def times_asked(s: c.EngineState, j: int, stage: int) -> float:
    """Return how often stage ``stage`` (of all sources') of job ``j`` is asked, before it is made whole;
    below 0: not yet.
    """
    if s.t[stage, c.T_AFTERS] == 0:
        most = 1
    else:
        most = 0
    first = s.t[stage, c.T_AFTER]
    for k in range(first, first + s.t[stage, c.T_AFTERS]):
        at = c.J_STAGES + 2 * s.afters[k]
        if s.j[j, at] < 0 or s.j[j, at + 1] > 0:
            return -1.0
        most = max(most, s.j[j, at])
    return float(most * s.tf[stage])


@part
def begin_stages(s: c.EngineState, j: int, now: float) -> None:
    """Begin stages of job ``j`` whose predecessors are done, in order, until nothing more begins; then it may
    be done.
    """
    x = s.j[j, c.J_SOURCE]
    first = s.x[x, c.X_STAGE]
    began = True
    while began:
        began = False
        for k in range(s.x[x, c.X_STAGES]):
            at = c.J_STAGES + 2 * k
            if s.j[j, at] >= 0:
                continue
            times = times_asked(s, j, first + k)
            if times < 0.0:
                continue
            whole = math.floor(times)
            if times > whole:
                if s.uniforms[s.z[c.Z_UNIFORM]] < times - whole:
                    whole += 1
                s.z[c.Z_UNIFORM] += 1
            s.j[j, at] = whole
            s.j[j, at + 1] = whole
            s.j[j, c.J_ASKED] += whole
            began = True
            if whole == 0:
                s.j[j, c.J_OPEN] -= 1
            m = s.t[first + k, c.T_MODEL]
            origin = s.jf[j]
            if origin >= s.f[c.F_FROM]:
                s.m[m, c.M_ARRIVED] += whole
            s.windows[m, 0, window_of(s, now)] += whole
            for _ in range(whole):
                i = take_item(s, m, now, origin, x)
                s.i[i, c.I_JOB] = j
                s.i[i, c.I_STAGE] = k
                ask(s, i)
    if s.j[j, c.J_OPEN] == 0:
        count_source(s, x, s.jf[j], now)
        release_job(s, j)


@part
def answer(s: c.EngineState, b: int, now: float) -> None:
    """Bring the answers of batch ``b`` to its clients: counted; stages that waited for them begin."""
    count_answered(s, b, now)
    m = s.r[s.b[b, c.B_REPLICA], c.R_MODEL]
    if s.m[m, c.M_STREAMED] == 0:
        i = s.b[b, c.B_HEAD]
        while i >= 0:
            following = s.i[i, c.I_NEXT]
            j = s.i[i, c.I_JOB]
            if j < 0:
                x = s.i[i, c.I_SOURCE]
                if s.x[x, c.X_SOLE] == 0:
                    count_source(s, x, s.if_[i, c.IF_ORIGIN], now)
            else:
                at = c.J_STAGES + 2 * s.i[i, c.I_STAGE]
                s.j[j, at + 1] -= 1
                s.j[j, c.J_ASKED] -= 1
                if s.j[j, c.J_DROPPED] == 1:
                    if s.j[j, c.J_ASKED] == 0:
                        release_job(s, j)
                elif s.j[j, at + 1] == 0:
                    s.j[j, c.J_OPEN] -= 1
                    begin_stages(s, j, now)
            i = following
    s.i[s.b[b, c.B_TAIL], c.I_NEXT] = s.z[c.Z_ITEM]
    s.z[c.Z_ITEM] = s.b[b, c.B_HEAD]
    s.z[c.Z_ITEMS] += s.b[b, c.B_SIZE]
    free_batch(s, b)
