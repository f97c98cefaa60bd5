"""Requests a second that keep their objective at replicas that batch: filling, queueing, the estimate's
interval.

One batch at a time is filled for a model, at the model's whole rate L (Poisson). It is for the replica whose
turn it is (round robin, unequal ones by full batches a second) and leaves for it when it is full or when its
first request has waited W, the replica's constant time-out. A request is on time where fill + queue + service
<= SLO. With N ~ Poisson(L W) and K = B - 1:

- batch: 1 + min(N, K); it fills for T = min(W, Erlang(K, L)), E[T] = E[min(N, K)] / L and E[T^2] = E[M (M -
  1)] / L^2 with M = min(N, B) (the integral of t P(T > t) is a sum of Poisson tails). A request waits W where
  it opened a batch that timed out, else it is spread evenly over E[T^2] / E[T], the time that the mean
  request's batch fills;
- service: the table's latency at the actual batch, at equally likely points of N, requests weighted by the
  batch that they are in; linear between the table's batch sizes, slowed by neighbours;
- queue: each of n replicas gets every n-th batch, so the gaps between its batches are sums of n fill times; s
  is the squared variation of gap and service together, rho the load, S the service. P(queue > t) = exp(-d (t +
  o)) with d = ln(1 + y) / (s S), y the root of ln(1 + y) = rho y: the exact decay for Erlang gaps of shape 1 /
  s and constant service. o, the overshoot, is 0.5826 standard deviations of the gap (Siegmund 1985, for nearly
  normal steps), at most 0.55 S for P(queue > 0) and at most 0.32 S for the tail: what the exact M/D/1 queue has
  at loads of 0.2 to 0.9;
- a replica that takes turns is dealt every n-th request and serves up to B of them once a cycle D. Those left
  over after a turn have the tail exp(-x k), x = n ln(1 + y) with the same y; a request that finds k before it
  waits floor(k / B) cycles more.

Rates above what can be served on time are turned away at the door: the admitted rate is the one with the most
requests on time. The estimate's interval enters as one factor on all latencies of the model, lognormal on
either side of the estimate, whose 5 and 95 % points are the interval's ends; time-out and admitted rate are
chosen without knowing it. Checked against a simulation of the same replicas request by request
(benchmarks/expected_goodput.py). Derived here, but for the overshoot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.records import frozen
from gkestimator.placement.problem import FloatPair, FloatRow, IntRow

Array: TypeAlias = NDArray[np.float64]
# Loads (of capacity) at which the admitted rate is looked for (then between the best one's neighbours), and parts of
# the longest time-out that is worth trying: the slack, or what fills a batch all but surely.
_LOADS = np.array([0.02, 0.06, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.74, 0.82, 0.89, 0.94, 0.975, 0.992])
_FILL_PARTS = np.array([0.0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
# The smallest time-out within this of the best share is taken, and a share this near to 1 ends the search.
_HAIR = 1e-3
_EXACT_COUNTS = 8
# Gives an array by (rate, wait) a last axis, for the points.
_EACH_POINT = np.s_[:, :, None]
_Z90 = 1.6448536269514722
# Mean overshoot of a random walk with normal steps, in their deviations; the bounds are parts of the service (M/D/1).
_OVERSHOOT = 0.5826
_MOST_OVERSHOOT = 0.55
_TAIL_OVERSHOOT = 0.32
# Equally likely points of a normal law: for the requests that fill a batch (alone, or each with a point of the
# interval, far from it in order), and for the interval.
_FILL_POINTS = np.array([NormalDist().inv_cdf((i + 0.5) / 7) for i in range(7)])
_INTERVAL_POINTS = np.array([NormalDist().inv_cdf((i + 0.5) / 12) for i in range(12)])
_PAIRED_POINTS = _INTERVAL_POINTS[np.arange(12) * 5 % 12]
# ln(1 + y) against rho = ln(1 + y) / y, ascending in rho.
_ROOTS = np.geomspace(1e7, 1e-6, 1500)
_ROOT_LOADS = np.log1p(_ROOTS) / _ROOTS
_DECAYS = np.log1p(_ROOTS)
_TURN_NODES, _TURN_WEIGHTS = np.polynomial.legendre.leggauss(8)
_TURN_NODES = (_TURN_NODES + 1) / 2
_TURN_WEIGHTS = _TURN_WEIGHTS / 2


# The polynomial of Abramowitz and Stegun 7.1.26, the highest power first.
_NORMAL_TAIL = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


@frozen
class Server:
    """Hold ``count`` replicas of one model that are alike: target batch, latencies by batch size (ascending,
    at least one), factor of the neighbours, and where they take turns the duty cycle and how much of it all
    turns together take (None: its own alone)."""

    batch_size: int
    batches: IntRow
    latencies_ms: FloatRow
    slowdown: float = 1.0
    duty_cycle_ms: float | None = None
    cycle_busy_ms: float | None = None
    count: int = 1

    def latency_ms(self, batch: Array) -> Array:
        """Return the latency at a (fractional) batch, slowed; below the smallest and above the largest of the
        table it is theirs."""
        return np.interp(batch, self.batches, self.latencies_ms) * self.slowdown

    @property
    def capacity_rps(self) -> float:
        """Return the requests a second at the full batch."""
        latency = self.latencies_ms[-1] * self.slowdown
        if self.batches[-1] != self.batch_size:
            latency = float(self.latency_ms(np.array(float(self.batch_size))))
        return 1e3 * self.batch_size / max(latency, self.duty_cycle_ms or 0.0)


@frozen
class OnTime:
    """Say that ``rate_rps`` requests a second are answered on time out of ``admitted_rps``; ``max_wait_ms``
    by server: how long its batches may fill."""

    rate_rps: float
    admitted_rps: float
    max_wait_ms: FloatRow


def on_time(
    servers: Sequence[Server],
    rate_rps: float,
    slo_ms: float,
    *,
    sigma: float = 0.0,
    sigma_below: float | None = None,
) -> OnTime:
    """Return the requests on time at ``servers`` of one model that is asked ``rate_rps`` times a second, each
    within ``slo_ms``.

    ``sigma``: standard deviation of the logarithm of true over estimated latency above the estimate (0:
    measured), ``sigma_below`` below it (None: the same)."""
    capacities = np.array([s.capacity_rps * s.count for s in servers])
    capacity = float(capacities.sum())
    if not servers or capacity <= 0 or rate_rps <= 0:
        return OnTime(rate_rps=0.0, admitted_rps=0.0, max_wait_ms=(0.0,) * len(servers))
    below = sigma if sigma_below is None else sigma_below
    judge = _Judge(servers, capacities / capacity, slo_ms, sigma, below)
    # Batches smaller than the target may be faster a request than the full one: more than the capacity is served.
    best = None
    if rate_rps <= 1.6 * capacity:
        best = judge.best_of(np.array([rate_rps]))
        if best.rate_rps >= (1 - _HAIR) * rate_rps:
            return best
    loads = _LOADS[_LOADS * capacity < rate_rps]
    if not len(loads):
        loads = np.array([0.5 * min(rate_rps / capacity, 1.0)])
    best = _better(best, judge.best_of(loads * capacity))
    near = int(np.argmin(np.abs(loads - best.admitted_rps / capacity)))
    low = loads[max(0, near - 1)]
    high = min(1.0, rate_rps / capacity)
    if near + 1 < len(loads):
        high = loads[near + 1]
    between = np.linspace(low, high, 10)[1:-1]
    return _better(best, judge.best_of(between * capacity))


class _Judge:
    """Work out what ``servers`` of one model answer on time; ``parts`` of its requests go to each."""

    def __init__(
        self, servers: Sequence[Server], parts: Array, slo_ms: float, sigma: float, below: float
    ) -> None:
        self._servers = list(zip(servers, parts, strict=True))
        self._replicas = sum(s.count for s in servers)
        self._slo_ms = slo_ms
        if sigma > 0 or below > 0:
            self._factors = interval_factors(sigma, below)
            self._points = _PAIRED_POINTS
        else:
            self._factors = np.ones(len(_FILL_POINTS))
            self._points = _FILL_POINTS

    def best_of(self, rates: Array) -> OnTime:
        """Return the admitted one of ``rates`` of which most is answered on time."""
        total = np.zeros(len(rates))
        waits = []
        for server, part in self._servers:
            own = rates * (part / server.count)
            if server.duty_cycle_ms is not None:
                chance, wait = turns_on_time(server, own, self._replicas, self._slo_ms, self._factors)
            else:
                chance, wait = _batches(
                    server, rates, own, self._replicas, self._slo_ms, self._factors, self._points
                )
            total += chance * rates * part
            waits.append(wait)
        best = int(np.argmax(total))
        return OnTime(
            rate_rps=float(total[best]),
            admitted_rps=float(rates[best]),
            max_wait_ms=tuple(float(w[best]) for w in waits),
        )


def _better(best: OnTime | None, other: OnTime) -> OnTime:
    if best is None or other.rate_rps > best.rate_rps:
        return other
    return best


def _batches(
    server: Server,
    model_rps: Array,
    own_rps: Array,
    replicas: int,
    slo_ms: float,
    factors: Array,
    points: Array,
) -> tuple[Array, Array]:
    """Return (chance of being on time, best wait), each by admitted rate. Axes inside: rate, wait, point."""
    most = server.batch_size - 1
    rate = model_rps[:, None] / 1e3  # per ms
    if most:
        least = server.latencies_ms[0] * server.slowdown
        wait = np.minimum(max(0.0, slo_ms - least), (most + 4.0 * math.sqrt(most) + 4.0) / rate) * _FILL_PARTS
        mean, filling, full = _fill_moments(rate * wait, most)
        batch = 1.0 + mean
        gap = filling / (rate * np.maximum(mean, 1e-12))
        variance = np.maximum(0.0, filling - mean * mean)  # of the fill time, times rate^2
        opened = (1.0 - full) / batch
        # Batches as they are served, at points of the Poisson law (Cornish and Fisher); requests see the larger ones.
        asked = (rate * wait)[_EACH_POINT]
        sizes = np.clip(asked + np.sqrt(asked) * points + (points * points - 1.0) / 6.0, 0.0, most) + 1.0
        times = server.latency_ms(sizes)
        middle = sizes.mean(axis=2)
        seen = sizes / middle[_EACH_POINT]
        typical = times.mean(axis=2) * batch / middle
        wobble = times.std(axis=2)
        service = times * factors
    else:
        wait = np.zeros((1, 1))
        batch = np.ones_like(rate)
        gap = np.zeros_like(rate)
        variance = gap
        opened = gap
        typical = np.full_like(rate, server.latencies_ms[0] * server.slowdown)
        wobble = gap
        seen = np.ones((1, 1, 1))
        service = typical[_EACH_POINT] * factors
    load = (own_rps[:, None] / 1e3 / batch * typical)[_EACH_POINT] * factors
    # Squared variation of gap and service: the gap is `replicas` fill times and pauses, of mean batch / rate each.
    varied = (1.0 + variance) / (replicas * batch * batch)
    varied = np.maximum(1e-4, varied[_EACH_POINT] + (wobble / typical)[_EACH_POINT] ** 2 * load * load)
    held = typical[_EACH_POINT] * factors
    decay = np.interp(load, _ROOT_LOADS, _DECAYS) / (varied * held)
    over = _OVERSHOOT * np.sqrt(varied) * held / np.maximum(load, 1e-9)
    beyond = np.minimum(over, _MOST_OVERSHOOT * held)
    flat = beyond - np.minimum(over, _TAIL_OVERSHOOT * held)
    start = np.exp(-np.minimum(decay * beyond, 700.0))
    slack = slo_ms - service
    late_opener = opened[_EACH_POINT]
    point = slack - wait[_EACH_POINT]
    chance = (1.0 - late_opener) * _spread_over(gap[_EACH_POINT], slack, start, decay, flat)
    in_queue = start * np.exp(-np.clip(decay * (point - flat), 0.0, 700.0))
    chance += late_opener * np.where(point < -1e-9 * slo_ms, 0.0, 1.0 - in_queue)
    mean_chance = np.minimum(1.0, np.where(load < 1.0, chance * seen, 0.0).mean(axis=2))
    at = np.argmax(mean_chance >= mean_chance.max(axis=1, keepdims=True) - _HAIR, axis=1)
    rows = np.arange(len(at))
    return mean_chance[rows, at], np.broadcast_to(wait, mean_chance.shape)[rows, at]


def turns_on_time(
    server: Server, own_rps: Array, replicas: int, slo_ms: float, factors: Array
) -> tuple[Array, Array]:
    """Return the same as :func:`_batches`, for replicas that take turns. Axes inside: rate, factor, when in
    the cycle it arrives."""
    cycle = server.duty_cycle_ms or 0.0
    size = float(server.batch_size)
    busy = float(server.latency_ms(np.array(size)))
    if server.cycle_busy_ms is not None:
        busy = server.cycle_busy_ms * server.slowdown
    cycle_of = np.maximum(cycle, busy * factors)  # turns that together take longer put off the next
    arrivals = (own_rps[:, None] / 1e3) * cycle_of
    load = arrivals / size
    service = server.latency_ms(np.minimum(size, 1.0 + arrivals)) * factors
    decay = (replicas * np.interp(load, _ROOT_LOADS, _DECAYS))[_EACH_POINT]
    spread = np.sqrt(arrivals / replicas)[_EACH_POINT]
    left = np.exp(-np.minimum(700.0, decay * (1.0 + _OVERSHOOT * spread)))
    turns = np.floor((slo_ms * (1 + 1e-9) - service)[_EACH_POINT] / cycle_of[:, None] + _TURN_NODES - 1.0)
    ahead = size * (1.0 + np.maximum(turns, -1.0))
    before = arrivals[_EACH_POINT] * _TURN_NODES
    crowd = np.where(ahead > 0, poisson_at_least(ahead * replicas, before * replicas), 1.0)
    behind = np.exp(np.clip(decay * (size * _TURN_NODES - (ahead - 1.0)), -700.0, 0.0))
    late = np.where(turns < 0, 1.0, (1.0 - left) * crowd + left * np.maximum(crowd, behind))
    chance = np.where(load < 1.0, 1.0 - late @ _TURN_WEIGHTS, 0.0).mean(axis=1)
    return chance, np.full(len(own_rps), cycle)


def _spread_over(gap: Array, slack: Array, start: Array, decay: Array, flat: Array) -> Array:
    """Return the chance that u + q <= slack, u uniform on [0, gap], P(q > t) = start for t <= flat, then
    start exp(-decay (t - flat))."""
    inside = np.maximum(slack, 0.0)
    falling = np.maximum(slack - flat, 0.0)
    u = np.minimum(gap, inside)
    v = np.minimum(gap, falling)
    scaled = np.minimum(decay * falling, 700.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        late = np.exp(-np.minimum(decay * (falling - v), 700.0)) - np.exp(-scaled)
        even = (u - start * (late / decay + (u - v))) / gap
    point = 1.0 - start * np.exp(-scaled)
    chance = np.where(gap > 1e-6 * inside, even, point)
    return np.where(slack < -1e-9, 0.0, np.clip(chance, 0.0, 1.0))


def _fill_moments(mean: Array, most: int) -> tuple[Array, Array, Array]:
    """Return E[min(N, K)], E[M (M - 1)] with M = min(N, K + 1), and P(N >= K), for N ~ Poisson(mean), K =
    ``most`` >= 1.

    From E[N; N < c] = mean P(N < c - 1) and E[N (N - 1); N < c] = mean^2 P(N < c - 2)."""
    before, here, after = (poisson_at_least(most + i, mean) for i in (-1, 0, 1))
    first = np.minimum(mean * (1.0 - before) + most * here, np.minimum(mean, float(most)))
    pairs = mean * mean * (1.0 - before) + (most + 1.0) * most * after
    return first, np.maximum(pairs, first * first), here


def poisson_at_least(count: float | Array, mean: Array) -> Array:
    """Return P(N >= count) for N ~ Poisson(mean): small whole counts exactly, beyond by Wilson and Hilferty's
    cube root (1931; within 0.001), which also takes counts between. 1 for counts of 0 or less."""
    if isinstance(count, int) and count <= _EXACT_COUNTS:
        if count <= 0:
            return np.ones_like(mean)
        fewer = np.ones_like(mean)
        for n in range(count - 1, 0, -1):
            fewer = 1.0 + fewer * mean / n
        return 1.0 - np.exp(-np.minimum(mean, 700.0)) * fewer
    shape = np.maximum(count, 1e-9)
    z = (np.cbrt(mean / shape) - 1.0 + 1.0 / (9.0 * shape)) * (3.0 * np.sqrt(shape))
    return np.where(np.asarray(count) <= 0, 1.0, _normal_cdf(z))


def _normal_cdf(z: Array) -> Array:
    """Return Phi(z) to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    x = np.abs(z) / math.sqrt(2)
    t = 1.0 / (1.0 + 0.3275911 * x)
    poly = t * _NORMAL_TAIL[0]
    for coefficient in _NORMAL_TAIL[1:]:
        poly = t * (coefficient + poly)
    tail = 0.5 * poly * np.exp(-np.minimum(x * x, 700.0))
    return np.where(z >= 0, 1.0 - tail, tail)


def interval_factors(above: float, below: float) -> Array:
    """Return equally likely factors on all latencies of a model, by the standard deviations of their logarithm
    ``above`` and ``below`` the estimate."""
    return np.asarray(np.exp(_INTERVAL_POINTS * np.where(_INTERVAL_POINTS > 0, above, below)))


def interval_sigmas(estimate_ms: float, low_ms: float | None, high_ms: float | None) -> FloatPair:
    """Return standard deviations of the logarithm (below, above the estimate) whose 5 and 95 % points are the
    interval's ends; 0 without an interval, and on a side where it ends at the estimate."""
    if not low_ms or not high_ms or high_ms <= low_ms:
        return 0.0, 0.0
    below = max(0.0, math.log(estimate_ms / low_ms))
    above = max(0.0, math.log(high_ms / estimate_ms))
    return below / _Z90, above / _Z90
