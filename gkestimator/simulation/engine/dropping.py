"""Requests that would be late are dropped, where that is asked for."""

from __future__ import annotations

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.part import part

__all__ = ["drop_late", "release_job"]


@part
def release_job(s: c.State, j: int) -> None:
    """Job ``j`` is over; its row may be used again."""
    s.j[j, c.J_OPEN] = s.z[c.Z_JOB]
    s.z[c.Z_JOB] = j
    s.z[c.Z_JOBS] += 1


@part
def drop(s: c.State, i: int, m: int) -> None:
    """Request ``i`` to model ``m`` is given up. If it is of an application's, that is dropped as a whole: no later
    stage of it starts, what is under way goes on."""
    x, j = s.i[i, c.I_SOURCE], s.i[i, c.I_JOB]
    counts = 1 if s.if_[i, c.IF_ORIGIN] >= s.f[c.F_FROM] else 0
    s.m[m, c.M_DROPPED] += counts
    if j < 0:
        s.x[x, c.X_DROPPED] += counts
    else:
        if s.j[j, c.J_DROPPED] == 0:
            s.j[j, c.J_DROPPED] = 1
            s.x[x, c.X_DROPPED] += counts
        s.j[j, c.J_ASKED] -= 1
        if s.j[j, c.J_ASKED] == 0:
            release_job(s, j)
    s.i[i, c.I_NEXT] = s.z[c.Z_ITEM]
    s.z[c.Z_ITEM] = i
    s.z[c.Z_ITEMS] += 1


@part
def drop_late(s: c.State, b: int, now: float) -> None:
    """Of batch ``b``, about to be served: the earliest request is dropped while its answer would be late if the batch
    ran alone on its GPU for as long as estimated. Fewer requests are served sooner, so the rest may be on time."""
    r = s.b[b, c.B_REPLICA]
    m = s.r[r, c.R_MODEL]
    slo = s.mf[m, c.MF_SLO] * c.SLACK
    copied_first = s.z[c.Z_COPY] == 1 or (s.z[c.Z_COPY] == 2 and s.r[r, c.R_TURNS] == 1)
    while s.b[b, c.B_SIZE] > 0:
        at = s.r[r, c.R_CURVE] + s.b[b, c.B_SIZE]
        work = s.curves[at, c.C_LATENCY]
        if copied_first:
            work += s.curves[at, c.C_COPY]
        i = s.b[b, c.B_HEAD]
        if not s.if_[i, c.IF_ARRIVED] + slo < now + work + s.curves[at, c.C_RESPONSE]:
            return
        s.b[b, c.B_HEAD] = s.i[i, c.I_NEXT]
        s.b[b, c.B_SIZE] -= 1
        s.r[r, c.R_GIVEN] -= 1
        drop(s, i, m)
