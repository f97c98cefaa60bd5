"""Our own policy where cost counts: every model on time, at no more than simple answers cost."""

from __future__ import annotations

import math

import pytest
from _problems import A100, V100, problem, row, table_a1

from gkestimator.placement.expected import expect
from gkestimator.placement.gkest.policy import GkestPolicy
from gkestimator.placement.policy import verify
from gkestimator.placement.run import place

NAMES = ("resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert")


@pytest.mark.slow
@pytest.mark.parametrize("attainment", [0.9, 0.99])
def test_every_model_is_on_time(attainment: float) -> None:
    given = problem(table_a1(), dict.fromkeys(NAMES, (150.0, 300.0)), rent={V100: (3.0, None)})
    policy = GkestPolicy(attainment=attainment)
    answer = policy.place(given)
    verify(policy, given, answer)
    found = expect(given, answer.placed).by_model
    assert all((found[m.name] or 0.0) >= attainment * m.rate_rps * (1 - 1e-6) for m in given.models)
    assert answer.gap_pct is None or answer.gap_pct >= 0


def test_cheaper_than_a_gpu_for_each_model() -> None:
    given = problem(table_a1(), dict.fromkeys(NAMES, (20.0, 300.0)), rent={V100: (3.0, None)})
    plan = place(GkestPolicy(), given)
    assert plan.totals.gpus_used < len(NAMES) and not plan.unserved
    assert plan.totals.cost_per_hour == 3.0 * plan.totals.gpus_used


def test_the_cheaper_type_is_rented() -> None:
    rows = [row("a", b, 5.0 + b, gpu=t) for t in (V100, A100) for b in (1, 4)]
    for cheap, dear in ((V100, A100), (A100, V100)):
        given = problem(rows, {"a": (100, 80)}, rent={dear: (3.0, None), cheap: (1.0, None)})
        plan = place(GkestPolicy(), given)
        assert [g.type for g in plan.gpus] == [cheap]


@pytest.mark.slow
def test_limits_hold_and_what_they_leave_unserved_is_said() -> None:
    given = problem(table_a1(), dict.fromkeys(NAMES, (400.0, 300.0)), rent={V100: (3.0, 3)})
    plan = place(GkestPolicy(), given)
    assert plan.totals.gpus_used <= 3 and plan.unserved
    assert any("do not suffice" in n for n in plan.notes)


def test_fewest_gpus_of_a_fixed_cluster_where_cost_counts() -> None:
    loads = dict.fromkeys(("resnet50", "vgg19", "mobilenet_v2"), (20.0, 300.0))
    spread = place(GkestPolicy(), problem(table_a1(), loads, {V100: 8}))
    few = place(GkestPolicy(), problem(table_a1(), loads, {V100: 8}, objective="cost"))
    assert not few.unserved and few.totals.gpus_used < spread.totals.gpus_used


def test_what_no_number_of_gpus_can_serve_on_time_is_aimed_at_less() -> None:
    """An interval that reaches beyond the objective: part of the requests are late wherever they run."""
    rows = [row("a", 1, 9.0, latency_low_ms=7.0, latency_high_ms=14.0)]
    given = problem(rows, {"a": (30, 10)}, rent={V100: (1.0, None)})
    plan = place(GkestPolicy(), given)
    assert plan.gpus and any("whatever the GPUs" in n for n in plan.notes)


def test_a_lower_bound_on_cost() -> None:
    """One way to run, no room to batch: 2.5 GPUs of pure service time cannot be had for less than 3."""
    given = problem([row("a", 1, 10.0, sm_util_mean_pct=100.0)], {"a": (250, 1000)}, rent={V100: (2.0, None)})
    answer = GkestPolicy().place(given)
    gpus = len({p.gpu.id for p in answer.placed})
    assert gpus >= 3 and answer.gap_pct is not None
    assert math.isclose(answer.gap_pct, 100 * (gpus / 3 - 1), abs_tol=1e-6)
