"""Many models: packed at once, from others' answers too; the bound stays one, and the same problem has the same answer."""

from __future__ import annotations

import pytest
from _gkest_cases import random_problem
from _problems import A100, V100

from gkestimator.placement.expected import expect
from gkestimator.placement.gkest.fluid import bounds_rps, most_rps
from gkestimator.placement.gkest.menu import MANY, Menus
from gkestimator.placement.gkest.packing import ROOMY, TIGHTER, GpuPacking, Rest
from gkestimator.placement.gkest.policy import GkestPolicy
from gkestimator.placement.gkest.starts import as_patterns, other_starts
from gkestimator.placement.gkest.state import PlacementState, allowed
from gkestimator.placement.policy import verify
from gkestimator.placement.problem import Problem
from gkestimator.placement.registry import make_policy


def served(given: Problem, policy: str) -> float:
    """Return what ``policy`` is expected to serve, as a part of what is asked for."""
    answer = make_policy(policy).place(given)
    verify(make_policy(policy), given, answer)
    goodput = expect(given, answer.placed).goodput_rps
    assert goodput is not None
    return goodput / sum(m.rate_rps for m in given.models)


@pytest.mark.slow
@pytest.mark.parametrize("models", [24, 80])
def test_not_below_nexus_or_gpulet(models: int) -> None:
    given = random_problem(1000 + models, gpus=models // 2, models=models)
    ours = served(given, "gkest")
    assert ours >= max(served(given, "nexus"), served(given, "gpulet")) - 0.005


def test_packed_gpus_hold_what_they_may_and_no_more_gpus_than_there_are() -> None:
    given = random_problem(3, gpus=12, models=40, types=(V100, A100))
    menus = Menus(given)
    rests = [Rest(model=m, type=m % 2, rps=x.rate_rps, worth=1.0) for m, x in enumerate(given.models)]
    for margins in (ROOMY, *TIGHTER):
        counts = GpuPacking(menus, [6, 6], margins).pack([], rests, by_worth=True)
        assert all(allowed(menus, p) for p in counts)
        for t in (0, 1):
            assert 0 < sum(n for p, n in counts.items() if p.type == t) <= 6


def test_a_rest_larger_than_one_replica_is_served_by_several() -> None:
    given = random_problem(5, gpus=8, models=1)
    menus = Menus(given)
    most = max(menus.rate(w) for w in menus.ways)
    packing = GpuPacking(menus, [8], ROOMY)
    counts = packing.pack([], [Rest(model=0, type=0, rps=2.5 * most, worth=1.0)], by_worth=False)
    assert not packing.short and sum(len(p.members) * n for p, n in counts.items()) >= 3


def test_another_policys_answer_is_worth_at_least_what_it_is_worth_there() -> None:
    """Turns without pauses between them, and replicas alone without turns, serve no less."""
    given = random_problem(11, gpus=6, models=12)
    given = given.with_models(tuple(sorted(given.models, key=lambda m: m.name)))
    menus = Menus(given)
    answer = make_policy("nexus").place(given)
    counts = as_patterns(menus, answer.placed)
    assert all(allowed(menus, p) for p in counts)
    state = PlacementState(menus, counts, lambda m, rate: rate)
    assert state.value >= 0.999 * (expect(given, answer.placed).goodput_rps or 0.0)
    assert len(list(other_starts(menus))) == 2


@pytest.mark.slow
def test_the_quick_bound_is_above_the_exact_one() -> None:
    given = random_problem(9, gpus=30, models=MANY + 1)
    menus = Menus(given)
    assert menus.many
    for way, bound in zip(menus.ways, bounds_rps(menus), strict=True):
        assert bound >= 0.97 * most_rps(menus, way)


@pytest.mark.slow
def test_the_same_problem_has_the_same_answer() -> None:
    given = random_problem(13, gpus=30, models=MANY + 6)
    first, second = (GkestPolicy().place(given) for _ in range(2))
    assert first.placed == second.placed and first.gap_pct == second.gap_pct
