"""The simulator gives what queueing theory gives, where theory is exact: few seeds, bounds that an error of a few percent breaks.

Each bound is about four standard errors of the whole sample, as the spread of the seeds shows it.
(``benchmarks/queueing_theory.py`` does the same with many more requests, closer bounds and a load of 0.95.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import _theory as theory
import numpy as np
import pytest

from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.engine.simulator import simulate
from gkestimator.simulation.histogram import quantile_ms
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import CountedRequests, Result
from gkestimator.simulation.system import SimStage, System

SEEDS = 5
SERVICE_MS = 10.0


def runs(
    asked: System, rate: float, requests: int, *, seeds: int = SEEDS, keep: bool = False, **options: str
) -> list[Result]:
    """``asked`` at ``rate`` requests per ms, once for each seed; the first twentieth is not counted."""
    found = []
    for seed in range(seeds):
        arrivals = make_arrivals("poisson", [1e3 * rate], ["s"], seed=seed)
        duration = requests / rate
        found.append(
            simulate(
                asked,
                arrivals,
                Options(
                    duration_ms=duration,
                    warmup_ms=duration / 20,
                    window_ms=duration / 10,
                    keep_requests=keep,
                    seed=seed,
                    **options,
                ),
            )
        )
    return found


def close(found: list[Result], value: Callable[[Result], float], expected: float, within: float) -> None:
    """The mean over the seeds is within ``within`` (relative) and five standard errors of ``expected``."""
    values = np.array([value(r) for r in found])
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert values.mean() == pytest.approx(expected, rel=within)
    assert abs(values.mean() - expected) <= 5 * error


def wait(result: Result) -> float:
    return float(result.wait_sums_ms[0] / result.done[0])


def response(result: Result) -> float:
    return float(result.source_sums_ms[0] / result.source_done[0])


def kept(result: Result) -> CountedRequests:
    assert result.requests is not None
    return result.requests


def test_the_formulas_agree() -> None:
    """Crommelin's sum against the stationary law, and against M/D/1 where c = 1."""
    for load in (0.5, 0.8, 0.95):
        assert theory.mdc_wait_ms(1, load, 3.0) == pytest.approx(theory.md1_wait_ms(load, 3.0), rel=1e-9)
        for servers in (2, 4, 8, 16):
            one, other = (f(servers, load, 3.0) for f in (theory.mdc_wait_ms, theory.mdc_wait_by_balance_ms))
            assert one == pytest.approx(other, rel=1e-8)
    assert theory.md1_wait_within(0.8, 3.0, 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mm1(load: float) -> None:
    found = runs(
        theory.system([theory.replica(0, 0, SERVICE_MS)]), load / SERVICE_MS, 60_000, service="exponential"
    )
    close(found, wait, theory.mm1_wait_ms(load, SERVICE_MS), 0.06)
    for q in (0.5, 0.9, 0.99):  # the whole time is exponential

        def percentile(r: Result, q: float = q) -> float:
            return quantile_ms(r.histograms[0, -1], q) or 0.0

        close(found, percentile, -math.log(1 - q) * SERVICE_MS / (1 - load), 0.1 * load)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_md1(load: float) -> None:
    found = runs(theory.system([theory.replica(0, 0, SERVICE_MS)]), load / SERVICE_MS, 40_000, keep=True)
    close(found, wait, theory.md1_wait_ms(load, SERVICE_MS), 0.02)
    for t in (0.0, 4.0, 10.0, 35.0):

        def within(r: Result, t: float = t) -> float:
            return float(np.mean(kept(r).queue_ms <= t + 1e-9))

        close(found, within, theory.md1_wait_within(load, SERVICE_MS, t), 0.02)


@pytest.mark.parametrize("routing", ["least-load", "round-robin"])
@pytest.mark.parametrize(("servers", "load"), [(2, 0.8), (4, 0.8), (8, 0.9)])
def test_mdc(servers: int, load: float, routing: str) -> None:
    """One queue by least load; in turn it is the same: with constant service nobody overtakes."""
    replicas = [theory.replica(0, g, SERVICE_MS) for g in range(servers)]
    found = runs(theory.system(replicas), servers * load / SERVICE_MS, 40_000, routing=routing)
    close(found, wait, theory.mdc_wait_ms(servers, load, SERVICE_MS), 0.04)


def test_partition_is_one_server() -> None:
    """Two models that share a partition in time: together one M/D/1."""
    from dataclasses import replace

    one = theory.system(
        [theory.replica(0, 0, SERVICE_MS), theory.replica(1, 0, SERVICE_MS)],
        stages=[SimStage(model=0, fan_out=0.5), SimStage(model=1, fan_out=0.5)],
    )
    # Each request asks either model or both or none: what enters is not Poisson, so sources of their own.
    sources = tuple(
        replace(one.sources[0], name=f"s{m}", application=False, stages=(SimStage(model=m),)) for m in (0, 1)
    )
    shared = replace(one, sources=sources, replicas=tuple(replace(r, partition=7) for r in one.replicas))
    load, waits = 0.8, []
    for seed in range(SEEDS):
        arrivals = make_arrivals("poisson", [500 * load / SERVICE_MS] * 2, ["s0", "s1"], seed=seed)
        result = simulate(shared, arrivals, Options(duration_ms=5e5, warmup_ms=2.5e4, window_ms=1e5))
        waits.append(result.wait_sums_ms.sum() / result.done.sum())
    assert np.mean(waits) == pytest.approx(theory.md1_wait_ms(load, SERVICE_MS), rel=0.03)


def test_batches_that_time_out() -> None:
    """A batch is its opener and whoever comes within W: 1 + Poisson(rate W)."""
    rate, max_wait = 0.4, 10.0
    replicas = [theory.replica(0, g, 0.5, batch=100, max_wait_ms=max_wait) for g in range(2)]
    found = runs(theory.system(replicas), rate, 20_000, keep=True)
    asked = rate * max_wait
    for result in found:
        assert result.batches_timed_out[0] == result.batches[0]
        assert result.batches_full[0] == 0
    close(found, lambda r: r.done[0] / r.batches[0], 1 + asked, 0.01)
    # A request's batch is the larger by its size: E[B^2] / E[B]; openers wait W, the others half of it.
    close(found, lambda r: float(kept(r).batch.mean()), (asked + (1 + asked) ** 2) / (1 + asked), 0.01)
    close(found, lambda r: r.sums_ms[0, 0] / r.done[0], max_wait * (1 + asked / 2) / (1 + asked), 0.01)
    for size in range(1, 9):

        def share(r: Result, size: int = size) -> float:
            return float(np.sum(kept(r).batch == size) / size / r.batches[0])

        expected = math.exp(-asked) * asked ** (size - 1) / math.factorial(size - 1)
        close(found, share, expected, 0.08)


@pytest.mark.parametrize(("batch", "replicas"), [(8, 1), (4, 3)])
def test_batches_that_fill(batch: int, replicas: int) -> None:
    """Full batches come with Erlang gaps: of `batch` phases to one replica, of batch x replicas to each of several."""
    latency, load = 20.0, 0.85
    rate = load * batch * replicas / latency
    asked = theory.system(
        [theory.replica(0, g, latency, batch=batch, max_wait_ms=40 * batch / rate) for g in range(replicas)]
    )
    found = runs(asked, rate, 60_000)
    for result in found:
        assert result.batches_full[0] >= result.batches[0] - 1  # the last one may not fill
    close(found, lambda r: r.sums_ms[0, 0] / r.done[0], (batch - 1) / (2 * rate), 0.01)
    close(
        found,
        lambda r: r.sums_ms[0, 2] / r.done[0],
        theory.erlang_d1_wait_ms(batch * replicas, rate, latency),
        0.06,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "load"), [(1, 0.7), (4, 0.8), (16, 0.9)])
def test_turns(batch: int, load: float) -> None:
    """Once a cycle at most a batch: a queue in discrete time, exactly that of M/D/c."""
    cycle = 20.0
    rate = load * batch / cycle
    asked = theory.system([theory.replica(0, 0, 5.0, batch=batch, duty_cycle_ms=cycle)])
    found = runs(asked, rate, 40_000)
    close(found, wait, theory.turn_wait_ms(batch, rate, cycle), 0.03)


@pytest.mark.slow
def test_tandem() -> None:
    """Exponential stages one after the other are M/M/1 queues each (Burke): their times add up."""
    asked = theory.system(
        [theory.replica(0, 0, 10.0), theory.replica(1, 1, 6.0)],
        stages=[SimStage(model=0), SimStage(model=1, after=(0,))],
    )
    rate = 0.07
    found = runs(asked, rate, 40_000, service="exponential")
    close(found, response, 1 / (1 / 10 - rate) + 1 / (1 / 6 - rate), 0.03)


@pytest.mark.slow
def test_fork_and_join() -> None:
    """Two stages at once, done when both are (Flatto and Hahn)."""
    asked = theory.system(
        [theory.replica(0, 0, SERVICE_MS), theory.replica(1, 1, SERVICE_MS)],
        stages=[SimStage(model=0), SimStage(model=1)],
    )
    found = runs(asked, 0.6 / SERVICE_MS, 60_000, service="exponential")
    close(found, response, theory.fork_join_ms(0.6, SERVICE_MS), 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["admit", "fan_out"])
def test_thinned_at_random(way: str) -> None:
    """A random 0.4 of Poisson requests is Poisson: turned away at the door, or a stage that is asked 0.4 times."""
    part, load = 0.4, 0.8
    if way == "admit":
        asked = theory.system([theory.replica(0, 0, SERVICE_MS)], admit=part)
    else:
        asked = theory.system([theory.replica(0, 0, SERVICE_MS)], stages=[SimStage(model=0, fan_out=part)])
    found = runs(asked, load / part / SERVICE_MS, 80_000)
    close(found, wait, theory.md1_wait_ms(load, SERVICE_MS), 0.03)
    if way == "admit":
        close(found, lambda r: r.source_rejected[0] / r.source_arrived[0], 1 - part, 0.01)


def test_work_is_conserved() -> None:
    """One replica, batches, no network: every start is the later of the batch's coming and the end of the one before
    (Lindley), the GPU is busy for what was served, and the time in the system adds up (Little)."""
    asked = theory.system([theory.replica(0, 0, SERVICE_MS, batch=4, max_wait_ms=15.0)])
    (result,) = runs(asked, 0.3, 20_000, seeds=1, keep=True)
    r = kept(result)
    came = r.arrived_ms + r.router_ms
    start = came + r.queue_ms
    batches = np.unique(np.round(np.stack([start, came, start + r.gpu_ms], axis=1), 6), axis=0)
    starts, reached, ends = batches.T
    assert np.allclose(starts[1:], np.maximum(reached[1:], ends[:-1]), atol=1e-5)
    inside = (
        np.clip(ends, result.from_ms, result.until_ms) - np.clip(starts, result.from_ms, result.until_ms)
    ).sum()
    carried_over = result.busy_ms[0] - inside  # batches of the warm-up that end after it
    assert -1e-3 <= carried_over < 20 * SERVICE_MS
    assert result.busy_ms[0] == pytest.approx(result.gpu_busy_ms[0])
    total = r.router_ms + r.network_ms + r.queue_ms + r.gpu_ms
    events = np.concatenate([np.stack([r.arrived_ms, np.ones(len(total))]), np.stack([r.arrived_ms + total, -np.ones(len(total))])], axis=1)  # fmt: skip
    times, steps = events[:, np.argsort(events[0], kind="stable")]
    present = float(np.sum(np.cumsum(steps)[:-1] * np.diff(times)))
    assert present == pytest.approx(result.sums_ms[0, -1])
    assert result.sums_ms[0, -1] == pytest.approx(result.sums_ms[0, :-1].sum())
