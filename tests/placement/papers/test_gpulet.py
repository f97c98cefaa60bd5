"""gpulet: its curve, its turns, its interference, and what it places."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from _gpulet_problems import V100, case, problem, row

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.interference.gpulet_law import DERIVED, GpuletCoefficients, read_coefficients
from gkestimator.placement.expected import goodput_rps
from gkestimator.placement.papers.gpulet.lets import Asked, affordable, ewma, fit, knee
from gkestimator.placement.papers.gpulet.policy import GpuletPolicy
from gkestimator.placement.policy import verify
from gkestimator.placement.run import place


def test_the_knee_is_where_the_curve_bends_down_most() -> None:
    assert knee([(20, 50.0), (40, 95.0), (60, 98.0), (100, 100.0)]) == 40
    assert knee([(20, 0.0), (50, 80.0), (100, 100.0)]) == 50
    assert knee([(25, 25.0), (50, 50.0), (100, 100.0)]) == 100  # proportional: no knee
    assert knee([(50, 10.0), (100, 100.0)]) == 100  # bends up
    assert knee([(100, 7.0)]) == 100
    assert knee([(50, 0.0), (100, 0.0)]) is None and knee([]) is None


def test_the_average_of_rates_weighs_the_last_most() -> None:
    assert ewma([100.0], 0.3) == 100.0
    assert ewma([100.0, 200.0, 0.0], 0.5) == pytest.approx(75.0)
    assert ewma([1.0, 5.0], 1.0) == 5.0
    for rates, alpha in (([], 0.5), ([1.0], 0.0), ([1.0], 1.5), ([1.0], float("nan"))):
        with pytest.raises(ValueError, match="expected"):
            ewma(rates, alpha)


def test_the_affordable_rate_keeps_the_objective_and_the_memory() -> None:
    rows = [row("a", 1, 10.0), row("a", 4, 20.0, mreq_pct=60.0), row("a", 8, 31.0)]
    (model,) = problem(rows, {"a": (1.0, 30.0)}).models
    rate, candidate = affordable(model, V100, 100.0)
    assert candidate is not None and (rate, candidate.batch_size) == (200.0, 4)
    rate, candidate = affordable(model, V100, 100.0, memory_pct=50.0)
    assert candidate is not None and (rate, candidate.batch_size) == (100.0, 1)
    assert affordable(model, V100, 50.0) == (0.0, None)


@pytest.mark.parametrize("seed", range(80))
def test_turns_are_found_exactly_where_a_search_over_all_batches_finds_some(seed: int) -> None:
    found = case(seed, models=3, shares=(50.0, 100.0), batches=(1, 2, 4, 8))
    rng = np.random.default_rng(seed)
    asked = [Asked(model=m, rate_rps=m.rate_rps * rng.uniform(0.05, 0.6)) for m in found.models]
    if len(asked) < 2:
        asked.append(asked[0])
    ways: list[list[tuple[float, float, float, float]]] = []
    for a in asked:
        here = a.model.on(V100, sm_share_pct=50.0)
        ways.append([(c.latency_ms, c.batch_size, c.memory_pct or 0.0, a.model.slo_ms) for c in here])
    exists = False
    for index in np.ndindex(*(len(w) for w in ways)):
        chosen = [w[i] for w, i in zip(ways, index, strict=True)]
        cycle = sum(c[0] for c in chosen)
        on_time = all(cycle + c[0] <= c[3] for c in chosen)
        enough = all(1e3 * c[1] / cycle >= a.rate_rps for c, a in zip(chosen, asked, strict=True))
        exists |= on_time and enough and sum(c[2] for c in chosen) <= 100
    let = fit(asked, V100, 50.0)
    assert (let is not None) == exists
    if let is not None:
        assert let.cycle_ms is not None
        for load in let.loads:
            assert 1e3 * load.candidate.batch_size / let.cycle_ms >= load.rate_rps * (1 - 1e-9)
            assert load.candidate.latency_ms + let.cycle_ms <= load.model.slo_ms * (1 + 1e-9)


def test_the_derived_coefficients_are_the_least_squares_fit_of_proportional_sharing() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(400_000, 4))  # l2, l2', dram, dram'
    slowdown = np.maximum(1, np.maximum(x[:, 0] + x[:, 1], x[:, 2] + x[:, 3]))
    found = np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), slowdown, rcond=None)[0]
    expected = [getattr(DERIVED, f.name) for f in fields(GpuletCoefficients)]
    assert found == pytest.approx(expected, abs=0.004)


def two(
    l2: float | None = 90.0, dram: float | None = 90.0, slo: float = 15.0, **kwargs: object
) -> list[object]:
    util = {"l2_util_mean_pct": l2, "dram_util_mean_pct": dram}
    rows = [row(m, 1, late, sm_share_pct=s, **util) for m in "ab" for s, late in ((50.0, 10.0), (100.0, 9.0))]
    return [problem(rows, {"a": (90.0, slo), "b": (90.0, slo)}, **kwargs)]  # type: ignore[arg-type]


def test_interference_keeps_two_models_apart_that_would_be_late_together() -> None:
    # Both at 90 % of L2 and DRAM: slowdown 0.55 + 4 (11/30) 0.9 = 1.87, 18.7 ms.
    (both,) = two(gpus=2)
    assert place(GpuletPolicy(interference=False), both).totals.gpus_used == 1
    apart = place(GpuletPolicy(), both)
    assert apart.totals.gpus_used == 2 and not apart.unserved
    (mild,) = two(l2=5.0, dram=10.0, gpus=2)
    assert place(GpuletPolicy(), mild).totals.gpus_used == 1


def test_coefficients_are_read_from_a_file_and_held_to_it(tmp_path: Path) -> None:
    good = tmp_path / "c.yaml"
    good.write_text("constant: 1\nl2_own: 0\nl2_other: 0\ndram_own: 0\ndram_other: 0.1\n")
    assert read_coefficients(good) == GpuletCoefficients(
        constant=1, l2_own=0, l2_other=0, dram_own=0, dram_other=0.1
    )
    (both,) = two(gpus=2)
    assert (
        place(GpuletPolicy(coefficients=good), both).totals.gpus_used == 1
    )  # 1.09: 10.9 ms, and 91.7 a second
    for text in (
        "constant: 1\n",
        good.read_text() + "x: 1\n",
        good.read_text().replace("0.1", ".nan"),
        "- 1\n",
    ):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(DocumentError, match=r"bad\.yaml"):
            GpuletPolicy(coefficients=tmp_path / "bad.yaml")
    with pytest.raises(UsageError, match="turned off"):
        GpuletPolicy(coefficients=good, interference=False)
    with pytest.raises(UsageError, match="published: found 'maybe', expected true or false"):
        GpuletPolicy(published="maybe")  # type: ignore[arg-type]


def test_unknown_utilisation_is_a_note_unless_coefficients_were_given(tmp_path: Path) -> None:
    (both,) = two(l2=None)
    plan = place(GpuletPolicy(), both)
    assert any("interference between gpu-lets is not counted: l2_util_mean_pct" in n for n in plan.notes)
    given = tmp_path / "c.yaml"
    given.write_text("constant: 1\nl2_own: 0.1\nl2_other: 0\ndram_own: 0\ndram_other: 0\n")
    with pytest.raises(UsageError, match="policy gpulet needs l2_util_mean_pct"):
        place(GpuletPolicy(coefficients=given), both)
    given.write_text("constant: 1\nl2_own: 0\nl2_other: 0\ndram_own: 0.1\ndram_other: 0\n")
    place(GpuletPolicy(coefficients=given), both)  # L2 is not asked for


def test_a_gpu_is_split_by_the_smallest_share_that_serves_the_rate() -> None:
    late = {share: 1e3 / share for share in (20.0, 40.0, 60.0, 80.0, 100.0)}  # proportional: no knee
    rows = [row(m, 1, t, sm_share_pct=s) for m in "ab" for s, t in late.items()]
    plan = place(GpuletPolicy(), problem(rows, {"a": (55.0, 60.0), "b": (38.0, 60.0)}))
    assert [(r.model, r.sm_share_pct, r.duty_cycle_ms) for r in plan.gpus[0].replicas] == [
        ("a", 60.0, None),
        ("b", 40.0, None),
    ]
    assert len({r.partition for r in plan.gpus[0].replicas}) == 2 and not plan.unserved


def test_two_small_loads_take_turns_in_one_part_instead_of_a_second() -> None:
    rows = [row(m, 1, t, sm_share_pct=s) for m in "ab" for s, t in ((50.0, 10.0), (100.0, 6.0))]
    loads = {"a": (30.0, 50.0), "b": (20.0, 50.0)}
    plan = place(GpuletPolicy(), problem(rows, loads))
    (a, b) = plan.gpus[0].replicas
    assert a.partition == b.partition and a.sm_share_pct == b.sm_share_pct == 50.0
    assert a.duty_cycle_ms == b.duty_cycle_ms == pytest.approx(20.0)
    apart = place(GpuletPolicy(temporal_sharing=False), problem(rows, loads))
    assert len({r.partition for r in apart.gpus[0].replicas}) == 2


def test_a_table_without_shares_is_shared_in_time_only_and_says_so() -> None:
    rows = [row(m, 1, 10.0) for m in "ab"]
    plan = place(GpuletPolicy(), problem(rows, {"a": (30.0, 50.0), "b": (30.0, 50.0)}))
    assert plan.totals.gpus_used == 1 and not plan.unserved
    assert any("shared in time only" in n for n in plan.notes)


def test_models_left_short_go_first_in_another_pass_and_published_does_not_try() -> None:
    # b, the more asked for, takes four halves; a runs at 20 % only. With a first, b fits 80, 50 and 50 % (85 + 75 + 75).
    rows = [row("a", 1, 50.0, sm_share_pct=20.0)]
    rows += [row("b", 1, 1e3 / r, sm_share_pct=s) for s, r in ((50.0, 75.0), (80.0, 85.0), (100.0, 100.0))]
    both = problem(rows, {"a": (10.0, 60.0), "b": (230.0, 20.0)}, gpus=2)
    published = place(GpuletPolicy(published=True), both)
    assert [u.model for u in published.unserved] == ["a"]
    ours = place(GpuletPolicy(), both)
    assert not ours.unserved and ours.totals.goodput_rps == pytest.approx(240.0)


def test_rented_gpus_are_the_cheapest_for_the_rate_and_within_their_limit() -> None:
    rows = [row("a", 1, 10.0), row("a", 1, 5.0, gpu="A100-SXM4-80GB")]
    loads = {"a": (600.0, 20.0)}
    cheap = {V100: (1.0, None), "A100-SXM4-80GB": (3.0, None)}
    plan = place(GpuletPolicy(), problem(rows, loads, rented=cheap))
    assert [g.type for g in plan.gpus] == [V100] * 6 and plan.totals.cost_per_hour == 6.0
    limited = place(GpuletPolicy(), problem(rows, loads, rented=cheap | {V100: (1.0, 2)}))
    assert [g.type for g in limited.gpus].count(V100) == 2 and not limited.unserved


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("busy", [True, False])
def test_answers_stand_and_slowed_gpu_lets_keep_their_objective(seed: int, busy: bool) -> None:
    found = case(seed, busy=busy)
    policy = GpuletPolicy()
    answer = policy.place(found)
    verify(policy, found, answer)
    assert answer == policy.place(found)
    alone = GpuletPolicy(temporal_sharing=False).place(found)
    assert all(p.duty_cycle_ms is None for p in alone.placed)
    if not busy:
        return
    by_gpu: dict[str, dict[str, list[object]]] = {}
    for p in answer.placed:
        by_gpu.setdefault(p.gpu.id, {}).setdefault(str(p.partition), []).append(p)
    for lets in by_gpu.values():
        pressures = {k: DERIVED.pressure([p.candidate for p in v]) for k, v in lets.items()}  # type: ignore[attr-defined]
        assert len(lets) <= 2
        for k, here in lets.items():
            others = [v for o, v in pressures.items() if o != k]
            slow = DERIVED.slowdown(pressures[k], others[0] if others else None)
            busy_ms = sum(p.candidate.latency_ms for p in here) * slow  # type: ignore[attr-defined]
            for p in here:
                slo = found.by_name[p.model].slo_ms * (1 + 1e-9)  # type: ignore[attr-defined]
                cycle = p.duty_cycle_ms  # type: ignore[attr-defined]
                assert p.candidate.latency_ms * slow + (cycle or 0.0) <= slo  # type: ignore[attr-defined]
                assert cycle is None or busy_ms <= cycle * (1 + 1e-9)


def test_all_is_served_where_gpus_are_many() -> None:
    for seed in range(20):
        found = case(seed, gpus=100)
        served = goodput_rps(found, GpuletPolicy().place(found).placed)
        for m in found.models:
            possible = bool(m.feasible(V100, sm_share_pct=None))
            assert served[m.name] == pytest.approx(m.rate_rps if possible else 0.0), seed
