"""End iterations of replicas that serve language models: tokens made, answers that are whole, what was busy."""

from __future__ import annotations

from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.sequences import iterate, leave_replica, unlink
from gkestimator.simulation.engine.serving import take_batch
from gkestimator.simulation.engine.stages import answer
from gkestimator.simulation.engine.state import EngineState


@part
def iterated(s: EngineState, r: int, now: float) -> None:
    """End the iteration of replica ``r``; the next one begins where there is anything to do.

    A sequence whose known tokens are all cached has made one more; with its last one it is answered.
    """
    w = s.replicas[r].iterator
    m = s.replicas[r].model
    count_busy(s, r, w, now)
    i = s.iterators[w].head
    while i >= 0:
        following = s.requests[i].next
        new = s.sequences[i].new
        s.sequences[i].cached += new
        if new > 0 and s.sequences[i].cached == s.sequences[i].prompt + s.sequences[i].made:
            s.sequences[i].made += 1
            s.models[m].tokens += 1
            if s.sequences[i].made == 1:
                s.sequences[i].first_ms = now
            if s.sequences[i].made == s.sequences[i].answer:
                unlink(s, w, i)
                answer_sequence(s, r, i, now)
        i = following
    s.iterators[w].busy = 0
    iterate(s, r, now)


@part
def count_busy(s: EngineState, r: int, w: int, now: float) -> None:
    """Count the iteration of replica ``r`` that ends now."""
    s.models[s.replicas[r].model].iterations += 1
    s.replicas[r].last_ms = now
    within = min(now, s.options.until_ms) - max(s.iterators[w].since_ms, s.options.from_ms)
    if within > 0.0:
        g = s.replicas[r].gpu
        s.replicas[r].busy_ms += within
        s.gpus[g].busy_ms += within
        s.gpus[g].creq_ms += within * s.replicas[r].creq_pct
        s.iterators[w].sequences_ms += within * s.iterators[w].count
        s.iterators[w].held_ms += within * (s.iterators[w].pages - s.iterators[w].free)


@part
def answer_sequence(s: EngineState, r: int, i: int, now: float) -> None:
    """Answer sequence ``i``, as a batch of its own."""
    leave_replica(s, r)
    s.replicas[r].requests += 1
    b = take_batch(s, r)
    s.batches[b].head = i
    s.batches[b].tail = i
    s.batches[b].size = 1
    s.batches[b].left_ms = s.requests[i].left_ms
    s.batches[b].reached_ms = s.requests[i].reached_ms
    s.batches[b].start_ms = s.sequences[i].began_ms
    s.batches[b].ends_ms = now
    answer(s, b, now)
