"""What ``gkest doctor`` says of the profilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.profiling import diagnosis
from gkestimator.profiling.diagnosis import counters_permission, profiler_facts


@pytest.fixture(autouse=True)
def _no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GKEST_NSYS", "GKEST_NCU", "GKEST_NSIGHT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("gkestimator.profiling.tools._installed", lambda tool: iter(()))
    monkeypatch.setattr(diagnosis, "cuda_device_count", lambda: 0)


def test_absent_tools_are_said_with_the_remedy() -> None:
    facts = dict(profiler_facts())
    assert "GKEST_NSYS" in facts["nsys"] and "Nsight Compute" in facts["ncu"]
    assert "MPS" not in facts  # no GPU, so none is in the way


def test_where_and_which_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nsys"
    tool.write_text("#!/bin/sh\necho NVIDIA Nsight Systems version 2023.4.4.54-1\n")
    tool.chmod(0o755)
    assert dict(profiler_facts())["nsys"] == f"2023.4.4.54 ({tool})"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert dict(profiler_facts())["nsys"].endswith(("does not answer", "2023.4.4.54 (" + str(tool) + ")"))
    monkeypatch.setenv("GKEST_NSYS", str(tmp_path / "absent"))
    assert dict(profiler_facts())["nsys"].startswith("GKEST_NSYS: found")


def test_with_a_gpu_what_stands_in_ncus_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(diagnosis, "mps_process", lambda: 12)
    facts = dict(profiler_facts())
    assert facts["MPS"] == "process 12: ncu cannot be used"
    assert "read them" in facts["GPU counters"]


def test_probes_are_made_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        diagnosis, "probe", lambda collector, device: f"{collector.name}!" if device == "cpu" else None
    )
    monkeypatch.setattr(diagnosis, "cuda_device_count", lambda: 1)
    facts = dict(profiler_facts(probing=True))
    assert facts["nsys on cpu"] == "nsys!" and facts["kineto on cuda:0"] == "records"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 0\n", "every user may read them"),
        ("RmProfilingAdminOnly: 1\n", "root may read them"),
        ("Mobile: 4294967295\n", "unknown who may read them"),
        (None, "unknown who may read them"),
    ],
)
def test_who_may_read_counters(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "params").write_text(text)
    assert counters_permission(tmp_path / "params").startswith(said)
