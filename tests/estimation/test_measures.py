"""DESIGN section 4's measures on a program small enough to calculate by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_programs import ask, kernels, predictions, program

from gkestimator.estimation.intervals import HOST_FACTOR, STRUCTURE, host_range_us, widen
from gkestimator.hardware.runtimes.profiles import load_runtime


def test_means_are_time_weighted_and_host_gaps_count() -> None:
    ks = kernels(2)
    pred = predictions(
        [30.0, 10.0],
        occupancy_pct=[80.0, 40.0],
        sm_util_pct=[100.0, 20.0],
        dram_util_pct=[50.0, 10.0],
        l2_util_pct=[1.0, 1.0],
    )
    m = ask(program(ks), pred)
    assert m.latency_ms == pytest.approx(0.040)
    assert m.occupancy_mean_pct == pytest.approx((80 * 30 + 40 * 10) / 40)
    assert m.sm_util_mean_pct == m.sm_util_busy_mean_pct == pytest.approx(80)
    assert (m.occupancy_max_pct, m.sm_util_max_pct) == (80, 100)
    slow_host = ask(program(ks), pred, host_overhead_us=100.0)
    assert slow_host.latency_ms == pytest.approx(0.210)  # both kernels wait for their launch
    assert slow_host.sm_util_mean_pct == pytest.approx((100 * 30 + 20 * 10) / 210)
    assert slow_host.sm_util_busy_mean_pct == pytest.approx(80)
    assert slow_host.host_ms > slow_host.gpu_ms


def test_the_interval_brackets_the_estimate_and_scales_with_the_kernels() -> None:
    pred = predictions([30.0, 10.0], in_range=[False, False], trained=[False, False])
    m = ask(program(kernels(2)), pred)
    # Nothing learned: kernels move together by their half-width, log 1.5, and the structure's share on top.
    half = np.hypot(np.log(1.5), STRUCTURE)
    assert m.latency_low_ms == pytest.approx(0.040 * np.exp(-half))
    assert m.latency_high_ms == pytest.approx(0.040 * np.exp(half))


def test_the_interval_of_a_host_bound_model_spans_the_hosts() -> None:
    m = ask(
        program(kernels(2)), predictions([30.0, 10.0]), host_overhead_us=100.0, host_range_us=(50.0, 200.0)
    )
    assert m.latency_low_ms < 0.110 + 0.001 and m.latency_high_ms > 0.400


def test_errors_of_many_trained_kernels_average_out_but_not_wholly() -> None:
    rows = np.arange(100)
    spans, half, inside = np.full(100, 5.0), np.full(100, 0.2), np.ones(100, dtype=bool)
    many = widen(spans, rows, half, inside, common_share=0.25, structure=0.0, machine=0.0)
    assert many == pytest.approx(np.sqrt(0.25 + 0.75 / 100))
    # One kernel a hundred times, or kernels outside of the training range, do not average out.
    assert widen(spans, np.zeros(100, dtype=int), half, inside, structure=0.0, machine=0.0) == pytest.approx(
        1
    )
    assert widen(spans, rows, half, ~inside, structure=0.0, machine=0.0) == pytest.approx(1)
    assert widen(spans, rows, half, inside, common_share=0.0, structure=0.3, machine=0.0) == pytest.approx(
        np.hypot(0.02, 0.3) / 0.2
    )
    assert widen(np.zeros(1), np.zeros(1, dtype=int), np.ones(1), np.ones(1, dtype=bool)) == 1


def test_trips_multiply_time_work_and_launches() -> None:
    m = ask(program(kernels(2), repeat=5), predictions([30.0, 10.0]))
    assert m.latency_ms == pytest.approx(0.2)
    assert (m.kernels, m.flops, m.dram_bytes) == (10, 5, 20)


def test_coverage_is_the_time_inside_the_trained_range() -> None:
    pred = predictions([30.0, 10.0], trained=[True, False], in_range=[True, True])
    m = ask(program(kernels(2)), pred)
    assert m.coverage_pct == pytest.approx(75)
    assert m.trained_pct == pytest.approx(75)
    assert m.analytical_families == {"conv": pytest.approx(25)}


def test_what_is_unknown_stays_unknown() -> None:
    m = ask(program(kernels(2)), predictions([30.0, 10.0]))
    assert np.isnan(m.occupancy_mean_pct) and np.isnan(m.occupancy_max_pct)
    assert np.isnan(ask(program([]), predictions([])).sm_util_mean_pct)


def test_a_host_that_is_given_varies_per_call_and_one_that_is_not_spans_those_known() -> None:
    assert host_range_us(20.0, (5.0, 40.0)) == pytest.approx((20 / HOST_FACTOR, 20 * HOST_FACTOR))
    low, high = host_range_us(None, (5.0, 40.0))
    assert low * high == pytest.approx(5 * 40)
    spread = np.log(40 / 5) / 2
    assert np.log(high / low) / 2 == pytest.approx(np.hypot(spread, np.log(HOST_FACTOR)))
    assert host_range_us(None, (20.0, 20.0)) == pytest.approx(host_range_us(20.0, (5.0, 40.0)))
    assert host_range_us(None, (0.0, 20.0)) == pytest.approx((0.0, 20 * HOST_FACTOR))
    assert host_range_us(0.0, (5.0, 40.0)) == (0.0, 0.0)


@pytest.mark.parametrize(("runtime", "fastest", "slowest"), [("torch", 11, 57), ("onnxruntime", 5.3, 12.6)])
def test_without_a_host_the_range_holds_every_host_that_was_measured(
    runtime: str, fastest: float, slowest: float
) -> None:
    """What ``python -m benchmarks.accuracy --only hosts`` prints: 11 to 57 us a call of torch, 5.3 to 12.6 of ONNX
    Runtime."""
    profile = load_runtime(runtime)
    low, high = host_range_us(None, profile.host_range_us)
    assert 0.9 * fastest <= low < fastest and slowest < high <= 1.1 * slowest
    assert low < profile.host_overhead_us < high
    given = host_range_us(profile.host_overhead_us, profile.host_range_us)
    assert given[1] / given[0] < 0.6 * high / low


def test_the_interval_of_a_host_bound_model_is_that_of_its_host() -> None:
    short = predictions([1.0, 1.0])
    anywhere = ask(program(kernels(2)), short, host_overhead_us=37.0, host_range_us=(10.8, 58.1))
    here = ask(program(kernels(2)), short, host_overhead_us=37.0, host_range_us=(37 / 1.2, 37 * 1.2))
    assert anywhere.latency_low_ms / anywhere.latency_ms == pytest.approx(10.8 / 37, rel=0.1)
    assert anywhere.latency_high_ms / anywhere.latency_ms == pytest.approx(58.1 / 37, rel=0.1)
    assert here.latency_high_ms / here.latency_low_ms < 1.5
    assert anywhere.latency_low_ms < here.latency_low_ms < here.latency_high_ms < anywhere.latency_high_ms


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("seed", range(30))
def test_the_latency_is_no_less_than_gpu_or_host_and_at_most_both(seed: int, streams: int) -> None:
    rng = np.random.default_rng(seed)
    ks = kernels(int(rng.integers(1, 12)))
    pred = predictions(
        list(10 ** rng.uniform(-1, 3, len(ks))), sm_util_pct=list(rng.uniform(1, 100, len(ks)))
    )
    slow = float(10 ** rng.uniform(-1, 3))
    bounds = (slow * rng.uniform(0.3, 1), slow * rng.uniform(1, 3))
    families = np.full(len(ks), "copy", dtype=object)
    m = ask(
        program(ks, repeat=int(rng.integers(1, 4))), pred, host_overhead_us=slow, host_range_us=bounds, streams=streams,
        families=families,
    )  # fmt: skip
    tiny = 1 + 1e-9
    assert max(m.gpu_ms, m.host_ms) <= m.latency_ms * tiny
    assert max(m.gpu_low_ms, m.host_low_ms) <= m.latency_low_ms * tiny
    assert max(m.gpu_high_ms, m.host_high_ms) <= m.latency_high_ms * tiny
    assert m.gpu_low_ms <= m.gpu_ms <= m.gpu_high_ms and m.host_low_ms <= m.host_ms <= m.host_high_ms
    if streams == 1:
        assert m.latency_ms <= (m.gpu_ms + m.host_ms) * tiny
        assert m.latency_high_ms <= (m.gpu_high_ms + m.host_high_ms) * tiny


def test_gpu_time_is_the_latency_with_a_host_that_costs_nothing() -> None:
    p = program(kernels(3), repeat=2)
    pred = predictions([30.0, 10.0, 5.0])
    given = {"families": np.full(3, "copy", dtype=object), "host_range_us": (50.0, 200.0)}
    slow = ask(p, pred, host_overhead_us=100.0, **given)
    fast = ask(p, pred, **given | {"host_range_us": (0.0, 0.0)})
    assert (slow.gpu_ms, slow.gpu_low_ms, slow.gpu_high_ms) == (
        fast.latency_ms, fast.latency_low_ms, fast.latency_high_ms
    )  # fmt: skip
    assert (slow.host_ms, slow.host_low_ms, slow.host_high_ms) == pytest.approx((0.6, 0.3, 1.2))


def test_the_low_end_of_a_model_is_not_below_what_its_kernels_can_do() -> None:
    wide = replace(
        predictions([100.0, 100.0]), low_us=np.array([20.0, 20.0]), high_us=np.array([500.0, 500.0])
    )
    free = ask(program(kernels(2)), wide, host_overhead_us=0.0)
    held = ask(program(kernels(2)), replace(wide, least_us=np.array([80.0, 90.0])), host_overhead_us=0.0)
    assert free.latency_low_ms < 0.1
    assert held.latency_low_ms == pytest.approx(0.17)
    assert held.latency_ms == free.latency_ms and held.latency_high_ms == free.latency_high_ms
    slower = ask(program(kernels(2)), replace(wide, least_us=np.array([300.0, 300.0])), host_overhead_us=0.0)
    assert slower.latency_low_ms == pytest.approx(slower.latency_ms)  # a measurement is not argued with
