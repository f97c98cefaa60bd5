"""USHER: what the papers print, and the same answer as plain enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _problems import problem as build
from _problems import table_a1
from _usher_reference import exhaustive, instance, problem_of, row, size_of

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, plan_json
from gkestimator.placement.papers.usher.policy import UsherPolicy, groups_of
from gkestimator.placement.policy import Placement, checked_problem, verify
from gkestimator.placement.problem import Problem
from gkestimator.placement.run import place
from gkestimator.tables import Requirement

V100, A100, T4 = "V100-SXM2-16GB", "A100-SXM4-40GB", "T4"
CASE_1 = (("alexnet", "gpt2", "resnet50", "t5"), 200.0)
SUPERFLUOUS = (11, 89, 197)  # instances of at most 300 configurations
CASE_2 = (("resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert"), 300.0)


def thesis(names: tuple[str, ...], slo_ms: float, creq: str = "occupancy-max") -> Problem:
    """400 req/s of each on four V100, by table A.1."""
    return build(table_a1(), dict.fromkeys(names, (400, slo_ms)), 4, creq=creq)


def held(placement: Placement) -> dict[str, list[tuple[str, int]]]:
    """(model, batch size) by GPU."""
    found: dict[str, list[tuple[str, int]]] = {}
    for p in placement.placed:
        found.setdefault(p.gpu.id, []).append((p.model, p.candidate.batch_size))
    return {g: sorted(here) for g, here in found.items()}


def held_by_enumeration(problem: Problem, **switches: bool) -> dict[str, list[tuple[str, int]]]:
    used, _ = exhaustive(problem, **switches)
    return {f"{g.type}-{g.number}": sorted((m, c.batch_size) for m, c in g.held) for g in used}


def means(plan: PlacementPlan) -> tuple[int, float, float]:
    """GPUs used, mean Cuti and mean Muti of them."""
    cuti, muti = [g.cuti_pct for g in plan.gpus], [g.muti_pct for g in plan.gpus]
    return len(plan.gpus), round(sum(cuti) / len(cuti), 2), round(sum(muti) / len(muti), 2)


@pytest.mark.parametrize(
    ("case", "groups", "goodput"),
    [
        (CASE_1, [("alexnet", "gpt2", "resnet50", "t5")], 800.00),
        (CASE_2, [("bert", "gpt2", "resnet50"), ("mobilenet_v2", "vgg19")], 793.57),
    ],
)
def test_the_thesis_results_on_four_v100(
    case: tuple[tuple[str, ...], float], groups: list[tuple[str, ...]], goodput: float
) -> None:
    problem = thesis(*case)
    assert [g.names for g in groups_of(problem.models)] == groups
    plan = place(UsherPolicy(), problem)
    assert round(plan.totals.goodput_rps, 2) == goodput
    assert plan.totals.gpus_used == 4


def test_groups_go_by_every_known_demand_of_a_batch_size_that_cannot_be_placed() -> None:
    """Table A.1 has lost inception_v3's occupancy at batch 128, not its memory, 15.94 %: the row is never placed,
    and counts in the mean of Mreq (5.90 %; 3.89 % without), which decides whom inception_v3 is matched with."""
    names = ("bloom_560", "inception_v3", "mobilenet_v2", "resnet50", "xlnet")
    problem = thesis(names, 300.0)
    usable = checked_problem(UsherPolicy(), problem)
    inception = usable.by_name["inception_v3"]
    assert [c.batch_size for c in inception.incomplete] == [128]
    assert 128 not in [c.batch_size for c in inception.candidates]
    (single,) = groups_of([inception])
    assert single.creq_pct == pytest.approx((85.76 + 87.01 + 90.82 + 92.8 + 92.77) / 5)
    assert single.mreq_pct == pytest.approx((1.16 + 1.67 + 3.07 + 4.93 + 8.61 + 15.94) / 6, abs=1e-4)
    assert [g.names for g in groups_of(usable.models)] == [g.names for g in groups_of(problem.models)]
    assert [g.names for g in groups_of(usable.models)] == [
        ("bloom_560", "mobilenet_v2", "resnet50"),
        ("inception_v3", "xlnet"),
    ]
    plan = place(UsherPolicy(), problem)
    assert any("inception_v3: 1 of 6 rows left out" in n for n in plan.notes)


def test_the_variants_differ_by_the_measure_of_compute_alone() -> None:
    """Achieved occupancy in the mean lets replicas share GPUs that its largest value keeps apart."""
    plans = {
        c: place(UsherPolicy(), thesis(*CASE_1, creq=c))
        for c in ("occupancy-max", "occupancy-mean", "sm-util-mean")
    }
    assert all(len(g.replicas) == 1 for g in plans["occupancy-max"].gpus)
    assert any(len(g.replicas) > 1 for g in plans["occupancy-mean"].gpus)
    goodputs = {c: p.totals.goodput_rps for c, p in plans.items()}
    assert goodputs["occupancy-mean"] > goodputs["sm-util-mean"] > goodputs["occupancy-max"]


# Figure 3: Mreq at the full batch and weights, in percent of a GPU; half a batch halves what is not weights.
FIGURE_3 = {"m1": (70.0, 10.0), "m2": (65.0, 5.0), "m3": (40.0, 10.0)}


def figure_3(batches: dict[str, tuple[str, ...]]) -> Problem:
    """The three models of USHER's figure 3 with the batch sizes that ``batches`` allow each; a full batch
    serves the rate."""
    models = []
    for name, (mreq, weights) in FIGURE_3.items():
        kinds = {"full": (8, 100.0, mreq), "half": (4, 50.0, weights + (mreq - weights) / 2)}
        rows = [
            row(
                name,
                V100,
                kinds[k][0],
                latency_ms=1.0,
                throughput_rps=kinds[k][1],
                creq=5.0,
                mreq=kinds[k][2],
            )
            for k in batches[name]
        ]
        models.append((name, 100.0, 10.0, rows))
    return problem_of(models, {V100: 4})


@pytest.mark.parametrize(
    ("halved", "gpus", "muti"), [((), 3, 58.33), (("m1",), 3, 61.67), (("m1", "m2", "m3"), 2, 100.0)]
)
def test_figure_3_of_usher(halved: tuple[str, ...], gpus: int, muti: float) -> None:
    plan = place(UsherPolicy(), figure_3({m: ("half",) if m in halved else ("full",) for m in FIGURE_3}))
    used, _, mean = means(plan)
    assert (used, mean) == (gpus, muti)
    assert plan.totals.goodput_rps == 300


def test_usher_finds_the_best_of_figure_3_by_itself() -> None:
    plan = place(UsherPolicy(), figure_3(dict.fromkeys(FIGURE_3, ("half", "full"))))
    assert means(plan)[::2] == (2, 100.0)
    assert {(r.model, r.batch_size) for g in plan.gpus for r in g.replicas} == {(m, 4) for m in FIGURE_3}


@pytest.mark.parametrize(("no_heavy", "expected"), [(True, (3, 60.0, 53.33)), (False, (2, 90.0, 80.0))])
def test_figure_7_of_usher(no_heavy: bool, expected: tuple[int, float, float]) -> None:
    demands = {"m1": (50.0, 20.0), "m2": (50.0, 20.0), "m3": (40.0, 60.0), "m4": (40.0, 60.0)}
    models = [
        (n, 100.0, 10.0, [row(n, V100, 4, latency_ms=1, throughput_rps=100, creq=c, mreq=m)])
        for n, (c, m) in demands.items()
    ]
    plan = place(UsherPolicy(no_heavy=no_heavy), problem_of(models, {V100: 4}))
    assert means(plan) == expected
    assert plan.totals.goodput_rps == 400


@pytest.mark.slow
def test_the_pruned_search_answers_what_enumeration_answers() -> None:
    """Whole placements are compared, so goodput, GPUs and cost are too; ``benchmarks/papers/usher_exact.py`` runs 200
    larger instances."""
    kinds = set()
    for seed in range(45):
        problem = instance(seed, most=500)
        found = UsherPolicy().place(problem)
        verify(UsherPolicy(), problem, found)
        assert held(found) == held_by_enumeration(problem), f"instance {seed}"
        kinds.add((problem.elastic, len(problem.types) > 1))
        kinds.add("shared" if any(len(h) > 1 for h in held(found).values()) else "alone")
        kinds.add("left out" if len({p.model for p in found.placed}) < len(problem.models) else "all")
    assert kinds == {(e, h) for e in (False, True) for h in (False, True)} | {
        "shared",
        "alone",
        "left out",
        "all",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "switches"),
    [
        ({"no_heavy": True}, {"heavy": False}),
        ({"no_sort": True}, {"sort": False}),
        ({"no_heavy": True, "no_sort": True}, {"heavy": False, "sort": False}),
        ({"no_division": True}, {"divide": False}),
    ],
)
def test_the_ablations_answer_what_enumeration_answers(
    options: dict[str, bool], switches: dict[str, bool]
) -> None:
    differing = 0
    for seed in range(100, 130):
        problem = instance(seed, most=200)
        if options.get("no_division") and size_of(problem, divide=False) > 2000:
            continue
        found = held(UsherPolicy(**options).place(problem))
        assert found == held_by_enumeration(problem, **switches), f"instance {seed}"
        differing += found != held(UsherPolicy().place(problem))
    assert differing, "an ablation that changes nothing is not tested"


@pytest.mark.parametrize("seed", SUPERFLUOUS)
def test_replicas_beyond_the_rate_are_kept_where_packing_is_better_with_them(seed: int) -> None:
    """Greedy packing is not monotone: a replica that serves nothing can lead the next model to a better GPU. A
    search that leaves out larger degrees because smaller ones serve as much would not find these."""
    problem = instance(seed, most=300)
    found = UsherPolicy().place(problem)
    beyond = []
    for model in problem.models:
        mine = [p.candidate.throughput_rps for p in found.placed if p.model == model.name]
        if len(mine) > 1 and sum(mine) - max(mine) >= model.rate_rps:
            beyond.append(model.name)
    assert beyond
    assert held(found) == held_by_enumeration(problem)


def gpu_models(
    *demands: tuple[str, float, float, float],
) -> list[tuple[str, float, float, list[Requirement]]]:
    """(name, rate, Creq, Mreq): one batch size, 100 req/s on a V100."""
    return [
        (n, rate, 50.0, [row(n, V100, 4, latency_ms=5, throughput_rps=100, creq=c, mreq=m)])
        for n, rate, c, m in demands
    ]


def test_a_rented_cluster_serves_every_rate_at_the_least_cost() -> None:
    rows = [
        row("m", V100, 4, latency_ms=5, throughput_rps=100, creq=60, mreq=10),
        row("m", T4, 4, latency_ms=20, throughput_rps=30, creq=90, mreq=20),
        row("m", V100, 8, latency_ms=8, throughput_rps=150, creq=90, mreq=12),
        row("m", T4, 8, latency_ms=60, throughput_rps=40, creq=95, mreq=25),
    ]
    problem = problem_of(
        [("m", 120.0, 50.0, rows)], {T4: 1, V100: 1}, prices={T4: 1.0, V100: 2.0}, elastic=True
    )
    plan = place(UsherPolicy(), problem)
    # Batch 8 is feasible on the V100 alone (2.0); batch 4 goes to the cheapest type, four T4 (4.0).
    assert [(g.id, [r.batch_size for r in g.replicas]) for g in plan.gpus] == [("V100-SXM2-16GB-0", [8])]
    assert plan.totals.cost_per_hour == 2.0 and plan.unserved == ()


def test_offers_with_a_limit_are_not_exceeded_and_what_is_left_is_said() -> None:
    problem = problem_of(
        gpu_models(("a", 390, 80, 10)), {V100: 5}, prices={V100: 1.0}, elastic=True, limited=True
    )
    assert place(UsherPolicy(), problem).totals.gpus_used == 4
    short = replace(problem, offers=(replace(problem.offers[0], limit=3),))
    plan = place(UsherPolicy(), short)
    assert plan.gpus == () and "more than 3 replicas" in plan.unserved[0].reason


def test_one_batch_size_per_model_and_one_replica_per_gpu() -> None:
    for seed in range(200, 240):
        placed = UsherPolicy().place(instance(seed, most=3000)).placed
        assert len({(p.gpu.id, p.model) for p in placed}) == len(placed)
        assert len({(p.model, p.candidate.batch_size) for p in placed}) == len({p.model for p in placed})


def test_models_without_a_feasible_batch_and_no_models_at_all_are_answered() -> None:
    models = gpu_models(("a", 50, 30, 10), ("late", 50, 30, 10))
    models[1] = ("late", 50, 2.0, models[1][3])
    problem = problem_of(models, {V100: 1})
    found = UsherPolicy().place(problem)
    assert held(found) == {"V100-SXM2-16GB-0": [("a", 4)]}
    assert "the fastest takes 5 ms (batch 4 on V100-SXM2-16GB)" in found.reasons["late"]
    assert UsherPolicy().place(problem.with_models(())) == Placement()


def test_batches_below_4_are_not_chosen_unless_there_are_no_others() -> None:
    rows = [row("m", V100, b, latency_ms=b, throughput_rps=100, creq=30, mreq=10) for b in (1, 4, 256)]
    problem = problem_of([("m", 50.0, 2.0, rows)], {V100: 1})
    found = UsherPolicy().place(problem)
    assert found.placed == () and "no batch size from 4 to 128" in found.reasons["m"]
    alone = problem_of([("m", 50.0, 2.0, rows[:1])], {V100: 1})
    assert held(UsherPolicy().place(alone)) == {"V100-SXM2-16GB-0": [("m", 1)]}


def test_rows_confined_to_a_part_of_the_gpu_are_not_used() -> None:
    rows = [replace(row("m", V100, 4, latency_ms=5, throughput_rps=100, creq=30, mreq=10), sm_share_pct=50.0)]
    found = UsherPolicy().place(problem_of([("m", 50.0, 50.0, rows)], {V100: 1}))
    assert found.placed == () and "the table has none" in found.reasons["m"]


def test_a_missing_column_is_named() -> None:
    rows = [
        replace(row("m", V100, 4, latency_ms=5, throughput_rps=100, creq=30, mreq=10), occupancy_max_pct=None)
    ]
    problem = problem_of([("m", 50.0, 50.0, rows)], {V100: 1})
    with pytest.raises(UsageError, match="usher needs occupancy_max_pct, which is null in every row of m"):
        place(UsherPolicy(), problem)


def test_the_same_plan_byte_for_byte() -> None:
    problem = thesis(*CASE_2, creq="occupancy-mean")
    texts = {plan_json(place(UsherPolicy(), p)) for p in (problem, thesis(*CASE_2, creq="occupancy-mean"))}
    assert len(texts) == 1


def test_undivided_many_models_are_searched_in_part_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gkestimator.placement.papers.usher.policy._UNDIVIDED_NODES", 30)
    models = [
        (
            f"m{i}",
            150.0 + i,
            50.0,
            [
                row(
                    f"m{i}",
                    V100,
                    b,
                    latency_ms=5,
                    throughput_rps=b * 20 + i,
                    creq=15 + b + 3 * (i % 9),
                    mreq=b + i,
                )
                for b in (4, 8, 16)
            ],
        )
        for i in range(12)
    ]
    problem = problem_of(models, {V100: 5})
    found = UsherPolicy(no_division=True).place(problem)
    verify(UsherPolicy(), problem, found)
    assert any("stopped after 30 beginnings" in n for n in found.notes)
    many = problem.with_models(tuple(replace(problem.models[0], name=f"m{i}") for i in range(101)))
    with pytest.raises(UsageError, match="found 101 models, expected at most 100"):
        UsherPolicy(no_division=True).place(many)


def test_identical_gpus_are_counted_not_walked() -> None:
    """A thousand times the rate: as many replicas as it needs, on no more GPUs than so many copies of the
    small placement."""
    demands = [("a", 95.0, 60.0, 20.0), ("b", 95.0, 30.0, 70.0), ("c", 95.0, 30.0, 30.0)]
    small = UsherPolicy().place(problem_of(gpu_models(*demands), {V100: 4}))
    scaled = gpu_models(*[(n, 1000 * r, c, m) for n, r, c, m in demands])
    large = UsherPolicy().place(problem_of(scaled, {V100: 4000}))
    assert len({(p.gpu.id, p.model) for p in large.placed}) == len(large.placed) == 950 * 3
    assert len(held(large)) <= 950 * len(held(small))
