"""One wrong model is one row's worth: it is refused by name, the others are written, and the status says which."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.handfuls import Handful
from gkestimator.estimation.engine import Engine

HUGE = 2**21


def saved(path: Path, op: str, shapes: list[list[int]]) -> Path:
    """Write a model of one node whose inputs have ``shapes``."""
    names = [f"x{at}" for at in range(len(shapes))]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip(names, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"])], "g", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return saved(tmp_path / "good.onnx", "Relu", [[1, 8]])


def rows_of(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Return the models of the table on stdout, and the errors on stderr."""
    caught = capsys.readouterr()
    models = [row["model"] for row in json.loads(caught.out)["rows"]] if caught.out else []
    return models, [line for line in caught.err.splitlines() if line.startswith("gkest: error: ")]


WRONG = {
    "a batch of zero": ("Relu", [[0, 8]], "batch_size: found 0, expected at least 1"),
    "FLOPs beyond 64 bits": (
        "MatMul",
        [[8, HUGE, HUGE], [8, HUGE, HUGE]],
        "flops: found a number beyond 64 bits",
    ),
    "bytes beyond 64 bits": (
        "Add",
        [[2**20, 1, 2**20], [1, 2**20, 1]],
        "mreq_bytes: found a number beyond 64 bits",
    ),
    "shapes that contradict": ("Add", [[2, 3], [2, 4]], "do not broadcast"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_one_wrong_model_is_one_row(
    wrong: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    op, shapes, words = WRONG[wrong]
    bad = saved(tmp_path / "bad.onnx", op, shapes)
    asked = ["--gpu", "T4", "--format", "json"]
    assert run(["estimate", str(bad), str(good), *asked]) == 1
    models, (error,) = rows_of(capsys)
    assert models == ["good"] and "bad.onnx" in error and words in error
    assert run(["estimate", str(bad), *asked]) == 2
    models, (error,) = rows_of(capsys)
    assert models == [] and "bad.onnx" in error and words in error
    with pytest.raises(GkestimatorError, match=words):
        gkestimator.estimate([bad, good], "T4")
    table = gkestimator.estimate([onnx.load(bad), good], "T4", errors="collect")
    assert list(table["model"]) == ["good"] and words in table.errors["message"][0]


def test_a_model_without_a_batch_is_refused_where_only_others_are_asked_for(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scalar = saved(tmp_path / "scalar.onnx", "Relu", [[]])
    asked = ["estimate", str(scalar), str(good), "--gpu", "T4", "--format", "json", "--batch-size"]
    assert run([*asked, "4,8"]) == 1
    models, (error,) = rows_of(capsys)
    assert models == ["good", "good"]
    assert "scalar.onnx: no input has a batch dimension: found batch size 4, expected 1 or none" in error
    assert run([*asked, "1,4"]) == 0  # one sample is what it takes
    assert rows_of(capsys) == (["scalar", "good", "good"], [])


def defective(*_: object) -> None:
    raise ZeroDivisionError("a rule divided by zero")


def test_a_defect_that_one_model_meets_costs_that_model(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = saved(tmp_path / "bad.onnx", "Mish", [[1, 7]])
    whole = Engine.lower_all
    monkeypatch.setattr(
        Engine, "lower_all", lambda self, s: defective() if s.name == "bad" else whole(self, s)
    )
    assert run(["estimate", str(bad), str(good), "--gpu", "T4", "--format", "json"]) == 1
    models, (error,) = rows_of(capsys)
    assert models == ["good"]
    assert "bad.onnx: a defect of gkestimator" in error and "ZeroDivisionError" in error
    assert run(["--debug", "estimate", str(bad), "--gpu", "T4"]) == 2
    assert "Traceback" in capsys.readouterr().err


def spoiled_by(bad: set[int]) -> Callable[..., dict[int, int]]:
    def answer(prepared: dict[int, int]) -> dict[int, int]:
        if bad & prepared.keys():
            raise OverflowError("together")
        return prepared

    return answer


def test_what_fails_for_all_together_is_asked_one_by_one() -> None:
    forgotten: list[None] = []
    handful: Handful[int, int, int, int] = Handful(
        prepare=lambda source: 10 // source,
        answer=spoiled_by({3, 4}),
        forget=lambda: forgotten.append(None),
        several=True,
    )
    outcomes = handful.outcomes({n: n for n in range(6)})
    good = {key: value for key, value in outcomes.items() if isinstance(value, int)}
    assert good == {1: 10, 2: 5, 5: 2} and forgotten
    assert "ZeroDivisionError" in str(outcomes[0]) and "OverflowError" in str(outcomes[3])


def test_commands_over_several_models_go_on(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = saved(tmp_path / "empty.onnx", "Relu", [[0, 8]])
    large = saved(tmp_path / "large.onnx", "MatMul", [[8, HUGE, HUGE], [8, HUGE, HUGE]])
    truth = tmp_path / "truth.csv"
    truth.write_text(
        "model,batch_size,latency_ms,gpu\n" + "".join(f"{m},8,1,T4\n" for m in ("good", "large"))
    )
    assert run(["evaluate", "--truth", str(truth), "--models", str(tmp_path)]) == 1
    assert "large: on T4: flops: found a number beyond 64 bits" in capsys.readouterr().err
    plan = tmp_path / "plan.json"
    command = ["profile", "plan", "--gpu", "T4", "--models", str(tmp_path), "-o", str(plan)]
    assert run([*command, "--whole"]) == 1
    assert "empty" in capsys.readouterr().err and plan.exists()
    for name in (empty, large):
        assert run(["choose", str(name), "--slo-ms", "20", "--rate", "5", "--gpu", "T4"]) == 2
        assert name.stem in capsys.readouterr().err
