"""The section on memory under TensorRT: blocks shared or apart, the constant of other GPUs, nothing without results."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20


@pytest.fixture
def space(tmp_path: Path) -> Any:
    from benchmarks.accuracy.ort_memory import MemoryCase
    from benchmarks.accuracy.trt_memory import EngineCase
    from benchmarks.accuracy.workspace import Workspace

    space = Workspace(tmp_path / "shared", tmp_path / "cache")
    folder = space.folder / "results"
    folder.mkdir(parents=True)
    development = MemoryCase(
        group="development", gpu="V100", version="1.14.1", batch=1, measured_bytes=900.0 * MIB, stacks_bytes=50 * MIB,
        weights_bytes=500 * MIB, sessions=(750 * MIB,),
    )  # fmt: skip
    native = EngineCase(
        gpu="T4", runtime="tensorrt", version="8.6.1", provider="default", batch=1, measured_bytes=1000.0 * MIB,
        stacks_bytes=40 * MIB, weights_bytes=500 * MIB, planned_bytes=200 * MIB, bindings_bytes=10 * MIB,
    )  # fmt: skip
    in_ort = replace(native, runtime="onnxruntime_tensorrt", provider="tensorrt", planned_bytes=400 * MIB)
    (folder / "ort_memory.json").write_text(json.dumps([asdict(development)]))
    (folder / "trt_memory.json").write_text(json.dumps([asdict(case) for case in (native, in_ort)]))
    return space


def test_the_constant_is_that_of_the_development_rows_of_the_other_section(space: Any) -> None:
    from benchmarks.accuracy.trt_memory import SECTION

    (bar,) = SECTION.lines(space)
    # 100 MiB are left over there: 850 and 1050 of 1000 here.
    assert bar.figure == "10.0 % (2 rows; weights alone 50 %)"
    assert bar.met is True


def test_the_page_has_the_parts_of_every_sum(space: Any) -> None:
    from benchmarks.accuracy.trt_memory import SECTION

    text = "\n".join(SECTION.page(space) or [])
    assert "| T4 | tensorrt | 8.6.1 | default | 1 | 1,000 | 850 | -15.0 | 500 | 200 | 10 |" in text
    assert "Context and libraries: 100 MiB" in text


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    from benchmarks.accuracy.trt_memory import SECTION
    from benchmarks.accuracy.workspace import Workspace

    space = Workspace(tmp_path / "shared", tmp_path / "cache")
    assert SECTION.page(space) is None
    assert [bar.met for bar in SECTION.lines(space)] == [None]
