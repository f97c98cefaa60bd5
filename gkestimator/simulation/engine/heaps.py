"""Keep heaps in arrays: of events, of sources, of a model's replicas."""

from __future__ import annotations

from gkestimator.simulation.arrays import Ints
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.records import Records
from gkestimator.simulation.engine.state import EngineState, ReplicaRecord


@part
def push_event(s: EngineState, time: float, kind: int, order: int, what: int) -> None:
    """Push an event at ``time``; ``order`` (of creation) decides among those of one time and kind."""
    times = s.event_times
    keys = s.event_keys
    whats = s.event_what
    key = (kind << codes.KIND_SHIFT) + order
    at = s.loop.events
    s.loop.events = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if times[up] < time or (times[up] == time and keys[up] <= key):
            break
        times[at], keys[at], whats[at] = times[up], keys[up], whats[up]
        at = up
    times[at], keys[at], whats[at] = time, key, what


@part
def pop_event(s: EngineState) -> None:
    """Take the first event off (read it before)."""
    times = s.event_times
    keys = s.event_keys
    whats = s.event_what
    last = s.loop.events - 1
    s.loop.events = last
    time = times[last]
    key = keys[last]
    what = whats[last]
    at = 0
    while True:
        low = 2 * at + 1
        if low >= last:
            break
        high = low + 1
        if high < last and (
            times[high] < times[low] or (times[high] == times[low] and keys[high] < keys[low])
        ):
            low = high
        if time < times[low] or (time == times[low] and key < keys[low]):
            break
        times[at], keys[at], whats[at] = times[low], keys[low], whats[low]
        at = low
    times[at], keys[at], whats[at] = time, key, what


@part
def sink_source(s: EngineState, at: int, time: float, key: int, what: int) -> None:
    """Put source ``what`` with its next event at place ``at`` of the heap of sources or below."""
    times = s.stream_times
    keys = s.stream_keys
    whats = s.stream_what
    count = s.loop.streams
    while True:
        low = 2 * at + 1
        if low >= count:
            break
        high = low + 1
        if high < count and (
            times[high] < times[low] or (times[high] == times[low] and keys[high] < keys[low])
        ):
            low = high
        if time < times[low] or (time == times[low] and key < keys[low]):
            break
        times[at], keys[at], whats[at] = times[low], keys[low], whats[low]
        at = low
    times[at], keys[at], whats[at] = time, key, what


@part
def _before(replicas: Records[ReplicaRecord], a: int, b: int) -> bool:
    """Say whether the round robin chooses replica ``a`` before ``b``."""
    key = replicas[a].key
    other = replicas[b].key
    return key < other or (key == other and a < b)


@part
def sink_target(targets: Ints, replicas: Records[ReplicaRecord], first: int, count: int, at: int) -> None:
    """Sink the replica at place ``at`` of the heap targets[first : first + count], whose key grew, to where
    it belongs.
    """
    r = targets[first + at]
    while True:
        low = 2 * at + 1
        if low >= count:
            break
        if low + 1 < count and _before(replicas, targets[first + low + 1], targets[first + low]):
            low += 1
        if _before(replicas, r, targets[first + low]):
            break
        targets[first + at] = targets[first + low]
        at = low
    targets[first + at] = r


@part
def lift_target(targets: Ints, replicas: Records[ReplicaRecord], first: int, at: int) -> None:
    """Lift the replica at place ``at``, which is new there, up to where it belongs."""
    r = targets[first + at]
    while at > 0:
        up = (at - 1) >> 1
        if _before(replicas, targets[first + up], r):
            break
        targets[first + at] = targets[first + up]
        at = up
    targets[first + at] = r
