"""The event loop."""

from __future__ import annotations

from gkestimator.simulation.compiled import compiled
from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.heaps import pop_event, push_event, sink_source
from gkestimator.simulation.engine.routing import available, form, next_of_source, route, take_item, time_out
from gkestimator.simulation.engine.serving import copied, ended, reach, turn
from gkestimator.simulation.engine.stages import answer, begin_job

__all__ = ["run"]


@compiled
def lacks(s: c.State) -> int:
    """What the next event might need and has not: DONE where nothing."""
    z = s.z
    need = z[c.Z_ITEMS_NEED]
    if (
        z[c.Z_ITEMS] < need
        or z[c.Z_BATCHES] < need
        or z[c.Z_JOBS] < 1
        or len(s.event_times) - z[c.Z_EVENTS] < z[c.Z_EVENTS_NEED]
    ):
        return c.ROOM
    if len(s.draws) - z[c.Z_DRAW] < z[c.Z_DRAWS_NEED]:
        return c.DRAWS
    if len(s.uniforms) - z[c.Z_UNIFORM] < z[c.Z_UNIFORMS_NEED]:
        return c.UNIFORMS
    if z[c.Z_KEEP] == 1 and len(s.kept) - z[c.Z_KEPT] < z[c.Z_BATCH_MOST]:
        return c.FLUSH
    return c.DONE


@compiled
def come(s: c.State, x: int, now: float) -> None:
    """A request of source ``x``, whose model is not streamed."""
    arrived = s.arrivals[s.x[x, c.X_AT]]
    s.x[x, c.X_AT] += 1
    if s.x[x, c.X_KIND] == c.JOB:
        begin_job(s, x, now)
    else:
        route(s, s.x[x, c.X_MODEL], take_item(s, arrived, arrived, x), now)


@compiled
def happen(s: c.State, kind: int, order: int, what: int, now: float) -> None:
    """An event of the heap."""
    if kind == c.END:
        if s.b[what, c.B_STATE] != c.RUNNING or s.b[what, c.B_ORDER] != order or s.bf[what, c.BF_ENDS] != now:
            return  # its company changed, and with it its end
        ended(s, what, now)
        r = s.b[what, c.B_REPLICA]
        if s.r[r, c.R_RESPONSE_DELAY] == 1:
            takes = s.curves[s.r[r, c.R_CURVE] + s.b[what, c.B_SIZE], c.C_RESPONSE]
            push_event(s, now + takes, c.REACH, s.z[c.Z_ORDER], 4 * what + c.ANSWER)
            s.z[c.Z_ORDER] += 1
        else:
            answer(s, what, now)
    elif kind == c.REACH:
        about, one = what & 3, what >> 2
        if about == c.AT_REPLICA:
            reach(s, one, now)
        elif about == c.COPIED:
            copied(s, one, now)
        elif about == c.ANSWER:
            answer(s, one, now)
        else:
            available(s, one, now)
    elif kind == c.TURN:
        turn(s, what, now)
    else:
        time_out(s, what, order, now)


@compiled
def run(s: c.State, until: float, resume_only: bool) -> int:
    """Events before ``until`` (``resume_only``: those alone that end a wait for the first replica). Returns DONE, or
    what must be had before it can go on: called again, it goes on where it was."""
    mask = (1 << c.KIND_SHIFT) - 1
    for m in range(len(s.m)):
        while s.m[m, c.M_HEAD] >= 0 and s.m[m, c.M_TARGETS] > 0:
            lack = lacks(s)
            if lack != c.DONE:
                return lack
            s.z[c.Z_KIND] = c.RESUME
            i = s.m[m, c.M_HEAD]
            s.m[m, c.M_HEAD] = s.i[i, c.I_NEXT]
            s.i[i, c.I_NEXT] = -1
            route(s, m, i, s.mf[m, c.MF_RESUMED])
    while True:
        lack = lacks(s)
        if lack != c.DONE:
            return lack
        time, key = s.stream_times[0], s.stream_keys[0]
        streamed = s.z[c.Z_EVENTS] == 0 or (
            time < s.event_times[0] or (time == s.event_times[0] and key < s.event_keys[0])
        )
        if not streamed:
            time, key = s.event_times[0], s.event_keys[0]
        kind = key >> c.KIND_SHIFT
        if resume_only:
            if kind != c.RESUME:
                return c.DONE
        elif not time < until:
            return c.DONE
        s.z[c.Z_KIND] = kind
        if streamed:
            x = s.stream_what[0]
            if s.x[x, c.X_KIND] == c.STREAM:
                form(s, x, time)
            else:
                come(s, x, time)
            time, key = next_of_source(s, x)
            sink_source(s, 0, time, key, x)
        else:
            what = s.event_what[0]
            pop_event(s)
            happen(s, kind, key & mask, what, time)
