"""Change the speeds of batches that run beside each other on one GPU, whenever one starts or ends."""

from __future__ import annotations

from gkestimator.interference.base import FEATURES
from gkestimator.interference.laws import slowdown
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.state import EngineState


@part
def change_speeds(s: EngineState, g: int, now: float) -> None:
    """Let every batch that runs on GPU ``g`` go on at the speed that its company allows.

    Where that changed its end is put on the heap anew; the one before is passed over when it comes (it is not
    ``ends_ms``).
    """
    count = s.gpus[g].running
    terms = s.terms[g]
    together = s.features[0]
    others = s.features[1]
    for k in range(FEATURES):
        together[k] = 0.0
    b = s.gpus[g].first
    while b >= 0:
        at = s.replicas[s.batches[b].replica].curve + s.batches[b].size
        for k in range(FEATURES):
            together[k] += s.curve_features[at, k]
        b = s.batches[b].beside
    b = s.gpus[g].first
    while b >= 0:
        at = s.replicas[s.batches[b].replica].curve + s.batches[b].size
        own = s.curve_features[at]
        for k in range(FEATURES):
            # What is left of a sum may be off 0 by a rounding error; below 0 it may be (gpulet's coefficients).
            left = together[k] - own[k]
            others[k] = left if abs(left) > 1e-12 * (abs(together[k]) + abs(own[k])) else 0.0
        slow = slowdown(s.options.law, own, others, count - 1, terms)
        if slow != s.batches[b].slowdown:
            if s.batches[b].slowdown > 0.0:
                s.batches[b].work_ms -= (now - s.batches[b].since_ms) / s.batches[b].slowdown
            s.batches[b].since_ms = now
            s.batches[b].slowdown = slow
            ends = now + s.batches[b].work_ms * slow
            s.batches[b].ends_ms = ends
            push_event(s, ends, codes.END, s.batches[b].order, b)
        b = s.batches[b].beside
