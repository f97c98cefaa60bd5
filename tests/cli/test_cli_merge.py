"""``gkest merge``: one file that gives what the originals give, a report in three forms, plans."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import numpy as np
import onnx
import pytest
from _plans import GPU, plan, replica
from same_outputs import same

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.documents import plan_json

pytest.importorskip("scipy")

Outcome = tuple[int, str, str]
Gkest = Callable[..., Outcome]


@pytest.fixture
def gkest(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Gkest:
    """Runs ``gkest merge`` in a folder with four models: siblings ``a`` and ``b``, ``c`` of another family, and ``d``,
    like ``a`` with no weight in common."""
    monkeypatch.chdir(tmp_path)
    one = families.resnet_like()
    families.saved(one, tmp_path / "a.onnx")
    families.saved(families.sibling(one, last=1), tmp_path / "b.onnx")
    families.saved(families.bert_like(), tmp_path / "c.onnx")
    families.saved(families.resnet_like(seed=99), tmp_path / "d.onnx")

    def call(*arguments: str) -> Outcome:
        status = run(["merge", *arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def test_siblings_become_one_trunk(gkest: Gkest, tmp_path: Path) -> None:
    status, out, err = gkest("a.onnx", "b.onnx", "-o", "m.onnx")
    assert (status, out) == (0, "")
    assert "gkest: wrote m.onnx" in err
    assert "Merged 18 operators of 2 models into 9" in err
    merged = onnx.load("m.onnx")
    onnx.checker.check_model(merged, full_check=True)
    assert sum(n.op_type == "Conv" for n in merged.graph.node) == 9
    assert [i.name for i in merged.graph.input] == ["a/image", "b/image"]
    assert Path("m.onnx").stat().st_size < 0.8 * (
        Path("a.onnx").stat().st_size + Path("b.onnx").stat().st_size
    )
    same("m.onnx", {"a": "a.onnx", "b": "b.onnx"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "c.onnx", "d.onnx", "m.onnx"]


def test_the_report_as_json_has_every_figure(gkest: Gkest) -> None:
    pytest.importorskip("onnxruntime")
    status, out, _ = gkest("a.onnx", "b.onnx", "-o", "m.onnx", "--format", "json", "--samples", "2")
    found: dict[str, Any] = json.loads(out)
    assert status == 0 and found["schema_version"] == 1 and found["nothing"] is None
    assert [m["name"] for m in found["models"]] == ["a", "b"]
    assert found["pairs"] == len(found["merged"]) == 9 and all(o["merged"] for o in found["merged"])
    assert found["saved_bytes"] == sum(o["saved_bytes"] for o in found["merged"]) > 0
    stem = found["merged"][0]
    assert stem["operators"] == ["a/stem", "b/stem"] and stem["whole"] and stem["similarity"] == 1.0
    weights = {w.name: w for w in onnx.load("a.onnx").graph.initializer}
    conv = next(n for n in onnx.load("a.onnx").graph.node if n.op_type == "Conv")
    assert stem["block_bytes"] == 4 * np.prod(weights[conv.input[1]].dims)
    assert found["after"]["latency_ms"] < found["before"]["latency_ms"]
    assert found["after"]["weight_bytes"] < found["before"]["weight_bytes"]
    assert found["after"]["kernels"] < found["before"]["kernels"]
    assert found["file_bytes"] == Path("m.onnx").stat().st_size
    assert found["stored_bytes"] < sum(m["weight_bytes"] for m in found["models"])
    assert found["check"]["samples"] == 2 and found["check"]["largest_relative_difference"] <= 1e-5
    assert found["check_reason"] is None


def test_without_a_file_the_report_alone(gkest: Gkest, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    status, out, err = gkest("a.onnx", "b.onnx", "--samples", "0")
    assert status == 0 and sorted(tmp_path.iterdir()) == before
    for text in ("models one by one", "a/stem", "outputs: not compared: not asked for"):
        assert text in out
    assert max(map(len, out.splitlines())) <= 100
    assert "Merged 18 operators" in err and "wrote" not in err
    _, markdown, _ = gkest("a.onnx", "b.onnx", "--samples", "0", "--format", "markdown")
    assert "| model | group |" in markdown and "|---|---:|" in markdown


@pytest.mark.slow
def test_other_architectures_stand_side_by_side(gkest: Gkest) -> None:
    status, out, err = gkest("a.onnx", "c.onnx", "-o", "m.onnx")
    assert (status, out) == (0, "")
    line = err.splitlines()[1]
    assert line.startswith(
        "Nothing was merged: the models are of different architectures (--group-distance 0.08;"
    )
    same("m.onnx", {"a": "a.onnx", "c": "c.onnx"})
    enough = re.findall(r"from ([0-9.]+) on two of them are alike", line)
    _, _, err = gkest("a.onnx", "c.onnx", "--group-distance", *enough)
    assert "no two operators have weights that are similar enough" in err
    _, _, err = gkest("a.onnx", "c.onnx", "--group-distance", str(float(*enough) - 0.002))
    assert "of different architectures" in err


def test_a_third_model_of_another_architecture(gkest: Gkest) -> None:
    status, _, err = gkest("a.onnx", "c.onnx", "b.onnx", "-o", "m.onnx")
    assert status == 0
    assert "Merged 18 operators of 2 of the 3 models into 9" in err
    assert "Merged with none, beside the others in the file: c." in err.splitlines()
    same("m.onnx", {"a": "a.onnx", "b": "b.onnx", "c": "c.onnx"})


def test_one_architecture_and_no_weights_in_common(gkest: Gkest) -> None:
    status, _, err = gkest("a.onnx", "d.onnx", "-o", "m.onnx")
    assert status == 0
    assert "Nothing was merged: no two operators have weights that are similar enough (--omega 0.4)." in err
    same("m.onnx", {"a": "a.onnx", "d": "d.onnx"})


def test_a_model_with_itself_shares_everything(gkest: Gkest) -> None:
    status, out, _ = gkest("a.onnx", "a.onnx", "-o", "m.onnx", "--format", "json", "--samples", "0")
    found = json.loads(out)
    assert status == 0 and [m["name"] for m in found["models"]] == ["a", "a#2"]
    # Small whole numbers (shapes) may come on top of one model's weights.
    assert 0 <= found["stored_bytes"] - found["models"][0]["weight_bytes"] < 1024
    same("m.onnx", {"a": "a.onnx", "a#2": "a.onnx"})


def test_a_model_called_merged(gkest: Gkest, tmp_path: Path) -> None:
    Path("merged.onnx").write_bytes(Path("a.onnx").read_bytes())
    status, _, _ = gkest("merged.onnx", "b.onnx", "-o", "m.onnx")
    assert status == 0
    same("m.onnx", {"merged#2": "merged.onnx", "b": "b.onnx"})


def test_two_files_of_one_stem(gkest: Gkest, tmp_path: Path) -> None:
    for folder, source in (("x", "a.onnx"), ("y", "b.onnx")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "net.onnx").write_bytes(Path(source).read_bytes())
    status, _, _ = gkest("x/net.onnx", "y/net.onnx", "-o", "m.onnx")
    assert status == 0
    same("m.onnx", {"x/net": "a.onnx", "y/net": "b.onnx"})


def test_the_same_input_gives_the_same_file(gkest: Gkest) -> None:
    first = gkest("a.onnx", "b.onnx", "-o", "m.onnx", "--report", "--samples", "0")
    one = Path("m.onnx").read_bytes()
    second = gkest("a.onnx", "b.onnx", "-o", "m.onnx", "--report", "--samples", "0")
    assert Path("m.onnx").read_bytes() == one and first == second


@pytest.mark.slow
def test_batch_sizes_are_of_the_price(gkest: Gkest) -> None:
    def flops(*options: str) -> int:
        _, out, _ = gkest("a.onnx", "b.onnx", "--samples", "0", "--format", "json", *options)
        value: int = json.loads(out)["before"]["flops"]
        return value

    assert flops("--batch-size", "4") == 4 * flops()
    assert flops("--batch-size", "1,3") == 2 * flops()  # 1 + 3 of one network each


def test_the_library_does_the_same(gkest: Gkest) -> None:
    gkest("a.onnx", "b.onnx", "-o", "m.onnx")
    result = gkestimator.merge(["a.onnx", "b.onnx"], "n.onnx", gpu="V100", omega=0.5)
    assert result.files == (Path("n.onnx"),) and result.report.pairs == 9
    assert Path("n.onnx").read_bytes() == Path("m.onnx").read_bytes()
    assert "merge" in gkestimator.__all__
    for wrong, text in (
        ({"speed": 1}, "speed"), ({"omega": "x"}, "omega: found 'x'"), ({"samples": -1}, "samples: found -1"),
        ({"batch_sizes": ()}, "batch_sizes: found none"), ({"price": "gold"}, "price: found 'gold'"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=text):
            gkestimator.merge(["a.onnx", "b.onnx"], **wrong)
    with pytest.raises(UsageError, match="found 1 model"):
        gkestimator.merge("a.onnx")
    with pytest.raises(UsageError, match="is also used as"):
        gkestimator.merge(["a.onnx", "b.onnx"], "b.onnx")


def written_plan(*gpus: list[Any]) -> None:
    names = sorted({r.model for here in gpus for r in here})
    placed = plan(*gpus, models=[(name, 10.0, 100.0) for name in names])
    Path("plan.json").write_text(plan_json(placed))


def test_a_plan_gives_a_file_for_each_distinct_set(gkest: Gkest) -> None:
    def pair(number: int) -> list[Any]:
        return [replica(m, number, runtime="onnxruntime") for m in ("a", "b")]

    written_plan(pair(0), pair(1), [replica("c")], [replica("a", 9), replica("c", 9)])
    status, out, err = gkest("--plan", "plan.json", ".", "-o", "files")
    assert (status, out) == (0, "")
    index = json.loads(Path("files/index.json").read_text())
    first, second = index["files"]
    assert first["gpus"] == [f"{GPU}-0", f"{GPU}-1"] and first["runtime"] == "onnxruntime"
    assert [(m["model"], m["prefix"], m["batch_size"]) for m in first["models"]] == [
        ("a", "a", 4),
        ("b", "b", 4),
    ]
    assert second["file"] is None and second["report"]["nothing"]  # nothing to merge: no file
    assert {g["id"]: g["files"] for g in index["gpus"]} == {
        f"{GPU}-0": [first["file"]], f"{GPU}-1": [first["file"]], f"{GPU}-2": [], f"{GPU}-3": [],
    }  # fmt: skip
    assert sorted(p.name for p in Path("files").iterdir()) == sorted([first["file"], "index.json"])
    assert f"{GPU}-0, {GPU}-1: Merged 18 operators" in err
    same(f"files/{first['file']}", {"a": "a.onnx", "b": "b.onnx"})


def test_a_plan_without_neighbours(gkest: Gkest) -> None:
    written_plan([replica("a", 0), replica("a", 1)], [replica("b")])
    status, out, err = gkest("--plan", "plan.json", ".", "--report")
    assert (status, out) == (0, "no GPU of the plan holds two models\n")
    assert err == "Nothing was merged: no GPU of the plan holds two models.\n"


def test_a_plan_of_which_one_set_cannot_be_merged(gkest: Gkest) -> None:
    Path("d.onnx").write_bytes(Path("a.onnx").read_bytes()[:2000])
    written_plan([replica("a", 0), replica("b", 0)], [replica("c", 1), replica("d", 1)])
    status, out, err = gkest("--plan", "plan.json", ".", "--format", "json", "--samples", "0")
    index = json.loads(out)
    assert status == 1 and index["files"][0]["report"]["pairs"] == 9
    assert index["files"][1]["error"] and index["files"][1]["report"] is None
    assert f"gkest: error: {GPU}-1: d.onnx" in err


@pytest.mark.slow
def test_what_the_closing_words_say(gkest: Gkest) -> None:
    """Two models that share one layer in the middle: by itself it does not pay."""
    one = families.resnet_like()
    other = families.resnet_like(seed=5)
    weights = {w.name: w for w in one.graph.initializer}
    for tensor in other.graph.initializer:
        if tensor.name.startswith("layer2.0.conv1"):
            tensor.CopyFrom(weights[tensor.name])
    families.saved(other, Path("e.onnx"))
    status, out, err = gkest("a.onnx", "e.onnx", "--format", "json", "--samples", "0")
    found = json.loads(out)
    assert status == 0 and found["merged"][0]["operators"] == ["a/layer2.0.conv1", "e/layer2.0.conv1"]
    assert not found["merged"][0]["merged"] and found["pairs"] == 0 and found["confidence"] is None
    assert [r["reason"] for r in found["refused"]] == ["price"]
    assert "Nothing was merged: of 1 products with weights in common none pays" in err
    status, out, err = gkest(
        "a.onnx", "e.onnx", "--always", "--tau-ms", "inf", "--format", "json", "--samples", "0"
    )
    found = json.loads(out)
    assert status == 0 and found["settings"]["tau_ms"] is None and found["pairs"] == 1
    assert found["after"]["latency_ms"] >= found["before"]["latency_ms"]
    assert "it does not pay, and was merged because --always says so" in err
    _, _, err = gkest("a.onnx", "b.onnx", "--price", "gpu", "--samples", "0")
    assert "ms of the GPU instead of" in err
    assert "the 90 % intervals of the latency" in err


def test_three_models_of_which_two_are_alike(gkest: Gkest) -> None:
    """The closing line counts the models that were merged; lists in Markdown do not run together."""
    status, out, err = gkest("a.onnx", "c.onnx", "b.onnx", "--samples", "0", "--format", "markdown")
    assert status == 0 and "Merged 18 operators of 2 of the 3 models into 9: " in err
    assert next(line for line in out.splitlines() if "weights: " in line).startswith("- ")


@pytest.mark.slow
@pytest.mark.usefixtures("gkest")
def test_an_end_while_outputs_are_compared_leaves_no_file(tmp_path: Path) -> None:
    """SIGTERM, as a service manager or `timeout` sends it."""
    pytest.importorskip("onnxruntime")
    command = [sys.executable, "-c", "from gkestimator.cli import main; main()", "merge", "a.onnx", "b.onnx"]
    process = subprocess.Popen(
        [*command, "--samples", "10000"], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not list(tmp_path.glob("gkest-merge*/merged.onnx")):
        time.sleep(0.02)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("gkest-merge*"))
