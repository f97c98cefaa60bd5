"""Serve applications: stages that follow others, each asked as often as it fans out."""

from __future__ import annotations

import math

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.counting import count_answered, count_source, window_of
from gkestimator.simulation.engine.dropping import release_job
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.routing import ask, take_request
from gkestimator.simulation.engine.serving import free_batch
from gkestimator.simulation.engine.state import EngineState


@part
def begin_job(s: EngineState, x: int, now: float) -> None:
    """Begin a request of source ``x``, an application."""
    j = s.free.job
    s.free.job = s.jobs[j].open
    s.free.jobs -= 1
    stages = s.sources[x].stages
    s.jobs[j].source = x
    s.jobs[j].open = stages
    s.jobs[j].asked = 0
    s.jobs[j].dropped = 0
    s.jobs[j].origin_ms = now
    for k in range(stages):
        s.asked[j, k] = -1
        s.lacking[j, k] = 0
    begin_stages(s, j, now)


@part
def times_asked(s: EngineState, j: int, stage: int) -> float:
    """Return how often stage ``stage`` (of all sources') of job ``j`` is asked, before it is made whole;
    below 0: not yet.
    """
    if s.stages[stage].afters == 0:
        most = 1
    else:
        most = 0
    first = s.stages[stage].after
    for k in range(first, first + s.stages[stage].afters):
        before = s.afters[k]
        if s.asked[j, before] < 0 or s.lacking[j, before] > 0:
            return -1.0
        most = max(most, s.asked[j, before])
    return float(most * s.stages[stage].fan_out)


@part
def begin_stages(s: EngineState, j: int, now: float) -> None:
    """Begin stages of job ``j`` whose predecessors are done, in order, until nothing more begins; then it may
    be done.
    """
    x = s.jobs[j].source
    first = s.sources[x].stage
    began = True
    while began:
        began = False
        for k in range(s.sources[x].stages):
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
            s.jobs[j].asked += whole
            began = True
            if whole == 0:
                s.jobs[j].open -= 1
            m = s.stages[first + k].model
            origin = s.jobs[j].origin_ms
            if origin >= s.options.from_ms:
                s.models[m].arrived += whole
            s.windows[m, codes.CAME, window_of(s, now)] += whole
            for _ in range(whole):
                i = take_request(s, m, now, origin, x)
                s.requests[i].job = j
                s.requests[i].stage = k
                ask(s, i)
    if s.jobs[j].open == 0:
        count_source(s, x, s.jobs[j].origin_ms, now)
        release_job(s, j)


@part
def answer(s: EngineState, b: int, now: float) -> None:
    """Bring the answers of batch ``b`` to its clients: counted; stages that waited for them begin."""
    count_answered(s, b, now)
    m = s.replicas[s.batches[b].replica].model
    if s.models[m].streamed == 0:
        i = s.batches[b].head
        while i >= 0:
            following = s.requests[i].next
            j = s.requests[i].job
            if j < 0:
                x = s.requests[i].source
                if s.sources[x].sole == 0:
                    count_source(s, x, s.requests[i].origin_ms, now)
            else:
                stage = s.requests[i].stage
                s.lacking[j, stage] -= 1
                s.jobs[j].asked -= 1
                if s.jobs[j].dropped == 1:
                    if s.jobs[j].asked == 0:
                        release_job(s, j)
                elif s.lacking[j, stage] == 0:
                    s.jobs[j].open -= 1
                    begin_stages(s, j, now)
            i = following
    s.requests[s.batches[b].tail].next = s.free.request
    s.free.request = s.batches[b].head
    s.free.requests += s.batches[b].size
    free_batch(s, b)
