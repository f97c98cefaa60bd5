"""A channel dimension is never taken for the batch: images of one sample, told by the graph or by their shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.cli import run
from gkestimator.core.errors import NoBatchError
from gkestimator.onnx_io import Model, read_model

node = helper.make_node
CHW = [node("Sub", ["x", "mean"], ["a"]), node("Unsqueeze", ["a", "zero"], ["b"])]
HWC = [node("Transpose", ["x"], ["a"], perm=[2, 0, 1]), node("Unsqueeze", ["a", "zero"], ["b"])]
TENSORFLOW = [node("Unsqueeze", ["x", "zero"], ["a"]), node("Transpose", ["a"], ["b"], perm=[0, 3, 1, 2])]
RESHAPED = [node("Reshape", ["x", "whole"], ["b"])]
BROADCAST = [node("Sub", ["x", "wide"], ["b"])]
INNER = [node("Unsqueeze", ["x", "one"], ["b"])]
LAST = [node("Transpose", ["x"], ["b"], perm=[1, 2, 0])]


def saved(path: Path, shape: Sequence[Any], nodes: Sequence[Any], weight: Sequence[int]) -> Path:
    """Write a network whose value ``b`` is convolved."""
    channels = weight[1]
    arrays = {
        "w": np.zeros(weight, np.float32),
        "mean": np.zeros((channels, 1, 1), np.float32),
        "wide": np.zeros((1, channels, 1, 1), np.float32),
        "zero": np.array([0]),
        "one": np.array([1]),
        "whole": np.array([1, 1, 28, 28]),
    }
    convolution = node("Conv", ["b" if nodes else "x", "w"], ["y"])
    used = {name for n in (*nodes, convolution) for name in n.input}
    graph = helper.make_graph(
        [*nodes, convolution],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(weight))],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    ("shape", "nodes", "channels"),
    [
        ([3, 48, 64], CHW, 3),
        ([1, 28, 28], CHW, 1),
        ([3, "height", "width"], CHW, 3),
        ([48, 64, 3], HWC, 3),
        (["height", "width", 3], HWC, 3),
        ([None, None, 3], HWC, 3),
        ([64, 64, 1], TENSORFLOW, 1),
        ([1, 28, 28], RESHAPED, 1),
        ([3, 48, 64], BROADCAST, 3),
    ],
)
def test_one_image_has_no_batch(shape: list[Any], nodes: list[Any], channels: int, path: Path) -> None:
    model = read_model(saved(path, shape, nodes, (8, channels, 3, 3)))
    assert (model.batch_dim, model.exported_batch) == (None, None)
    sizes = dict.fromkeys(model.dims, 32)
    bound = model.bind(dims=sizes, batch_size=1)
    assert bound.batch_size == 1
    assert "no batch dimension (x is one sample): estimated as it is" in bound.warnings
    with pytest.raises(NoBatchError):
        model.bind(dims=sizes, batch_size=8)


@pytest.mark.parametrize(
    ("shape", "nodes", "weight"),
    [
        ([4, 28, 28], INNER, (8, 1, 3, 3)),  # grey images, their channel put in behind the batch
        ([3, 64, 64], [], (8, 64, 3)),  # three signals of 64 channels, though it looks like an image
        ([28, 5, 16], LAST, (8, 16, 3)),  # the batch lies in the middle: nothing is said of the first axis
    ],
)
def test_a_batch_stays_one(shape: list[Any], nodes: list[Any], weight: list[int], path: Path) -> None:
    model = read_model(saved(path, shape, nodes, weight))
    assert model.exported_batch == shape[0]


@pytest.mark.parametrize(
    ("shape", "operator", "batch"),
    [
        ([3, 224, 224], "Relu", None),
        ([224, 224, 3], "Relu", None),
        ([3, 8, 8], "Relu", 3),
        ([3, 128, 768], "Relu", 3),
        ([3, 64, 64], "Softmax", None),
    ],
)
def test_without_a_convolution_the_shape_tells(
    shape: list[int], operator: str, batch: int | None, path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([node(operator, ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert read_model(path).exported_batch == batch


def matrices(path: Path) -> Model:
    w = numpy_helper.from_array(np.zeros((64, 8), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 64, None]) for name in "xy")
    x.type.tensor_type.shape.dim[2].dim_value = 64
    graph = helper.make_graph([node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return read_model(path)


def test_sequences_that_look_like_an_image_have_a_batch(path: Path) -> None:
    assert matrices(path).exported_batch == 3


@pytest.mark.parametrize("perm", [[2, 0], [0, 0, 0], [5, 1, 2]])
def test_an_order_that_cannot_be_tells_nothing(perm: list[int], path: Path) -> None:
    """Whatever a stranger wrote there, the file is read or refused in one line."""
    wrong = [node("Transpose", ["x"], ["a"], perm=perm), node("Unsqueeze", ["a", "zero"], ["b"])]
    text = saved(path, [4, 32, 32], wrong, (8, 4, 3, 3))
    assert run(["inspect", str(text)]) in (0, 2)


def test_a_batch_that_is_asked_for_is_said_not_to_be(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(saved(path, [3, 48, 64], CHW, (8, 3, 3, 3)))
    assert run(["estimate", model, "--gpu", "T4", "--batch-size", "1,8,32", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["batch_size"] == 1 and "no batch dimension" in row["warnings"]
    limits = ["--max-batch", "--slo-ms", "100", "--format", "json"]
    assert run(["estimate", model, "--gpu", "T4", *limits]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["batch_size"] == 1
    assert run(["inspect", model]) == 0
    assert "no batch dimension (x is one sample): estimated as it is" in capsys.readouterr().out
