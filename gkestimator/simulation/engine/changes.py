"""Change the engine's arrays between the calls of the event loop: replicas that come, sources set up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gkestimator.simulation.engine import columns as c
from gkestimator.simulation.engine.columns import EngineState


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function behind a compiled one: a few calls are not worth compiling it for."""
    plain: Callable[..., Any] = getattr(function, "py_func", function)
    return plain


def make_available(s: EngineState, replicas: list[int]) -> None:
    """Let ``replicas``, new, serve from now on: one after the other takes its place in the round robin, where
    it does not catch up on what its model's others were dealt before (as ``routing.available``).
    """
    old = np.flatnonzero((s.r[:, c.R_AVAILABLE] == 1) & (s.r[:, c.R_RETIRED] == 0))
    least = np.full(len(s.m), math.inf)
    np.minimum.at(least, s.r[old, c.R_MODEL], s.rf[old, c.RF_DEALT] / s.rf[old, c.RF_WEIGHT])
    for k in replicas:
        m = s.r[k, c.R_MODEL]
        weight = s.rf[k, c.RF_WEIGHT]
        if least[m] < math.inf:
            s.rf[k, c.RF_DEALT] = weight * least[m]
        s.rf[k, c.RF_KEY] = (s.rf[k, c.RF_DEALT] + s.rf[k, c.RF_DEAL]) / weight
        s.r[k, c.R_AVAILABLE] = 1
        least[m] = min(least[m], s.rf[k, c.RF_DEALT] / weight)


def expect_available(s: EngineState, r: int) -> None:
    """Push the event that replica ``r`` is available."""
    from gkestimator.simulation.engine.heaps import push_event

    order = int(s.z[c.Z_ORDER])
    s.z[c.Z_ORDER] += 1
    _plain(push_event)(s, float(s.rf[r, c.RF_AVAILABLE]), c.REACH, order, 4 * r + c.AVAILABLE)


def unstream(s: EngineState, m: int) -> None:
    """Let requests of model ``m`` come one by one, since a replica of it takes turns now: its batch under
    construction, if any, is made one of requests that came (all of the arrivals at hand).
    """
    from gkestimator.simulation.engine.heaps import push_event
    from gkestimator.simulation.engine.routing import take_item
    from gkestimator.simulation.engine.serving import take_batch

    x = int(s.m[m, c.M_SOURCE])
    s.m[m, c.M_STREAMED] = 0
    s.x[x, c.X_KIND] = c.PLAIN
    r = int(s.m[m, c.M_OPEN])
    if r < 0:
        return
    s.m[m, c.M_OPEN] = -1
    b = _plain(take_batch)(s, r)
    last = -1
    for k in range(s.x[x, c.X_AT], s.x[x, c.X_STOP]):
        i = _plain(take_item)(s, m, s.arrivals[k], s.arrivals[k], x)
        if last < 0:
            s.b[b, c.B_HEAD] = i
        else:
            s.i[last, c.I_NEXT] = i
        last = i
        s.b[b, c.B_SIZE] += 1
    s.b[b, c.B_TAIL] = last
    s.b[b, c.B_STATE], s.b[b, c.B_ORDER] = c.OPEN, s.m[m, c.M_ORDER]
    s.m[m, c.M_BATCH] = b
    s.x[x, c.X_AT] = s.x[x, c.X_STOP]
    late = float(s.mf[m, c.MF_OPENED] + s.rf[r, c.RF_WAIT])
    _plain(push_event)(s, late, c.TIMEOUT, int(s.m[m, c.M_ORDER]), b)


def fill_streams(s: EngineState) -> None:
    """Make the heap of sources anew (a sorted list is a heap)."""
    from gkestimator.simulation.engine.routing import next_of_source

    s.z[c.Z_STREAMS] = len(s.x)
    events = sorted((*_plain(next_of_source)(s, x), x) for x in range(len(s.x)))
    for at, (time, key, x) in enumerate(events):
        s.stream_times[at], s.stream_keys[at], s.stream_what[at] = time, key, x


def resumes(s: EngineState) -> bool:
    """Say whether requests waited that a replica was there, which is now."""
    waits = (s.m[:, c.M_HEAD] >= 0) & (s.m[:, c.M_TARGETS] > 0)
    return bool(
        waits.any() or (s.stream_keys[0] >> c.KIND_SHIFT == c.RESUME and s.stream_times[0] < math.inf)
    )
