"""The split of an end-to-end objective: against brute force, and what holds for every split."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from gkestimator.documents import Application, ModelLoad, Stage, Workload
from gkestimator.placement.slo import (
    cheapest_choices,
    choices,
    proportional_split,
    split_objective,
    stage_objectives,
)
from gkestimator.tables import Requirement
from gkestimator.tables.candidate import Candidate


def candidate(
    model: str, batch: int, latency: float, gpu: str = "T4", share: float = 100.0, memory: float = 10.0
) -> Candidate:
    row = Requirement(
        model=model, gpu=gpu, runtime="torch", dtype="fp32", batch_size=batch, sm_share_pct=share, latency_ms=latency,
        source="measured", occupancy_source=None, memory_source=None,
    )  # fmt: skip
    return Candidate(
        row=row, latency_ms=latency, throughput_rps=1e3 * batch / latency, creq_pct=50.0, memory_pct=memory, memory_bytes=1
    )  # fmt: skip


def candidates(
    rng: random.Random, names: list[str], gpus: tuple[str, ...] = ("T4",)
) -> dict[str, list[Candidate]]:
    found = {}
    for name in names:
        base, per = rng.uniform(1, 8), rng.uniform(0.2, 3)
        found[name] = [
            candidate(name, b, (base + per * b) * rng.uniform(0.9, 1.1) * (1 + 0.5 * i), gpu)
            for i, gpu in enumerate(gpus)
            for b in (1, 4, 16)
        ]
    return found


def dag(rng: random.Random, stages: int, slo_ms: float, rate: float) -> Application:
    names = [f"m{i}" for i in range(stages)]
    return Application(
        name="a",
        rate_rps=rate,
        slo_ms=slo_ms,
        stages=tuple(
            Stage(model=n, after=tuple(rng.sample(names[:i], rng.randint(0, min(i, 2)))), fan_out=rng.choice([0.5, 1.0, 3.0]))
            for i, n in enumerate(names)
        ),
    )  # fmt: skip


def longest_way(application: Application, times: dict[str, float]) -> float:
    return max(sum(times[m] for m in path) for path in application.paths())


def brute_force(application: Application, menus: dict[str, tuple]) -> tuple[float, float] | None:  # type: ignore[type-arg]
    """The least cost over every combination of choices whose ways are within the objective, and the shortest longest way of those
    that cost at most a twentieth more."""
    names = list(menus)
    fitting = []
    for combination in itertools.product(*menus.values()):
        way = longest_way(application, {n: c.response_ms for n, c in zip(names, combination, strict=True)})
        if way <= application.slo_ms:
            fitting.append((sum(c.cost for c in combination), way))
    if not fitting:
        return None
    least = min(cost for cost, _ in fitting)
    return least, min(way for cost, way in fitting if cost <= 1.05 * least)


@pytest.mark.parametrize("seed", range(40))
def test_the_split_is_the_best_of_all_combinations(seed: int) -> None:
    rng = random.Random(seed)
    application = dag(rng, rng.randint(1, 5), rng.uniform(20, 250), 10 ** rng.uniform(0.5, 3))
    gpus = rng.choice([("T4",), ("T4", "L4")])
    prices = {"T4": 0.53, "L4": 0.8}
    table = candidates(rng, [s.model for s in application.stages], gpus)
    rates = application.rates_rps()
    menus = {n: choices(table[n], rates[n], prices=prices) for n in table}
    best = brute_force(application, menus)
    budgets, how = split_objective(application, table, prices)
    assert longest_way(application, budgets) <= application.slo_ms * (1 + 1e-9)
    if best is None:
        assert "in proportion" in how and budgets == proportional_split(application, table)
        return
    assert how == "by least GPU time"
    least, way = best
    # What is left is spread, so that a stage may even afford a cheaper choice than the program gave it.
    cost = sum(min(c.cost for c in menus[n] if c.response_ms <= budgets[n] * (1 + 1e-9)) for n in menus)
    assert cost <= 1.05 * least * (1 + 1e-5)
    # All stages of the longest way are stretched alike, by as much as the best of the combinations allows.
    stretch = application.slo_ms / way
    assert all(any(budgets[n] >= c.response_ms * stretch * (1 - 1e-5) for c in menus[n]) for n in menus)
    chosen = cheapest_choices(application, menus)
    assert longest_way(application, {n: menus[n][i].response_ms for n, i in chosen.items()}) == pytest.approx(
        way, rel=1e-5
    )
    assert sum(menus[n][i].cost for n, i in chosen.items()) <= 1.05 * least * (1 + 1e-5)


def test_the_brute_force_instances_cover_both_outcomes() -> None:
    outcomes = set()
    for seed in range(40):
        rng = random.Random(seed)
        application = dag(rng, rng.randint(1, 5), rng.uniform(20, 250), 10 ** rng.uniform(0.5, 3))
        gpus = rng.choice([("T4",), ("T4", "L4")])
        outcomes.add(
            split_objective(application, candidates(rng, [s.model for s in application.stages], gpus))[1]
        )
    assert len(outcomes) == 2


def test_a_stage_with_more_to_gain_from_batching_gets_more_of_the_objective() -> None:
    application = Application(
        name="a", rate_rps=1000.0, slo_ms=120.0, stages=(Stage(model="flat"), Stage(model="steep", after=("flat",)))
    )  # fmt: skip
    table = {
        # The same fastest latency; batching makes the one no cheaper and the other ten times.
        "flat": [candidate("flat", b, 10.0 * b) for b in (1, 2, 4)],
        "steep": [candidate("steep", 1, 10.0), candidate("steep", 16, 40.0), candidate("steep", 32, 60.0)],
    }
    budgets, _ = split_objective(application, table)
    even = proportional_split(application, table)
    assert even == {"flat": 60.0, "steep": 60.0}
    assert budgets["steep"] > 60.0 + 31.0  # the largest batch and the time it takes to fill
    assert 10.0 < budgets["flat"] == pytest.approx(120.0 - budgets["steep"])


def test_a_choice_counts_filling_service_and_queue() -> None:
    # 8 req/s: one batch of 4 a half second; L = 100 ms: busy 0.2, one replica, ca2 = 1/4.
    (*_, full) = choices([candidate("m", 4, 100.0)], 8.0)
    assert full.cost == pytest.approx(0.2 * 0.5)  # of the GPU's compute it takes half
    queue = 0.25 * 100 / (2 * 0.8) * 2.995732273553991  # ln(0.2 / 0.01)
    assert full.response_ms == pytest.approx(3 / 8 * 1e3 + 100 + queue)
    # At 1 req/s a batch that leaves with one request does not fill, but keeps a GPU busy four times as long.
    (single, *_, full) = choices([candidate("m", 4, 100.0)], 1.0)
    assert single.cost == pytest.approx(0.1 * 0.5) and full.cost == pytest.approx(0.025 * 0.5)
    assert single.response_ms == pytest.approx(100 + 100 / (2 * 0.9) * 2.302585092994046)  # ln(0.1 / 0.01)


def test_choices_leave_out_what_does_not_fit_and_weigh_shares_and_prices() -> None:
    assert choices([candidate("m", 1, 5.0, memory=101.0)], 1.0) == ()
    (whole,) = choices([candidate("m", 1, 5.0)], 1.0)
    (large,) = choices([candidate("m", 1, 5.0, memory=75.0)], 1.0)
    (confined,) = choices([replace(candidate("m", 1, 5.0, share=30.0), creq_pct=None)], 1.0)
    (dear,) = choices([candidate("m", 1, 5.0)], 1.0, prices={"T4": 2.0})
    assert large.cost == pytest.approx(1.5 * whole.cost) and confined.cost == pytest.approx(0.6 * whole.cost)
    assert dear.cost == pytest.approx(2 * whole.cost)


def test_the_order_of_stages_and_candidates_does_not_matter() -> None:
    rng = random.Random(3)
    stages = (Stage(model="m0"), Stage(model="m1"), Stage(model="m2", after=("m0", "m1")))
    table = candidates(rng, ["m0", "m1", "m2"])
    one = Application(name="a", rate_rps=50.0, slo_ms=150.0, stages=stages)
    other = Application(name="a", rate_rps=50.0, slo_ms=150.0, stages=(stages[1], stages[0], stages[2]))
    backwards = {n: c[::-1] for n, c in table.items()}
    assert split_objective(one, table)[0] == pytest.approx(split_objective(other, backwards)[0], rel=1e-12)


def test_a_model_in_several_places_is_one_load() -> None:
    rng = random.Random(5)
    table = candidates(rng, ["m0", "m1"])
    workload = Workload(
        models=(ModelLoad(name="m0", rate_rps=7.0, slo_ms=1000.0, weight=2.0),),
        applications=(
            Application(name="a", rate_rps=10.0, slo_ms=200.0, stages=(Stage(model="m0"), Stage(model="m1", after=("m0",), fan_out=3.0))),
        ),
    )  # fmt: skip
    loads, notes = stage_objectives(workload, table)
    by_name = {load.name: load for load in loads}
    assert list(by_name) == ["m0", "m1"]
    assert by_name["m0"].rate_rps == 17.0 and by_name["m0"].weight == 2.0 and by_name["m0"].slo_ms < 200.0
    assert by_name["m1"].rate_rps == 30.0
    assert any("several places" in n for n in notes) and any(
        n.startswith("application a: 200 ms split") for n in notes
    )


def test_thousands_of_stages_in_all_are_split_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of over a hundred applications take minutes together, however few their stages are."""
    monkeypatch.setattr("gkestimator.placement.slo.cheapest_choices", lambda *_: pytest.fail("solved"))
    rng = random.Random(7)
    table = candidates(rng, ["m0", "m1"])
    stages = (Stage(model="m0"), Stage(model="m1", after=("m0",)))
    applications = tuple(
        Application(name=f"a{k}", rate_rps=1.0, slo_ms=4000.0, stages=stages) for k in range(1_001)
    )
    loads, notes = stage_objectives(Workload(models=(), applications=applications), table)
    assert sum(load.slo_ms for load in loads) == pytest.approx(4000.0)
    assert sum("as all applications have more than 2,000 stages" in note for note in notes) == 1_001


@pytest.mark.slow
def test_a_thousand_stages_are_split() -> None:
    rng = random.Random(1)
    application = dag(rng, 1000, 4000.0, 20.0)
    table = candidates(rng, [s.model for s in application.stages])
    budgets, _ = split_objective(application, table)
    until: dict[str, float] = {}
    for stage in application.stages:
        until[stage.model] = budgets[stage.model] + max((until[m] for m in stage.after), default=0.0)
    assert max(until.values()) <= 4000.0 * (1 + 1e-9)


def test_an_objective_without_any_room_is_split_so_that_the_fastest_still_keep_it() -> None:
    application = Application(
        name="a", rate_rps=0.001, slo_ms=30.0, stages=(Stage(model="m0"), Stage(model="m1", after=("m0",)))
    )  # fmt: skip
    table = {"m0": [candidate("m0", 1, 10.0)], "m1": [candidate("m1", 1, 20.0), candidate("m1", 4, 25.0)]}
    budgets, how = split_objective(application, table)
    assert budgets == {"m0": 10.0, "m1": 20.0} and "in proportion" in how
    budgets, how = split_objective(replace(application, slo_ms=30.001), table)
    assert how == "by least GPU time" and budgets["m0"] >= 10.0 and budgets["m1"] >= 20.0
