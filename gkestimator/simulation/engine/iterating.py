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
    replica = s.replicas[r]
    w = replica.iterator
    iterator = s.iterators[w]
    m = replica.model
    count_busy(s, r, w, now)
    i = iterator.head
    while i >= 0:
        sequence = s.sequences[i]
        following = s.requests[i].next
        new = sequence.new
        sequence.cached += new
        if new > 0 and sequence.cached == sequence.prompt + sequence.made:
            sequence.made += 1
            s.models[m].tokens += 1
            if sequence.made == 1:
                sequence.first_ms = now
            if sequence.made == sequence.answer:
                unlink(s, w, i)
                answer_sequence(s, r, i, now)
        i = following
    iterator.busy = 0
    iterate(s, r, now)


@part
def count_busy(s: EngineState, r: int, w: int, now: float) -> None:
    """Count the iteration of replica ``r`` that ends now."""
    replica = s.replicas[r]
    iterator = s.iterators[w]
    s.models[replica.model].iterations += 1
    replica.last_ms = now
    within = min(now, s.options.until_ms) - max(iterator.since_ms, s.options.from_ms)
    if within > 0.0:
        gpu = s.gpus[replica.gpu]
        replica.busy_ms += within
        gpu.busy_ms += within
        gpu.creq_ms += within * replica.creq_pct
        iterator.sequences_ms += within * iterator.count
        iterator.held_ms += within * (iterator.pages - iterator.free)


@part
def answer_sequence(s: EngineState, r: int, i: int, now: float) -> None:
    """Answer sequence ``i``, as a batch of its own."""
    request = s.requests[i]
    leave_replica(s, r)
    s.replicas[r].requests += 1
    b = take_batch(s, r)
    batch = s.batches[b]
    batch.head = i
    batch.tail = i
    batch.size = 1
    batch.left_ms = request.left_ms
    batch.reached_ms = request.reached_ms
    batch.start_ms = s.sequences[i].began_ms
    batch.ends_ms = now
    answer(s, b, now)
