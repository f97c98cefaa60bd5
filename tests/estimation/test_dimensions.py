"""Dimensions that are swept, and those that some of several models lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.estimation.request import EstimateRequest

TOKENS = """
    <ir_version: 8, opset_import: ["" : 17]>
    tokens (float[N, seq, 8] x, float[N, past, 8] y) => (float[N, c, 8] z) { z = Concat <axis = 1> (x, y) }"""
IMAGES = """
    <ir_version: 8, opset_import: ["" : 17]>
    images (float[N, 3, 32, 32] x) => (float[N, 3, 32, 32] z) { z = Relu (x) }"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for text in (TOKENS, IMAGES):
        model = onnx.parser.parse_model(text)
        onnx.save(model, tmp_path / f"{model.graph.name}.onnx")
    return tmp_path


def dims_of(models: Any, **options: Any) -> list[str]:
    return list(gkestimator.estimate(models, "T4", **options)["dims"])


def test_several_dimensions_are_a_product(folder: Path) -> None:
    rows = dims_of(folder / "tokens.onnx", dims={"seq": [128, 512], "past": (1, 7)}, batch_sizes=[1, 2])
    combinations = ["past=1,seq=128", "past=7,seq=128", "past=1,seq=512", "past=7,seq=512"]
    assert rows == [dims for dims in combinations for _ in range(2)]


def test_one_number_stands_for_a_list_of_one(folder: Path) -> None:
    assert dims_of(folder / "tokens.onnx", dims={"seq": 3, "past": [1]}) == ["past=1,seq=3"]
    assert EstimateRequest("m.onnx", "T4").dim_combinations == ({},)
    with pytest.raises(UsageError, match="^dims: found seq=none, expected whole numbers from 0"):
        EstimateRequest("m.onnx", "T4", dims={"seq": []})


def test_a_dimension_that_some_models_lack_is_a_note(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["--dim", "seq=16,32", "--dim", "past=1"]
    assert run(["estimate", str(folder), "--gpu", "T4", *sweep, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    rows = [(row["model"], row["dims"]) for row in json.loads(out)["rows"]]
    assert rows == [("images", ""), ("tokens", "past=1,seq=16"), ("tokens", "past=1,seq=32")]
    assert "dimension seq: not in images, estimated without it" in err


def test_a_dimension_of_no_model_is_an_error_that_names_the_nearest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--gpu", "T4", "--dim", "past=1", "--dim", "sek=16"]
    assert run(["estimate", str(folder), *asked]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "dimension 'sek' is in none of the 2 models; known: N, seq, past; did you mean seq?" in err
    assert run(["estimate", str(folder / "tokens.onnx"), *asked]) == 2
    assert "did you mean seq?" in capsys.readouterr().err


def test_the_largest_batch_of_every_size(folder: Path) -> None:
    model = folder / "tokens.onnx"
    sizes = {"seq": [16, 4096], "past": 1}
    table = gkestimator.estimate(model, "T4", dims=sizes, max_batch=True, slo_ms=3)
    assert list(table["dims"]) == ["past=1,seq=16", "past=1,seq=4096"]
    small, large = table["batch_size"]
    assert small > large >= 1


@pytest.mark.parametrize("command", ["choose", "inspect", "evaluate"])
def test_commands_that_answer_one_question_take_one_size(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(folder / "tokens.onnx")
    arguments = {"evaluate": ["--truth", "t.csv"], "choose": [model, "--slo-ms", "1", "--rate", "1"]}
    assert run([command, *arguments.get(command, [model]), "--dim", "seq=1,2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_models_that_are_compared_have_the_same_sweep(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = str(folder / "tokens.onnx")
    asked = ["--gpu", "T4", "--dim", "past=1"]
    assert run(["diff", tokens, tokens, *asked, "--dim", "seq=8,16", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert run(["diff", tokens, str(folder / "images.onnx"), *asked, "--dim", "seq=8,16"]) == 2
    assert "that one of the models lacks" in capsys.readouterr().err
    assert run(["diff", tokens, tokens, *asked, "--dim", "sek=8"]) == 2
    assert "is in none of the 2 models" in capsys.readouterr().err
