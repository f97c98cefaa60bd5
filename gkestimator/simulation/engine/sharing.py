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
    gpu = s.gpus[g]
    count = gpu.running
    s.loop.speeds += count
    terms = s.terms[g]
    together = s.features[0]
    others = s.features[1]
    for k in range(FEATURES):
        together[k] = 0.0
    b = gpu.first
    while b >= 0:
        batch = s.batches[b]
        at = s.replicas[batch.replica].curve + batch.size
        for k in range(FEATURES):
            together[k] += s.curve_features[at, k]
        b = batch.beside
    b = gpu.first
    while b >= 0:
        batch = s.batches[b]
        at = s.replicas[batch.replica].curve + batch.size
        own = s.curve_features[at]
        for k in range(FEATURES):
            # What is left of a sum may be off 0 by a rounding error; below 0 it may be (gpulet's coefficients).
            left = together[k] - own[k]
            others[k] = left if abs(left) > 1e-12 * (abs(together[k]) + abs(own[k])) else 0.0
        slow = slowdown(s.options.law, own, others, count - 1, terms)
        if slow != batch.slowdown:
            if batch.slowdown > 0.0:
                batch.work_ms -= (now - batch.since_ms) / batch.slowdown
            batch.since_ms = now
            batch.slowdown = slow
            ends = now + batch.work_ms * slow
            batch.ends_ms = ends
            push_event(s, ends, codes.END, batch.order, b)
        b = batch.beside
