"""Requests on time where batches are formed late: against a simulation of the same replicas, against what is known
exactly, and in what must hold whatever the numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from _late_serving import LateReplica, late_share

from gkestimator.placement.late import late_on_time
from gkestimator.placement.queueing import Server, interval_factors

BATCHES = (1, 2, 4, 8, 16, 32)
LINEAR = (10.0, 14.0, 22.0, 38.0, 70.0, 134.0)
FLAT = (10.0, 10.5, 11.0, 12.0, 15.0, 22.0)


def server(latencies: tuple[float, ...], batch: int, **kwargs: float | int) -> Server:
    k = BATCHES.index(batch) + 1
    return Server(batch_size=batch, batches=BATCHES[:k], latencies_ms=latencies[:k], **kwargs)  # type: ignore[arg-type]


def simulated(
    s: Server, rate: float, slo: float, seed: int, factor: float = 1.0, requests: int = 12_000
) -> float:
    replicas = [
        LateReplica(batch_size=s.batch_size, batches=s.batches, latencies_ms=s.latencies_ms, factor=factor)
        for _ in range(s.count)
    ]
    return late_share(replicas, rate, slo, requests=requests, seed=seed)


@pytest.mark.parametrize(("latencies", "batch"), [(LINEAR, 1), (LINEAR, 8), (FLAT, 4), (FLAT, 32)])
@pytest.mark.parametrize(("tightness", "load"), [(1.2, 0.4), (2.0, 0.8), (3.0, 0.95), (2.0, 1.4)])
def test_share_on_time_at_one_replica_is_that_of_a_simulation(
    latencies: tuple[float, ...], batch: int, tightness: float, load: float
) -> None:
    one = server(latencies, batch)
    slo = tightness * one.latencies_ms[-1]
    rate = load * one.capacity_rps
    share = late_on_time([one], rate, slo).rate_rps / rate
    # A replica without batches near its capacity is the coarsest: few states, most of them full.
    assert share == pytest.approx(simulated(one, rate, slo, seed=1), abs=0.06 if batch == 1 else 0.025)


@pytest.mark.parametrize("count", [2, 6])
def test_several_replicas_are_near_to_a_simulation_where_most_is_on_time(count: int) -> None:
    some = server(LINEAR, 16, count=count)
    slo = 2.0 * some.latencies_ms[-1]
    rate = 0.9 * some.capacity_rps * count
    share = late_on_time([some], rate, slo).rate_rps / rate
    assert share == pytest.approx(simulated(some, rate, slo, seed=2), abs=0.02)
    alone = late_on_time([server(LINEAR, 16)], rate / count, slo).rate_rps * count / rate
    assert share > alone + 0.003


def test_batches_longer_than_estimated_are_late_as_in_a_simulation() -> None:
    one = server(LINEAR, 16)
    slo = 1.6 * one.latencies_ms[-1]
    rate = 0.85 * one.capacity_rps
    share = late_on_time([one], rate, slo, sigma=0.15).rate_rps / rate
    factors = interval_factors(0.15, 0.15)
    runs = [simulated(one, rate, slo, seed=3, factor=float(f), requests=6_000) for f in factors]
    assert share == pytest.approx(sum(runs) / len(runs), abs=0.02)
    assert share < late_on_time([one], rate, slo).rate_rps / rate - 0.01


def test_neighbours_slow_a_batch_but_not_what_refusals_go_by() -> None:
    slowed = server(LINEAR, 16, slowdown=1.4)
    slo = 1.6 * slowed.latencies_ms[-1]
    rate = 0.5 * slowed.capacity_rps
    share = late_on_time([slowed], rate, slo).rate_rps / rate
    assert share == pytest.approx(simulated(slowed, rate, slo, seed=4, factor=1.4), abs=0.03)


def test_more_is_never_served_than_asked_or_than_can_be() -> None:
    one = server(FLAT, 32)
    rates = [10.0 * 1.5**i for i in range(20)]
    served = [late_on_time([one], rate, 60.0).rate_rps for rate in rates]
    for rate, rps in zip(rates, served, strict=True):
        assert rps <= rate * (1 + 1e-12)
        assert rps <= 1.03 * one.capacity_rps
    assert all(b >= a * 0.995 for a, b in pairwise(served)), "refusals keep what is served from falling"
    assert served[0] == pytest.approx(rates[0], rel=1e-6)


def test_nothing_is_served_where_one_request_alone_is_late() -> None:
    answer = late_on_time([server(LINEAR, 8)], 50.0, 9.0)
    assert answer.rate_rps == 0
    assert late_on_time([], 50.0, 9.0).rate_rps == 0


def test_no_batch_waits_to_fill_and_all_are_let_in() -> None:
    answer = late_on_time([server(LINEAR, 8), server(FLAT, 4)], 100.0, 80.0)
    assert answer.max_wait_ms == (0.0, 0.0)
    assert answer.admitted_rps == 100.0


def test_turns_are_looked_at_below_what_would_choke_them() -> None:
    turns = Server(batch_size=4, batches=(1, 4), latencies_ms=(10.0, 20.0), duty_cycle_ms=50.0)
    answer = late_on_time([turns], 1000.0, 200.0)
    assert 0.5 * turns.capacity_rps < answer.rate_rps < turns.capacity_rps
    assert answer.max_wait_ms == (50.0,)
    assert math.isfinite(answer.rate_rps)


def test_a_replica_that_nothing_leaves_on_time_has_an_answer() -> None:
    # Only one alone is on time: the chain falls into parts that do not reach each other.
    one = Server(batch_size=16, batches=(4, 8, 16), latencies_ms=(108.8, 271.3, 613.8))
    answer = late_on_time([one], 500.0, 150.0)
    assert 0 < answer.rate_rps < 40
