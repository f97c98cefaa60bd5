"""Dispatch by Arlo's Request Scheduler and the simple ones, request by request; compiled.

Instances of one runtime form a level. An instance answers one request after the other, each in the runtime's
latency, so it is described by one number: when it will be free. Its outstanding requests follow from that,
and no event is needed for their ends. A level is a heap of its instances in service by (free, index); its
head has the least to do.

**Arlo's algorithm 1** (``arlo``), in our reading: from the level of the shortest runtime that takes the
request, at most ``levels`` levels (L) are looked at in order of length; levels without an instance in service
are not there. The head of the k-th (k = 0, 1, ...) takes the request where its outstanding requests over its
capacity (those that it answers within the SLO) are below ``threshold x decay^k`` (lambda, alpha): the further
a request is padded, the emptier the level must be. If none is: the first level's head takes it
(``congested``: ``ideal``), or the least loaded of the heads looked at (``least-load``); the text that we know
does not say which.

``least-padding``: the head of the first level. ``least-load``: of the heads of all levels that take the
request the one with the fewest outstanding requests, the shortest of equals. ``earliest``: the head that
would answer first (no scheme of the paper: what a dispatcher does that knows all latencies and looks at
nothing but the request at hand). ``infaas``: of the heads of all levels that take the request the one with the
least outstanding of what it answers within the SLO, the shortest of equals (INFaaS, Romero et al., USENIX ATC 2021,
in our reading: of the variants that suit a request the least loaded serves it; a runtime of a length is a variant,
and load is a part of what an instance can do, which ``least-load`` does not ask).
"""

from __future__ import annotations

import math

from gkestimator.core.compiled import compiled
from gkestimator.simulation.arrays import Floats, Ints

SCHEMES = ("arlo", "least-padding", "least-load", "earliest", "infaas")
ARLO, LEAST_PADDING, LEAST_LOAD, EARLIEST, INFAAS = range(5)
CONGESTED = ("ideal", "least-load")
# Part of a latency below which what is left of a request is the rounding of sums.
_NOTHING = 1e-9


@compiled
def outstanding(free_ms: float, now_ms: float, latency_ms: float) -> float:
    """Return the requests that an instance free at ``free_ms`` has not answered by ``now_ms``: until then it
    works without a pause, ``latency_ms`` on each.
    """
    if free_ms <= now_ms:
        return 0.0
    return math.ceil((free_ms - now_ms) / latency_ms - _NOTHING)


@compiled
def _before(one: int, other: int, free_ms: Floats) -> bool:
    return free_ms[one] < free_ms[other] or (free_ms[one] == free_ms[other] and one < other)


@compiled
def _sink(heap: Ints, size: int, free_ms: Floats) -> None:
    """Put the head of ``heap`` where it belongs, after it got more to do."""
    at, item = 0, heap[0]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(heap[child + 1], heap[child], free_ms):
            child += 1
        if not _before(heap[child], item, free_ms):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@compiled
def push(heap: Ints, size: int, instance: int, free_ms: Floats) -> None:
    """Add ``instance`` to a ``heap`` of ``size``."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if not _before(instance, heap[parent], free_ms):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = instance


@compiled
def take_head(heap: Ints, size: int, free_ms: Floats) -> int:
    """Remove and return the head of a ``heap`` of ``size`` (at least 1)."""
    head = int(heap[0])
    heap[0] = heap[size - 1]
    if size > 1:
        _sink(heap, size - 1, free_ms)
    return head


@compiled
def load_at(scheme: int, free_ms: float, now_ms: float, latency_ms: float, capacity: float) -> float:
    """Return what ``scheme`` compares of an instance that is free at ``free_ms``, at the head of its level: when it
    would have answered (ms), its outstanding requests, or these over the requests that it can have at once.
    """
    if scheme == EARLIEST:
        return max(free_ms, now_ms) + latency_ms
    load = outstanding(free_ms, now_ms, latency_ms)
    if scheme in (INFAAS, ARLO):
        load /= capacity
    return load


@compiled
def dispatch(
    times_ms: Floats,
    shortest: Ints,
    scheme: int,
    threshold: float,
    decay: float,
    levels: int,
    congested: int,
    latency_ms: Floats,
    service_ms: Floats,
    capacity: Floats,
    heaps: Ints,
    sizes: Ints,
    free_ms: Floats,
    response_ms: Floats,
    level_of: Ints,
) -> None:
    """Send each request to an instance, in order.

    ``times_ms`` ascending and ``shortest`` (level of the shortest runtime that takes it), by request;
    ``latency_ms`` and ``capacity``, by level; ``service_ms``, by request: what it takes whatever the level (empty: the
    level's latency); ``heaps`` (levels, instances) and ``sizes``: the instances in
    service; ``free_ms``, by instance. Filled: ``response_ms`` and ``level_of``, by request (-1: no instance
    in service takes it).
    """
    last = len(sizes)
    for request in range(len(times_ms)):
        now = times_ms[request]
        chosen = -1
        least = math.inf
        looked = 0
        limit = threshold
        for level in range(shortest[request], last):
            if sizes[level] == 0:
                continue
            if scheme == LEAST_PADDING:
                chosen = level
                break
            load = load_at(scheme, free_ms[heaps[level, 0]], now, latency_ms[level], capacity[level])
            if scheme == ARLO:
                if load < limit:
                    chosen = level
                    break
                if chosen < 0 or (congested == 1 and load < least):
                    chosen = level
                    least = load
                limit *= decay
                looked += 1
                if looked == levels:
                    break
            elif load < least:
                chosen = level
                least = load
        level_of[request] = chosen
        if chosen < 0:
            response_ms[request] = math.nan
            continue
        head = heaps[chosen, 0]
        took = latency_ms[chosen]
        if len(service_ms) > 0:
            took = service_ms[request]
        free_ms[head] = max(free_ms[head], now) + took
        response_ms[request] = free_ms[head] - now
        _sink(heaps[chosen], sizes[chosen], free_ms)
