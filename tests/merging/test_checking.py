"""Originals and merged in ONNX Runtime: what is equal, what is not, and what is said of either."""

from __future__ import annotations

import dataclasses
import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import families
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.errors import ModelError, UnboundDimensionError, UsageError
from gkestimator.merging import checking
from gkestimator.merging.checking import check_outputs

onnxruntime = pytest.importorskip("onnxruntime")


def side_by_side(path: Path, models: dict[str, onnx.ModelProto]) -> Path:
    """All models in one file, each under its name."""
    whole = onnx.GraphProto(name="merged")
    for name, model in models.items():
        one = onnx.compose.add_prefix(model, f"{name}/").graph
        for part in ("node", "initializer", "input", "output"):
            getattr(whole, part).extend(getattr(one, part))
    first = next(iter(models.values()))
    onnx.save(helper.make_model(whole, opset_imports=first.opset_import, ir_version=first.ir_version), path)
    return path


def files(folder: Path, models: dict[str, onnx.ModelProto]) -> dict[str, Path]:
    return {name: families.saved(model, folder / f"{name}.onnx") for name, model in models.items()}


def classifier(factor: np.ndarray, bias: float = 0.0, *, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """y = x * factor + bias, [n, len(factor)]."""
    held = [
        numpy_helper.from_array(factor.astype(helper.tensor_dtype_to_np_dtype(dtype)), "factor"),
        numpy_helper.from_array(np.full_like(factor, bias, helper.tensor_dtype_to_np_dtype(dtype)), "bias"),
    ]
    nodes = [helper.make_node("Mul", ["x", "factor"], ["h"]), helper.make_node("Add", ["h", "bias"], ["y"])]
    shape = ["n", len(factor)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", dtype, shape)],
        held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_two_families_side_by_side_are_equal(tmp_path: Path) -> None:
    models = {"a": families.resnet_like(), "b": families.bert_like(), "c": families.gpt_like()}
    merged = side_by_side(tmp_path / "merged.onnx", models)
    found = check_outputs(merged, files(tmp_path, models), samples=3)
    assert found is not None
    assert found.largest_relative_difference is not None and found.largest_relative_difference < 1e-6
    assert found.batch_sizes == {"a": 1, "b": 2, "c": 3}
    assert [(o.model, o.output, o.problem) for o in found.outputs] == [(m, "logits", "") for m in "abc"]
    assert [o.predictions for o in found.outputs] == [3 * 1, 3 * 2, 3 * 3 * 16]
    assert found.predictions == 153 and found.changed_predictions == 0 and found.class_changed_pct == 0
    json.dumps(dataclasses.asdict(found), allow_nan=False)


def test_the_relative_difference_is_what_it_is_said_to_be(tmp_path: Path) -> None:
    """The merged model's values are 1 + 1/1024 times the original's: so is the largest by the largest."""
    a = classifier(np.ones(4))
    b = classifier(np.full(4, 1 + 2.0**-10))
    found = check_outputs(side_by_side(tmp_path / "m.onnx", {"a": b}), files(tmp_path, {"a": a}), samples=5)
    assert found is not None
    assert found.largest_relative_difference == pytest.approx(2.0**-10, rel=1e-3)
    assert found.class_changed_pct == 0


def test_a_changed_class_is_counted(tmp_path: Path) -> None:
    """With the signs turned, the largest score is where the smallest was: every prediction changes."""
    merged = side_by_side(tmp_path / "m.onnx", {"a": classifier(-np.ones(4))})
    originals = files(tmp_path, {"a": classifier(np.ones(4))})
    found = check_outputs(merged, originals, samples=10, batch_sizes={"a": 20})
    assert found is not None
    assert (found.predictions, found.changed_predictions, found.class_changed_pct) == (200, 200, 100)
    assert found.largest_relative_difference == pytest.approx(2)
    one = check_outputs(
        side_by_side(tmp_path / "m.onnx", {"a": classifier(np.array([1, 1, 1, 1.5]))}), originals, samples=200
    )
    assert one is not None and 0 < one.changed_predictions < one.predictions == 200


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    """Original fp16 overflows: told; overflowing alike is no problem, overflowing alone is one."""
    wide = classifier(np.array([1, 1, 60000.0]), 5000, dtype=TensorProto.FLOAT16)
    tame = classifier(np.array([1, 1, 1.0]), 5000, dtype=TensorProto.FLOAT16)
    originals = files(tmp_path, {"a": wide})
    same = check_outputs(side_by_side(tmp_path / "m.onnx", {"a": wide}), originals, samples=40)
    assert same is not None
    assert same.outputs[0].not_finite > 0 and not same.outputs[0].problem
    assert same.largest_relative_difference == 0
    assert 0 < same.predictions < 40  # a row that is not finite predicts nothing
    other = check_outputs(side_by_side(tmp_path / "m.onnx", {"a": tame}), originals, samples=40)
    assert other is not None
    assert other.largest_relative_difference is None
    assert "only one" in other.outputs[0].problem
    turned = check_outputs(
        side_by_side(tmp_path / "m.onnx", {"b": wide}), files(tmp_path, {"b": tame}), samples=40
    )
    assert (
        turned is not None and "only one" in turned.outputs[0].problem and turned.outputs[0].not_finite == 0
    )


def test_an_original_of_zeros_has_no_relative_difference(tmp_path: Path) -> None:
    zero = files(tmp_path, {"a": classifier(np.zeros(3))})
    same = check_outputs(side_by_side(tmp_path / "m.onnx", {"a": classifier(np.zeros(3))}), zero)
    other = check_outputs(side_by_side(tmp_path / "m.onnx", {"a": classifier(np.ones(3))}), zero)
    assert same is not None and same.largest_relative_difference == 0
    assert other is not None and other.largest_relative_difference is None
    assert "zero throughout" in other.outputs[0].problem


def test_another_shape_is_a_problem(tmp_path: Path) -> None:
    def summed(keep: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            [helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=keep)],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    found = check_outputs(
        side_by_side(tmp_path / "m.onnx", {"a": summed(0)}), files(tmp_path, {"a": summed(1)}), samples=1
    )
    assert found is not None
    assert found.outputs[0].problem == "float32[1], the original has float32[1, 1]"


@pytest.mark.slow
def test_few_outputs_are_kept_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer whether all samples are kept or one."""
    models = {"a": families.gpt_like(), "b": families.resnet_like()}
    merged = side_by_side(tmp_path / "m.onnx", models | {"b": families.sibling(models["b"])})
    whole = check_outputs(merged, files(tmp_path, models), samples=5)
    opened: list[Path] = []
    outputs = checking._outputs
    monkeypatch.setattr(
        checking, "_outputs", lambda ort, path, given: opened.append(path) or outputs(ort, path, given)
    )
    monkeypatch.setattr(checking, "_KEPT_BYTES", 1)
    assert check_outputs(merged, files(tmp_path, models), samples=5) == whole
    assert len(opened) == 5 * 3
    assert whole is not None and whole.outputs[1].relative_difference
    assert check_outputs(merged, files(tmp_path, models), samples=5, seed=1) != whole


def test_one_session_is_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"a": families.resnet_like(), "b": families.mobilenet_like()}
    merged, originals = side_by_side(tmp_path / "m.onnx", models), files(tmp_path, models)
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    opened: list[int] = []
    make = onnxruntime.InferenceSession

    def watched(*args: object, **options: object) -> object:
        opened.append(len(alive))
        session = make(*args, **options)
        alive.add(session)
        return session

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    assert check_outputs(merged, originals, samples=2) is not None
    assert opened == [0, 0, 0]


def test_batches_and_dims(tmp_path: Path) -> None:
    models = {"a": families.bert_like(sequence="seq"), "b": families.bert_like(batch=4)}
    merged, originals = side_by_side(tmp_path / "m.onnx", models), files(tmp_path, models)
    found = check_outputs(
        merged, originals, samples=2, batch_sizes={"a": 3, "b": 9}, dims={"a": {"seq": 7, "t": 1}}
    )
    assert found is not None
    assert found.batch_sizes == {"a": 3, "b": 4}  # b was exported at 4, and stays so
    assert found.largest_relative_difference is not None and found.largest_relative_difference < 1e-6
    given = check_outputs(merged, originals, samples=1, dims={"a": {"a/seq": 5, "a/batch": 2}})
    assert given is not None and given.batch_sizes == {"a": 2, "b": 4}
    with pytest.raises(UnboundDimensionError, match="seq"):
        check_outputs(merged, originals)


@pytest.mark.parametrize("samples", [0, -1, True, 1.5, 10**7])
def test_an_impossible_number_of_samples(samples: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="samples is"):
        check_outputs(tmp_path / "m.onnx", {}, samples=samples)  # type: ignore[arg-type]


def _loses_an_output(model: onnx.ModelProto) -> None:
    del model.graph.output[1]


def _gains_an_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))


def _unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Mull"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_loses_an_output, "m.onnx: output b/y of b is missing"),
        (_gains_an_input, "m.onnx: takes 3 inputs, 2 expected; other is in one only"),
        (_unknown_operator, "m.onnx: onnxruntime does not load it"),
    ],
)
def test_a_merged_file_that_is_wrong(
    spoil: Callable[[onnx.ModelProto], None], says: str, tmp_path: Path
) -> None:
    models = {"a": classifier(np.ones(2)), "b": classifier(np.ones(3))}
    merged = side_by_side(tmp_path / "m.onnx", models)
    proto = onnx.load(merged)
    spoil(proto)
    onnx.save(proto, merged)
    with pytest.raises(ModelError) as caught:
        check_outputs(merged, files(tmp_path, models), samples=1)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_does_not_run(tmp_path: Path) -> None:
    """Split sizes for a batch of one, at a batch of two: found while running."""
    sizes = numpy_helper.from_array(np.array([1, 0], np.int64), "sizes")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    nodes = [helper.make_node("Split", ["x", "sizes"], ["y", "z"], axis=0)]
    graph = helper.make_graph(nodes, "g", [x], [y], [sizes])
    wrong = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    merged = side_by_side(tmp_path / "m.onnx", {"a": wrong})
    originals = files(tmp_path, {"a": classifier(np.ones(2))})
    with pytest.raises(ModelError, match="m.onnx: onnxruntime does not run it"):
        check_outputs(merged, originals, samples=1, batch_sizes={"a": 2})


def test_without_onnxruntime_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert check_outputs(tmp_path / "m.onnx", {}) is None


def test_an_onnxruntime_that_cannot_be_imported_is_not_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModelError, match="cannot be imported: libcudart"):
        check_outputs(tmp_path / "m.onnx", {"a": tmp_path / "a.onnx"})
