"""Placement problems for the tests of milp, exclusive, selftuning and igniter, and references that enumerate."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import _problems

from gkestimator.placement.patterns import Choice, needs_pct
from gkestimator.placement.problem import Problem
from gkestimator.tables import Requirement


def row(model: str, batch: int, latency: float, **kwargs: Any) -> Requirement:
    """A measured row on a V100 that takes 40 % of its SMs and 10 % of its memory."""
    own = {"occupancy_max_pct": 40.0, "mreq_bytes": None, "mreq_pct": 10.0}
    return _problems.row(model, batch, latency, **(own | kwargs))


def random_rows(rng: random.Random, models: int, types: Sequence[str]) -> list[Requirement]:
    """Two batch sizes of each model on each type; needs drawn so that one to four fit on a GPU."""
    return [
        row(
            f"m{i}",
            batch,
            rng.uniform(5, 60),
            gpu=gpu,
            occupancy_max_pct=rng.uniform(15, 80),
            mreq_pct=rng.uniform(10, 70),
        )
        for i in range(models)
        for gpu in types
        for batch in (1, 4)
    ]


def _fitting(choices: Sequence[Choice], picked: Sequence[int], gpu_type: str) -> Iterator[tuple[int, ...]]:
    """Sets of the picked choices that fit on a GPU of ``gpu_type``."""
    able = [i for i in picked if gpu_type in choices[i].by_type]
    for size in range(len(able) + 1):
        for members in itertools.combinations(able, size):
            needs = [needs_pct(choices[i].by_type[gpu_type]) for i in members]
            if sum(n[0] for n in needs) <= 100 and sum(n[1] for n in needs) <= 100:
                yield members


def every_choice(problem: Problem) -> list[Choice]:
    """Every batch size within the objective, dominated or not."""
    found = []
    for model in problem.models:
        batches: dict[int, dict[str, Any]] = {}
        for t in problem.types:
            for c in model.feasible(t):
                batches.setdefault(c.batch_size, {})[t] = c
        found += [Choice(model=model, by_type=by_type) for by_type in batches.values()]
    return found


def by_enumeration(problem: Problem, most: Mapping[str, int]) -> tuple[float, float, int]:
    """(goodput, price, GPUs) of the best plan: most goodput, then for rented GPUs the lowest price and the fewest GPUs,
    else the fewest. Every batch size for each model, every fitting set on each of ``most`` GPUs of each type."""
    choices = every_choice(problem)
    by_model: dict[str, list[int]] = {}
    for i, c in enumerate(choices):
        by_model.setdefault(c.model.name, []).append(i)
    best = (-1.0, math.inf, 0)
    for picked in itertools.product(*by_model.values()):
        sets = {t: list(_fitting(choices, picked, t)) for t in problem.types}
        combined = [list(itertools.combinations_with_replacement(sets[t], most[t])) for t in problem.types]
        for chosen in itertools.product(*combined):
            on = [(t, members) for t, group in zip(problem.types, chosen, strict=True) for members in group]
            capacity = dict.fromkeys(picked, 0.0)
            for t, members in on:
                for i in members:
                    capacity[i] += choices[i].throughput_rps(t)
            goodput = sum(min(choices[i].model.rate_rps, c) for i, c in capacity.items())
            used = [t for t, members in on if members]
            price = sum(problem.prices[t] or 0.0 for t in used)
            thrift = (price, len(used)) if problem.elastic else (float(len(used)), 0)
            known = (best[1], best[2]) if problem.elastic else (float(best[2]), 0)
            if goodput > best[0] + 1e-6 or (goodput > best[0] - 1e-6 and thrift < known):
                best = (goodput, price, len(used))
    return best
