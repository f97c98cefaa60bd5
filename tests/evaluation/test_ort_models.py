"""The section on ONNX Runtime: groups drawn by hash, bars over the report rows, a page of every row."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import UsageError


def case(**changes: Any) -> Any:
    from benchmarks.accuracy.ort_models import OrtCase

    known = OrtCase(
        table="triton",
        group="report",
        model="bert_large",
        gpu="T4",
        dtype="fp16",
        batch=8,
        length=384,
        measured_ms=100.0,
        latency_ms=110.0,
        low_ms=90.0,
        high_ms=120.0,
        roofline_ms=50.0,
        kernels=10,
        host_bound=False,
        warnings="",
    )
    return replace(known, **changes)


@pytest.fixture
def section() -> Any:
    from benchmarks.accuracy.ort_models import SECTION

    return SECTION


@pytest.fixture
def space(tmp_path: Path) -> Any:
    from benchmarks.accuracy.workspace import Workspace

    return Workspace(tmp_path / "shared", tmp_path / "cache")


def kept(space: Any, cases: list[Any]) -> None:
    folder = space.folder / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ort_models.json").write_text(json.dumps([asdict(row) for row in cases]))


def test_three_lengths_of_seven_are_for_development() -> None:
    from benchmarks.accuracy.ort_models import development_lengths

    assert development_lengths([8, 16, 32, 64, 128, 256, 512]) == {16, 128, 256}


def test_bars_count_report_rows_alone(space: Any, section: Any) -> None:
    far = case(group="development", latency_ms=500.0)
    outside = case(batch=16, latency_ms=94.0, high_ms=99.0)
    kept(space, [case(), far, outside])
    first, second = section.lines(space)
    assert first.figure == "8.0 % (2 rows; roofline 50 %; 50 % inside)"
    assert first.met is True
    assert second.met is None


def test_the_page_has_every_row_and_every_form(space: Any, section: Any) -> None:
    form = case(table="forms", group="optimised", measured_ms=None, warnings="optimised file")
    kept(space, [case(), form])
    text = "\n".join(section.page(space))
    assert "| bert_large | T4 | fp16 | 384 | 8 | report | 100.00 | 110.00 | 90.00-120.00 | 10 | no |" in text
    assert "| optimised | T4 | 110.00 | 10 | optimised file |" in text


def test_without_results_nothing_is_claimed(space: Any, section: Any) -> None:
    assert section.page(space) is None
    assert [line.met for line in section.lines(space)] == [None, None]


def test_missing_graphs_are_one_line(space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.accuracy import ort_models

    for name in ("triton/triton_offline", "onnxruntime/onnxruntime_readme"):
        path = space.shared / f"data/{name}.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    monkeypatch.setattr(type(space), "product_key", "0")
    with pytest.raises(
        UsageError, match="no such folder of graphs; run: python benchmarks/export_ort_models.py"
    ):
        ort_models.run(space)
