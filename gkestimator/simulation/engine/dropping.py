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
    request = s.requests[i]
    source = s.sources[request.source]
    j = request.job
    if request.origin_ms >= s.options.from_ms:
        counts = 1
    else:
        counts = 0
    s.models[m].dropped += counts
    if j < 0:
        source.dropped += counts
    else:
        job = s.jobs[j]
        if job.dropped == 0:
            job.dropped = 1
            source.dropped += counts
        job.asked -= 1
        if job.asked == 0:
            release_job(s, j)
    request.next = s.free.request
    s.free.request = i
    s.free.requests += 1


@part
def is_late(s: EngineState, r: int, i: int, size: int, now: float) -> bool:
    """Say whether request ``i`` would be answered late if a batch of ``size`` that it is in began to be
    served now on replica ``r``, ran alone on its GPU, and took as long as estimated.
    """
    replica = s.replicas[r]
    curve = s.curves[replica.curve + size]
    work = curve.latency_ms
    if s.options.copy == codes.COPY_SERIAL or (s.options.copy == codes.COPY_OVERLAP and replica.singly == 1):
        work += curve.copy_ms
    latest = s.requests[i].arrived_ms + s.models[replica.model].slo_ms * codes.SLACK
    return bool(latest < now + work + curve.response_ms)


@part
def drop_late(s: EngineState, b: int, now: float) -> None:
    """Drop the earliest request of batch ``b``, about to be served, while it would be late: the fewer are
    left, the sooner they are served, so the rest may be on time.
    """
    batch = s.batches[b]
    replica = s.replicas[batch.replica]
    while batch.size > 0:
        i = batch.head
        if not is_late(s, batch.replica, i, batch.size, now):
            return
        batch.head = s.requests[i].next
        batch.size -= 1
        replica.given -= 1
        drop(s, i, replica.model)


@part
def take_waiting(s: EngineState, r: int, count: int) -> None:
    """Take note that ``count`` requests wait at replica ``r`` no more."""
    replica = s.replicas[r]
    replica.waiting -= count
    if replica.turns == 1:
        replica.coming -= count
    else:
        s.servers[replica.server].ticks -= count * replica.request_ticks


@part
def drop_waiting(s: EngineState, r: int, now: float) -> None:
    """Drop the earliest of all that wait at replica ``r``, about to take a batch, while it would be late.

    (Of the batch that it would take alone, a backlog would go batch by batch, turn by turn, and never be
    caught up with.)
    """
    replica = s.replicas[r]
    while replica.waiting > 0:
        i = replica.head
        if not is_late(s, r, i, min(replica.batch_size, replica.waiting), now):
            return
        replica.head = s.requests[i].next
        take_waiting(s, r, 1)
        replica.given -= 1
        drop(s, i, replica.model)
