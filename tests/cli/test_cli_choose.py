"""``gkest choose``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gkestimator.cli import run
from gkestimator.onnx_io.demo import write_resnet50


@pytest.mark.slow
def test_all_gpus_are_asked_and_the_answer_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(write_resnet50(tmp_path))
    words = ["choose", model, "--slo-ms", "50", "--rate", "200", "--runtime", "onnxruntime"]
    assert run([*words, "--format", "json"]) == 0
    said = capsys.readouterr()
    choices = json.loads(said.out)
    assert len(choices) > 20
    assert all(choice["gpus"] is not None or choice["reason"] for choice in choices)
    assert "Cheapest that holds 200 requests a second within 50 ms" in said.err
    costs = [c["careful_cost_per_hour"] for c in choices if c["careful_cost_per_hour"] is not None]
    assert costs == sorted(costs)


@pytest.mark.parametrize(
    "load", [["--slo-ms", "nan", "--rate", "1"], ["--slo-ms", "5"], ["--slo-ms", "5", "--rate", "0"]]
)
def test_a_load_that_is_none_is_refused_in_one_line(
    load: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["choose", "m.onnx", *load]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_objective_that_nothing_meets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_resnet50(tmp_path))
    assert run(["choose", model, "--gpu", "T4", "--slo-ms", "0.01", "--rate", "200"]) == 1
    assert "No GPU holds 200 requests a second within 0.01 ms" in capsys.readouterr().err
