"""Drop requests that would be late, where that is asked for."""

from __future__ import annotations

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.part import part


@part
def release_job(s: c.EngineState, j: int) -> None:
    """End job ``j``; its row may be used again."""
    s.j[j, c.J_OPEN] = s.z[c.Z_JOB]
    s.z[c.Z_JOB] = j
    s.z[c.Z_JOBS] += 1


@part
def drop(s: c.EngineState, i: int, m: int) -> None:
    """Drop request ``i`` to model ``m``.

    If it is of an application's, that is dropped as a whole: no later stage of it starts, what is under way
    goes on.
    """
    x = s.i[i, c.I_SOURCE]
    j = s.i[i, c.I_JOB]
    if s.if_[i, c.IF_ORIGIN] >= s.f[c.F_FROM]:
        counts = 1
    else:
        counts = 0
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
def is_late(s: c.EngineState, r: int, i: int, size: int, now: float) -> bool:
    """Say whether request ``i`` would be answered late if a batch of ``size`` that it is in began to be
    served now on replica ``r``, ran alone on its GPU, and took as long as estimated.
    """
    at = s.r[r, c.R_CURVE] + size
    work = s.curves[at, c.C_LATENCY]
    if s.z[c.Z_COPY] == 1 or (s.z[c.Z_COPY] == 2 and s.r[r, c.R_TURNS] == 1):
        work += s.curves[at, c.C_COPY]
    latest = s.if_[i, c.IF_ARRIVED] + s.mf[s.r[r, c.R_MODEL], c.MF_SLO] * c.SLACK
    return bool(latest < now + work + s.curves[at, c.C_RESPONSE])


@part
def drop_late(s: c.EngineState, b: int, now: float) -> None:
    """Drop the earliest request of batch ``b``, about to be served, while it would be late: the fewer are
    left, the sooner they are served, so the rest may be on time.
    """
    r = s.b[b, c.B_REPLICA]
    while s.b[b, c.B_SIZE] > 0:
        i = s.b[b, c.B_HEAD]
        if not is_late(s, r, i, s.b[b, c.B_SIZE], now):
            return
        s.b[b, c.B_HEAD] = s.i[i, c.I_NEXT]
        s.b[b, c.B_SIZE] -= 1
        s.r[r, c.R_GIVEN] -= 1
        drop(s, i, s.r[r, c.R_MODEL])


@part
def drop_waiting(s: c.EngineState, r: int, now: float) -> None:
    """Drop the earliest of all that wait for replica ``r``, at its turn, while it would be late.

    (Of the batch that it would take alone, a backlog would go batch by batch, turn by turn, and never be
    caught up with.)
    """
    while s.r[r, c.R_WAITING] > 0:
        i = s.r[r, c.R_HEAD]
        if not is_late(s, r, i, min(s.r[r, c.R_SIZE], s.r[r, c.R_WAITING]), now):
            return
        s.r[r, c.R_HEAD] = s.i[i, c.I_NEXT]
        s.r[r, c.R_WAITING] -= 1
        s.r[r, c.R_COMING] -= 1
        s.r[r, c.R_GIVEN] -= 1
        drop(s, i, s.r[r, c.R_MODEL])
