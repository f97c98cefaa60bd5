"""Drop requests that would be late, where that is asked for."""

from __future__ import annotations

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.state import EngineState


@part
def release_job(s: EngineState, j: int) -> None:
    """End job ``j``; its row may be used again."""
    s.jobs[j].open = s.free.job
    s.free.job = j
    s.free.jobs += 1


@part
def drop(s: EngineState, i: int, m: int) -> None:
    """Drop request ``i`` to model ``m``.

    If it is of an application's, that is dropped as a whole: no later stage of it starts, what is under way
    goes on.
    """
    x = s.requests[i].source
    j = s.requests[i].job
    if s.requests[i].origin_ms >= s.options.from_ms:
        counts = 1
    else:
        counts = 0
    s.models[m].dropped += counts
    if j < 0:
        s.sources[x].dropped += counts
    else:
        if s.jobs[j].dropped == 0:
            s.jobs[j].dropped = 1
            s.sources[x].dropped += counts
        s.jobs[j].asked -= 1
        if s.jobs[j].asked == 0:
            release_job(s, j)
    s.requests[i].next = s.free.request
    s.free.request = i
    s.free.requests += 1


@part
def is_late(s: EngineState, r: int, i: int, size: int, now: float) -> bool:
    """Say whether request ``i`` would be answered late if a batch of ``size`` that it is in began to be
    served now on replica ``r``, ran alone on its GPU, and took as long as estimated.
    """
    at = s.replicas[r].curve + size
    work = s.curves[at].latency_ms
    if s.options.copy == codes.COPY_SERIAL or (
        s.options.copy == codes.COPY_OVERLAP and s.replicas[r].turns == 1
    ):
        work += s.curves[at].copy_ms
    latest = s.requests[i].arrived_ms + s.models[s.replicas[r].model].slo_ms * codes.SLACK
    return bool(latest < now + work + s.curves[at].response_ms)


@part
def drop_late(s: EngineState, b: int, now: float) -> None:
    """Drop the earliest request of batch ``b``, about to be served, while it would be late: the fewer are
    left, the sooner they are served, so the rest may be on time.
    """
    r = s.batches[b].replica
    while s.batches[b].size > 0:
        i = s.batches[b].head
        if not is_late(s, r, i, s.batches[b].size, now):
            return
        s.batches[b].head = s.requests[i].next
        s.batches[b].size -= 1
        s.replicas[r].given -= 1
        drop(s, i, s.replicas[r].model)


@part
def drop_waiting(s: EngineState, r: int, now: float) -> None:
    """Drop the earliest of all that wait for replica ``r``, at its turn, while it would be late.

    (Of the batch that it would take alone, a backlog would go batch by batch, turn by turn, and never be
    caught up with.)
    """
    while s.replicas[r].waiting > 0:
        i = s.replicas[r].head
        if not is_late(s, r, i, min(s.replicas[r].batch_size, s.replicas[r].waiting), now):
            return
        s.replicas[r].head = s.requests[i].next
        s.replicas[r].waiting -= 1
        s.replicas[r].coming -= 1
        s.replicas[r].given -= 1
        drop(s, i, s.replicas[r].model)
