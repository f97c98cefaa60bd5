"""Requests a second that keep their objective at replicas that batch: filling, queueing and the estimate's interval.

One batch at a time is filled for a model, at the model's whole rate; it leaves when it is full or when its first
request has waited W, for a replica in turn (round robin, in proportion to capacity). A request of rate share r is on time
where fill + queue + service <= SLO:

- fill: Poisson arrivals; the mean batch is 1 + E[min(N, B - 1)], N ~ Poisson(rate W), the mean time to leave
  T = E[min(N, B - 1)] / rate (optional stopping), requests are spread evenly over it;
- queue: Kingman's G/G/1 mean rho / (1 - rho) ca2 / 2 S with deterministic service and ca2 = 1 / (mean batch x replicas)
  (a batch is a sum of exponential gaps, dealt in turn), an exponential tail that begins at rho;
- service: the table's latency at the mean batch, linear between its batch sizes, slowed by neighbours;
- a replica that takes turns serves a batch each duty cycle D: the gap to its turn is uniform on D, the backlog decays with
  2 (1 / rho - 1) B / D (the second-order solution of m (e^x - 1) = x B, m arrivals a cycle).

Rates above what can be served on time are turned away at the door: the admitted rate is the one with the most requests on
time. The estimate's interval enters as a factor on all latencies of the model, lognormal, whose 5 and 95 % points are the
interval's ends, by five-point Gauss-Hermite quadrature. Sources: Kingman 1961; Allen-Cunneen; the rest derived here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["OnTime", "Server", "interval_sigma", "on_time"]

Array: TypeAlias = NDArray[np.float64]
# Loads (of capacity) at which the admitted rate is looked for, and parts of the slack that filling may take.
_LOADS = np.array(
    [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.84, 0.88, 0.91,
     0.94, 0.96, 0.975, 0.985, 0.992]
)  # fmt: skip
_FILL_PARTS = np.array([0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_Z90 = 1.6448536269514722


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """``count`` replicas of one model that are alike: target batch, latencies by batch size (ascending, at least one), factor of
    the neighbours, and the duty cycle where they take turns."""

    batch_size: int
    batches: tuple[int, ...]
    latencies_ms: tuple[float, ...]
    slowdown: float = 1.0
    duty_cycle_ms: float | None = None
    count: int = 1

    def latency_ms(self, batch: Array) -> Array:
        """Latency at a (fractional) batch, slowed; below the smallest and above the largest of the table it is theirs."""
        return np.interp(batch, self.batches, self.latencies_ms) * self.slowdown

    @property
    def capacity_rps(self) -> float:
        """Requests a second at the full batch."""
        latency = float(self.latency_ms(np.array(float(self.batch_size))))
        return 1e3 * self.batch_size / max(latency, self.duty_cycle_ms or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTime:
    """``rate_rps`` requests a second are answered on time out of ``admitted_rps``; ``max_wait_ms`` by server: how long its batches may
    fill."""

    rate_rps: float
    admitted_rps: float
    max_wait_ms: tuple[float, ...]


def on_time(servers: Sequence[Server], rate_rps: float, slo_ms: float, *, sigma: float = 0.0) -> OnTime:
    """Requests on time at ``servers`` of one model that is asked ``rate_rps`` times a second, each within ``slo_ms``.

    ``sigma``: standard deviation of the logarithm of true over estimated latency (0: measured)."""
    capacities = np.array([s.capacity_rps * s.count for s in servers])
    capacity = float(capacities.sum())
    if not servers or capacity <= 0 or rate_rps <= 0:
        return OnTime(rate_rps=0.0, admitted_rps=0.0, max_wait_ms=(0.0,) * len(servers))
    rates = np.unique(np.append(_LOADS[_LOADS * capacity < rate_rps] * capacity, rate_rps))
    rates = rates[rates <= 1.6 * capacity]
    if not len(rates):
        rates = np.array([0.5 * capacity])
    replicas = sum(s.count for s in servers)
    factors, weights = (np.exp(sigma * _NODES), _WEIGHTS) if sigma > 0 else (np.ones(1), np.ones(1))
    total = np.zeros(len(rates))
    waits = []
    for server, part in zip(servers, capacities / capacity, strict=True):
        chance, wait = _chances(server, rates, rates * part / server.count, replicas, slo_ms, factors, weights)
        total += chance * rates * part
        waits.append(wait)
    best = int(np.argmax(total))
    return OnTime(
        rate_rps=float(total[best]),
        admitted_rps=float(rates[best]),
        max_wait_ms=tuple(float(w[best]) for w in waits),
    )


def _chances(
    server: Server, model_rps: Array, own_rps: Array, replicas: int, slo_ms: float, factors: Array, weights: Array
) -> tuple[Array, Array]:
    """(chance of being on time, best wait), each by admitted rate. Axes inside: rate, wait, factor."""
    if server.duty_cycle_ms is not None:
        return _turns(server, own_rps, slo_ms, factors, weights)
    least = float(server.latency_ms(np.array(1.0)))
    wait = np.maximum(0.0, slo_ms - least) * _FILL_PARTS[None, :]
    rate = model_rps[:, None] / 1e3  # per ms
    filled = _mean_of_smaller(rate * wait, server.batch_size - 1)
    batch = 1.0 + filled
    gap = filled / rate
    service = server.latency_ms(batch)[:, :, None] * factors
    load = (own_rps[:, None] / 1e3 / batch)[:, :, None] * service
    spread = 1.0 / (batch * replicas)
    slack = slo_ms - service
    free = np.maximum(1e-12, 1.0 - load)
    decay = 2.0 * free / (spread[:, :, None] * service)
    chance = np.where(load < 1.0, _spread_over(gap[:, :, None], slack, load, decay), 0.0)
    mean = chance @ weights
    at = np.argmax(mean, axis=1)
    rows = np.arange(len(at))
    return mean[rows, at], np.broadcast_to(wait, mean.shape)[rows, at]


def _turns(
    server: Server, own_rps: Array, slo_ms: float, factors: Array, weights: Array
) -> tuple[Array, Array]:
    cycle = server.duty_cycle_ms or 0.0
    service = float(server.latency_ms(np.array(float(server.batch_size)))) * factors[None, :]
    cycle_of = np.maximum(cycle, cycle * server.slowdown * factors[None, :])
    load = own_rps[:, None] / 1e3 * cycle_of / server.batch_size
    decay = 2.0 * np.maximum(1e-12, 1.0 / np.maximum(load, 1e-12) - 1.0) * server.batch_size / cycle_of
    chance = _spread_over(cycle_of + 0.0 * load, slo_ms - service + 0.0 * load, load, decay)
    mean = np.where(load < 1.0, chance, 0.0) @ weights
    return mean, np.full(len(own_rps), cycle)


def _spread_over(gap: Array, slack: Array, start: Array, decay: Array) -> Array:
    """Chance that u + q <= slack, u uniform on [0, gap], P(q > t) = start exp(-decay t)."""
    slack = np.asarray(slack)
    inside = np.maximum(slack, 0.0)
    u = np.minimum(gap, inside)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        late = start / (decay * gap) * (np.exp(-decay * (inside - u)) - np.exp(-decay * inside))
        even = u / gap - late
    point = 1.0 - start * np.exp(-np.minimum(decay * inside, 700.0))
    chance = np.where(gap > 1e-9, even, point)
    return np.where(slack < 0.0, 0.0, np.clip(chance, 0.0, 1.0))


def _mean_of_smaller(mean: Array, most: int) -> Array:
    """E[min(N, most)] for N ~ Poisson(mean): exactly up to 24, by the normal law beyond."""
    if most <= 0:
        return np.zeros_like(mean)
    if most <= 24:
        term = np.exp(-np.minimum(mean, 700.0))
        total = np.zeros_like(mean)
        for n in range(most):  # E[min(N, most)] = most - sum over n < most of (most - n) P(N = n)
            total += (most - n) * term
            term = term * mean / (n + 1)
        return np.maximum(0.0, most - total)
    sigma = np.sqrt(np.maximum(mean, 1e-12))
    z = (most - mean) / sigma
    density = np.exp(-0.5 * np.minimum(z * z, 1400.0)) / math.sqrt(2 * math.pi)
    return np.clip(mean - sigma * density + (most - mean) * (1.0 - _normal_cdf(z)), 0.0, most)


def _normal_cdf(z: Array) -> Array:
    """Phi(z) to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    x = np.abs(z) / math.sqrt(2)
    t = 1.0 / (1.0 + 0.3275911 * x)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * poly * np.exp(-np.minimum(x * x, 700.0))
    return np.where(z >= 0, 1.0 - tail, tail)


def interval_sigma(low_ms: float | None, high_ms: float | None) -> float:
    """Standard deviation of the logarithm whose 5 and 95 % points are the interval's ends; 0 without an interval."""
    if not low_ms or not high_ms or high_ms <= low_ms:
        return 0.0
    return math.log(high_ms / low_ms) / (2 * _Z90)
