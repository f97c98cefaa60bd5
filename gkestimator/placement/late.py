"""Requests a second that keep their objective at replicas that form a batch when they are free.

A request is given to a replica when it arrives (Poisson, rate L in all, to the least outstanding work) and waits
there. A replica that is free and has requests waiting serves the oldest at once, at most its largest batch B;
those that could not be on time any more, by the table's latency of the batch about to run, are refused. What is
served is then on time, unless batches take longer than estimated.

One replica. Let K be the number that waits, and can still be on time, when a batch is formed: min(K, B) are
served (one, after an idle time, where K is 0), which takes S(K), and r = K - min(K, B) stay. Meanwhile N ~
Poisson(L S(K)) arrive, their ages at the end uniform on [0, S(K)], and those that stayed are older. As the batch
about to run grows with those that are kept, K' >= k exactly where at least k are younger than slo - S(k):
that is a Poisson tail over the arrivals of the last slo - S(k) ms, plus such of the r as are younger. So K is a
Markov chain whose transitions are Poisson tails. Its states are 0 to 8 one by one, then steps of 0.8 standard
deviations, up to what could arrive within an objective; more can never be on time. The share on time is
E[min(K, B)] / (E[min(K, B)] + E[refused]), the refused of a service being the sum over k of P(K' >= k) without
and with the objective.

Several replicas, n of them: approximations. The least outstanding work keeps them level, so what one finds at its
end is an n-th of what arrived for all: N >= k where Poisson(n L S) (L of one replica) reaches n k, less half of n
where k is large (of few, most find a free replica). Its requests join it late in its service, when it is next to
be free: their ages are uniform on [0, w], w half way between S and the larger of S / n and S(K) - S(1), which is
what a fluid of requests dealt to equal work gives. Unlike replicas get requests in proportion to their
throughput. The estimate's interval enters as in :mod:`gkestimator.placement.queueing`: batches take a factor
longer or shorter than what refusals go by. Replicas that take turns are that module's, at the rate with most on
time.

Checked against a simulation request by request (benchmarks/expected_goodput.py). Derived here; the embedded chain
of a batch server is Bailey's (1954)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.placement.queueing import (
    Array,
    OnTime,
    Server,
    interval_factors,
    poisson_at_least,
    turns_on_time,
)

# States one by one, then in steps of so many standard deviations, at most so many.
_SINGLE_STATES = 8
_STEP = 0.8
_MOST_STEPS = 36
_DEVIATIONS = 4.0  # beyond the mean of what arrives within an objective
_MOST_WAITING = 1e5
# Rates, as parts of what is asked for, at which replicas that take turns are looked at.
_PARTS = np.array([1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.55, 0.4, 0.25, 0.12, 0.05])
_RESTART = 1e-9
_NO_INTERVAL = np.ones(1)


@frozen
class _States:
    """Hold the chain's states: ``number`` waiting, ``least`` from which a number counts as this state (whole
    where states are single), and the ``width`` in requests."""

    number: Array
    least: Array
    width: Array


def late_on_time(
    servers: Sequence[Server],
    rate_rps: float,
    slo_ms: float,
    *,
    sigma: float = 0.0,
    sigma_below: float | None = None,
) -> OnTime:
    """Return the requests on time at ``servers`` of one model that is asked ``rate_rps`` times a second, each
    within ``slo_ms``; all are admitted, and no batch waits to fill.

    ``sigma`` and ``sigma_below`` as in :func:`gkestimator.placement.queueing.on_time`."""
    capacities = np.array([s.capacity_rps * s.count for s in servers])
    capacity = float(capacities.sum())
    if not servers or capacity <= 0 or rate_rps <= 0:
        return OnTime(rate_rps=0.0, admitted_rps=0.0, max_wait_ms=(0.0,) * len(servers))
    replicas = sum(s.count for s in servers)
    factors = _NO_INTERVAL
    if sigma > 0 or sigma_below:
        factors = interval_factors(sigma, sigma if sigma_below is None else sigma_below)
    total = 0.0
    waits = []
    for server, of_it in zip(servers, capacities, strict=True):
        rate = rate_rps * float(of_it) / capacity
        own = rate / server.count
        wait = 0.0
        if server.duty_cycle_ms is not None:
            wait = server.duty_cycle_ms
            chance, _ = turns_on_time(server, own * _PARTS, replicas, slo_ms, factors)
            share = float((chance * _PARTS).max())
        else:
            share = _share(server, own / 1e3, replicas, slo_ms, factors)
        total += rate * share
        waits.append(wait)
    return OnTime(rate_rps=total, admitted_rps=rate_rps, max_wait_ms=tuple(waits))


def _share(server: Server, rate: float, replicas: int, slo_ms: float, factors: Array) -> float:
    """Return the share on time of ``rate`` requests a millisecond at one of ``replicas``. Axes inside: factor,
    state before, state after."""
    states = _states(_waiting_bound(rate * slo_ms))
    size = float(server.batch_size)
    served = np.clip(states.number, 1.0, size)
    # Refusals go by the latency alone on the GPU; neighbours slow a batch as a wrong estimate does.
    alone = replace(server, slowdown=1.0)
    factors = factors * server.slowdown
    latency = alone.latency_ms(served)
    if latency[0] > slo_ms:
        return 0.0
    stay = np.maximum(states.number - size, 0.0)
    takes = latency * factors[:, None]
    window = takes[:, :, None]
    if replicas > 1:
        level = np.maximum(window / replicas, window - takes[:, :1, None])
        window = (window + level) / 2
    # Ages up to which a number that is kept may be on time, by the latency as estimated.
    age = slo_ms - alone.latency_ms(np.clip(states.least, 1.0, size))
    arriving = rate * takes[:, :, None]
    left = _left(states, stay, rate, slo_ms - latency, age, takes)
    kept = _reaches(states.least - left, arriving * np.clip(age / window, 0.0, 1.0), replicas)
    kept[:, :, 1:] *= age[1:] > 0
    anyhow = _reaches(states.least - stay[:, None], arriving, replicas)
    kept[:, :, 0] = anyhow[:, :, 0] = 1.0
    kept = np.minimum.accumulate(np.minimum(kept, anyhow), axis=2)
    refused = (anyhow - kept) @ states.width
    moves = kept.copy()
    moves[:, :, :-1] -= kept[:, :, 1:]
    often = _stationary(moves)
    late = np.zeros(len(factors))
    if (factors > 1.0).any():
        late = _late_after_all(states, size, slo_ms, latency, factors, window, often[:, :, None] * moves)
    batches = (often * served).sum(axis=1)
    return float(((batches - late) / (batches + (often * refused).sum(axis=1))).mean())


def _left(states: _States, stay: Array, rate: float, oldest: Array, age: Array, takes: Array) -> Array:
    """Return how many of those that stayed through a service are still young enough after it: their ages then
    are its time more than up to what it takes so many to arrive, at most ``oldest``."""
    if not stay.any():
        return np.zeros((1, 1, 1))
    span = np.minimum(stay / rate, oldest * stay / np.maximum(states.number, 1.0))
    part = (age - takes[:, :, None]) / np.maximum(span, 1e-9)[:, None]
    return np.asarray(np.rint(stay[:, None] * np.clip(part, 0.0, 1.0)))


def _reaches(number: Array, arriving: Array, replicas: int) -> Array:
    """Return the chance that at least ``number`` requests wait at one of ``replicas`` for which ``arriving``
    come on the mean: a tail of all that come."""
    needed = replicas * number
    if replicas > 1:
        needed = needed - 0.5 * (replicas - 1) * (1.0 - 1.0 / np.maximum(number, 1.0))
    needed = np.ceil(needed - 1e-9)
    mean = np.maximum(replicas * arriving, 1e-12)
    needed, mean = np.broadcast_arrays(needed, mean)
    return np.asarray(np.where(needed <= 0, 1.0, poisson_at_least(needed, mean)))


def _stationary(moves: Array) -> Array:
    """Return how often a batch is formed in each state, by factor."""
    size = moves.shape[1]
    # A hair goes back to the empty state, where a replica begins: else there may be no single answer.
    moves = (1.0 - _RESTART) * moves
    moves[:, :, 0] += _RESTART
    balance = np.eye(size) - moves.transpose(0, 2, 1)
    balance[:, -1, :] = 1.0
    right = np.zeros((len(moves), size, 1))
    right[:, -1] = 1.0
    return np.asarray(np.maximum(np.linalg.solve(balance, right)[:, :, 0], 0.0))


def _late_after_all(
    states: _States, size: float, slo_ms: float, latency: Array, factors: Array, window: Array, flow: Array
) -> Array:
    """Return how many requests of a batch are late on the mean because it takes longer than estimated, by
    factor; ``flow``: how often one state follows another."""
    served = np.clip(states.number, 1.0, size)
    oldest = np.minimum(np.maximum(slo_ms - latency, 1e-9), np.maximum(window, 1e-9))
    youngest = oldest * (1.0 - served / np.maximum(states.number, 1.0))
    slack = slo_ms - factors[:, None, None] * latency
    on_time = np.clip((slack - youngest) / np.maximum(oldest - youngest, 1e-9), 0.0, 1.0)
    on_time[:, :, 0] = slack[:, :, 0] >= 0
    return np.asarray((flow * (1.0 - on_time) * served).sum(axis=(1, 2)))


def _waiting_bound(mean: float) -> int:
    """Return how many may wait and be on time where ``mean`` arrive within an objective; rounded up, so that
    few grids serve all."""
    bound = min(mean + _DEVIATIONS * math.sqrt(mean) + 3.0, _MOST_WAITING)
    return math.ceil(2 ** (math.ceil(4 * math.log2(bound)) / 4))


@lru_cache(maxsize=256)
def _states(most: int) -> _States:
    """Return the states up to ``most`` waiting."""
    single = min(_SINGLE_STATES, most)
    number = np.arange(single + 1.0)
    if most > single:
        low = 2 * math.sqrt(single)
        high = 2 * math.sqrt(most)
        steps = min(_MOST_STEPS, max(1, math.ceil((high - low) / _STEP)))
        number = np.append(number, (np.linspace(low, high, steps + 1)[1:] / 2) ** 2)
    least = number.copy()
    least[single + 1 :] = (number[single + 1 :] + number[single:-1]) / 2
    return _States(number=number, least=least, width=np.diff(number, prepend=0.0))
