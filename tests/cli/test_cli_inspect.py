"""``gkest inspect``: what a file says, before a GPU is named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.cli import run
from gkestimator.onnx_io.demo import write_resnet50

ENCODER = Path(__file__).parents[1] / "data/exporters/onnxruntime_dynamic_encoder.onnx"


def test_a_network_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ResNet-50: 25,557,032 parameters, of which the folded file keeps the weights; 4.1 GMACs a sample."""
    model = write_resnet50(tmp_path)
    assert run(["inspect", str(model), "--format", "json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    weights = onnx.load(model, load_external_data=False).graph.initializer
    floats = [w for w in weights if w.data_type == TensorProto.FLOAT]
    assert said["parameters"] == sum(math.prod(w.dims) for w in floats)
    assert said["inputs"][0][1:] == ["float", "[N, 3, 224, 224]"] or said["batch_dim"]
    assert dict(said["operators"])["Conv"] == 53
    assert 8.1e9 < said["flops"] < 8.4e9
    assert said["batch_size"] == 1


def test_an_open_dimension_is_asked_for_and_then_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(ENCODER)]) == 0
    text = capsys.readouterr().out
    assert "dimension   tokens, of x" in text
    assert "not known yet: give --dim tokens=..." in text
    assert f"gkest estimate {ENCODER} --gpu NAME --batch-size 1,8,32 --dim tokens=...\n" in text
    assert run(["inspect", str(ENCODER), "--dim", "tokens=64"]) == 0
    assert "--gpu NAME --batch-size 1,8,32 --dim tokens=64\n" in capsys.readouterr().out
    assert run(["inspect", str(ENCODER), "--dim", "tokens=64", "--format", "json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert said["flops"] > 0


def test_a_model_of_strings_says_that_it_runs_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No GPU would do any of its work: that is the first thing to know."""
    node = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")
    x, y = (helper.make_tensor_value_info(name, TensorProto.STRING, [4]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )
    path = tmp_path / "strings.onnx"
    onnx.save(model, path)
    assert run(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "strings.onnx runs on the CPU alone: no GPU would do any of its work"
    assert not any(line.startswith("  next") for line in lines)


@pytest.mark.parametrize("operator", ["StringNormalizer", "Reshape"])
def test_a_model_without_a_gpu_kernel_gets_no_verdict(
    operator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operators of the CPU, and views: first line, status 0, and neither a GPU nor a fit is spoken of."""
    kind = TensorProto.STRING if operator == "StringNormalizer" else TensorProto.FLOAT
    names = ["x"] if operator == "StringNormalizer" else ["x", "shape"]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 1])
    ends = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", [4]), ("y", None))]
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"])], "g", ends[:1], ends[1:], [shape][: len(names) - 1]
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    line = "net runs on the CPU alone: no GPU would do any of its work"
    for more in ([], ["--max-batch", "--slo-ms", "9"], ["--format", "markdown"]):
        assert run(["estimate", str(path), "--gpu", "T4,L4", *more]) == 0
        said = capsys.readouterr()
        assert (said.out, said.err) == (f"{line}\n", "")
    assert run(["estimate", str(path), "--gpu", "T4", "--format", "json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"][0]["kernels"] == 0
    assert said.err == f"gkest: note: {line}\n"
    assert run(["choose", str(path), "--slo-ms", "9", "--rate", "1"]) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert run(["choose", str(path), "--slo-ms", "9", "--rate", "1", "--format", "json"]) == 0
    assert "runs on the CPU alone" in capsys.readouterr().out


def test_beside_a_model_for_gpus_it_has_a_line_before_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    models = [str(ENCODER.with_name(name)) for name in ("scan.onnx", "sklearn_opset9.onnx")]
    assert run(["estimate", *models, "--gpu", "T4"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("sklearn_opset9 runs on the CPU alone")
    assert "sklearn" not in said.out.partition("\n")[2] and "sklearn" not in said.err
    assert "scan: fits on T4" in said.err


def test_a_dimension_that_some_models_of_a_folder_lack_is_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = [str(ENCODER), str(ENCODER.with_name("scan.onnx"))]
    assert run(["inspect", *models, "--dim", "tokens=8"]) == 0
    said = capsys.readouterr()
    assert "not known yet" not in said.out
    assert said.err == "gkest: note: dimension tokens: not in scan, estimated without it\n"
    assert run(["inspect", *models, "--dim", "token=8"]) == 2
    assert "is in none of the 2 models" in capsys.readouterr().err
    assert run(["inspect", models[1], "--dim", "tokens=8"]) == 2
    assert "dimension 'tokens' is not in the model" in capsys.readouterr().err


def test_a_bad_file_among_good_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    assert run(["inspect", str(bad)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["inspect", str(bad), str(ENCODER)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("onnxruntime_dynamic_encoder.onnx\n")
    assert "bad.onnx" in said.err


def test_an_error_names_the_file_once_and_as_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "models" / "none.onnx"
    assert run(["estimate", str(missing), "--gpu", "T4"]) == 2
    assert capsys.readouterr().err.startswith(f"gkest: error: {missing}: cannot be opened")
    assert run(["estimate", str(ENCODER), "--gpu", "T4"]) == 2
    assert capsys.readouterr().err.startswith(f"gkest: error: {ENCODER}: dimension tokens has no size")
