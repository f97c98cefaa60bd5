"""``gkest demo --all``: what it writes is complete and fits together, and it never writes over a file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from gkestimator.cli import run
from gkestimator.core.errors import OutputError
from gkestimator.documents.cluster import read_cluster
from gkestimator.documents.workload import read_workload
from gkestimator.evaluation.truth import read_truth
from gkestimator.library.schemas import demo_folder
from gkestimator.onnx_io.demo_models import (
    MINILM_PARAMETERS,
    MOBILENET_V2_PARAMETERS,
    write_minilm,
    write_mobilenet_v2,
)

MODELS = {"minilm", "mobilenet_v2", "resnet50"}


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("write", "parameters"),
    [(write_mobilenet_v2, MOBILENET_V2_PARAMETERS), (write_minilm, MINILM_PARAMETERS)],
)
def test_the_models_are_the_real_networks(
    write: Callable[[Path], Path], parameters: int, tmp_path: Path
) -> None:
    path = write(tmp_path)
    onnx.checker.check_model(str(path), full_check=True)
    weights = onnx.load(str(path), load_external_data=False).graph.initializer
    trained = [w for w in weights if w.data_location and not w.name.endswith((".mean", ".var"))]
    assert sum(math.prod(weight.dims) for weight in trained) == parameters


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [3, 128])
def test_a_runtime_runs_the_encoder_at_any_length(tokens: int, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    numpy = pytest.importorskip("numpy")
    session = onnxruntime.InferenceSession(str(write_minilm(tmp_path)), providers=["CPUExecutionProvider"])
    feed = {i.name: numpy.ones((2, tokens), numpy.int64) for i in session.get_inputs()}
    (output,) = session.run(None, feed)
    assert output.shape == (2, tokens, 384)


def test_the_files_name_exactly_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "try"
    assert run(["demo", "--all", str(folder)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert names(folder) == {
        "cluster.yaml",
        "made-up-measurements.csv",
        "models/llama-8b.json",
        "workload.yaml",
        *(f"models/{model}.onnx{suffix}" for model in MODELS for suffix in ("", ".data")),
    }
    assert all(str(folder / name) in said.err for name in names(folder))
    assert {model.name for model in read_workload(folder / "workload.yaml").models} == MODELS
    assert {gpu.spec.name for gpu in read_cluster(folder / "cluster.yaml").gpus} == {"T4", "L4"}
    assert {row.model for row in read_truth(folder / "made-up-measurements.csv").measurements} == MODELS


def test_a_second_run_completes_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--all", str(tmp_path)]) == 0
    (tmp_path / "models" / "minilm.onnx").unlink()
    before = os.stat(tmp_path / "workload.yaml").st_mtime_ns
    capsys.readouterr()
    assert run(["demo", "--all", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"gkest: wrote {tmp_path / 'models' / 'minilm.onnx'}\n"
    assert run(["demo", "--all", str(tmp_path)]) == 0
    assert "every file is there already" in capsys.readouterr().err
    assert os.stat(tmp_path / "workload.yaml").st_mtime_ns == before


def test_a_file_with_another_content_is_kept_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workload.yaml").write_text("models: []\n")
    assert run(["demo", "--all", str(tmp_path)]) == 2
    assert f"{tmp_path / 'workload.yaml'}: is there already with another content" in capsys.readouterr().err
    assert names(tmp_path) == {"workload.yaml"}
    assert (tmp_path / "workload.yaml").read_text() == "models: []\n"


def test_files_come_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> Path:
        raise OutputError(f"{folder}: No space left on device")

    monkeypatch.setattr(demo_folder, "write_minilm", full)
    with pytest.raises(OutputError, match="No space"):
        demo_folder.write_demo_folder(tmp_path)
    assert names(tmp_path) == set()


def test_a_file_in_place_of_the_folder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "try").touch()
    assert run(["demo", "--all", str(tmp_path / "try")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "try") in line


@pytest.mark.parametrize("other", [("--gpu", "T4"), ("--dir", "other"), ("--kernels",)])
def test_all_takes_no_other_option(
    other: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "--all", str(tmp_path / "try"), *other]) == 2
    assert "--all DIR only writes files" in capsys.readouterr().err
    assert not (tmp_path / "try").exists()
