"""ncu: what stands in its way is said with the remedy. Messages are those of Nsight Compute 2022.3 and 2024.1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gkestimator.profiling.captures import Capture, EntryRange
from gkestimator.profiling.collectors import CollectorError, choose, make_collector, probe
from gkestimator.profiling.collectors import ncu as module
from gkestimator.profiling.collectors.ncu import COUNTERS, NcuCollector, ncu_remedy
from gkestimator.profiling.tools import run_tool

PERMISSION = (
    "==PROF== Connected to process 4711 (/usr/bin/python3.11)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the "
    "target device 0. For instructions on enabling permissions and to get more information see "
    "https://developer.nvidia.com/ERR_NVGPUCTRPERM\n==WARNING== No kernels were profiled.\n"
)
RESOURCE = (
    "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is "
    "concurrently collecting profiling data."
)
CHILD = ["child", "--ranges", "probe-1,probe-2"]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ncu that says $FAKE_SAYS and leaves a report where $FAKE_REPORT is set."""
    tool = tmp_path / "ncu"
    tool.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "Version 2099.1.0.0 (build 1)"; exit 0; }\n'
        'while [ $# -gt 0 ]; do [ "$1" = --export ] && out=$2; shift; done\n'
        'echo "$FAKE_SAYS"\n[ -n "$FAKE_REPORT" ] && echo report > "$out.ncu-rep"\nexit ${FAKE_STATUS:-0}\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("GKEST_NCU", str(tool))
    monkeypatch.setattr(module, "mps_process", lambda: None)
    folder = tmp_path / "chunk"
    folder.mkdir()
    return folder


def counted(folder: Path, entries: list[str]) -> tuple[str, ...]:
    collector = make_collector("ncu", "cuda:0")
    result = run_tool(collector.command(CHILD, folder), timeout_s=30)
    return collector.finish(folder, entries, result.output)


def reports(monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    ranges = tuple(EntryRange(entry_id=i, repeats=1, start_ns=0, end_ns=1, launches=()) for i in ids)
    found = Capture(tool="ncu", tool_version=None, schema=None, ranges=ranges)
    monkeypatch.setattr(NcuCollector, "capture", lambda self, folder: found)


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        (PERMISSION, "no permission to read the GPU's counters: run as root"),
        (RESOURCE, "another tool holds the GPU's counters"),
        (
            "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).",
            "needs an NVIDIA GPU",
        ),
        ("==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock. Please check", "set TMPDIR"),
        ("==WARNING== No kernels were profiled.", "no launch fell into an NVTX range"),
        ("==ERROR== something new", "==ERROR== something new"),
        ("", "it said nothing"),
    ],
)
@pytest.mark.parametrize("status", ["0", "1"])
def test_no_report(fake: Path, monkeypatch: pytest.MonkeyPatch, says: str, remedy: str, status: str) -> None:
    monkeypatch.setenv("FAKE_SAYS", says)
    monkeypatch.setenv("FAKE_STATUS", status)
    with pytest.raises(CollectorError) as e:
        counted(fake, ["a"])
    assert str(e.value).startswith("ncu 2099.1.0.0 made no report: ")
    assert remedy in str(e.value)


def test_permission_is_told_in_seconds(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SAYS", PERMISSION)
    with pytest.raises(CollectorError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        choose("auto", "cuda:0", "counters")


def test_counters_of_all_of_some_of_none(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_REPORT", "1")
    reports(monkeypatch, "a", "b")
    assert counted(fake, ["a", "b"]) == ("counters.ncu-rep",)
    assert counted(fake, ["a", "a-view"]) == ("counters.ncu-rep",)  # a view launches nothing
    with pytest.raises(CollectorError, match="counted nothing"):
        counted(fake, ["c"])
    monkeypatch.setenv("FAKE_SAYS", RESOURCE)
    with pytest.raises(CollectorError, match="counted 1 of 2 entries, then: another tool holds"):
        counted(fake, ["a", "c"])


def test_the_command_leaves_clocks_and_caches_alone(fake: Path) -> None:
    command = make_collector("ncu", "cuda:0").command(CHILD, fake)
    for option in (
        ["--clock-control", "none"],
        ["--cache-control", "none"],
        ["--metrics", ",".join(COUNTERS)],
    ):
        at = command.index(option[0])
        assert command[at : at + 2] == option
    filters = [command[i + 1] for i, word in enumerate(command) if word == "--nvtx-include"]
    assert filters == ["gkestimator@probe-1#1/", "gkestimator@probe-2#1/"]
    assert command[-3:] == CHILD
    with pytest.raises(CollectorError, match="names no --entries"):
        make_collector("ncu", "cuda:0").command(["child"], fake)


def test_a_server_of_mps_is_recognised(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mps_process", lambda: 4711)
    reason = make_collector("ncu", "cuda:0").unavailable()
    assert reason is not None and reason.startswith("process 4711: ncu does not work while MPS runs")


def test_the_process_of_mps_is_seen(tmp_path: Path) -> None:
    before = module.mps_process()
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            ends = time.monotonic() + 10  # the kernel names it a moment after Popen is back
            while before is None and module.mps_process() is None and time.monotonic() < ends:
                time.sleep(0.02)
            assert before is not None or module.mps_process() == process.pid
        finally:
            process.kill()


def test_on_the_cpu_there_is_nothing_to_count(fake: Path) -> None:
    assert (
        probe(make_collector("ncu", "cpu"), "cpu")
        == "ncu reads the counters of GPUs; on the CPU there are none"
    )


def test_words_of_other_messages_are_no_remedy() -> None:
    assert ncu_remedy('==PROF== Profiling "gemm": 0%....100% - 12 passes\n==PROF== Report: a.ncu-rep') is None


def real_tools() -> list[Path]:
    found = [Path(p) / "bin" / "ncu" for p in os.environ.get("GKEST_NSIGHT", "").split(":") if p]
    on_path = shutil.which("ncu")
    return [p for p in (*found, *([Path(on_path)] if on_path else [])) if p.is_file()]


@pytest.mark.skipif(
    not real_tools(), reason="needs ncu on PATH or in GKEST_NSIGHT (.ci/install-nsight.sh --ncu)"
)
@pytest.mark.parametrize("tool", real_tools(), ids=str)
def test_the_real_ncu_takes_the_options(tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GKEST_NCU", str(tool))
    collector = make_collector("ncu", "cuda:0")
    assert collector.version()
    child = [sys.executable, "-c", "print('here')", "--ranges", "a,b"]
    result = run_tool(collector.command(child, tmp_path), timeout_s=60, cwd=tmp_path)
    # Without a GPU it goes on to run the child and complains of the driver; an option that it refuses ends it before.
    assert "unrecognised option" not in result.output
    assert "here" in result.output or "failed to connect to the CUDA driver" in result.output
    if not list(tmp_path.glob("*.ncu-rep")):
        with pytest.raises(CollectorError, match="made no report: "):
            collector.finish(tmp_path, ["a"], result.output)
