"""Queues with exact answers, and the systems that are those queues. Times in ms, rates in requests per ms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammainc

from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System


def mm1_wait_ms(load: float, service_ms: float) -> float:
    """Mean wait of M/M/1."""
    return load / (1 - load) * service_ms


def md1_wait_ms(load: float, service_ms: float) -> float:
    """Mean wait of M/D/1 (Pollaczek and Khinchine)."""
    return load / (2 * (1 - load)) * service_ms


def erlang_d1_wait_ms(shape: int, rate: float, service_ms: float) -> float:
    """Mean wait in front of one server of constant service, asked at every ``shape``-th event of a Poisson process of ``rate``.

    Spitzer: the mean is the sum over i of E[(i D - T_i)+] / i, T_i the time of i gaps, an Erlang time of i * shape
    phases; its parts are Poisson tails. It is also the wait of M/D/c, c = shape, first come first served: with
    constant service the servers take the requests in turn (Crommelin 1932 has this sum)."""
    if rate * service_ms >= shape:
        return math.inf
    total, first, step = 0.0, 1, 10_000
    while True:
        i = np.arange(first, first + step, dtype=float)
        mean = i * rate * service_ms
        terms = service_ms * gammainc(i * shape, mean) - shape / rate * gammainc(i * shape + 1, mean)
        total += float(terms.sum())
        if terms[-1] < 1e-16 * total:
            return total
        first += step


def mdc_wait_ms(servers: int, load: float, service_ms: float) -> float:
    """Mean wait of M/D/c by Crommelin's sum."""
    return erlang_d1_wait_ms(servers, load * servers / service_ms, service_ms)


def mdc_wait_by_balance_ms(servers: int, load: float, service_ms: float) -> float:
    """The same by another way: whoever is in service leaves within one service time, so that the number present follows
    N(t + D) = (N(t) - c)+ + Poisson(c load); its stationary law is solved for, and Little's law gives the wait."""
    asked = servers * load
    size = int(servers + 40 * servers**0.5 + 40 / (1 - load))
    arrivals = np.exp(
        np.arange(size) * math.log(asked) - asked - np.array([math.lgamma(k + 1) for k in range(size)])
    )
    move = np.zeros((size, size))
    for n in range(size):
        left = max(0, n - servers)
        move[n, left:] = arrivals[: size - left]
    move[:, -1] += 1 - move.sum(axis=1)
    equations = np.vstack([(move.T - np.eye(size))[:-1], np.ones(size)])
    law = np.linalg.solve(equations, np.eye(size)[-1])
    return float((law @ np.arange(size) - asked) / (asked / service_ms))


def md1_wait_within(load: float, service_ms: float, t: float) -> float:
    """P(wait <= t) of M/D/1 (Erlang 1909)."""
    rate = load / service_ms
    terms = [
        (rate * (k * service_ms - t)) ** k / math.factorial(k) * math.exp(-rate * (k * service_ms - t))
        for k in range(int(t // service_ms) + 1)
    ]
    return (1 - load) * sum(terms)


def turn_wait_ms(batch: int, rate: float, cycle_ms: float) -> float:
    """Mean wait for a turn, once a cycle, of at most ``batch``: those that a turn leaves are the queue of M/D/c with
    c = batch (the same recursion), and the new ones wait half a cycle for theirs."""
    return erlang_d1_wait_ms(batch, rate, cycle_ms) + cycle_ms / 2


def fork_join_ms(load: float, service_ms: float) -> float:
    """Mean time of a request that asks two M/M/1 queues at once and waits for both (Flatto and Hahn 1984; Nelson and
    Tantawi 1988)."""
    return (12 - load) / 8 * service_ms / (1 - load)


def replica(
    model: int,
    gpu: int,
    latency_ms: float,
    *,
    batch: int = 1,
    max_wait_ms: float = 0.0,
    duty_cycle_ms: float | None = None,
) -> SimReplica:
    """One that takes ``latency_ms`` for any batch."""
    return SimReplica(
        id=f"m{model}-g{gpu}", model=model, gpu=gpu, batch_size=batch, max_wait_ms=max_wait_ms, weight=1.0,
        duty_cycle_ms=duty_cycle_ms, batches=(1,), latencies_ms=(latency_ms,),
    )  # fmt: skip


def system(
    replicas: Sequence[SimReplica],
    *,
    stages: Sequence[SimStage] = (SimStage(model=0),),
    slo_ms: float = 100.0,
    admit: float = 1.0,
) -> System:
    """One source that asks ``stages``; a GPU for every replica."""
    models = 1 + max(stage.model for stage in stages)
    return System(
        sources=(SimSource(name="s", application=len(stages) > 1, rate_rps=1.0, slo_ms=slo_ms, stages=tuple(stages), admit=admit),),
        models=tuple(SimModel(name=f"m{i}", slo_ms=slo_ms) for i in range(models)),
        gpus=tuple(SimGpu(id=f"g{i}", type="x", price_per_hour=None) for i in range(len(replicas))),
        replicas=tuple(replicas),
    )  # fmt: skip
