"""Samples of the surroundings, and the verdict on an entry."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.profiling import environment
from gkestimator.profiling.environment import (
    HOLDS_BACK,
    EnvironmentSampler,
    Tenants,
    during,
    judge,
    reference_clock_mhz,
    sample,
    sampling,
)
from gkestimator.profiling.nvml import NvmlError, NvmlGpu, decoded_reasons
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample, read_environment
from gkestimator.profiling.records import EntryRecord, HostKernel
from gkestimator.profiling.tools import start_tool

SECOND = 10**9
GPU = DeviceFacts(kind="gpu", name="NVIDIA X", uuid="GPU-1")


def record(start_s: float = 10.0, end_s: float = 11.0, elapsed_us: float = 100.0, **more: Any) -> EntryRecord:
    return EntryRecord(
        entry_id="a",
        status="ok",
        started_unix_ns=int(start_s * SECOND),
        ended_unix_ns=int(end_s * SECOND),
        elapsed_us=elapsed_us,
        **more,
    )


def at(seconds: float, clock: float | None = 1980.0, *throttled: str, **more: Any) -> EnvironmentSample:
    return EnvironmentSample(unix_ns=int(seconds * SECOND), sm_clock_mhz=clock, throttled=throttled, **more)


USUAL = [at(s / 5) for s in range(200)]


def test_undisturbed_is_ok() -> None:
    assert judge(USUAL, record(), 0.02) == "ok"


@pytest.mark.parametrize("reason", sorted(HOLDS_BACK))
def test_heat_and_brakes_are_throttled(reason: str) -> None:
    samples = [*USUAL, at(10.5, 1980.0, "sw_power_cap", reason)]
    assert judge(sorted(samples, key=lambda s: s.unix_ns), record(), 0.5) == "throttled"
    assert judge(samples, record(20.0, 21.0), 0.02) == "ok"  # another entry's throttling is not this one's


def test_a_low_clock_is_throttled_unless_power_explains_it() -> None:
    rest = [s for s in USUAL if not 10 * SECOND <= s.unix_ns <= 11 * SECOND]
    low = [at(10.1, 1500.0), at(10.5, 1500.0), at(10.9, 1500.0)]
    assert judge([*rest, *low], record(), 0.02) == "throttled"
    capped = [at(s.unix_ns / SECOND, 1500.0, "sw_power_cap") for s in low]
    assert judge([*rest, *capped], record(), 0.02) == "ok"
    slightly = [at(10.5, 0.95 * 1980.0)]
    assert judge([*rest, *slightly], record(), 0.02) == "ok"


def test_an_idle_gpus_clock_says_nothing() -> None:
    idle = [at(s / 5, 345.0, "gpu_idle") for s in range(400)]
    assert reference_clock_mhz(idle) is None
    assert judge([*idle, at(10.5, 1980.0)], record(), 0.02) == "ok"
    assert judge(idle, record(), 0.02) == "ok"


def test_spread_is_noisy_by_the_length_of_the_kernel() -> None:
    assert judge([], record(elapsed_us=100.0), 0.12) == "noisy"
    assert judge([], record(elapsed_us=100.0), 0.09) == "ok"
    assert judge([], record(elapsed_us=3.0), 0.15) == "ok"  # half a microsecond of 3 is jitter
    assert judge([], record(elapsed_us=3.0), 0.25) == "noisy"
    assert judge([], record(), None) == "ok"


def test_a_cpus_repeats_may_spread_more() -> None:
    on_cpu = record(kernels=(HostKernel(name="Conv", durations_us=(1.0,)),))
    assert judge([], on_cpu, 0.25) == "ok"
    assert judge([], on_cpu, 0.35) == "noisy"


def test_others_kernels_make_it_noisy_others_memory_does_not() -> None:
    assert judge([at(10.5, tenants=1, others_bytes=2**30, others_sm_pct=0.0)], record(), 0.02) == "ok"
    assert judge([at(10.5, tenants=1, others_bytes=2**30, others_sm_pct=40.0)], record(), 0.02) == "noisy"
    assert judge([at(10.5, tenants=1)], record(), 0.02) == "ok"  # not told


def test_a_short_entry_takes_its_neighbours() -> None:
    samples = [at(9.9), at(10.1)]
    assert during(samples, record(10.0, 10.01)) == samples
    assert during([at(8.0), at(12.0)], record(10.0, 10.01)) == []
    assert during(samples, EntryRecord(entry_id="a", status="ok")) == []


@pytest.mark.slow
@given(
    clocks=st.lists(st.none() | st.floats(100, 3000), max_size=30),
    cv=st.none() | st.floats(0, 2),
    elapsed=st.none() | st.floats(0, 1e6),
)
def test_there_is_always_a_verdict(
    clocks: list[float | None], cv: float | None, elapsed: float | None
) -> None:
    samples = [
        EnvironmentSample(unix_ns=int((9.5 + i / 10) * SECOND), sm_clock_mhz=c) for i, c in enumerate(clocks)
    ]
    found = EntryRecord(
        entry_id="a", status="ok", started_unix_ns=10 * SECOND, ended_unix_ns=11 * SECOND, elapsed_us=elapsed
    )
    assert judge(samples, found, cv) in ("ok", "noisy", "throttled")


def test_reasons_by_name() -> None:
    assert decoded_reasons(0) == ()
    assert decoded_reasons(0x4 | 0x40) == ("sw_power_cap", "hw_thermal_slowdown")
    assert decoded_reasons(0x80) == ("hw_power_brake_slowdown",)
    assert decoded_reasons(0x8000) == ("bit_0x8000",)
    assert set(environment.HOLDS_BACK) <= set(decoded_reasons(0x1FF))


def test_reasons_are_those_of_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert decoded_reasons(pynvml.nvmlClocksThrottleReasonHwThermalSlowdown) == ("hw_thermal_slowdown",)
    assert decoded_reasons(pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown) == (
        "hw_power_brake_slowdown",
    )
    assert decoded_reasons(pynvml.nvmlClocksThrottleReasonSwPowerCap) == ("sw_power_cap",)
    assert decoded_reasons(pynvml.nvmlClocksThrottleReasonSwThermalSlowdown) == ("sw_thermal_slowdown",)
    assert decoded_reasons(pynvml.nvmlClocksThrottleReasonHwSlowdown) == ("hw_slowdown",)
    assert decoded_reasons(pynvml.nvmlClocksThrottleReasonGpuIdle) == ("gpu_idle",)


@pytest.mark.slow
def test_sampling_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "environment.jsonl"
    began = time.time_ns()
    with sample(path, "cpu"):
        time.sleep(0.7)
    found = list(read_environment(tmp_path))
    assert 3 <= len(found) <= 8
    assert [s.unix_ns for s in found] == sorted(s.unix_ns for s in found)
    assert found[0].unix_ns >= began and found[-1].unix_ns - found[0].unix_ns >= 0.65 * SECOND
    assert all(s.tenants is None and s.power_w is None for s in found)
    with sample(path, "cpu"):  # a second run appends
        pass
    assert len(list(read_environment(tmp_path))) == len(found) + 2


def test_a_full_disk_ends_the_sampling_not_the_run() -> None:
    with EnvironmentSampler(DeviceFacts(kind="cpu", name="x"), Path("/dev/full"), interval_s=0.01) as sampler:
        time.sleep(0.1)
    assert sampler.problem is not None and "No space left" in sampler.problem


def test_a_gpu_that_tells_nothing_gives_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(**_: object) -> NvmlGpu:
        raise NvmlError("no")

    monkeypatch.setattr(environment, "NvmlGpu", absent)
    found = sampling(GPU)()
    assert (found.sm_clock_mhz, found.throttled, found.tenants, found.others_bytes) == (
        None,
        None,
        None,
        None,
    )


class FakeGpu:
    """NVML of a GPU on which the processes of ``listed`` are."""

    def __init__(self, listed: dict[int, int | None], busy: dict[int, float] | None = None) -> None:
        self.listed, self.busy = listed, busy

    def processes(self) -> dict[int, int | None]:
        return self.listed

    def sm_pct_by_process(self, since_us: int) -> dict[int, float] | None:
        return self.busy

    def clock_mhz(self, kind: str) -> float:
        return {"SM": 1755.0, "MEM": 3201.0}[kind]

    def power_w(self) -> float:
        return 512.5

    def temperature_c(self) -> float:
        return 61.0

    def throttled(self) -> tuple[str, ...]:
        return ("sw_power_cap",)


def test_our_child_is_no_tenant_another_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            gpu = FakeGpu({1: 2**30, child.pid: 2**20}, busy={1: 30.0, child.pid: 60.0})
            monkeypatch.setattr(environment, "NvmlGpu", lambda **_: gpu)
            found = sampling(GPU)()
        finally:
            child.kill()
    assert (found.tenants, found.others_bytes, found.others_sm_pct) == (1, 2**30, 30.0)
    assert (found.sm_clock_mhz, found.power_w, found.temperature_c) == (1755.0, 512.5, 61.0)
    assert found.throttled == ("sw_power_cap",)
    gpu.listed = {}
    alone = sampling(GPU)()
    assert (alone.tenants, alone.others_bytes, alone.others_sm_pct) == (0, 0, 0.0)
    gpu.listed, gpu.busy = {1: None}, None
    untold = sampling(GPU)()
    assert (untold.tenants, untold.others_bytes, untold.others_sm_pct) == (1, None, None)


def test_a_tools_agent_without_parents_is_ours(tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    with start_tool(
        ["/bin/sh", "-c", f"(setsid sh -c 'echo $$ > {pids}; sleep 60' &); sleep 60"], output=tmp_path / "log"
    ):
        ends = time.monotonic() + 10
        while not (pids.is_file() and pids.read_text().strip()) and time.monotonic() < ends:
            time.sleep(0.02)
        assert int(pids.read_text()) in environment._family(os.getpid())


def test_inside_a_container_who_comes_later_is_ours() -> None:
    absent = 2**22 + 17  # no process id of this machine
    tenants = Tenants({absent: 5}, own=frozenset({os.getpid()}))
    found = tenants.others({absent: 5, absent + 1: 7}, own=frozenset({os.getpid()}))
    assert found == {absent: 5}


def test_nvml_without_a_driver_is_one_line() -> None:
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(NvmlError, match="NVML does not start"):
            NvmlGpu(index=0)
    else:
        pytest.skip("this machine has an NVIDIA driver")


def test_what_nvml_refuses_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class RefusedError(Exception):
        pass

    def refuse(*_: object) -> float:
        raise RefusedError

    nvml = SimpleNamespace(
        NVMLError=RefusedError, NVMLError_NotFound=KeyError, NVML_CLOCK_SM=1, NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetClockInfo=refuse, nvmlDeviceGetPowerUsage=lambda _: 71234,
        nvmlDeviceGetCurrentClocksEventReasons=refuse, nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 4,
        nvmlDeviceGetProcessUtilization=refuse,
    )  # fmt: skip
    monkeypatch.setattr("gkestimator.profiling.nvml._nvml", lambda: nvml)
    gpu = NvmlGpu(index=0)
    assert gpu.clock_mhz("SM") is None
    assert gpu.temperature_c() is None  # a function that this pynvml lacks
    assert gpu.power_w() == pytest.approx(71.234)
    assert gpu.throttled() == ("sw_power_cap",)
    assert gpu.sm_pct_by_process(0) is None
