"""Change the speeds of batches that run beside each other on one GPU, whenever one starts or ends."""

from __future__ import annotations

from gkestimator.interference.base import FEATURES, TERMS
from gkestimator.interference.laws import slowdown
from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part


@part
def change_speeds(s: c.EngineState, g: int, now: float) -> None:
    """Let every batch that runs on GPU ``g`` go on at the speed that its company allows.

    Where that changed its end is put on the heap anew; the one before is passed over when it comes (it is not
    ``BF_ENDS``).
    """
    count = s.g[g, c.G_RUNNING]
    terms = s.gf[g, c.GF_TERMS : c.GF_TERMS + TERMS]
    together = s.features[0]
    others = s.features[1]
    for k in range(FEATURES):
        together[k] = 0.0
    b = s.g[g, c.G_FIRST]
    while b >= 0:
        at = s.r[s.b[b, c.B_REPLICA], c.R_CURVE] + s.b[b, c.B_SIZE]
        for k in range(FEATURES):
            together[k] += s.curves[at, c.C_FEATURES + k]
        b = s.b[b, c.B_BESIDE]
    b = s.g[g, c.G_FIRST]
    while b >= 0:
        at = s.r[s.b[b, c.B_REPLICA], c.R_CURVE] + s.b[b, c.B_SIZE]
        own = s.curves[at, c.C_FEATURES : c.C_FEATURES + FEATURES]
        for k in range(FEATURES):
            # What is left of a sum may be off 0 by a rounding error; below 0 it may be (gpulet's coefficients).
            left = together[k] - own[k]
            others[k] = left if abs(left) > 1e-12 * (abs(together[k]) + abs(own[k])) else 0.0
        slow = slowdown(s.z[c.Z_LAW], own, others, count - 1, terms)
        if slow != s.bf[b, c.BF_SLOW]:
            if s.bf[b, c.BF_SLOW] > 0.0:
                s.bf[b, c.BF_WORK] -= (now - s.bf[b, c.BF_SINCE]) / s.bf[b, c.BF_SLOW]
            s.bf[b, c.BF_SINCE] = now
            s.bf[b, c.BF_SLOW] = slow
            ends = now + s.bf[b, c.BF_WORK] * slow
            s.bf[b, c.BF_ENDS] = ends
            push_event(s, ends, c.END, s.b[b, c.B_ORDER], b)
        b = s.b[b, c.B_BESIDE]
