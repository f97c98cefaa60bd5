"""Run the event loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.counting import window_of
from gkestimator.simulation.engine.heaps import pop_event, push_event, sink_source
from gkestimator.simulation.engine.iterating import iterated
from gkestimator.simulation.engine.part import entry, inlined, part
from gkestimator.simulation.engine.routing import (
    ask,
    available,
    form,
    next_of_source,
    route,
    take_request,
    time_out,
)
from gkestimator.simulation.engine.sequences import take_lengths
from gkestimator.simulation.engine.serving import copied, ended, reach, serve, turn
from gkestimator.simulation.engine.stages import answer, begin_job
from gkestimator.simulation.engine.state import EngineState


@part
def lacks(s: EngineState) -> int:
    """Return what the next event might need and has not: DONE where nothing."""
    if (
        s.free.requests < s.needs.requests
        or s.free.batches < codes.BATCHES_NEED
        or s.free.jobs < 1
        or len(s.event_times) - s.loop.events < s.needs.events
    ):
        return codes.ROOM
    if s.options.exponential == 1 and len(s.draws) == s.loop.draw:
        return codes.DRAWS
    if len(s.uniforms) - s.loop.uniform < s.needs.uniforms:
        return codes.UNIFORMS
    if s.options.keep == 1 and len(s.kept) - s.loop.kept < s.needs.largest_batch:
        return codes.FLUSH
    if s.loop.sent > s.options.most_sent:
        return codes.TOO_MANY
    if s.loop.speeds > s.options.most_speeds:
        return codes.TOO_CLOSE
    return codes.DONE


@part
def come(s: EngineState, x: int, now: float) -> None:
    """Take in a request of source ``x``, whose model is not streamed."""
    source = s.sources[x]
    arrived = s.came[source.at]
    source.at += 1
    enter(s, x, arrived, now)


@part
def come_again(s: EngineState, x: int, now: float) -> None:
    """Take in a request of source ``x`` that a client sends now, as the answer to its last one came."""
    source = s.sources[x]
    s.loop.sent += 1
    counts = 1 if now >= s.options.from_ms else 0
    source.sent += counts
    if source.kind != codes.JOB:
        s.models[source.model].arrived += counts
        s.windows[source.model, codes.CAME, window_of(s, now)] += 1
    enter(s, x, now, now)


@part
def enter(s: EngineState, x: int, arrived: float, now: float) -> None:
    """Let a request of source ``x`` that came at ``arrived`` begin its stages, or be routed to its model."""
    source = s.sources[x]
    if source.kind == codes.JOB:
        begin_job(s, x, arrived, now)
    else:
        i = take_request(s, source.model, arrived, arrived, x)
        if source.lengths > 0:
            take_lengths(s, x, i)
        ask(s, i)


@part
def is_over(s: EngineState, b: int, order: int, now: float) -> bool:
    """Say whether batch ``b``'s service ends now. It does not where its company changed, and with it its end."""
    batch = s.batches[b]
    return bool(batch.state == codes.RUNNING and batch.order == order and batch.ends_ms == now)


@part
def answer_later(s: EngineState, b: int, now: float) -> bool:
    """Say whether the answers of ``b`` take time to reach the clients; then that is an event."""
    batch = s.batches[b]
    replica = s.replicas[batch.replica]
    if replica.response_delay == 0:
        return False
    takes = s.curves[replica.curve + batch.size].response_ms
    push_event(s, now + takes, codes.REACH, s.loop.order, 4 * b + codes.ANSWER)
    s.loop.order += 1
    return True


@part
def resume(s: EngineState) -> None:
    """Ask again requests that waited until their model had a replica."""
    for m in range(len(s.models)):
        model = s.models[m]
        if model.head >= 0 and model.targets > 0:
            ask(s, model.head)
            s.loop.asked_last = model.tail
            model.head = -1


@inlined
def settle(s: EngineState, batch: int, server: int, answered: int, now: float) -> None:
    """Do what an event brings about at once: a batch is at its replica, a server has something new, one is
    answered.

    Each is -1 where the event does not bring it about.
    """
    if batch >= 0:
        server = reach(s, batch, now)
    if server >= 0:
        serve(s, server, now)
    if answered >= 0:
        answer(s, answered, now)


@inlined
def handle(s: EngineState, kind: int, what: int, order: int, now: float) -> tuple[int, int, int]:
    """Handle an event of the heap. Returns the batch, server and answered batch that :func:`settle` takes."""
    batch = int(np.int64(-1))  # as in _run
    server = batch
    answered = batch
    if kind == codes.END:
        if is_over(s, what, order, now):
            server = ended(s, what, now)
            if not answer_later(s, what, now):
                answered = what
    elif kind == codes.REACH:
        about = what & 3
        number = what >> 2
        if about == codes.AT_REPLICA:
            batch = number
        elif about == codes.COPIED:
            server = copied(s, number, now)
        elif about == codes.ANSWER:
            answered = number
        else:
            server = available(s, number)
    elif kind == codes.TURN:
        server = turn(s, what)
    elif kind == codes.ITERATED:
        iterated(s, what, now)
    elif kind == codes.ARRIVAL:
        come_again(s, what, now)
    else:
        batch = time_out(s, what, order, now)
    return batch, server, answered


@part
def _run(s: EngineState, until_ms: float, resume_only: bool) -> int:
    """Run as ``run`` says."""
    mask = (1 << codes.KIND_SHIFT) - 1
    now = s.loop.now_ms
    none = int(np.int64(-1))  # not a literal: numba would compile what takes it once more for that
    batch = none
    server = none
    answered = none
    if resume_only:
        s.loop.kind = codes.RESUME
        resume(s)
    while True:
        settle(s, batch, server, answered, now)
        batch = none
        server = none
        answered = none
        lack = lacks(s)
        if lack != codes.DONE:
            return lack
        i = s.loop.asked
        request = s.requests[i]
        if i >= 0:
            s.loop.asked = request.next
            request.next = -1
            batch = route(s, i, now)
            continue
        time = s.stream_times[0]
        key = s.stream_keys[0]
        streamed = s.loop.events == 0 or (
            time < s.event_times[0] or (time == s.event_times[0] and key < s.event_keys[0])
        )
        if not streamed:
            time = s.event_times[0]
            key = s.event_keys[0]
        kind = key >> codes.KIND_SHIFT
        if resume_only:
            if kind != codes.RESUME:
                return codes.DONE
        elif not time < until_ms:
            return codes.DONE
        now = time
        s.loop.now_ms = now
        s.loop.kind = kind
        if streamed:
            x = s.stream_what[0]
            if s.sources[x].kind == codes.STREAM:
                batch = form(s, x, now)
            else:
                come(s, x, now)
            time, key = next_of_source(s, x)
            sink_source(s, 0, time, key, x)
            continue
        what = s.event_what[0]
        pop_event(s)
        batch, server, answered = handle(s, kind, what, key & mask, now)


@entry
def run(sources: str) -> Callable[[EngineState, float, bool], int]:
    """Run events: run(state, until_ms, resume_only) -> code, those before ``until_ms`` (``resume_only``:
    those alone that end a wait for a model's first replica).

    Returns DONE, or what must be had before it can go on: called again, it goes on where it was.

    An event is followed by what it brings about at once, in this order: a batch is at its replica, a server
    starts the next batch, answers reach clients, requests that these ask for are routed. Only then comes the
    next event.
    """

    def enter(s: EngineState, until_ms: float, resume_only: bool) -> int:
        sources  # noqa: B018  # see entry
        return _run(s, until_ms, resume_only)

    return enter
