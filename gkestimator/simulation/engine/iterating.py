"""End iterations of replicas that serve language models: tokens made, answers that are whole, what was busy."""

from __future__ import annotations

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.sequences import iterate, leave_replica, unlink
from gkestimator.simulation.engine.serving import take_batch
from gkestimator.simulation.engine.stages import answer


@part
def iterated(s: c.EngineState, r: int, now: float) -> None:
    """End the iteration of replica ``r``; the next one begins where there is anything to do.

    A sequence whose known tokens are all cached has made one more; with its last one it is answered.
    """
    w = s.r[r, c.R_ITERATES]
    m = s.r[r, c.R_MODEL]
    count_busy(s, r, w, now)
    i = s.w[w, c.W_HEAD]
    while i >= 0:
        following = s.i[i, c.I_NEXT]
        new = s.q[i, c.Q_NEW]
        s.q[i, c.Q_CACHED] += new
        if new > 0 and s.q[i, c.Q_CACHED] == s.q[i, c.Q_PROMPT] + s.q[i, c.Q_MADE]:
            s.q[i, c.Q_MADE] += 1
            s.m[m, c.M_TOKENS] += 1
            if s.q[i, c.Q_MADE] == 1:
                s.qf[i, c.QF_FIRST] = now
            if s.q[i, c.Q_MADE] == s.q[i, c.Q_ANSWER]:
                unlink(s, w, i)
                answer_sequence(s, r, i, now)
        i = following
    s.w[w, c.W_BUSY] = 0
    iterate(s, r, now)


@part
def count_busy(s: c.EngineState, r: int, w: int, now: float) -> None:
    """Count the iteration of replica ``r`` that ends now."""
    s.m[s.r[r, c.R_MODEL], c.M_ITERATIONS] += 1
    s.rf[r, c.RF_LAST] = now
    within = min(now, s.f[c.F_UNTIL]) - max(s.wf[w, c.WF_SINCE], s.f[c.F_FROM])
    if within > 0.0:
        g = s.r[r, c.R_GPU]
        s.rf[r, c.RF_BUSY] += within
        s.gf[g, c.GF_BUSY] += within
        s.gf[g, c.GF_CREQ] += within * s.rf[r, c.RF_CREQ]
        s.wf[w, c.WF_SEQUENCES] += within * s.w[w, c.W_COUNT]
        s.wf[w, c.WF_HELD] += within * (s.w[w, c.W_PAGES] - s.w[w, c.W_FREE])


@part
def answer_sequence(s: c.EngineState, r: int, i: int, now: float) -> None:
    """Answer sequence ``i``, as a batch of its own."""
    leave_replica(s, r)
    s.r[r, c.R_REQUESTS] += 1
    b = take_batch(s, r)
    s.b[b, c.B_HEAD] = i
    s.b[b, c.B_TAIL] = i
    s.b[b, c.B_SIZE] = 1
    s.bf[b, c.BF_LEFT] = s.if_[i, c.IF_LEFT]
    s.bf[b, c.BF_REACHED] = s.if_[i, c.IF_REACHED]
    s.bf[b, c.BF_START] = s.qf[i, c.QF_BEGAN]
    s.bf[b, c.BF_ENDS] = now
    answer(s, b, now)
