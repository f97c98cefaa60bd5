"""Serve applications: stages that follow others, each asked as often as it fans out."""

from __future__ import annotations

import math

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.counting import count_answered, count_source, window_of
from gkestimator.simulation.engine.dropping import release_job
from gkestimator.simulation.engine.heaps import push_event
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.routing import ask, take_request
from gkestimator.simulation.engine.serving import free_batch
from gkestimator.simulation.engine.state import EngineState


@part
def send_next(s: EngineState, x: int, now: float) -> None:
    """Let the client of source ``x`` whose answer came now send its next request, if it is one that waits."""
    if s.sources[x].closed == 1 and now < s.options.until_ms:
        push_event(s, now, codes.ARRIVAL, x, x)


@part
def begin_job(s: EngineState, x: int, came: float, now: float) -> None:
    """Begin a request of source ``x``, an application, that came at ``came``."""
    j = s.free.job
    job = s.jobs[j]
    s.free.job = job.open
    s.free.jobs -= 1
    stages = s.sources[x].stages
    job.source = x
    job.open = stages
    job.asked = 0
    job.dropped = 0
    job.origin_ms = came
    for k in range(stages):
        s.asked[j, k] = -1
        s.lacking[j, k] = 0
    begin_stages(s, j, now)


@part
def times_asked(s: EngineState, j: int, stage: int) -> float:
    """Return how often stage ``stage`` (of all sources') of job ``j`` is asked, before it is made whole;
    below 0: not yet.
    """
    asked = s.stages[stage]
    if asked.afters == 0:
        most = 1
    else:
        most = 0
    for k in range(asked.after, asked.after + asked.afters):
        before = s.afters[k]
        if s.asked[j, before] < 0 or s.lacking[j, before] > 0:
            return -1.0
        most = max(most, s.asked[j, before])
    return float(most * asked.fan_out)


@part
def begin_stages(s: EngineState, j: int, now: float) -> None:
    """Begin stages of job ``j`` whose predecessors are done, in order, until nothing more begins; then it may
    be done.
    """
    job = s.jobs[j]
    x = job.source
    source = s.sources[x]
    first = source.stage
    began = True
    while began:
        began = False
        for k in range(source.stages):
            if s.asked[j, k] >= 0:
                continue
            times = times_asked(s, j, first + k)
            if times < 0.0:
                continue
            whole = math.floor(times)
            if times > whole:
                if s.uniforms[s.loop.uniform] < times - whole:
                    whole += 1
                s.loop.uniform += 1
            s.asked[j, k] = whole
            s.lacking[j, k] = whole
            job.asked += whole
            began = True
            if whole == 0:
                job.open -= 1
            m = s.stages[first + k].model
            origin = job.origin_ms
            if origin >= s.options.from_ms:
                s.models[m].arrived += whole
            s.windows[m, codes.CAME, window_of(s, now)] += whole
            for _ in range(whole):
                i = take_request(s, m, now, origin, x)
                request = s.requests[i]
                request.job = j
                request.stage = k
                ask(s, i)
    if job.open == 0:
        count_source(s, x, job.origin_ms, now)
        release_job(s, j)
        send_next(s, x, now)


@part
def answer(s: EngineState, b: int, now: float) -> None:
    """Bring the answers of batch ``b`` to its clients: counted; stages that waited for them begin."""
    batch = s.batches[b]
    count_answered(s, b, now)
    m = s.replicas[batch.replica].model
    if s.models[m].streamed == 0:
        i = batch.head
        while i >= 0:
            request = s.requests[i]
            following = request.next
            j = request.job
            if j < 0:
                x = request.source
                if s.sources[x].sole == 0:
                    count_source(s, x, request.origin_ms, now)
                send_next(s, x, now)
            else:
                job = s.jobs[j]
                stage = request.stage
                s.lacking[j, stage] -= 1
                job.asked -= 1
                if job.dropped == 1:
                    if job.asked == 0:
                        release_job(s, j)
                elif s.lacking[j, stage] == 0:
                    job.open -= 1
                    begin_stages(s, j, now)
            i = following
    s.requests[batch.tail].next = s.free.request
    s.free.request = batch.head
    s.free.requests += batch.size
    free_batch(s, b)
