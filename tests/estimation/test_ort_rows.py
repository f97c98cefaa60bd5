"""Rows under onnxruntime: the form of the file is said, the optimiser's level and the fused kernels are options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gkestimator
from gkestimator.core.errors import UsageError
from gkestimator.hardware.runtimes import RUNTIMES

GRAPHS = Path(__file__).parents[1] / "data/ort_graphs"


def row(form: str, **options: Any) -> Any:
    table = gkestimator.estimate(
        [GRAPHS / f"bert_tiny.{form}.fp32.onnx"],
        gpus=["T4"],
        batch_sizes=[2],
        dims={"S": 16},
        **{"runtime": "onnxruntime", **options},
    )
    return table.iloc[0]


def test_a_row_says_that_the_file_is_as_exported() -> None:
    warnings = row("exported").warnings
    assert "file as exported: attention is not fused (runs operator by operator, 2 times)" in warnings
    assert "optimised file" not in warnings


def test_a_row_says_that_the_file_was_optimised() -> None:
    warnings = row("optimised").warnings
    assert "optimised file: 2 attentions are operators of onnxruntime's own" in warnings
    assert "as exported" not in warnings


@pytest.mark.parametrize("runtime", [name for name, traits in RUNTIMES.items() if not traits.file_optimiser])
def test_runtimes_without_an_optimiser_of_files_say_neither(runtime: str) -> None:
    assert "file as exported" not in row("exported", runtime=runtime, attention="eager").warnings


def test_the_basic_level_launches_what_the_file_says() -> None:
    assert row("exported", graph_level="basic").kernels > 1.5 * row("exported").kernels
    assert row("optimised", graph_level="basic").kernels == row("optimised").kernels


def test_another_level_is_one_line() -> None:
    with pytest.raises(UsageError, match="graph_level.*basic, extended|graph_level.*one of"):
        row("exported", graph_level="all")
