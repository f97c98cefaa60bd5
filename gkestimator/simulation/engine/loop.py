"""Run the event loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.heaps import pop_event, push_event, sink_source
from gkestimator.simulation.engine.iterating import iterated
from gkestimator.simulation.engine.part import entry, inlined, part
from gkestimator.simulation.engine.routing import (
    ask,
    available,
    form,
    next_of_source,
    route,
    take_item,
    time_out,
)
from gkestimator.simulation.engine.sequences import take_lengths
from gkestimator.simulation.engine.serving import copied, ended, reach, serve, turn
from gkestimator.simulation.engine.stages import answer, begin_job


@part
def lacks(s: c.EngineState) -> int:
    """Return what the next event might need and has not: DONE where nothing."""
    z = s.z
    if (
        z[c.Z_ITEMS] < z[c.Z_ITEMS_NEED]
        or z[c.Z_BATCHES] < c.BATCHES_NEED
        or z[c.Z_JOBS] < 1
        or len(s.event_times) - z[c.Z_EVENTS] < z[c.Z_EVENTS_NEED]
    ):
        return c.ROOM
    if z[c.Z_EXPONENTIAL] == 1 and len(s.draws) == z[c.Z_DRAW]:
        return c.DRAWS
    if len(s.uniforms) - z[c.Z_UNIFORM] < z[c.Z_UNIFORMS_NEED]:
        return c.UNIFORMS
    if z[c.Z_KEEP] == 1 and len(s.kept) - z[c.Z_KEPT] < z[c.Z_BATCH_MOST]:
        return c.FLUSH
    return c.DONE


@part
def come(s: c.EngineState, x: int, now: float) -> None:
    """Take in a request of source ``x``, whose model is not streamed."""
    arrived = s.arrivals[s.x[x, c.X_AT]]
    s.x[x, c.X_AT] += 1
    if s.x[x, c.X_KIND] == c.JOB:
        begin_job(s, x, now)
    else:
        i = take_item(s, s.x[x, c.X_MODEL], arrived, arrived, x)
        if s.x[x, c.X_LENGTHS] > 0:
            take_lengths(s, x, i)
        ask(s, i)


@part
def is_over(s: c.EngineState, b: int, order: int, now: float) -> bool:
    """Say whether batch ``b``'s service ends now. It does not where its company changed, and with it its end."""
    return bool(s.b[b, c.B_STATE] == c.RUNNING and s.b[b, c.B_ORDER] == order and s.bf[b, c.BF_ENDS] == now)


@part
def answer_later(s: c.EngineState, b: int, now: float) -> bool:
    """Say whether the answers of ``b`` take time to reach the clients; then that is an event."""
    r = s.b[b, c.B_REPLICA]
    if s.r[r, c.R_RESPONSE_DELAY] == 0:
        return False
    takes = s.curves[s.r[r, c.R_CURVE] + s.b[b, c.B_SIZE], c.C_RESPONSE]
    push_event(s, now + takes, c.REACH, s.z[c.Z_ORDER], 4 * b + c.ANSWER)
    s.z[c.Z_ORDER] += 1
    return True


@part
def resume(s: c.EngineState) -> None:
    """Ask again requests that waited until their model had a replica."""
    for m in range(len(s.m)):
        if s.m[m, c.M_HEAD] >= 0 and s.m[m, c.M_TARGETS] > 0:
            ask(s, s.m[m, c.M_HEAD])
            s.z[c.Z_ASKED_LAST] = s.m[m, c.M_TAIL]
            s.m[m, c.M_HEAD] = -1


@inlined
def settle(s: c.EngineState, batch: int, server: int, answered: int, now: float) -> None:
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
def handle(s: c.EngineState, kind: int, what: int, order: int, now: float) -> tuple[int, int, int]:
    """Handle an event of the heap. Returns the batch, server and answered batch that :func:`settle` takes."""
    batch = int(np.int64(-1))  # as in _run
    server = batch
    answered = batch
    if kind == c.END:
        if is_over(s, what, order, now):
            server = ended(s, what, now)
            if not answer_later(s, what, now):
                answered = what
    elif kind == c.REACH:
        about = what & 3
        number = what >> 2
        if about == c.AT_REPLICA:
            batch = number
        elif about == c.COPIED:
            server = copied(s, number, now)
        elif about == c.ANSWER:
            answered = number
        else:
            server = available(s, number)
    elif kind == c.TURN:
        server = turn(s, what)
    elif kind == c.ITERATED:
        iterated(s, what, now)
    else:
        batch = time_out(s, what, order, now)
    return batch, server, answered


@part
def _run(s: c.EngineState, until_ms: float, resume_only: bool) -> int:
    """Run as ``run`` says."""
    mask = (1 << c.KIND_SHIFT) - 1
    now = s.f[c.F_NOW]
    none = int(np.int64(-1))  # not a literal: numba would compile what takes it once more for that
    batch = none
    server = none
    answered = none
    if resume_only:
        s.z[c.Z_KIND] = c.RESUME
        resume(s)
    while True:
        settle(s, batch, server, answered, now)
        batch = none
        server = none
        answered = none
        lack = lacks(s)
        if lack != c.DONE:
            return lack
        i = s.z[c.Z_ASKED]
        if i >= 0:
            s.z[c.Z_ASKED] = s.i[i, c.I_NEXT]
            s.i[i, c.I_NEXT] = -1
            batch = route(s, i, now)
            continue
        time = s.stream_times[0]
        key = s.stream_keys[0]
        streamed = s.z[c.Z_EVENTS] == 0 or (
            time < s.event_times[0] or (time == s.event_times[0] and key < s.event_keys[0])
        )
        if not streamed:
            time = s.event_times[0]
            key = s.event_keys[0]
        kind = key >> c.KIND_SHIFT
        if resume_only:
            if kind != c.RESUME:
                return c.DONE
        elif not time < until_ms:
            return c.DONE
        now = time
        s.f[c.F_NOW] = now
        s.z[c.Z_KIND] = kind
        if streamed:
            x = s.stream_what[0]
            if s.x[x, c.X_KIND] == c.STREAM:
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
def run(sources: str) -> Callable[[c.EngineState, float, bool], int]:
    """Run events: run(state, until_ms, resume_only) -> code, those before ``until_ms`` (``resume_only``:
    those alone that end a wait for a model's first replica).

    Returns DONE, or what must be had before it can go on: called again, it goes on where it was.

    An event is followed by what it brings about at once, in this order: a batch is at its replica, a server
    starts the next batch, answers reach clients, requests that these ask for are routed. Only then comes the
    next event.
    """

    def enter(s: c.EngineState, until_ms: float, resume_only: bool) -> int:
        sources  # noqa: B018  # see entry
        return _run(s, until_ms, resume_only)

    return enter
