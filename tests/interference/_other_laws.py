"""Pairs slowed by two laws that are none of ours, for fits to be judged by: written down before any fit saw them.

``cache-miss``: additive, with saturation. Of the traffic that a model's cache catches the neighbour evicts a part, DRAM
waits grow towards a limit with what the neighbour asks, and all that is added saturates. How much a model suffers
differs from model to model in a way that no column tells.
``roofline``: multiplicative, with noise. The factors of three rooflines, DRAM's at 80 % of its peak, with powers
below 1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

from gkestimator.tables import CoRun

V100 = "V100-SXM2-16GB"
SEEDS = (1, 2, 3)
# Own and neighbour's demands of SMs, DRAM and L2 (parts of 1), and how much the model suffers.
Law = Callable[[Sequence[float], Sequence[float], float], float]


def cache_miss(own: Sequence[float], other: Sequence[float], suffers: float) -> float:
    sm, dram, l2 = own
    sm_other, dram_other, l2_other = other
    caught = l2 * (1 - dram)
    evicted = 1 - math.exp(-2 * l2_other)
    added = 1.5 * caught * evicted
    added += 0.6 * dram * dram_other / (0.3 + dram_other)
    added += 0.7 * max(0.0, sm + sm_other - 1)
    added *= suffers
    return 1 + added / (1 + added / 2.5)


def roofline(own: Sequence[float], other: Sequence[float], suffers: float) -> float:
    sm, dram, l2 = own
    sm_other, dram_other, l2_other = other
    compute = max(1.0, sm + sm_other) ** 0.6
    memory = max(1.0, 1.25 * (dram + dram_other)) ** 0.9
    return compute * memory * (1 + 0.3 * l2 * l2_other)


# With the deviation of lognormal noise on each measurement, and of what a model suffers.
LAWS: Mapping[str, tuple[Law, float, float]] = {
    "cache-miss": (cache_miss, 0.03, 0.15),
    "roofline": (roofline, 0.05, 0.0),
}


def other_pairs(
    name: str, *, models: int = 9, seed: int = 0, shares: Sequence[float] = (100.0, 50.0)
) -> list[CoRun]:
    """All pairs of ``models`` models at each share, slowed by the law ``name``; confined models take no SMs."""
    law, noise, spread = LAWS[name]
    draw = random.Random(f"{name} {seed}")
    demands = {}
    suffers = {}
    for number in range(models):
        model = f"m{number}"
        demands[model] = (draw.uniform(0.2, 0.95), draw.uniform(0.05, 0.9), draw.uniform(0.05, 0.8))
        suffers[model] = math.exp(draw.gauss(0.0, spread))
    measured = []
    for share in shares:
        for pair in combinations_with_replacement(demands, 2):
            for own, other in (pair, pair[::-1]):
                mine, theirs = (_at_share(demands[model], share) for model in (own, other))
                beside = theirs
                if share < 100:
                    beside = (0.0, *theirs[1:])
                factor = max(1.0, law(mine, beside, suffers[own])) * math.exp(draw.gauss(0.0, noise))
                run = _alone(own, mine, share)
                measured.append(
                    replace(run, group="+".join(pair) + f"@{share:g}", latency_together_ms=10 * factor)
                )
    return measured


def _at_share(demand: tuple[float, float, float], share: float) -> tuple[float, float, float]:
    part = share / 100
    sm, dram, l2 = demand
    return min(sm, part), dram * part, l2 * part


def _alone(model: str, demand: tuple[float, float, float], share: float) -> CoRun:
    sm, dram, l2 = demand
    return CoRun(
        group="",
        model=model,
        gpu=V100,
        runtime="torch",
        dtype="fp16",
        batch_size=8,
        sm_share_pct=share,
        latency_alone_ms=10.0,
        sm_util_mean_pct=100 * sm,
        dram_util_mean_pct=100 * dram,
        l2_util_mean_pct=100 * l2,
    )
