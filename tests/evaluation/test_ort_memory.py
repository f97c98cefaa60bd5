"""The section on memory under ONNX Runtime: groups by GPU, one bar over the report rows, parts of each sum."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20


@pytest.fixture
def space(tmp_path: Path) -> Any:
    from benchmarks.accuracy.workspace import Workspace

    return Workspace(tmp_path / "shared", tmp_path / "cache")


def kept(space: Any) -> None:
    from benchmarks.accuracy.ort_memory import MemoryCase

    case = MemoryCase(
        group="report",
        gpu="T4",
        version="1.14.1",
        batch=1,
        measured_bytes=1000.0 * MIB,
        stacks_bytes=50 * MIB,
        weights_bytes=500 * MIB,
        sessions=(100 * MIB, 600 * MIB, 100 * MIB),
    )
    rows = [
        case,
        replace(case, batch=4, measured_bytes=800.0 * MIB),
        replace(case, group="development", measured_bytes=900.0 * MIB),
        replace(case, group="development", measured_bytes=950.0 * MIB),
        replace(case, group="development", measured_bytes=9000.0 * MIB),
    ]
    folder = space.folder / "results"
    folder.mkdir(parents=True)
    (folder / "ort_memory.json").write_text(json.dumps([asdict(row) for row in rows]))


def test_two_gpus_of_five_are_for_development() -> None:
    from benchmarks.accuracy.ort_memory import development_gpus

    names = ["RTX-3060", "T4", "V100-PCIE-16GB", "A100-SXM4-40GB", "A100-PCIE-80GB"]
    assert development_gpus(names) == {"RTX-3060", "V100-PCIE-16GB"}


def test_the_bar_counts_report_rows_alone(space: Any) -> None:
    from benchmarks.accuracy.ort_memory import SECTION

    kept(space)
    (bar,) = SECTION.lines(space)
    # Development leaves over 50, 100 and 8150 MiB: 100, so both report rows are estimated at 950.
    assert bar.figure == "11.9 % (2 rows; weights alone 44 %)"
    assert bar.met is True


def test_the_page_has_the_parts_of_every_sum(space: Any) -> None:
    from benchmarks.accuracy.ort_memory import SECTION

    kept(space)
    text = "\n".join(SECTION.page(space) or [])
    assert "| T4 | 1.14.1 | 1 | report | 1,000 | 950 | -5.0 | 50 | 100 | 600 | 100 |" in text
    assert "100 MiB for context and libraries" in text
    assert "report 11.9 % of 2 rows" in text


def test_without_results_nothing_is_claimed(space: Any) -> None:
    from benchmarks.accuracy.ort_memory import SECTION

    assert SECTION.page(space) is None
    assert [bar.met for bar in SECTION.lines(space)] == [None]
