"""What a placement is expected to serve, from rows to requests a second."""

from __future__ import annotations

import pytest
from _problems import problem, row

from gkestimator.placement.expected import assigned_rps, expect, goodput_rps, server_of
from gkestimator.placement.policy import Placed
from gkestimator.placement.problem import Problem

ROWS = [row(m, b, t) for m in ("a", "b") for b, t in ((1, 10.0), (4, 22.0), (8, 38.0))]


def placed(p: Problem, *where: tuple[int, str, int], **kwargs: object) -> list[Placed]:
    found = []
    for gpu, model, batch in where:
        candidate = next(c for c in p.by_name[model].candidates if c.batch_size == batch)
        found.append(Placed(gpu=p.gpus[gpu], model=model, candidate=candidate, **kwargs))  # type: ignore[arg-type]
    return found


def test_expected_is_never_above_the_rate_and_reaches_it_with_time_to_spare() -> None:
    p = problem(ROWS, {"a": (60, 300), "b": (60, 40)}, gpus=2)
    found = expect(p, placed(p, (0, "a", 8), (1, "b", 8)))
    assert found.by_model["a"] == pytest.approx(60, rel=2e-3)
    assert 0 < (found.by_model["b"] or 0) <= 60
    assert found.goodput_rps == sum(v or 0 for v in found.by_model.values())


def test_batches_too_slow_to_wait_for_are_served_small_ones() -> None:
    p = problem(ROWS, {"a": (60, 39)})
    found = expect(p, placed(p, (0, "a", 8)))
    full = goodput_rps(p, placed(p, (0, "a", 8)))["a"]
    assert full == 60  # plain goodput sees 8 requests in 38 ms
    assert (found.by_model["a"] or 0) < 60
    wait = found.max_wait_ms[0]
    assert wait is not None and wait < 29


def test_neighbours_cost_requests() -> None:
    busy = [row(m, 1, 10.0, sm_util_mean_pct=90.0) for m in ("a", "b")]
    p = problem(busy, {"a": (70, 25), "b": (70, 25)}, gpus=2)
    apart = expect(p, placed(p, (0, "a", 1), (1, "b", 1)))
    beside = expect(p, placed(p, (0, "a", 1), (0, "b", 1)))
    assert apart.slowdown == (1.0, 1.0)
    assert all(f is not None and f > 1.3 for f in beside.slowdown)
    assert (beside.goodput_rps or 0) < 0.8 * (apart.goodput_rps or 0)


def test_an_unknown_demand_makes_the_sum_unknown_and_names_the_model() -> None:
    rows = [row("a", 1, 10.0, sm_util_mean_pct=None), row("b", 1, 10.0)]
    p = problem(rows, {"a": (10, 100), "b": (10, 100)})
    found = expect(p, placed(p, (0, "a", 1), (0, "b", 1)))
    assert found.goodput_rps is None
    assert found.by_model == {"a": None, "b": None}
    assert "a, b" in found.notes[0]
    assert found.max_wait_ms == (None, None)


def test_a_model_without_replicas_is_expected_to_serve_nothing() -> None:
    p = problem(ROWS, {"a": (60, 300), "b": (60, 300)}, gpus=2)
    found = expect(p, placed(p, (0, "a", 8)))
    assert found.by_model["b"] == 0
    assert expect(p, []).goodput_rps == 0


def test_identical_replicas_are_one_server_and_get_one_time_out() -> None:
    p = problem(ROWS, {"a": (700, 100), "b": (1, 300)}, gpus=5)
    found = expect(p, placed(p, *((i, "a", 8) for i in range(5))))
    assert len(set(found.max_wait_ms)) == 1
    one = expect(p, placed(p, (0, "a", 8)))
    assert (found.by_model["a"] or 0) > 3 * (one.by_model["a"] or 0)


def test_wide_intervals_leave_headroom() -> None:
    sure = [row("a", 1, 10.0), row("a", 4, 22.0)]
    doubtful = [
        row("a", b, t, latency_low_ms=0.7 * t, latency_high_ms=1.6 * t) for b, t in ((1, 10.0), (4, 22.0))
    ]
    values = []
    for rows in (sure, doubtful):
        p = problem(rows, {"a": (100, 40)})
        values.append(expect(p, placed(p, (0, "a", 4))).goodput_rps or 0)
    assert values[1] < 0.95 * values[0]


def test_turns_of_one_partition_are_counted_together() -> None:
    p = problem(ROWS, {"a": (60, 180), "b": (60, 180)})
    turns = placed(p, (0, "a", 4), (0, "b", 4), partition="p", duty_cycle_ms=45.0)
    found = expect(p, turns)
    assert found.by_model["a"] == pytest.approx(60, rel=0.03)  # 4 requests each 45 ms: 89 a second
    assert found.max_wait_ms == (45.0, 45.0)


def test_smaller_batches_run_at_their_own_latency() -> None:
    p = problem(ROWS, {"a": (60, 300)})
    one = server_of(p.models[0], p.models[0].candidates[-1])
    assert one.batches == (1, 4, 8)
    assert one.latencies_ms == (10.0, 22.0, 38.0)


def test_what_each_replica_is_to_serve_adds_up_to_the_models_goodput() -> None:
    p = problem(ROWS, {"a": (150, 100), "b": (1, 30)}, gpus=3)
    here = placed(p, (0, "a", 8), (1, "a", 4), (2, "b", 8))
    rates = assigned_rps(p, here)
    assert sum(rates[:2]) == pytest.approx(150)
    assert rates[0] / rates[1] == pytest.approx((8 / 38) / (4 / 22))
    assert rates[2] == 0  # 38 ms is above b's 30 ms
    assert goodput_rps(p, here)["b"] == 0
