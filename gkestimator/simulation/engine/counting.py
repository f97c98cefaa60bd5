"""Count what is known of requests and batches, when they are done."""

from __future__ import annotations

import math

from gkestimator.simulation.arrays import Floats
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.part import part
from gkestimator.simulation.engine.state import EngineState
from gkestimator.simulation.histogram import BINS, LOWEST_MS, RATIO

BIN_PER_LOG = 1.0 / math.log(RATIO)
LOG_LOWEST = math.log(LOWEST_MS)
LAST_BIN = BINS - 1


@part
def bin_of(time: float, edges: Floats) -> int:
    """Return the bin of ``time`` in the histograms.

    The logarithm guesses, the edges decide, so every machine counts alike.
    """
    if time < LOWEST_MS:
        return 0
    at = min(int((math.log(time) - LOG_LOWEST) * BIN_PER_LOG) + 1, LAST_BIN)
    while time < edges[at]:
        at -= 1
    while at < LAST_BIN and time >= edges[at + 1]:
        at += 1
    return at


@part
def window_of(s: EngineState, time: float) -> int:
    """Return the timeline's window that ``time`` lies in."""
    # Less than all windows before it is made whole: the last answers may come after any number of them.
    at = int(min(time / s.options.window_ms, float(s.options.windows)))
    if at * s.options.window_ms > time:
        at -= 1
    return int(min(at, s.options.windows - 1))


@part
def keeps_pace(s: EngineState, i: int, now: float) -> int:
    """Return 1 where sequence ``i``, which ends now, kept the objectives of its first token and of those after it."""
    sequence = s.sequences[i]
    request = s.requests[i]
    model = s.models[request.model]
    first = sequence.first_ms
    after = (sequence.answer - 1) * model.slo_tpot_ms
    late = first - request.arrived_ms > model.slo_ttft_ms * codes.SLACK
    return 0 if late or now - first > after * codes.SLACK else 1


@part
def count_pace(s: EngineState, i: int, now: float) -> None:
    """Count the time to the first token of sequence ``i``, which ends now, and the mean time of those after it."""
    sequence = s.sequences[i]
    request = s.requests[i]
    m = request.model
    model = s.models[m]
    first = sequence.first_ms
    ttft = first - request.arrived_ms
    model.ttft_ms += ttft
    s.token_histograms[m, codes.TTFT, bin_of(ttft, s.edges)] += 1
    answer = sequence.answer
    if answer > 1:
        tpot = (now - first) / (answer - 1)
        model.spread += 1
        model.tpot_ms += tpot
        s.token_histograms[m, codes.TPOT, bin_of(tpot, s.edges)] += 1


@part
def count_answered(s: EngineState, b: int, now: float) -> None:
    """Count every request of batch ``b``, whose answer reaches the clients at ``now``."""
    batch = s.batches[b]
    s.loop.last_ms = max(s.loop.last_ms, now)
    r = batch.replica
    replica = s.replicas[r]
    m = replica.model
    model = s.models[m]
    singly = replica.singly == 1
    size = batch.size
    start = batch.start_ms
    ended = batch.ends_ms
    left = batch.left_ms
    reached = batch.reached_ms
    back = now - ended
    gpu = ended - start
    latest = model.slo_ms * codes.SLACK
    from_ms = s.options.from_ms
    edges = s.edges
    histograms = s.histograms
    counted = 0
    paced = model.paced == 1
    i = batch.head
    while i >= 0:
        request = s.requests[i]
        arrived = request.arrived_ms
        wait = start - arrived
        total = now - arrived
        on_time = 1 if total <= latest else 0
        if paced:
            on_time = keeps_pace(s, i, now)
        window = window_of(s, arrived)
        s.windows[m, codes.ON_TIME, window] += on_time
        s.windows[m, codes.ANSWERED, window] += 1
        s.window_waits[m, window] += wait
        if request.origin_ms >= from_ms:
            counted += 1
            if paced:
                count_pace(s, i, now)
            if singly:
                left = request.left_ms
                reached = request.reached_ms
                queue = start - reached
                network = (reached - left) + back
                model.queue_ms += queue
                model.network_ms += network
                histograms[m, codes.QUEUE, bin_of(queue, edges)] += 1
                histograms[m, codes.NETWORK, bin_of(network, edges)] += 1
            router = left - arrived
            model.on_time += on_time
            model.wait_ms += wait
            model.router_ms += router
            model.total_ms += total
            histograms[m, codes.ROUTER, bin_of(router, edges)] += 1
            histograms[m, codes.TOTAL, bin_of(total, edges)] += 1
            if s.options.keep == 1:
                kept = s.kept[s.loop.kept]
                s.loop.kept += 1
                kept.source = request.source
                kept.model = m
                kept.replica = r
                kept.batch = size
                kept.arrived_ms = arrived
                kept.router_ms = router
                kept.network_ms = (reached - left) + back
                kept.queue_ms = start - reached
                kept.gpu_ms = gpu
                if paced:
                    kept.first_ms = s.sequences[i].first_ms - arrived
        i = request.next
    if from_ms <= now <= s.options.until_ms:
        model.done_by_end += size
    if counted == 0:
        return
    model.done += counted
    model.gpu_ms += counted * gpu
    histograms[m, codes.GPU, bin_of(gpu, edges)] += counted
    if not singly:
        queue = start - reached
        network = (reached - left) + back
        model.queue_ms += counted * queue
        model.network_ms += counted * network
        histograms[m, codes.QUEUE, bin_of(queue, edges)] += counted
        histograms[m, codes.NETWORK, bin_of(network, edges)] += counted


@part
def count_source(s: EngineState, x: int, arrived: float, now: float) -> None:
    """Count a request of source ``x`` all of whose stages are done."""
    source = s.sources[x]
    if s.options.from_ms <= now <= s.options.until_ms:
        source.done_by_end += 1
    if arrived < s.options.from_ms:
        return
    total = now - arrived
    source.done += 1
    if total <= source.slo_ms * codes.SLACK:
        source.on_time += 1
    source.sum_ms += total
    s.source_histograms[x, bin_of(total, s.edges)] += 1
