"""The interval of a change counts kernels that differ, and the host where it may bind."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from small_programs import kernels, predictions, program

from gkestimator.core.records import frozen
from gkestimator.estimation.change_intervals import (
    HostPace,
    LaunchedKernels,
    both_kernels,
    change_interval_us,
)
from gkestimator.estimation.intervals import COMMON_SHARE, MACHINE, STRUCTURE
from gkestimator.kernel_models.prediction import KernelDetail

NO_HOST = HostPace(overhead_us=0.0, range_us=(0.0, 0.0))
UP = math.log(1.5)  # what ``predictions`` gives every kernel


@frozen
class Pool:
    """Kernels of known times, from which models take some by number."""

    us: tuple[float, ...]
    high_us: tuple[float, ...] | None = None

    def model(self, *numbers: int, repeat: int = 1) -> LaunchedKernels:
        rows = sorted(set(numbers))
        all_kernels = kernels(len(self.us))
        told = {}
        if self.high_us is not None:
            told["high_us"] = [self.high_us[row] for row in rows]
        launched = program([all_kernels[number] for number in numbers], repeat)
        place = {number: at for at, number in enumerate(rows)}
        launched = type(launched)(
            steps=launched.steps,
            kernel=np.array([place[number] for number in numbers]),
            step=launched.step,
            repeat=launched.repeat,
            calls=launched.calls,
        )
        return LaunchedKernels(
            program=launched,
            predictions=predictions([self.us[row] for row in rows], **told),
            rows=np.array(rows),
        )


def test_the_same_kernels_differ_by_nothing_however_wide_their_intervals() -> None:
    pool = Pool(us=(100.0, 50.0))
    host = HostPace(overhead_us=30.0, range_us=(5.0, 60.0))
    assert change_interval_us(pool.model(0, 1), pool.model(0, 1), host) == (0.0, 0.0)


def test_kernels_in_both_do_not_count() -> None:
    narrow = Pool(us=(10_000.0, 10.0), high_us=(10_001.0, 15.0))
    wide = Pool(us=(10_000.0, 10.0), high_us=(30_000.0, 15.0))
    intervals = [change_interval_us(p.model(0), p.model(0, 1), NO_HOST) for p in (narrow, wide)]
    assert intervals[0] == pytest.approx(intervals[1], abs=1e-6)
    assert intervals[0][1] < 20


def test_one_kernel_more_errs_by_its_own_width_the_machine_and_the_lowering() -> None:
    pool = Pool(us=(1_000.0, 100.0))
    low, high = change_interval_us(pool.model(0), pool.model(0, 1), NO_HOST)
    half_width = math.sqrt(UP**2 + STRUCTURE**2 + MACHINE**2)
    assert (low, high) == pytest.approx((100 * math.exp(-half_width), 100 * math.exp(half_width)))
    # Removed, it is the same with the sign changed; launched once more, the same again.
    back = change_interval_us(pool.model(0, 1), pool.model(0), NO_HOST)
    assert back == pytest.approx((-high, -low))
    again = change_interval_us(pool.model(0, 1), pool.model(0, 1, 1), NO_HOST)
    assert again == pytest.approx((low, high))


def test_what_was_added_and_what_was_removed_are_not_taken_to_cancel() -> None:
    pool = Pool(us=(1_000.0, 100.0, 100.0))
    low, high = change_interval_us(pool.model(0, 1), pool.model(0, 2), NO_HOST)
    factor = math.sqrt(2 * UP**2 + 2 * STRUCTURE**2) / (2 * UP)
    assert high == pytest.approx(100 * (math.exp(factor * UP) - math.exp(-factor * UP)))
    assert low == pytest.approx(-high)


def test_added_kernels_err_together_where_they_have_something_in_common() -> None:
    pool = Pool(us=(1_000.0, 100.0, 100.0))
    _, high = change_interval_us(pool.model(0), pool.model(0, 1, 2), NO_HOST)
    variance = COMMON_SHARE * (200 * UP) ** 2 + (1 - COMMON_SHARE) * 2 * (100 * UP) ** 2
    variance += (200 * STRUCTURE) ** 2 + (200 * MACHINE) ** 2
    assert high == pytest.approx(200 * math.exp(math.sqrt(variance) / 200))


def test_where_the_host_may_bind_more_work_on_the_gpu_may_cost_nothing() -> None:
    pool = Pool(us=(100.0, 140.0))
    pair = (pool.model(0, 0), pool.model(1, 0))
    free = HostPace(overhead_us=1.0, range_us=(1.0, 1.0))
    either = HostPace(overhead_us=1.0, range_us=(1.0, 600.0))
    assert change_interval_us(*pair, free)[0] != 0
    # While the host issues the second call, the longer first kernel ends unnoticed.
    assert change_interval_us(*pair, either)[0] <= 0 < change_interval_us(*pair, either)[1]


def test_a_call_more_costs_what_the_host_may_take() -> None:
    pool = Pool(us=(10.0, 10.0))
    host = HostPace(overhead_us=500.0, range_us=(400.0, 600.0))
    low, high = change_interval_us(pool.model(0), pool.model(0, 1), host)
    assert 390 < low <= 400 and 600 <= high < 620


def test_launches_are_counted_with_their_trips() -> None:
    pool = Pool(us=(10.0, 20.0))
    both = both_kernels(pool.model(0, 1, repeat=3), pool.model(1))
    assert both.rows.tolist() == [0, 1]
    assert both.before.tolist() == [3, 3] and both.after.tolist() == [0, 1]
    assert both.more.tolist() == [-3, -2]


def test_no_replay_is_faster_than_the_hardware() -> None:
    pool = Pool(us=(1_000.0, 100.0))
    before = pool.model(0)
    after = pool.model(0, 1)
    told = predictions([1_000.0, 100.0], least_us=[900.0, 95.0])
    floored = LaunchedKernels(program=after.program, predictions=told, rows=after.rows)
    assert change_interval_us(before, after, NO_HOST)[0] < 90
    assert change_interval_us(before, floored, NO_HOST)[0] == pytest.approx(95)


def test_kernels_that_were_measured_bring_no_machine_and_their_own_low_end() -> None:
    pool = Pool(us=(1_000.0, 100.0))
    models = []
    for model in (pool.model(0), pool.model(0, 1)):
        count = len(model.rows)
        detail = KernelDetail(
            source=np.array(["measured"] * count),
            occupancy_source=np.array(["measured"] * count),
            launches=np.ones(count),
            sequence=np.array([None] * count),
            occupancy_peak_pct=np.zeros(count),
            sm_util_peak_pct=np.zeros(count),
            may_be_slower=np.zeros(count, bool),
        )
        models.append(replace(model, predictions=replace(model.predictions, detail=detail)))
    low, high = change_interval_us(*models, NO_HOST)
    assert high == pytest.approx(100 * math.exp(math.hypot(UP, STRUCTURE)))
    assert low == pytest.approx(100 * math.exp(-math.hypot(-math.log(0.8), STRUCTURE)))


def test_kernels_of_a_part_of_a_gpu_err_together() -> None:
    """Two kernels are added on a part: nothing of it was measured, so both err by their whole half-width at once."""
    pool = Pool(us=(1_000.0, 100.0, 100.0))
    models = [pool.model(0), pool.model(0, 1, 2)]
    outside = [
        replace(m, predictions=replace(m.predictions, in_range=np.zeros(len(m.rows), dtype=bool)))
        for m in models
    ]
    whole = change_interval_us(*outside, NO_HOST)
    part = change_interval_us(*(replace(m, part=True) for m in outside), NO_HOST)
    assert part[0] < whole[0] and part[1] > whole[1]
    half_width = math.hypot(UP, STRUCTURE)
    assert part == pytest.approx((200 * math.exp(-half_width), 200 * math.exp(half_width)))
