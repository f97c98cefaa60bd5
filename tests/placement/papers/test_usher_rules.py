"""The rules that the published results are printed under, each where breaking it alone shows."""

from __future__ import annotations

import pytest
from _usher_reference import problem_of, row

from gkestimator.documents import PlacementPlan
from gkestimator.placement.papers.usher.grouping import match
from gkestimator.placement.papers.usher.policy import UsherPolicy
from gkestimator.placement.run import place

V100 = "V100-SXM2-16GB"


def of_one(rate_rps: float, batches: dict[int, tuple[float, float]], gpus: int) -> PlacementPlan:
    """The plan for one model, two of which fit on no GPU, by its throughput and Mreq at each batch size."""
    rows = [
        row("a", V100, b, latency_ms=1.0, throughput_rps=t, creq=60.0, mreq=m)
        for b, (t, m) in batches.items()
    ]
    return place(UsherPolicy(), problem_of([("a", rate_rps, 10.0, rows)], {V100: gpus}))


@pytest.mark.parametrize(("gpus", "served"), [(5, 50.0), (6, 60.0), (8, 60.0)])
def test_degrees_reach_six_times_c_and_no_further(gpus: int, served: float) -> None:
    # c is 1 by batch 8, which no GPU holds: as many GPUs as the largest degree run batch 4.
    plan = of_one(100.0, {4: (10.0, 20.0), 8: (100.0, 120.0)}, gpus)
    assert plan.totals.goodput_rps == pytest.approx(served)
    assert plan.totals.gpus_used == min(gpus, 6)


@pytest.mark.parametrize(("times", "throughput", "rate"), [(3, 100.22, 300.66), (5, 100.57, 502.85)])
def test_a_rate_that_is_an_exact_multiple_needs_no_replica_more(
    times: int, throughput: float, rate: float
) -> None:
    assert rate / throughput > times  # in binary
    plan = of_one(rate, {4: (throughput, 20.0)}, gpus=times)
    assert plan.totals.gpus_used == times
    assert plan.totals.goodput_rps == pytest.approx(rate)


def test_more_replicas_than_gpus_are_not_served_at_all() -> None:
    assert of_one(300.0, {4: (100.0, 20.0)}, gpus=3).totals.goodput_rps == pytest.approx(300)
    plan = of_one(301.0, {4: (100.0, 20.0)}, gpus=3)
    assert plan.totals.goodput_rps == 0 and not plan.gpus
    assert "more than 3 replicas" in plan.unserved[0].reason


def test_batch_sizes_are_those_from_4_to_128() -> None:
    rps = {2: (900.0, 20.0), 4: (100.0, 20.0), 128: (150.0, 20.0), 256: (900.0, 20.0)}
    plan = of_one(290.0, rps, gpus=2)
    assert [r.batch_size for g in plan.gpus for r in g.replicas] == [128, 128]
    # c is 2 by batch 128; by batch 256 it would be 1.
    assert of_one(290.0, rps, gpus=1).totals.goodput_rps == 0


@pytest.mark.parametrize(
    ("apart", "expected"), [(5e-9, [(0, 1), (2, 3)]), (5e-7, [(0, 2), (1, 3)]), (5.0, [(0, 2), (1, 3)])]
)
def test_largest_weights_within_a_relative_1e_9_are_equal(
    apart: float, expected: list[tuple[int, int]]
) -> None:
    """Every pairing has the same total; the largest weight decides, and names where two of them differ by less
    than a relative 1e-9 (5e-9 of 20), though by more than rounding."""
    names: list[tuple[str, ...]] = [("a",), ("b",), ("c",), ("d",)]
    assert sorted(match([10.0, 10.0, 10.0 + apart, 10.0 + apart], names)) == expected
