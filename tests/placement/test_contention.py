"""How much neighbours on one GPU slow each other down."""

from __future__ import annotations

import pytest
from _problems import problem, row

from gkestimator.placement.contention import compute_demand_pct, slowdowns
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Problem


def two(a: dict[str, object], b: dict[str, object]) -> Problem:
    return problem([row("a", 1, 10.0, **a), row("b", 1, 10.0, **b)], {"a": (50, 100), "b": (50, 100)}, gpus=2)


def together(p: Problem, **kwargs: object) -> list[Placed]:
    return [
        Placed(gpu=p.gpus[0], model=m.name, candidate=m.candidates[0], **kwargs)  # type: ignore[arg-type]
        for m in p.models
    ]


def test_neighbours_that_fit_beside_each_other_do_not_slow() -> None:
    p = two({"sm_util_mean_pct": 60.0}, {"sm_util_mean_pct": 40.0})
    assert slowdowns(together(p), [100.0, 100.0]) == [1.0, 1.0]


def test_demand_beyond_the_gpu_is_shared_in_proportion_to_the_time_that_neighbours_run() -> None:
    p = two({"sm_util_mean_pct": 80.0}, {"sm_util_mean_pct": 60.0})
    assert slowdowns(together(p), [100.0, 100.0]) == pytest.approx([1.4, 1.4])
    # b runs half of the time, then longer as it is slowed itself: f = (60 + 80 u_a) / 100, u_a = 1.
    a, b = slowdowns(together(p), [100.0, 50.0])
    assert b == pytest.approx(1.4)
    assert a == pytest.approx((80 + 60 * min(1.0, 0.5 * 1.4)) / 100)


def test_the_fixed_point_is_one() -> None:
    p = two({"sm_util_mean_pct": 95.0}, {"sm_util_mean_pct": 90.0})
    a, b = slowdowns(together(p), [60.0, 55.0])
    assert a is not None and b is not None
    assert a == pytest.approx(max(1.0, (95 + 90 * min(1.0, 0.55 * b)) / 100), rel=1e-3)
    assert b == pytest.approx(max(1.0, (90 + 95 * min(1.0, 0.60 * a)) / 100), rel=1e-3)


def test_more_load_never_slows_less() -> None:
    p = two({"sm_util_mean_pct": 90.0}, {"sm_util_mean_pct": 70.0})
    found = [slowdowns(together(p), [r, r]) for r in (10.0, 40.0, 70.0, 100.0)]
    assert found == sorted(found)
    assert found[-1] > found[0]


def test_shares_of_the_sms_keep_neighbours_apart_but_for_the_memory_bandwidth() -> None:
    half = {"sm_share_pct": 50.0, "sm_util_mean_pct": 50.0}
    p = two(half, half)
    assert slowdowns(together(p), [100.0, 100.0]) == [1.0, 1.0]
    p = two(half | {"dram_util_mean_pct": 70.0}, half | {"dram_util_mean_pct": 60.0})
    assert slowdowns(together(p), [100.0, 100.0]) == pytest.approx([1.42, 1.42])
    # A neighbour that runs half of the time is met half as often; b is slowed itself, and runs longer.
    a, b = slowdowns(together(p), [100.0, 50.0])
    assert b == pytest.approx(1.42)
    assert a == pytest.approx(1 + 0.7 * 0.6 * 0.5 * 1.42)


@pytest.mark.parametrize("column", ["dram_util_mean_pct", "l2_util_mean_pct"])
def test_a_memory_that_is_unknown_slows_nobody(column: str) -> None:
    half = {"sm_share_pct": 50.0, "sm_util_mean_pct": 50.0}
    p = two(half | {column: 80.0}, half)
    assert slowdowns(together(p), [100.0, 100.0]) == [1.0, 1.0]
    p = two(half | {column: 80.0}, half | {column: 50.0})
    assert slowdowns(together(p), [100.0, 100.0]) == pytest.approx([1.4, 1.4])


def test_a_confined_replica_still_takes_sms_from_one_that_is_not() -> None:
    p = two({"sm_share_pct": 50.0, "sm_util_mean_pct": 50.0}, {"sm_util_mean_pct": 90.0})
    a, b = slowdowns(together(p), [100.0, 100.0])
    assert b == pytest.approx(1.4)
    assert a == pytest.approx(1.4)


def test_one_partition_takes_turns_and_never_contends() -> None:
    p = two({"sm_util_mean_pct": 100.0}, {"sm_util_mean_pct": 100.0})
    assert slowdowns(together(p, partition="p", duty_cycle_ms=20.0), [50.0, 50.0]) == [1.0, 1.0]


def test_alone_on_a_gpu_is_1_even_without_a_demand_and_beside_others_it_is_unknown() -> None:
    p = two({"sm_util_mean_pct": None}, {"sm_util_mean_pct": 30.0})
    here = together(p)
    assert compute_demand_pct(here[0]) is None
    assert slowdowns(here, [10.0, 10.0]) == [None, None]
    apart = [here[0], Placed(gpu=p.gpus[1], model="b", candidate=here[1].candidate)]
    assert slowdowns(apart, [10.0, 10.0]) == [1.0, 1.0]


def test_an_unknown_utilisation_falls_back_on_what_is_packed_by() -> None:
    rows = [row("a", 1, 10.0, sm_util_mean_pct=None, occupancy_max_pct=70.0)]
    p = problem(rows, {"a": (5, 100)}, creq="occupancy-max")
    assert compute_demand_pct(together(p)[0]) == 70.0
