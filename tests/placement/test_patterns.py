"""Patterns and batch sizes: what may be left out, and what may not."""

from __future__ import annotations

import itertools
import random

import pytest
from _milp_cases import every_choice, random_rows, row
from _problems import T4, V100, problem

from gkestimator.placement.patterns import Choice, batch_choices, maximal_patterns, needs_pct


def by_enumeration(choices: list[Choice], gpu_type: str) -> set[tuple[int, ...]]:
    """Sets of distinct models that fit and to which none can be added."""

    def fits(members: tuple[int, ...]) -> bool:
        models = [choices[i].model.name for i in members]
        if len(set(models)) < len(models) or any(gpu_type not in choices[i].by_type for i in members):
            return False
        needs = [needs_pct(choices[i].by_type[gpu_type]) for i in members]
        return sum(n[0] for n in needs) <= 100 and sum(n[1] for n in needs) <= 100

    fitting = {
        m
        for n in range(1, len(choices) + 1)
        for m in itertools.combinations(range(len(choices)), n)
        if fits(m)
    }
    return {
        m
        for m in fitting
        if not any(tuple(sorted((*m, i))) in fitting for i in range(len(choices)) if i not in m)
    }


@pytest.mark.parametrize("seed", range(20))
def test_maximal_patterns_against_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    p = problem(
        random_rows(rng, 5, (V100, T4)), dict.fromkeys((f"m{i}" for i in range(5)), (100, 50)), {V100: 1, T4: 1},
        creq="occupancy-max",
    )  # fmt: skip
    choices = every_choice(p)
    for gpu_type in p.types:
        found = maximal_patterns(choices, gpu_type, limit=10**6)
        assert found is not None
        assert {q.members for q in found} == by_enumeration(choices, gpu_type)
        assert len(found) == len({q.members for q in found})
        assert maximal_patterns(choices, gpu_type, limit=2) is None


def test_a_batch_that_another_replaces_is_left_out_and_no_other() -> None:
    rows = [
        row("a", 1, 10.0, occupancy_max_pct=30.0),  # 100 req/s
        row("a", 2, 25.0, occupancy_max_pct=30.0),  # 80 req/s at the same need: never better
        row("a", 4, 25.0, occupancy_max_pct=31.0),  # 160 req/s, needs more
        row("a", 8, 50.0, occupancy_max_pct=31.0),  # the same as batch 4: the smaller stays
        row("a", 1, 10.0, gpu=T4),
        row("a", 4, 25.0, gpu=T4),
    ]
    one = problem(rows, {"a": (100, 60)}, {V100: 1}, creq="occupancy-max")
    batches = [next(iter(c.by_type.values())).batch_size for c in batch_choices(one, one.models[0])]
    assert batches == [1, 4]
    # On T4 batch 8 cannot run at all, so batch 4 still replaces it; batch 2 on no T4 either.
    two = problem(rows, {"a": (100, 60)}, {V100: 1, T4: 1}, creq="occupancy-max")
    assert [sorted(c.by_type) for c in batch_choices(two, two.models[0])] == [[T4, V100], [T4, V100]]
    late = problem(rows, {"a": (100, 20)}, {V100: 1, T4: 1}, creq="occupancy-max")
    assert [c.by_type[T4].batch_size for c in batch_choices(late, late.models[0])] == [1]
