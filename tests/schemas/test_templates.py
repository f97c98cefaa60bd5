"""What ``gkest init`` writes is read as it is, and so is everything that it holds as a comment."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.cli import run
from gkestimator.core.errors import DocumentError
from gkestimator.documents import ModelLoad, read_cluster, read_workload
from gkestimator.hardware.gpus import load_gpu_file
from gkestimator.library.schemas.templating import whole_text
from gkestimator.simulation.comparing.spec import read_spec


def written(kind: str, folder: Path, *more: str) -> Path:
    path = folder / f"{kind}.file"
    assert run(["init", kind, "-o", str(path), *more]) == 0
    return path


def test_templates_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "requirements.csv").touch()
    assert read_workload(written("workload", tmp_path)).names() == ("resnet50",)
    assert [g.count for g in read_cluster(written("cluster", tmp_path)).gpus] == [2]
    assert load_gpu_file(written("gpu", tmp_path)).sms == 58
    assert read_spec(written("comparison", tmp_path)).cells == 2 * 2 * 2


def test_commented_fields_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.write_text(whole_text("workload"))
    assert [a.name for a in read_workload(path).applications] == ["traffic"]
    path.write_text(whole_text("cluster").replace("gpus:", "elastic:", 1).split("# In place")[0])
    with pytest.raises(DocumentError, match="'count' is not a field"):
        read_cluster(path)
    path.write_text(whole_text("gpu").replace("tensor_clock_mhz = 2040", "tensor_clock_mhz = 2000"))
    assert load_gpu_file(path).dram_sustained_bytes_per_s == 270e9
    for name in ("requirements.csv", "trace.csv"):
        (tmp_path / name).touch()
    path.write_text(whole_text("comparison"))
    spec = read_spec(path)
    assert [c.label for c in spec.clusters] == ["pair", "rented"] and len(spec.arrivals) == 3


def test_quick_workloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written("workload", tmp_path, "--quick", "resnet50:900rps@100ms, timm/vit:0.5rps@2s")
    assert read_workload(path).models == (
        ModelLoad(name="resnet50", rate_rps=900, slo_ms=100),
        ModelLoad(name="timm/vit", rate_rps=0.5, slo_ms=2000),
    )
    assert "# Requests a second." in path.read_text()
    assert run(["init", "workload", "-o", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("quick", "said"),
    [
        ("resnet50:900@100ms", "expected MODEL:RATErps@OBJECTIVEms"),
        ("resnet50:9.0.0rps@100ms", "expected MODEL:RATErps@OBJECTIVEms"),
        ("resnet50:0rps@100ms", "rate_rps: found 0.0, expected a number above 0"),
        ("a:1rps@1ms,a:2rps@1ms", "a stands twice"),
        ("../x:1rps@1ms", "expected a name"),
        ("", "expected MODEL:RATErps@OBJECTIVEms"),
    ],
)
def test_bad_quick_workloads(quick: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "workload", "--quick", quick]) == 2
    assert said in capsys.readouterr().err


def test_quick_is_of_workloads_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "cluster", "--quick", "a:1rps@1ms"]) == 2
    assert "--quick writes a workload alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "modles:\n- {name: a, rate_rps: 1, slo_ms: 1}\n",
            r"'modles' is not a field .* did you mean models\?",
        ),
        ("models:\n- {name: a, rate_rps: 1, slo: 1}\n", r"found slo, did you mean slo_ms\?"),
        ("models:\n- {nmae: a, rate_rps: 1, slo_ms: 1}\n", r"found nmae, did you mean name\?"),
    ],
)
def test_the_only_field_misspelt_is_found(text: str, said: str, tmp_path: Path) -> None:
    """Though the field that is missing for it is noticed first."""
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError, match=said):
        read_workload(path)


def test_a_misspelt_field_is_answered_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text("models:\n- {name: a, rate_rsp: 1, slo_ms: 1}\n")
    with pytest.raises(
        DocumentError, match=r"rate_rps is missing .*; found rate_rsp, did you mean rate_rps\?"
    ):
        read_workload(path)
    path.write_text("models:\n- {name: a, rate_rps: 1, slo_ms: 1, wieght: 1}\n")
    with pytest.raises(DocumentError, match=r"did you mean weight\? \(known: name, "):
        read_workload(path)
    path.write_text("modles: []\nmodels:\n- {name: a, rate_rps: 1, slo_ms: 1}\n")
    with pytest.raises(DocumentError, match=r"did you mean models\?"):
        read_workload(path)
