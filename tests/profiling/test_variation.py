"""How much repeats vary: the definition of the column, and what few interruptions do to the verdict on a CPU."""

from __future__ import annotations

import pytest

from gkestimator.profiling.environment import judge
from gkestimator.profiling.records import EntryRecord, HostKernel
from gkestimator.profiling.variation import coefficient_of_variation, judged_variation, robust_variation

QUIET = [100.0 + i % 5 for i in range(50)]


def host_record(times: list[float]) -> EntryRecord:
    kernels = (HostKernel(name="Relu", durations_us=tuple(times)),)
    return EntryRecord(entry_id="a", status="ok", repeats=len(times), host_us=tuple(times), kernels=kernels)


def test_the_coefficient_is_standard_deviation_over_mean() -> None:
    assert coefficient_of_variation([1.0, 3.0]) == pytest.approx(2**0.5 / 2)
    assert coefficient_of_variation([1.0]) is None and coefficient_of_variation([0.0, 0.0]) is None
    assert robust_variation([2.0]) is None and robust_variation([0.0, 0.0, 1.0]) is None


def test_one_interruption_does_not_make_a_cpu_entry_noisy_but_a_wide_spread_does() -> None:
    interrupted = [*QUIET[:-1], 20_000.0]
    assert coefficient_of_variation(interrupted) > 1  # type: ignore[operator]
    verdicts = [
        judge([], r, judged_variation(r, None)) for r in (host_record(QUIET), host_record(interrupted))
    ]
    assert verdicts == ["ok", "ok"]
    wide = host_record([50.0 if i % 2 else 150.0 for i in range(50)])
    assert judge([], wide, judged_variation(wide, None)) == "noisy"


def test_on_a_gpu_the_device_time_of_the_repeats_counts() -> None:
    record = EntryRecord(entry_id="a", status="ok", repeats=2, host_us=(1.0, 100.0))
    assert judged_variation(record, [10.0, 10.0]) == 0
    assert judged_variation(record, None) is None


def test_on_a_gpu_one_cold_call_or_the_time_stamps_make_nothing_noisy_but_a_wide_spread_does() -> None:
    record = EntryRecord(entry_id="a", status="ok", repeats=50, host_us=(9.0,) * 50, elapsed_us=12.0)
    cold = [6.0, *(2.0 + 0.032 * (i % 3) for i in range(49))]
    assert coefficient_of_variation(cold) > 0.2  # type: ignore[operator]
    assert judge([], record, judged_variation(record, cold)) == "ok"
    wide = [2.0 + 0.8 * (i % 2) for i in range(50)]
    assert judge([], record, judged_variation(record, wide)) == "noisy"
    assert judge([], record, judged_variation(record, [v * 100 for v in wide])) == "noisy"


def test_of_latencies_the_spread_counts_and_a_cpu_is_allowed_more() -> None:
    latencies = (80.0, 90.0, 100.0, 120.0, 130.0)
    record = EntryRecord(entry_id="m", status="ok", latency_us=latencies, host_us=(1.0,) * 5)
    assert (
        judged_variation(record, None) == judged_variation(record, [1.0] * 5) == robust_variation(latencies)
    )
    found = judged_variation(record, None)
    assert found is not None and 0.2 < found < 0.3
    assert judge([], record, found) == "noisy" and judge([], record, found, on_cpu=True) == "ok"
    interrupted = EntryRecord(entry_id="m", status="ok", latency_us=(100.0, 100.1, 99.9, 100.2, 5000.0))
    assert judge([], interrupted, judged_variation(interrupted, None)) == "ok"
