"""The thesis' program: its published results, and the optimum against plain enumeration."""

from __future__ import annotations

import random

import pytest
from _milp_cases import by_enumeration, random_rows, row
from _problems import A100, T4, V100, problem, table_a1

from gkestimator.core.errors import UsageError
from gkestimator.documents import plan_json
from gkestimator.placement.integer import Deadline
from gkestimator.placement.papers import milp
from gkestimator.placement.papers.milp import MilpPolicy
from gkestimator.placement.patterns import batch_choices, maximal_patterns
from gkestimator.placement.programs import pattern_form, serve, slot_form
from gkestimator.placement.run import place


@pytest.mark.parametrize(
    ("names", "slo_ms", "goodput"),
    [
        (("alexnet", "gpt2", "resnet50", "t5"), 200, 1092.04),
        (("resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert"), 300, 1331.19),
    ],
)
def test_the_thesis_results_on_four_v100(names: tuple[str, ...], slo_ms: float, goodput: float) -> None:
    p = problem(table_a1(), dict.fromkeys(names, (400, slo_ms)), {V100: 4}, creq="occupancy-max")
    plan = place(MilpPolicy(), p)
    assert round(plan.totals.goodput_rps, 2) == goodput
    assert plan.totals.gap_pct == 0
    for gpu in plan.gpus:
        assert len({r.model for r in gpu.replicas}) == len(gpu.replicas)
        assert gpu.cuti_pct is not None and gpu.cuti_pct <= 100
    batches = {(r.model, r.batch_size) for g in plan.gpus for r in g.replicas}
    assert len(batches) == len({m for m, _ in batches})


@pytest.mark.parametrize("seed", range(24))
def test_fixed_clusters_against_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    types = [(V100,), (V100, T4)][seed % 2]
    count = {V100: 3} if seed % 2 == 0 else {V100: 1, T4: 2}
    names = [f"m{i}" for i in range(3)]
    loads = {n: (rng.uniform(20, 400), rng.uniform(20, 80)) for n in names}
    p = problem(random_rows(rng, 3, types), loads, count, creq="occupancy-max")
    goodput, _, gpus = by_enumeration(p, count)
    plan = place(MilpPolicy(), p)
    assert plan.totals.goodput_rps == pytest.approx(goodput, rel=1e-9)
    assert plan.totals.gpus_used == gpus
    assert plan.totals.gap_pct == 0


@pytest.mark.parametrize("seed", [1168, *range(50, 56)])
def test_rates_a_thousand_times_what_the_gpus_can_serve(seed: int) -> None:
    # Scaled by the rates instead of by what can be served, the first of these lost its optimum in HiGHS.
    rng = random.Random(seed)
    loads = {
        f"m{i}": (rng.uniform(20, 400) * rng.choice([1, 1, 1000]), rng.uniform(20, 80)) for i in range(3)
    }
    count = {V100: 1, T4: 2}
    p = problem(random_rows(rng, 3, (V100, T4)), loads, count, creq="occupancy-max")
    goodput, _, gpus = by_enumeration(p, count)
    plan = place(MilpPolicy(), p)
    assert plan.totals.goodput_rps == pytest.approx(goodput, rel=1e-9)
    assert plan.totals.gpus_used == gpus


@pytest.mark.parametrize("seed", range(16))
def test_rented_gpus_against_enumeration(seed: int) -> None:
    rng = random.Random(100 + seed)
    rent = {V100: (3.0, 2), T4: (0.7, 2)} if seed % 2 else {V100: (3.0, None), T4: (1.1, None)}
    loads = {f"m{i}": (rng.uniform(20, 150), 60.0) for i in range(2)}
    p = problem(random_rows(rng, 2, (V100, T4)), loads, rent=rent, creq="occupancy-max")
    # Two of each where they are limited; four serve everything where they are not.
    goodput, price, gpus = by_enumeration(p, dict.fromkeys(p.types, 2 if seed % 2 else 4))
    plan = place(MilpPolicy(), p)
    assert plan.totals.goodput_rps == pytest.approx(goodput, rel=1e-9)
    assert plan.totals.cost_per_hour == pytest.approx(price, rel=1e-9)
    assert plan.totals.gpus_used == gpus


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_both_forms_have_one_optimum(seed: int) -> None:
    rng = random.Random(200 + seed)
    rows = random_rows(rng, 4, (V100, A100))
    loads = {f"m{i}": (rng.uniform(20, 900), rng.uniform(20, 80)) for i in range(4)}
    rented = seed % 3 == 0
    where = {"rent": {V100: (3.0, None), A100: (4.1, None)}} if rented else {"gpus": {V100: 3, A100: 2}}
    p = problem(rows, loads, creq="occupancy-max", **where)  # type: ignore[arg-type]
    choices = [c for m in p.models for c in batch_choices(p, m)]
    patterns = [q for t in p.types for q in maximal_patterns(choices, t, limit=10**6) or ()]
    limit = Deadline(30)
    counted = serve(p, pattern_form(p, choices, patterns), deadline=limit)
    slots = milp._slots(p, choices)
    named = serve(p, slot_form(p, choices, slots), deadline=limit)
    assert counted is not None and named is not None
    assert counted.notes == named.notes == ()
    price = {t: p.prices[t] or 0.0 for t in p.types}
    for answer in (counted, named):
        assert answer.gap_pct == 0
        for t, members in answer.gpus:
            assert sum(choices[i].by_type[t].creq_pct or 0.0 for i in members) <= 100 + 1e-6
    results = [
        (
            round(sum(_served(choices, a.gpus).values()), 4),
            round(sum(price[t] for t, _ in a.gpus), 6) if rented else len(a.gpus),
        )
        for a in (counted, named)
    ]
    assert results[0] == results[1]


def _served(choices: list, gpus: list) -> dict[str, float]:  # type: ignore[type-arg]
    capacity: dict[int, float] = {}
    for t, members in gpus:
        for i in members:
            capacity[i] = capacity.get(i, 0.0) + choices[i].throughput_rps(t)
    return {choices[i].model.name: min(choices[i].model.rate_rps, c) for i, c in capacity.items()}


def test_too_many_patterns_are_named_gpu_by_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        row(f"m{i}", b, 10.0 * b, occupancy_max_pct=30.0 + i, mreq_pct=9.0 + b)
        for i in range(4)
        for b in (1, 2)
    ]
    p = problem(rows, {f"m{i}": (150, 60) for i in range(4)}, {V100: 3}, creq="occupancy-max")
    counted = place(MilpPolicy(), p)
    monkeypatch.setattr(milp, "_PATTERN_STEPS", 3)
    named = place(MilpPolicy(), p)
    assert named.totals.goodput_rps == pytest.approx(counted.totals.goodput_rps)
    assert named.totals.gpus_used == counted.totals.gpus_used
    monkeypatch.setattr(milp, "_SLOT_VARIABLES", 5)
    with pytest.raises(UsageError, match=r"4 ways .* 3 GPUs need 12 variables, expected at most 5"):
        place(MilpPolicy(), p)


def test_when_time_runs_out_the_first_fit_plan_stands_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(random.Random(3), 6, (V100,))
    p = problem(rows, {f"m{i}": (300, 80) for i in range(6)}, {V100: 4}, creq="occupancy-max")
    monkeypatch.setattr(milp, "serve", lambda *_, **__: None)
    plan = place(MilpPolicy(time_limit_s=0.5), p)
    assert plan.totals.gap_pct is None
    assert plan.totals.goodput_rps > 0
    assert any("time ran out before the program had any solution" in n for n in plan.notes)
    assert any("time limit 0.5 s" in n for n in plan.notes)


@pytest.mark.slow
def test_a_limit_that_has_struck_leaves_a_plan_with_its_gap_or_none() -> None:
    rng = random.Random(5)
    rows = [
        row(f"m{i}", b, rng.uniform(5, 50), occupancy_max_pct=rng.uniform(5, 30), mreq_pct=rng.uniform(3, 20))
        for i in range(14)
        for b in (1, 2, 4)
    ]
    p = problem(
        rows, {f"m{i}": (rng.uniform(50, 900), 60) for i in range(14)}, {V100: 9}, creq="occupancy-max"
    )
    plan = place(MilpPolicy(time_limit_s=1e-3), p)
    assert any("time" in n for n in plan.notes)
    assert plan.totals.gap_pct is None or plan.totals.gap_pct >= 0


def test_a_replica_whose_creq_is_above_100_is_alone() -> None:
    rows = [row("a", 1, 10.0, occupancy_max_pct=130.0), row("b", 1, 10.0, occupancy_max_pct=20.0)]
    loads = {"a": (100, 20), "b": (100, 20)}
    one = place(MilpPolicy(), problem(rows, loads, {V100: 1}, creq="occupancy-max"))
    assert one.totals.goodput_rps == 100
    two = place(MilpPolicy(), problem(rows, loads, {V100: 2}, creq="occupancy-max"))
    assert two.totals.goodput_rps == 200
    assert [len(g.replicas) for g in two.gpus] == [1, 1]


def test_needless_replicas_are_not_placed() -> None:
    rows = [row("a", 1, 10.0, occupancy_max_pct=10.0), row("b", 1, 40.0, occupancy_max_pct=10.0)]
    plan = place(MilpPolicy(), problem(rows, {"a": (90, 50), "b": (75, 50)}, {V100: 5}, creq="occupancy-max"))
    assert plan.totals.gpus_used == 3
    assert sorted(r.model for g in plan.gpus for r in g.replicas) == ["a", "b", "b", "b"]


def test_models_that_cannot_run_are_left_out_with_the_reason() -> None:
    rows = [
        row("fine", 1, 10.0),
        row("slow", 1, 90.0),
        row("large", 1, 10.0, mreq_pct=130.0),
        row("part", 1, 10.0, sm_share_pct=50.0),
    ]
    plan = place(
        MilpPolicy(),
        problem(
            rows, dict.fromkeys(("fine", "slow", "large", "part"), (50, 50)), {V100: 4}, creq="occupancy-max"
        ),
    )
    reasons = {u.model: u.reason for u in plan.unserved}
    assert plan.totals.goodput_rps == 50
    assert "below its fastest latency" in reasons["slow"]
    assert "130 % of the memory" in reasons["large"]
    assert "no row for a whole GPU (SM share 100 %)" in reasons["part"]


def test_nothing_to_serve_is_answered() -> None:
    p = problem([row("a", 1, 10.0)], {"a": (50, 50)}, {V100: 2}).with_models(())
    assert MilpPolicy().place(p).placed == ()


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes() -> None:
    rows = random_rows(random.Random(9), 5, (V100, T4))
    p = problem(rows, {f"m{i}": (200, 70) for i in range(5)}, {V100: 2, T4: 2}, creq="occupancy-max")
    assert plan_json(place(MilpPolicy(), p)) == plan_json(place(MilpPolicy(), p))


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), True, "60"])
def test_a_time_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(UsageError, match="time-limit-s: found .*, expected a number of seconds above 0"):
        MilpPolicy(time_limit_s=limit)  # type: ignore[arg-type]


def test_thousands_of_equal_gpus() -> None:
    names = ("alexnet", "resnet50", "vgg19", "mobilenet_v2", "bert")
    p = problem(
        table_a1(), dict.fromkeys(names, (100000, 300)), rent={V100: (3.06, None)}, creq="occupancy-max"
    )
    plan = place(MilpPolicy(), p)
    assert plan.totals.goodput_rps == pytest.approx(500_000)
    # No two of these fit together, so each model rents for itself at its highest throughput.
    alone = 0
    for name in names:
        model = p.by_name[name]
        best = max(
            c.throughput_rps
            for c in model.feasible(V100)
            if c.creq_pct is not None and c.memory_pct is not None
        )
        alone += -(-100_000 // best)
    assert plan.totals.gpus_used == alone
