"""Requests on time: against a simulation of the same replicas, against exact queues, and in what must hold whatever the
numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from _serving import Replica, on_time_share

from gkestimator.placement import queueing
from gkestimator.placement.queueing import Server, interval_sigmas, on_time

BATCHES = (1, 2, 4, 8, 16, 32)
LINEAR = (10.0, 14.0, 22.0, 38.0, 70.0, 134.0)
FLAT = (10.0, 10.5, 11.0, 12.0, 15.0, 22.0)


def server(latencies: tuple[float, ...], batch: int, **kwargs: float | int | None) -> Server:
    k = BATCHES.index(batch) + 1
    return Server(batch_size=batch, batches=BATCHES[:k], latencies_ms=latencies[:k], **kwargs)  # type: ignore[arg-type]


def simulated(servers: list[Server], waits: tuple[float, ...], rate: float, slo: float, seed: int) -> float:
    replicas = [
        Replica(
            batch_size=s.batch_size,
            batches=s.batches,
            latencies_ms=[x * s.slowdown for x in s.latencies_ms],
            wait_ms=wait,
            duty_cycle_ms=s.duty_cycle_ms,
        )
        for s, wait in zip(servers, waits, strict=True)
        for _ in range(s.count)
    ]
    return on_time_share(replicas, rate, slo, requests=12_000, seed=seed)


GRID = [
    (latencies, batch, count, tightness, load)
    for i, (latencies, batch, count) in enumerate(
        (shape, b, n) for shape in (LINEAR, FLAT) for b in (1, 4, 32) for n in (1, 4)
    )
    for tightness, load in (((1.1, 0.5), (1.5, 0.9), (3.0, 1.2)), ((1.5, 0.3), (2.0, 0.7), (3.0, 0.95)))[
        i % 2
    ]
]


@pytest.mark.slow
def test_share_on_time_is_that_of_a_simulation() -> None:
    errors = []
    for seed, (latencies, batch, count, tightness, load) in enumerate(GRID):
        one = server(latencies, batch, count=count)
        slo = tightness * one.latencies_ms[-1]
        rate = load * one.capacity_rps * count
        found = on_time([one], rate, slo)
        share = simulated([one], found.max_wait_ms, found.admitted_rps, slo, seed)
        errors.append((found.rate_rps - share * found.admitted_rps) / rate)
    assert np.mean(np.abs(errors)) < 0.02
    assert np.max(np.abs(errors)) < 0.1


@pytest.mark.parametrize(
    ("batch", "cycle", "load"), [(1, 2.0, 0.5), (8, 1.0, 0.8), (8, 2.0, 0.9), (32, 1.2, 0.6)]
)
@pytest.mark.parametrize("count", [1, 4])
def test_replicas_that_take_turns_are_as_simulated(batch: int, cycle: float, load: float, count: int) -> None:
    latency = LINEAR[BATCHES.index(batch)]
    one = server(LINEAR, batch, duty_cycle_ms=cycle * latency, count=count)
    slo = (cycle + 1.2) * latency
    rate = load * one.capacity_rps * count
    found = on_time([one], rate, slo)
    share = simulated([one], found.max_wait_ms, found.admitted_rps, slo, seed=5)
    assert found.rate_rps / rate == pytest.approx(share * found.admitted_rps / rate, abs=0.08)


def test_unequal_replicas_and_slowed_ones_are_as_simulated() -> None:
    pair = [server(FLAT, 32, count=2), server(LINEAR, 8, slowdown=1.4)]
    capacity = sum(s.capacity_rps * s.count for s in pair)
    for load in (0.4, 0.8):
        found = on_time(pair, load * capacity, 130.0)
        share = simulated(pair, found.max_wait_ms, found.admitted_rps, 130.0, seed=3)
        assert found.rate_rps / found.admitted_rps == pytest.approx(share, abs=0.06)


@pytest.mark.slow
def test_no_other_time_out_and_admitted_rate_serve_much_more_in_the_simulation() -> None:
    for latencies, batch, tightness, load in (
        (FLAT, 32, 2.0, 0.8),
        (LINEAR, 8, 1.5, 0.6),
        (LINEAR, 32, 3.0, 1.2),
    ):
        one = server(latencies, batch, count=2)
        slo = tightness * one.latencies_ms[-1]
        rate = load * one.capacity_rps * 2
        found = on_time([one], rate, slo)
        mine = found.admitted_rps * simulated([one], found.max_wait_ms, found.admitted_rps, slo, seed=1)
        best = max(
            admitted * simulated([one], (part * (slo - latencies[0]),), admitted, slo, seed=1)
            for admitted in rate * np.array([0.5, 0.65, 0.8, 0.9, 1.0])
            for part in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
        )
        assert mine >= 0.93 * best


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7, 0.85])
@pytest.mark.parametrize("slack", [0.0, 0.5, 0.9, 2.0, 4.0])
def test_one_replica_without_batches_is_the_exact_m_d_1_queue(load: float, slack: float) -> None:
    # Erlang 1909: P(W <= t) = (1 - rho) sum over k <= t / S of (-a)^k / k! e^a, a = lambda (t - k S).
    exact = sum(
        (1 - load) * (-load * (slack - k)) ** k / math.factorial(k) * math.exp(load * (slack - k))
        for k in range(math.floor(slack) + 1)
    )
    one = server(LINEAR, 1)
    slo = 10.0 * (1 + slack)
    chance, _ = queueing._batches(
        one, np.array([100 * load]), np.array([100 * load]), 1, slo, np.ones(3), queueing._FILL_POINTS[:3]
    )
    assert chance[0] == pytest.approx(exact, abs=0.06)


@pytest.mark.parametrize("most", [1, 2, 3, 7, 31, 127])
def test_moments_of_the_fill_are_those_of_the_poisson_law(most: int) -> None:
    for mean in (0.05, 0.7, 0.5 * most, 1.0 * most, 1.7 * most):
        probability, total = math.exp(-mean), np.zeros(3)
        for n in range(600):
            m = min(n, most)
            total += probability * np.array([m, min(n, most + 1) * (min(n, most + 1) - 1), n >= most])
            probability *= mean / (n + 1)
        got = [float(x) for x in queueing._fill_moments(np.array(mean), most)]
        assert got[0] == pytest.approx(total[0], rel=0.01, abs=1e-3)
        assert got[1] == pytest.approx(total[1], rel=0.02, abs=5e-3)
        assert got[2] == pytest.approx(total[2], abs=5e-3)


@pytest.mark.slow
def test_more_replicas_more_time_and_less_slowdown_never_serve_less() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        latencies = (LINEAR, FLAT)[int(rng.integers(2))]
        batch = int(rng.choice(BATCHES))
        slo = float(latencies[BATCHES.index(batch)] * rng.uniform(1.05, 4))
        rate = float(rng.uniform(0.1, 3)) * server(latencies, batch).capacity_rps

        def served(*, count: int = 1, slo: float = slo, slowdown: float = 1.0, sigma: float = 0.0, rate: float = rate,
                   one: tuple[tuple[float, ...], int] = (latencies, batch)) -> float:  # fmt: skip
            return on_time([server(*one, count=count, slowdown=slowdown)], rate, slo, sigma=sigma).rate_rps

        for worse, better in pairwise([served(count=n) for n in (1, 2, 4)]):
            assert better >= 0.99 * worse
        for worse, better in pairwise([served(slo=f * slo) for f in (1, 1.3, 2)]):
            assert better >= 0.99 * worse
        for worse, better in pairwise([served(slowdown=f) for f in (1.5, 1.2, 1.0)]):
            assert better >= 0.99 * worse
        assert served() <= rate
        assert served(rate=2 * rate) >= 0.98 * served()


def test_nothing_is_served_where_nothing_can_be() -> None:
    assert on_time([], 10.0, 100.0).rate_rps == 0
    late = on_time([server(LINEAR, 8, slowdown=5.0)], 10.0, 49.0)  # a single request takes 50 ms
    assert late.rate_rps == 0
    assert late.max_wait_ms == (0.0,)
    assert on_time([server(LINEAR, 8)], 0.0, 100.0).rate_rps == 0


def test_a_light_load_with_time_to_spare_is_served_whole_without_waiting_long() -> None:
    found = on_time([server(LINEAR, 8, count=2)], 5.0, 400.0)
    assert found.rate_rps == pytest.approx(5.0, rel=1e-3)
    assert found.admitted_rps == 5.0
    assert found.max_wait_ms[0] < 20.0


def test_batches_wait_only_as_long_as_it_helps() -> None:
    heavy = on_time([server(FLAT, 32)], 1300.0, 60.0)
    assert heavy.rate_rps > 1200.0  # single requests would be served at 100 a second
    assert 0 < heavy.max_wait_ms[0] < 60.0 - FLAT[-1] + 1


def test_an_uncertain_latency_serves_less_where_the_objective_is_near_and_as_much_where_it_is_far() -> None:
    one = [server(FLAT, 8, count=2)]
    assert on_time(one, 600.0, 16.0, sigma=0.3).rate_rps < 0.9 * on_time(one, 600.0, 16.0).rate_rps
    assert on_time(one, 100.0, 300.0, sigma=0.1).rate_rps == pytest.approx(100.0, rel=0.01)
    # Only what lies above the estimate can make a request late.
    below = on_time(one, 600.0, 16.0, sigma=0.0, sigma_below=0.3).rate_rps
    assert below >= on_time(one, 600.0, 16.0, sigma=0.3, sigma_below=0.0).rate_rps


def test_the_interval_is_met_at_both_ends() -> None:
    below, above = interval_sigmas(10.0, 5.0, 12.0)
    assert 10.0 * math.exp(-1.6448536 * below) == pytest.approx(5.0)
    assert 10.0 * math.exp(1.6448536 * above) == pytest.approx(12.0)
    assert interval_sigmas(10.0, None, None) == (0.0, 0.0)
    assert interval_sigmas(10.0, 10.0, 12.0)[0] == 0.0


def test_turns_that_are_short_of_the_cycle_bear_a_slow_gpu_better() -> None:
    alone = server(LINEAR, 8, duty_cycle_ms=76.0, slowdown=1.3)
    full = server(LINEAR, 8, duty_cycle_ms=76.0, slowdown=1.3, cycle_busy_ms=76.0)
    rate = 0.9 * 8e3 / 76.0
    assert on_time([full], rate, 150.0).rate_rps < on_time([alone], rate, 150.0).rate_rps
