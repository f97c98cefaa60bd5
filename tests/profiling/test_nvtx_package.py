"""The nvtx package is the annotator where a probe sees its ranges, and our own client the fallback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from test_collector_nsys import REAL

from gkestimator.profiling.collectors import CollectorError, probe
from gkestimator.profiling.collectors.base import ToolCollector
from gkestimator.profiling.diagnosis import profiler_facts
from gkestimator.profiling.executors.nvtx_package import (
    ANNOTATOR_VARIABLE,
    CLIENT,
    PACKAGE,
    PackageRanges,
    make_ranges,
    nvtx_version,
)
from gkestimator.profiling.executors.nvtx_ranges import NvtxError, NvtxRanges
from gkestimator.profiling.tools import Tool

PYTHON = Tool(name="python", product="Python", variable="GKEST_PYTHON")


class Recorder(ToolCollector):
    """A profiler that records what ``hears`` names: its child says by whom it was annotated."""

    name = "recorder"
    summary = "a profiler of this test"
    passes = ("timeline",)
    suffixes = (".txt",)
    tool = PYTHON
    hears: tuple[str, ...] = ()

    def unavailable(self) -> None:
        return None

    def command(self, child: Sequence[str], folder: Path) -> list[str]:
        return [sys.executable, "-c", f"import os; print(os.environ['{ANNOTATOR_VARIABLE}'])"]

    def finish(self, folder: Path, entries: Sequence[str], log: str) -> tuple[str, ...]:
        if log.strip() not in self.hears:
            raise CollectorError(f"nothing through the {log.strip()}")
        return ()


@pytest.mark.parametrize(
    ("installed", "hears", "annotator", "reason"),
    [
        (True, (PACKAGE, CLIENT), PACKAGE, None),
        (True, (CLIENT,), CLIENT, None),
        (True, (), CLIENT, "nothing through the client"),
        (False, (PACKAGE, CLIENT), CLIENT, None),
    ],
)
def test_a_probe_decides(
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    hears: tuple[str, ...],
    annotator: str,
    reason: str | None,
) -> None:
    version = "0.2.11" if installed else None
    monkeypatch.setattr("gkestimator.profiling.collectors.probing.nvtx_version", lambda: version)
    collector = Recorder("cpu")
    collector.hears = hears
    assert probe(collector, "cpu") == reason
    assert collector.annotator == annotator
    assert collector.environment() == {ANNOTATOR_VARIABLE: annotator}


def test_a_child_makes_ranges_as_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert isinstance(make_ranges("gkestimator", {}), NvtxRanges)
    assert isinstance(make_ranges("gkestimator", {ANNOTATOR_VARIABLE: CLIENT}), NvtxRanges)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(NvtxError, match="GKEST_NVTX=package: .*nvtx"):
        make_ranges("gkestimator", {ANNOTATOR_VARIABLE: PACKAGE})


def install(version: str, folder: Path) -> None:
    """Install a release of the nvtx package into ``folder``; skip where no index has it for this Python."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--only-binary=:all:",
        "--no-deps",
        "--target",
        folder,
    ]
    done = subprocess.run(
        [*map(str, command), f"nvtx=={version}"], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"nvtx {version} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="needs nsys on PATH or in GKEST_NSIGHT (.ci/install-nsight.sh)")
@pytest.mark.parametrize("tool", REAL, ids=str)
@pytest.mark.parametrize(("version", "annotator"), [("0.2.11", PACKAGE), ("0.2.17", CLIENT)])
def test_real_nsys_through_the_real_package(
    tool: Path, version: str, annotator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nsight Systems 2022.4 and 2023.4 record what 0.2.11 pushes, and nothing of 0.2.17."""
    install(version, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GKEST_NSYS", str(tool))
    assert nvtx_version() == version
    monkeypatch.setattr("gkestimator.profiling.diagnosis.collector_names", lambda: ("nsys",))
    facts = dict(profiler_facts(probing=True))
    said = f"the nvtx package {version}" if annotator == PACKAGE else "gkestimator's own NVTX client"
    assert facts["nsys on cpu"].startswith(f"records, with {said}")


def test_the_package_marks_a_block_and_costs_nothing_without_a_profiler() -> None:
    pytest.importorskip("nvtx")
    ranges = PackageRanges("gkestimator", {})
    assert not ranges.active
    with ranges.range("Conv-fp32-00#7"):
        pass
