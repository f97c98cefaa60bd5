"""Problems for the tests of the `gkest` policy: table A.1, random rows, clusters of several types."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from _problems import V100, problem, row

from gkestimator.placement.expected import expect
from gkestimator.placement.policy import Placed, compute_pct
from gkestimator.placement.problem import Problem


def random_problem(seed: int, *, gpus: int, models: int, types: Sequence[str] = (V100,)) -> Problem:
    """Models with affine latencies, rates around what the cluster can serve, tight and loose objectives."""
    draw = random.Random(seed)
    rows, loads = [], {}
    for i in range(models):
        fixed, each, full = draw.uniform(1, 20), draw.uniform(0.2, 4), draw.choice((4, 16, 64))
        for t in types:
            speed = draw.uniform(0.5, 2)
            for batch in (1, 4, 16):
                latency = (fixed + each * batch) / speed
                rows.append(
                    row(
                        f"m{i}", batch, latency, gpu=t,
                        sm_util_mean_pct=min(99.0, 20 + 80 * batch / full), mreq_bytes=draw.randint(1, 5) << 30,
                    )
                )  # fmt: skip
        part = draw.uniform(0.2, 1.6) * gpus / models
        loads[f"m{i}"] = (part * 16e3 / (fixed + 16 * each), (fixed + each) * draw.choice((3, 8, 30)))
    share = {t: gpus // len(types) for t in types}
    share[types[0]] += gpus - sum(share.values())
    return problem(rows, loads, share)


def placements(problem: Problem, most: int) -> Iterator[tuple[Placed, ...]]:
    """Every placement of up to ``most`` replicas side by side on each GPU, Creq and memory within 100 %."""
    by_gpu = []
    for gpu in problem.gpus:
        ways = [(m.name, c) for m in problem.models for c in m.feasible(gpu.type)]
        found: list[tuple[Placed, ...]] = []
        for size in range(most + 1):
            for chosen in itertools.combinations_with_replacement(ways, size):
                here = tuple(Placed(gpu=gpu, model=n, candidate=c) for n, c in chosen)
                creq = compute_pct(here)
                memory = sum(p.candidate.memory_pct or 0.0 for p in here)
                if memory <= 100 and (size <= 1 or (creq is not None and creq <= 100)):
                    found.append(here)
        by_gpu.append(found)
    for parts in itertools.product(*by_gpu):
        yield tuple(p for part in parts for p in part)


def best_side_by_side(problem: Problem, most: int) -> float:
    """The largest expected goodput of :func:`placements`."""
    return max(expect(problem, placed).goodput_rps or 0.0 for placed in placements(problem, most))
