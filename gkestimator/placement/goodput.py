"""Goodput of a placement as every policy is measured: rate, throughput within the objective, whichever is less."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Problem


def capacities_rps(problem: Problem, placed: Sequence[Placed]) -> dict[str, float]:
    """By model: the throughput of its replicas whose latency (duty cycle included) is within the objective."""
    found = dict.fromkeys((m.name for m in problem.models), 0.0)
    for p in placed:
        if p.response_ms <= problem.by_name[p.model].slo_ms * (1 + 1e-9):
            found[p.model] += p.capacity_rps
    return found


def goodput_rps(problem: Problem, placed: Sequence[Placed]) -> dict[str, float]:
    """By model: min(rate, capacity). Source: USHER, section 5 (goodput: requests answered within their SLO)."""
    found = capacities_rps(problem, placed)
    return {m.name: min(m.rate_rps, found[m.name]) for m in problem.models}


def assigned_rps(problem: Problem, placed: Sequence[Placed]) -> list[float]:
    """What each replica is to serve: its model's goodput in proportion to capacity."""
    capacity = capacities_rps(problem, placed)
    shares = []
    for p in placed:
        total = capacity[p.model]
        late = p.response_ms > problem.by_name[p.model].slo_ms * (1 + 1e-9)
        rate = min(problem.by_name[p.model].rate_rps, total)
        shares.append(0.0 if late or total == 0 else rate * p.capacity_rps / total)
    return shares
