"""Self-tuning of SM shares, step by step as worked out by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from _milp_cases import row
from _problems import T4, V100, problem, table_a1

from gkestimator.documents import PlacementPlan, plan_json
from gkestimator.placement.papers.selftuning import SelfTuningPolicy
from gkestimator.placement.run import place
from gkestimator.tables import Requirement


def at_shares(model: str, latency: float, shares: tuple[int, ...] = (20, 40, 60, 80, 100), **kwargs: object) -> list[Requirement]:  # fmt: skip
    """Batch 1; ``latency`` on the whole GPU, inversely proportional to the share."""
    return [row(model, 1, latency * 100 / s, sm_share_pct=float(s), **kwargs) for s in shares]


def shares(plan: PlacementPlan) -> dict[str, list[tuple[str, float]]]:
    return {g.id: [(r.model, r.sm_share_pct) for r in g.replicas] for g in plan.gpus}


def test_shares_grow_and_shrink_to_what_the_rates_need() -> None:
    # The whole GPU serves 100 req/s of either, a share s of it s req/s. Both start at an equal share, 40 (the largest
    # of the table below 50). a needs 60 and takes a step up; b needs 15 and gives a step back, first.
    rows = at_shares("a", 10.0) + at_shares("b", 10.0)
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (55, 60), "b": (15, 60)}, {V100: 1}))
    assert shares(plan) == {f"{V100}-0": [("a", 60.0), ("b", 20.0)]}
    assert plan.totals.goodput_rps == 70
    # a grows until the GPU is full and then still lacks.
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (95, 60), "b": (15, 60)}, {V100: 1}))
    assert shares(plan) == {f"{V100}-0": [("a", 80.0), ("b", 20.0)]}
    assert [(u.model, round(u.rate_rps, 6)) for u in plan.unserved] == [("a", 15)]


def test_who_lacks_goes_to_the_gpu_with_the_most_free_once() -> None:
    # a alone on GPU 0 reaches 100 of 150; b holds 20 of GPU 1, c 60 of GPU 2: a's second replica goes to GPU 1.
    rows = at_shares("a", 10.0) + at_shares("b", 10.0) + at_shares("c", 10.0)
    p = problem(rows, {"a": (150, 60), "b": (15, 60), "c": (55, 60)}, {V100: 3})
    plan = place(SelfTuningPolicy(), p)
    where = {m: [g for g, here in shares(plan).items() for name, _ in here if name == m] for m in "abc"}
    assert (
        len(where["a"]) == 2 and set(where["a"]) & set(where["b"]) and not set(where["a"]) & set(where["c"])
    )
    assert not plan.unserved
    # The whole first GPU would not be needed for 150 - 60: tuning gives back what two replicas do not need.
    assert sum(s for here in shares(plan).values() for name, s in here if name == "a") == 160


def test_the_batch_is_the_largest_that_fills_and_runs_within_the_objective() -> None:
    # At 100 req/s a batch of 4 fills in 30 ms and runs 20: within 50. A batch of 8 fills in 70.
    rows = [row("a", b, t) for b, t in ((1, 8.0), (4, 20.0), (8, 30.0))]
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (100, 50)}, {V100: 1}))
    assert [r.batch_size for g in plan.gpus for r in g.replicas] == [4]
    # At 2 req/s none but 1 fills in time; where batch 1 is missing, the smallest that runs in time.
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (2, 50)}, {V100: 1}))
    assert [r.batch_size for g in plan.gpus for r in g.replicas] == [1]
    plan = place(SelfTuningPolicy(), problem(rows[1:], {"a": (2, 50)}, {V100: 1}))
    assert [r.batch_size for g in plan.gpus for r in g.replicas] == [4]


def test_memory_stops_a_step() -> None:
    rows = at_shares("a", 10.0, mreq_pct=60.0) + at_shares("b", 10.0, mreq_pct=60.0)
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (30, 60), "b": (30, 60)}, {V100: 1}))
    assert len(plan.gpus[0].replicas) == 1 and len(plan.unserved) == 1
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (30, 60), "b": (30, 60)}, {V100: 2}))
    assert [len(g.replicas) for g in plan.gpus] == [1, 1] and not plan.unserved


def test_rented_gpus_are_shared_before_another_is_taken() -> None:
    rows = (
        at_shares("a", 10.0)
        + at_shares("b", 10.0)
        + at_shares("a", 20.0, gpu=T4)
        + at_shares("b", 20.0, gpu=T4)
    )
    rent = {V100: (3.0, None), T4: (1.0, None)}
    plan = place(SelfTuningPolicy(), problem(rows, {"a": (25, 120), "b": (9, 120)}, rent=rent))
    # On a T4 a needs 60 % (30 req/s), b 20 %: one T4 for both at 1.0.
    assert shares(plan) == {"T4-0": [("a", 60.0), ("b", 20.0)]}
    assert not plan.unserved and plan.totals.cost_per_hour == 1
    limited = problem(rows, {"a": (25, 120), "b": (60, 120)}, rent={T4: (1.0, 1)})
    plan = place(SelfTuningPolicy(), limited)
    assert plan.totals.gpus_used == 1 and plan.unserved


def test_the_objective_cost_on_a_fixed_cluster_packs() -> None:
    rows = at_shares("a", 10.0) + at_shares("b", 10.0)
    loads = {"a": (35, 60), "b": (35, 60)}
    assert place(SelfTuningPolicy(), problem(rows, loads, {V100: 4})).totals.gpus_used == 2
    assert place(SelfTuningPolicy(), problem(rows, loads, {V100: 4}, objective="cost")).totals.gpus_used == 1


def test_without_shares_whole_gpus_and_a_note() -> None:
    p = problem(table_a1(), dict.fromkeys(("alexnet", "resnet50", "vgg19"), (400, 300)), {V100: 3})
    plan = place(SelfTuningPolicy(), p)
    assert [len(g.replicas) for g in plan.gpus] == [1, 1, 1]
    assert any("no SM share below 100 %" in n for n in plan.notes)
    assert plan.totals.goodput_rps == 1200


def test_more_models_than_any_share_allows() -> None:
    rows = [r for i in range(12) for r in at_shares(f"m{i}", 10.0, mreq_pct=5.0)]
    p = problem(rows, dict.fromkeys((f"m{i}" for i in range(12)), (10, 60)), {V100: 2})
    plan = place(SelfTuningPolicy(), p)
    assert [len(g.replicas) for g in plan.gpus] == [5, 5]
    assert len(plan.unserved) == 2 and plan.totals.goodput_rps == 100


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("rented", [False, True])
def test_random_problems_stand_and_repeat(seed: int, rented: bool) -> None:
    rng = random.Random(seed)
    rows = [
        r
        for i in range(6)
        for gpu in (V100, T4)
        for r in at_shares(f"m{i}", rng.uniform(3, 15), gpu=gpu, mreq_pct=rng.uniform(5, 40))
    ]
    loads = {f"m{i}": (rng.uniform(5, 300), rng.uniform(40, 200)) for i in range(6)}
    where = {"rent": {V100: (3.0, 40), T4: (1.0, None)}} if rented else {"gpus": {V100: 2, T4: 3}}
    p = problem(rows, loads, **where)  # type: ignore[arg-type]
    plan = place(SelfTuningPolicy(), p)
    for gpu in plan.gpus:
        assert max(Counter(r.model for r in gpu.replicas).values()) == 1
        assert sum(r.sm_share_pct for r in gpu.replicas) <= 100
    assert plan_json(plan) == plan_json(place(SelfTuningPolicy(), p))
    if rented:
        assert not plan.unserved


def test_no_models_and_models_that_cannot_run() -> None:
    rows = [*at_shares("a", 10.0), *at_shares("late", 900.0), *at_shares("large", 5.0, mreq_pct=120.0)]
    p = problem(rows, {"a": (10, 60), "late": (10, 60), "large": (10, 60)}, {V100: 2})
    plan = place(SelfTuningPolicy(), p)
    assert {u.model for u in plan.unserved} == {"late", "large"} and plan.totals.goodput_rps == 10
    assert SelfTuningPolicy().place(p.with_models(())).placed == ()
