"""Clients that wait for their answers, batches that form when the server is free: the engine against a plain program.

It is the loop by which benchmarks/triton_online.py simulates Triton's tables; the plain program is written from the rule
alone: a stage of the host that does one request at a time, one queue, one server that takes all that waits up to a cap.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.arrivals.closed import ClosedArrivals
from gkestimator.simulation.engine.simulator import simulate
from gkestimator.simulation.histogram import quantile_ms
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System

BATCHES, LATENCIES = (1, 4, 16), (5.0, 9.0, 30.0)
WAY_MS = 0.71


class Spread(ClosedArrivals):
    """Clients that begin a third of a millisecond after each other."""

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        yield Chunk(end_ms=until_ms, times_ms=(np.arange(self.clients[0]) / 3,))


def plain(clients: int, host_ms: float, cap: int, end_ms: float) -> tuple[float, list[float]]:
    """Answers between a third of the time and its end, per second, and the times to the answer of those."""
    events: list[tuple[float, int, str, tuple[float, ...]]] = []
    number = itertools.count()
    waiting: deque[float] = deque()
    host: deque[float] = deque()
    host_busy = server_busy = False
    answered = 0
    times = []
    for client in range(clients):
        heapq.heappush(events, (client / 3, next(number), "sent", (client / 3,)))
    while events:
        now, _, what, began = heapq.heappop(events)
        if what == "sent":
            host.append(now)
        elif what == "hosted":
            host_busy = False
            heapq.heappush(events, (now + WAY_MS, next(number), "there", began))
        elif what == "there":
            waiting.append(began[0])
        elif what == "served":
            server_busy = False
            heapq.heappush(events, (now + WAY_MS, next(number), "answered", began))
        else:
            for start in began:
                if now >= end_ms / 3 and now <= end_ms:
                    answered += 1
                if start >= end_ms / 3 and start < end_ms:
                    times.append(now - start)
                if now < end_ms:
                    heapq.heappush(events, (now, next(number), "sent", (now,)))
        if events and events[0][0] == now:
            continue
        if host and not host_busy:
            host_busy = True
            heapq.heappush(events, (now + host_ms, next(number), "hosted", (host.popleft(),)))
        if waiting and not server_busy:
            server_busy = True
            batch = tuple(waiting.popleft() for _ in range(min(cap, len(waiting))))
            takes = float(np.interp(len(batch), BATCHES, LATENCIES))
            heapq.heappush(events, (now + takes, next(number), "served", batch))
    return 1e3 * answered / (end_ms * 2 / 3), times


@pytest.mark.parametrize(("clients", "host_ms", "cap"), [(1, 0.5, 16), (7, 0.5, 16), (40, 0.87, 16), (40, 3.03, 16), (25, 0.2, 4)])  # fmt: skip
def test_engine_and_plain_program_agree(clients: int, host_ms: float, cap: int) -> None:
    end_ms = 6000.0
    sizes = tuple(b for b in BATCHES if b <= cap)
    server = SimReplica(
        id="server", model=0, gpu=0, batch_size=cap, max_wait_ms=0.0, weight=1.0, batches=sizes,
        latencies_ms=LATENCIES[: len(sizes)], request_ms=(WAY_MS,) * len(sizes), response_ms=(WAY_MS,) * len(sizes),
    )  # fmt: skip
    host = SimReplica(
        id="host",
        model=1,
        gpu=1,
        batch_size=1,
        max_wait_ms=0.0,
        weight=1.0,
        batches=(1,),
        latencies_ms=(host_ms,),
    )
    stages = (SimStage(model=1), SimStage(model=0, after=(0,)))
    source = SimSource(name="clients", application=True, rate_rps=1.0, slo_ms=1e9, stages=stages, closed=True)
    system = System(
        sources=(source,),
        models=(SimModel(name="m", slo_ms=1e9), SimModel(name="host", slo_ms=1e9)),
        gpus=tuple(SimGpu(id=name, type="T4", price_per_hour=None) for name in ("gpu", "host")),
        replicas=(server, host),
    )
    options = Options(
        duration_ms=end_ms, warmup_ms=end_ms / 3, batching="late", routing="least-load", window_ms=end_ms
    )
    result = simulate(system, Spread((clients,)), options)
    rate, times = plain(clients, host_ms, cap, end_ms)
    simulated = int(result.source_done_by_end[0]) / (result.until_ms - result.from_ms) * 1e3
    assert simulated == pytest.approx(rate, rel=0.01)
    mean_ms = float(result.source_sums_ms[0]) / int(result.source_done[0])
    assert mean_ms == pytest.approx(float(np.mean(times)), rel=0.02)
    # Batches keep in step for ever, in one of several ways: between those a percentile jumps, a mean does not.
    for q in (0.5, 0.99):
        assert quantile_ms(result.source_histograms[0], q) == pytest.approx(
            float(np.quantile(times, q)), rel=0.15
        )
