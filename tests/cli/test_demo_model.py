"""The demo's model is the real ResNet-50: parameters, multiply-adds, validity; a runtime loads and runs
it."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
import pytest

from gkestimator.cli import run
from gkestimator.core.errors import OutputError
from gkestimator.onnx_io.demo import RESNET50_PARAMETERS, write_resnet50


def test_it_is_resnet50(tmp_path: Path) -> None:
    path = write_resnet50(tmp_path / "new")
    assert path.name == "resnet50.onnx"
    assert path.stat().st_size < 100_000
    onnx.checker.check_model(str(path), full_check=True)
    graph = onnx.shape_inference.infer_shapes(
        onnx.load(str(path), load_external_data=False), strict_mode=True
    ).graph
    weights = {t.name: tuple(t.dims) for t in graph.initializer}
    trainable = sum(math.prod(s) for n, s in weights.items() if not n.endswith((".mean", ".var")))
    assert trainable == RESNET50_PARAMETERS
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.value_info}
    macs = sum(
        math.prod(weights[n.input[1]]) * math.prod(shapes[n.output[0]][2:])
        for n in graph.node
        if n.op_type == "Conv"
    )
    assert macs + 2048 * 1000 == pytest.approx(4.089e9, rel=0.001)
    assert sum(n.op_type == "Conv" for n in graph.node) == 53


@pytest.mark.slow
def test_a_runtime_runs_it(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    numpy = pytest.importorskip("numpy")
    session = onnxruntime.InferenceSession(str(write_resnet50(tmp_path)), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": numpy.zeros((2, 3, 224, 224), numpy.float32)})
    assert found.shape == (2, 1000)


def test_the_demo_runs_under_what_people_deploy_and_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> tuple[str, str]:
        assert run(arguments) == 0
        captured = capsys.readouterr()
        return " ".join(captured.out.split()), captured.err

    ask = ("demo", "--gpu", "H100", "--batch-size", "1")
    table, words = shown(*ask)
    assert table.startswith("runtime onnxruntime ") and "GPU ms host ms binds" in table
    assert " host " in table and "Host-bound rows (1 of 1)" in words
    assert shown(*ask, "--runtime", "torch")[0].startswith("runtime torch ")
    assert "[default: onnxruntime]" in shown("demo", "--help")[0]
    assert "[default: torch]" in shown("estimate", "--help")[0]


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write_resnet50(tmp_path / "file")
