"""What the runner asks of a machine, and how it starts and ends processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.jobs.guard import descendants, guarded
from gkestimator.profiling.captures import CapturedLaunch, EntryRange
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.records import EntryRecord, HostKernel
from gkestimator.profiling.running import Limits, Machine
from gkestimator.profiling.running.chunk import repeat_totals_us
from gkestimator.profiling.running.machine import child_device, device_present, executor_versions
from gkestimator.profiling.running.run import choose_devices
from gkestimator.profiling.running.supervise import supervise


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", 139)])
def test_the_guard_ends_with_the_commands_status(command: str, status: int) -> None:
    done = subprocess.Popen(guarded(["sh", "-c", command]), stdin=subprocess.PIPE)
    assert done.wait(timeout=10) == status
    missing = subprocess.Popen(guarded(["/no/such/tool"]), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert missing.wait(timeout=10) == 127 and missing.stderr is not None
    assert b"/no/such/tool: cannot be started: No such file" in missing.stderr.read()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("time_", range(5))
def test_closing_the_guards_pipe_kills_what_moved_into_a_session_of_its_own(time_: int) -> None:
    script = "setsid sleep 71234 & (setsid sh -c 'sleep 71234 & sleep 71234' &) ; sleep 71234"
    guard = subprocess.Popen(guarded(["sh", "-c", script]), stdin=subprocess.PIPE)
    end = time.monotonic() + 10
    while len(descendants(guard.pid)) < 5 and time.monotonic() < end:
        time.sleep(0.02)
    below = descendants(guard.pid)
    assert len(below) >= 5
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(timeout=10) == 137
    assert not [p for p in below if alive(p)]


@pytest.mark.slow
def test_the_guard_outlives_ctrl_c_but_not_its_owner() -> None:
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({guarded(['sleep', '71235'])!r}, stdin=subprocess.PIPE)\n"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    guard = int(owner.stdout.readline())
    time.sleep(0.3)
    os.kill(guard, signal.SIGINT)
    time.sleep(0.2)
    assert descendants(guard)
    owner.kill()
    owner.wait()
    end = time.monotonic() + 10
    while alive(guard) and time.monotonic() < end:
        time.sleep(0.02)
    assert not descendants(guard)


@pytest.mark.slow
def test_a_talkative_child_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gkestimator.profiling.running.supervise._MOST_LOG_BYTES", 100_000)
    child = [sys.executable, "-c", "import time\nfor i in range(40): print('x' * 9999); time.sleep(0.03)"]
    seen: list[int] = []

    def stop() -> None:
        seen.append((tmp_path / "log").stat().st_size)

    ending = supervise(
        child, child=child, records=tmp_path / "records.jsonl", log=tmp_path / "log", folder=tmp_path,
        environment=os.environ, limits=Limits(), stop=stop,
    )  # fmt: skip
    assert (ending.status, ending.why) == (0, "ended")
    assert max(seen) < 300_000 and (tmp_path / "log").stat().st_size < 300_000


def test_a_gpu_is_shown_to_the_child_alone_and_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert child_device("cpu") == ("cpu", {})
    assert child_device("cuda:3") == ("cuda:0", {"CUDA_VISIBLE_DEVICES": "3"})
    known = DeviceFacts(kind="gpu", name="NVIDIA H200", index=3, uuid="GPU-1234")
    assert child_device("cuda:3", known) == ("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-1234"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert child_device("cuda:1") == ("cuda:0", {"CUDA_VISIBLE_DEVICES": "7"})
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES shows 2 GPUs"):
        child_device("cuda:2")


def test_devices_as_asked() -> None:
    two, none = Machine(gpus=lambda: 2), Machine(gpus=lambda: 0)
    assert choose_devices((), two) == ("cuda:0",) and choose_devices((), none) == ("cpu",)
    assert choose_devices(("all", "cuda:1"), two) == ("cuda:0", "cuda:1")
    with pytest.raises(UsageError, match="found 'gpu7', expected cpu, cuda:N or all"):
        choose_devices(("gpu7",), two)


def test_presence_of_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert device_present(DeviceFacts(kind="cpu", name="x"))
    gpu = DeviceFacts(kind="gpu", name="x", uuid="GPU-no-such")
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device_present(gpu) in (None, False)
    tool.write_text("#!/bin/sh\necho 'GPU 0: Fake (UUID: GPU-no-such)'\n")
    tool.chmod(0o755)
    assert device_present(gpu) is True
    tool.write_text("#!/bin/sh\necho 'Unable to determine the device handle'; exit 15\n")
    assert device_present(gpu) is False


def test_an_executor_that_cannot_be_loaded_is_one_line() -> None:
    with pytest.raises(UsageError, match="executor nonsense: "):
        executor_versions("nonsense", "cpu")


def launches(*times_us: float) -> tuple[CapturedLaunch, ...]:
    return tuple(
        CapturedLaunch(kind="kernel", name="k", start_ns=0, duration_ns=int(t * 1e3)) for t in times_us
    )


def test_totals_of_repeats_from_the_best_that_tells() -> None:
    def seen(*times: float, repeats: int) -> EntryRange:
        return EntryRange(entry_id="e", repeats=repeats, start_ns=0, end_ns=1, launches=launches(*times))

    record: Any = EntryRecord(entry_id="e", status="ok", host_us=(5.0, 6.0))
    assert repeat_totals_us(record, [seen(1, 2, 3, 4, repeats=2)]) == (3.0, 7.0)
    assert repeat_totals_us(record, [seen(1, 2, 3, repeats=2)]) == (5.0, 6.0)
    pieces = (HostKernel(name="a", durations_us=(1.0, 2.0)), HostKernel(name="b", durations_us=(10.0, 20.0)))
    record = EntryRecord(entry_id="e", status="ok", host_us=(5.0, 6.0), kernels=pieces)
    assert repeat_totals_us(record, []) == (11.0, 22.0)
    assert repeat_totals_us(EntryRecord(entry_id="e", status="ok"), []) is None
