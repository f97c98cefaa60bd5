"""Problems for the tests of gpulet and nexus: rows by hand, and drawn ones at SM shares."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import _problems
from _problems import V100

from gkestimator.placement.problem import Problem
from gkestimator.tables import Requirement


def row(model: str, batch: int, latency: float, **kwargs: Any) -> Requirement:
    """A measured row on a V100, 1 % of its memory, without utilisations."""
    own = {"sm_util_mean_pct": None, "mreq_bytes": 1 << 27, "mreq_pct": 1.0}
    return _problems.row(model, batch, latency, **(own | kwargs))


def problem(
    rows: Sequence[Requirement],
    loads: Mapping[str, tuple[float, float]],
    *,
    gpus: int = 1,
    rented: Mapping[str, tuple[float, int | None]] | None = None,
    types: Sequence[str] = (V100,),
) -> Problem:
    """``loads``: (rate, SLO) by model; ``gpus`` of each of ``types``, or ``rented``: (price, limit) by type."""
    return _problems.problem(rows, loads, dict.fromkeys(types, gpus), rent=rented)


def case(
    seed: int,
    *,
    gpus: int = 2,
    models: int = 4,
    shares: Sequence[float] = (20.0, 40.0, 60.0, 80.0, 100.0),
    batches: Sequence[int] = (1, 4, 16),
    busy: bool = True,
) -> Problem:
    """A drawn problem: latencies with a fixed part and a part per sample, which smaller shares slow down; some need much
    memory, some objectives are hopeless."""
    rng = random.Random(seed)
    rows, loads = [], {}
    for i in range(rng.randint(1, models)):
        name, fixed, each = f"m{i}", rng.uniform(1, 5), rng.uniform(0.2, 2)
        memory, l2, dram = rng.choice([3.0, 8.0, 25.0]), rng.uniform(5, 80), rng.uniform(5, 90)
        for share in shares:
            for batch in batches:
                latency = fixed + each * batch * max(0.6, 100 / share) ** rng.choice([0.7, 1.0])
                known = {"l2_util_mean_pct": l2, "dram_util_mean_pct": dram} if busy else {}
                rows.append(
                    row(name, batch, latency, sm_share_pct=share, mreq_pct=memory + 0.4 * batch, **known)
                )
        best = max(r.throughput_rps or 0.0 for r in rows if r.model == name)
        loads[name] = (best * rng.uniform(0.05, 1.2), rng.choice([0.2, 3, 6, 20]) * (fixed + 4 * each))
    return problem(rows, loads, gpus=gpus)
