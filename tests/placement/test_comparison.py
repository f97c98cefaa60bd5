"""The generator of placement problems and the arithmetic of the comparison of policies (benchmarks/)."""

from __future__ import annotations

import policies
import pytest
from placement_instances import instance

A1 = range(0, 45, 3)  # every third instance draws from table A.1, which needs no estimates


@pytest.mark.parametrize("kind", ["goodput", "weighted", "elastic"])
def test_an_instance_is_its_seed_kind_and_number(kind: str) -> None:
    drawn = [instance(i, 0, kind) for i in A1]
    assert drawn == [instance(i, 0, kind) for i in A1]
    assert drawn != [instance(i, 1, kind) for i in A1]
    problems = [d.problem() for d in drawn]
    assert {len(p.models) for p in problems} <= set(range(2, 13))
    assert len({len(p.models) for p in problems}) > 4
    for p in problems:
        assert p.elastic == (kind == "elastic")
        assert p.elastic or 1 <= len(p.gpus) <= 16
        assert all(m.rate_rps > 0 and m.slo_ms > 0 for m in p.models)
        assert (len({m.weight for m in p.models}) > 1) <= (kind == "weighted")
    feasible = [m.feasible(t) for p in problems for m in p.models for t in p.types]
    assert 0 < sum(not f for f in feasible) + sum(len(f) == 1 for f in feasible) < len(feasible) / 2


def test_loads_go_from_light_to_more_than_can_be_served() -> None:
    loads = [instance(i).load for i in range(0, 300, 3)]
    assert min(loads) < 0.15 and max(loads) > 1.7
    assert 0.3 < sorted(loads)[50] < 0.7


def result(
    number: int, policy: str, value: float | None, *, kept: int = 1, cost: float = 1.0, why: str = ""
) -> object:
    return policies.Result(
        kind="goodput", number=number, family="a1", policy=policy, models=2, value=value, why=why, asked=100.0,
        goodput=value or 0.0, kept=kept, cost=cost,
    )  # fmt: skip


def test_wins_ties_losses_worst_and_mean_are_counted_over_what_both_answered() -> None:
    found = [
        result(0, "gkest", 90.0), result(0, "milp", 60.0),
        result(1, "gkest", 50.0), result(1, "milp", 50.02),
        result(2, "gkest", 49.0), result(2, "milp", 50.0),
        result(3, "gkest", 10.0), result(3, "milp", 0.0),
        result(4, "gkest", 10.0), result(4, "milp", None, why="refused: power_w"),
    ]  # fmt: skip
    heading, milp, best = policies.comparison(found, ["gkest", "milp"])
    row = dict(zip(heading, milp, strict=True))
    assert (row["instances"], row["wins"], row["ties"], row["losses"], row["worse by > 1 %"]) == (
        "4",
        "2",
        "1",
        "1",
        "1",
    )
    assert row["worst case"] == "-2.00 %"
    assert row["mean gain"] == f"{100 * ((1.5 * 50 / 50.02 * 0.98) ** (1 / 3) - 1):+.1f} %"
    assert row["others serve nothing"] == "1"
    assert best[1:] == milp[1:]
    answered = dict(zip(*policies.levels(found, ["milp"]), strict=True))
    assert (answered["answered"], answered["refused"], answered["failed"]) == ("4", "1", "0")


def test_rented_gpus_compare_models_on_time_before_cost() -> None:
    found = [
        result(0, "gkest", 1.0, kept=2, cost=5.0), result(0, "usher", 1.0, kept=1, cost=1.0),
        result(1, "gkest", 1.0, kept=2, cost=3.0), result(1, "usher", 1.0, kept=2, cost=6.0),
        result(2, "gkest", 1.0, kept=1, cost=3.0), result(2, "usher", 1.0, kept=2, cost=9.0),
    ]  # fmt: skip
    heading, _, usher = policies.rented(found, ["gkest", "usher"])
    row = dict(zip(heading, usher, strict=True))
    assert (row["gkest better"], row["alike"], row["worse"]) == ("2", "0", "1")
    assert "2.000 (1)" in usher


def test_a_policy_that_fails_is_counted_and_does_not_hide_the_others() -> None:
    policies._worker()
    found = policies.run(("goodput", 0), seed=0, policies=["exclusive", "milp"], limit_s=30.0)
    assert [r.policy for r in found] == ["exclusive", "milp"]
    assert all(r.value is not None and 0 < r.value <= r.asked * (1 + 1e-9) for r in found)
    assert all(0 <= r.least <= 1 and r.kept <= r.models for r in found)
