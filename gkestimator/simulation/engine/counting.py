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
    m = s.requests[i].model
    first = s.sequences[i].first_ms
    after = (s.sequences[i].answer - 1) * s.models[m].slo_tpot_ms
    late = first - s.requests[i].arrived_ms > s.models[m].slo_ttft_ms * codes.SLACK
    return 0 if late or now - first > after * codes.SLACK else 1


@part
def count_pace(s: EngineState, i: int, now: float) -> None:
    """Count the time to the first token of sequence ``i``, which ends now, and the mean time of those after it."""
    m = s.requests[i].model
    first = s.sequences[i].first_ms
    ttft = first - s.requests[i].arrived_ms
    s.models[m].ttft_ms += ttft
    s.token_histograms[m, codes.TTFT, bin_of(ttft, s.edges)] += 1
    answer = s.sequences[i].answer
    if answer > 1:
        tpot = (now - first) / (answer - 1)
        s.models[m].spread += 1
        s.models[m].tpot_ms += tpot
        s.token_histograms[m, codes.TPOT, bin_of(tpot, s.edges)] += 1


@part
def count_answered(s: EngineState, b: int, now: float) -> None:
    """Count every request of batch ``b``, whose answer reaches the clients at ``now``."""
    s.loop.last_ms = max(s.loop.last_ms, now)
    r = s.batches[b].replica
    m = s.replicas[r].model
    turns = s.replicas[r].turns == 1
    size = s.batches[b].size
    start = s.batches[b].start_ms
    ended = s.batches[b].ends_ms
    left = s.batches[b].left_ms
    reached = s.batches[b].reached_ms
    back = now - ended
    gpu = ended - start
    latest = s.models[m].slo_ms * codes.SLACK
    from_ms = s.options.from_ms
    edges = s.edges
    histograms = s.histograms
    counted = 0
    paced = s.models[m].paced == 1
    i = s.batches[b].head
    while i >= 0:
        arrived = s.requests[i].arrived_ms
        wait = start - arrived
        total = now - arrived
        on_time = 1 if total <= latest else 0
        if paced:
            on_time = keeps_pace(s, i, now)
        window = window_of(s, arrived)
        s.windows[m, codes.ON_TIME, window] += on_time
        s.windows[m, codes.ANSWERED, window] += 1
        s.window_waits[m, window] += wait
        if s.requests[i].origin_ms >= from_ms:
            counted += 1
            if paced:
                count_pace(s, i, now)
            if turns:
                left = s.requests[i].left_ms
                reached = s.requests[i].reached_ms
                queue = start - reached
                network = (reached - left) + back
                s.models[m].queue_ms += queue
                s.models[m].network_ms += network
                histograms[m, codes.QUEUE, bin_of(queue, edges)] += 1
                histograms[m, codes.NETWORK, bin_of(network, edges)] += 1
            router = left - arrived
            s.models[m].on_time += on_time
            s.models[m].wait_ms += wait
            s.models[m].router_ms += router
            s.models[m].total_ms += total
            histograms[m, codes.ROUTER, bin_of(router, edges)] += 1
            histograms[m, codes.TOTAL, bin_of(total, edges)] += 1
            if s.options.keep == 1:
                k = s.loop.kept
                s.loop.kept = k + 1
                s.kept[k].source = s.requests[i].source
                s.kept[k].model = m
                s.kept[k].replica = r
                s.kept[k].batch = size
                s.kept[k].arrived_ms = arrived
                s.kept[k].router_ms = router
                s.kept[k].network_ms = (reached - left) + back
                s.kept[k].queue_ms = start - reached
                s.kept[k].gpu_ms = gpu
                if paced:
                    s.kept[k].first_ms = s.sequences[i].first_ms - arrived
        i = s.requests[i].next
    if from_ms <= now <= s.options.until_ms:
        s.models[m].done_by_end += size
    if counted == 0:
        return
    s.models[m].done += counted
    s.models[m].gpu_ms += counted * gpu
    histograms[m, codes.GPU, bin_of(gpu, edges)] += counted
    if not turns:
        queue = start - reached
        network = (reached - left) + back
        s.models[m].queue_ms += counted * queue
        s.models[m].network_ms += counted * network
        histograms[m, codes.QUEUE, bin_of(queue, edges)] += counted
        histograms[m, codes.NETWORK, bin_of(network, edges)] += counted


@part
def count_source(s: EngineState, x: int, arrived: float, now: float) -> None:
    """Count a request of source ``x`` all of whose stages are done."""
    if s.options.from_ms <= now <= s.options.until_ms:
        s.sources[x].done_by_end += 1
    if arrived < s.options.from_ms:
        return
    total = now - arrived
    s.sources[x].done += 1
    if total <= s.sources[x].slo_ms * codes.SLACK:
        s.sources[x].on_time += 1
    s.sources[x].sum_ms += total
    s.source_histograms[x, bin_of(total, s.edges)] += 1
