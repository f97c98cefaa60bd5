"""One model per GPU: the most goodput against enumeration, the cheapest GPUs by hand."""

from __future__ import annotations

import itertools
import random

import pytest
from _milp_cases import random_rows, row
from _problems import T4, V100, problem, table_a1

from gkestimator.placement.integer import Deadline
from gkestimator.placement.papers.exclusive import ExclusivePolicy, _by_gain, _choices
from gkestimator.placement.patterns import ReplicaPattern
from gkestimator.placement.problem import Problem
from gkestimator.placement.programs import pattern_form, serve
from gkestimator.placement.run import place


def by_enumeration(p: Problem) -> tuple[float, int]:
    """(goodput, GPUs): every way to give each GPU to a model or none, at its largest batch."""
    largest = {
        (m.name, t): max(found, key=lambda c: c.batch_size).throughput_rps
        for m in p.models
        for t in p.types
        if (found := m.feasible(t))
    }
    best = (0.0, 0)
    for given in itertools.product([None, *p.by_name], repeat=len(p.gpus)):
        capacity = dict.fromkeys(p.by_name, 0.0)
        for gpu, name in zip(p.gpus, given, strict=True):
            if name is not None:
                capacity[name] += largest.get((name, gpu.type), 0.0)
        goodput = sum(min(p.by_name[n].rate_rps, c) for n, c in capacity.items())
        used = sum(name is not None for name in given)
        if goodput > best[0] + 1e-9 or (goodput > best[0] - 1e-9 and used < best[1]):
            best = (goodput, used)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_fixed_clusters_against_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    count = {V100: 4} if seed % 2 else {V100: 2, T4: 2}
    loads = {f"m{i}": (rng.uniform(20, 400), rng.uniform(20, 80)) for i in range(3)}
    p = problem(random_rows(rng, 3, tuple(count)), loads, count)
    plan = place(ExclusivePolicy(), p)
    assert (plan.totals.goodput_rps, plan.totals.gpus_used) == pytest.approx(by_enumeration(p))
    assert all(len(g.replicas) == 1 for g in plan.gpus)
    assert plan.totals.gap_pct == 0


@pytest.mark.parametrize("seed", range(10))
def test_handing_out_by_gain_is_the_optimum_of_the_program(seed: int) -> None:
    rng = random.Random(300 + seed)
    loads = {f"m{i}": (rng.uniform(20, 4000), rng.uniform(20, 80)) for i in range(8)}
    p = problem(random_rows(rng, 8, (V100,)), loads, {V100: 20})
    choices = _choices(p)
    patterns = [ReplicaPattern(gpu_type=V100, members=(i,)) for i in range(len(choices))]
    exact = serve(p, pattern_form(p, choices, patterns), deadline=Deadline(30))
    assert exact is not None and exact.gap_pct == 0
    results = []
    for layout in (_by_gain(p, choices), exact.gpus):
        capacity: dict[int, float] = {}
        for t, (i,) in layout:
            capacity[i] = capacity.get(i, 0.0) + choices[i].throughput_rps(t)
        results.append((len(layout), sum(min(choices[i].model.rate_rps, c) for i, c in capacity.items())))
    assert results[0] == pytest.approx(results[1])


def test_the_largest_batch_within_the_objective_even_if_a_smaller_gives_more() -> None:
    rows = [row("a", 1, 5.0), row("a", 4, 40.0), row("a", 8, 90.0)]
    plan = place(ExclusivePolicy(), problem(rows, {"a": (300, 50)}, {V100: 1}))
    assert [r.batch_size for g in plan.gpus for r in g.replicas] == [4]
    assert plan.totals.goodput_rps == 100


def test_each_model_rents_the_cheapest_mix_of_types() -> None:
    # 100 req/s on a V100 (3.0 an hour), 40 on a T4 (1.0): 230 req/s cost 2 V100 + T4 (7.0) or 6 T4 (6.0).
    rows = [row("a", 1, 10.0), row("a", 1, 25.0, gpu=T4)]
    p = problem(rows, {"a": (230, 50)}, rent={V100: (3.0, None), T4: (1.0, None)})
    plan = place(ExclusivePolicy(), p)
    assert plan.totals.cost_per_hour == 6 and plan.totals.gpus_used == 6 and not plan.unserved
    limited = problem(rows, {"a": (230, 50)}, rent={V100: (3.0, None), T4: (1.0, 2)})
    plan = place(ExclusivePolicy(), limited)
    assert sorted(g.type for g in plan.gpus) == [T4, V100, V100]  # 7.0; 2 T4 + 2 V100 would be 8.0
    few = problem(rows, {"a": (230, 50)}, rent={V100: (3.0, 1), T4: (1.0, 2)})
    plan = place(ExclusivePolicy(), few)
    assert plan.totals.goodput_rps == 180
    assert plan.unserved[0].rate_rps == pytest.approx(50)


def test_the_objective_cost_uses_no_more_gpus_than_needed() -> None:
    rows = [row("a", 1, 10.0), row("b", 1, 10.0)]
    p = problem(rows, {"a": (150, 50), "b": (80, 50)}, {V100: 9}, objective="cost")
    plan = place(ExclusivePolicy(), p)
    assert plan.totals.gpus_used == 3 and not plan.unserved


def test_table_a1_and_what_cannot_run() -> None:
    # Nothing fits beside anything at occupancy-max, so here the thesis' program is this policy too.
    names = ("resnet50", "vgg19", "mobilenet_v2", "gpt2", "bert")
    p = problem(table_a1(), dict.fromkeys(names, (400, 300)), {V100: 4})
    assert round(place(ExclusivePolicy(), p).totals.goodput_rps, 2) == 1331.19
    rows = [
        row("late", 1, 90.0),
        row("large", 1, 10.0, mreq_pct=101.0),
        row("part", 1, 5.0, sm_share_pct=20.0),
    ]
    plan = place(
        ExclusivePolicy(), problem(rows, dict.fromkeys(("late", "large", "part"), (5, 50)), {V100: 3})
    )
    assert not plan.gpus and len(plan.unserved) == 3
    assert ExclusivePolicy().place(p.with_models(())).placed == ()
