"""Operators whose meaning changed between opsets, and which ONNX's version converter leaves as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing import align_opsets, read_editable, write_editable

X = np.random.default_rng(0).standard_normal((1, 2, 9, 11)).astype(np.float32)
CASES = [
    ("Upsample", 8, 1.5, 1.7), ("Upsample", 9, 2.0, 2.0), ("Upsample", 9, 1.5, 1.7), ("Resize", 10, 2.0, 2.0),
    ("Resize", 10, 3.3, 1.0), ("Resize", 10, 1.5, 1.7), ("Resize", 10, 0.6, 0.37), ("Resize", 10, 0.5, 0.5),
]  # fmt: skip


def resizing(op_type: str, opset: int, height: float, width: float, mode: str) -> onnx.ModelProto:
    """One node that resizes X, with its scales where ``opset`` has them."""
    scales = [1.0, 1.0, height, width]
    if opset < 9:
        node, weights = helper.make_node(op_type, ["x"], ["y"], mode=mode, scales=scales), []
    else:
        node = helper.make_node(op_type, ["x", "s"], ["y"], mode=mode)
        weights = [helper.make_tensor("s", TensorProto.FLOAT, [4], scales)]
    return _model([node], opset, weights)


def _model(nodes, opset: int, weights=(), inputs=()) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b", "c", "d"])
    graph = helper.make_graph(nodes, "g", [x, *inputs], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6)


def raised(path: Path) -> Path:
    [model] = align_opsets([read_editable(path, prefix="m/", name="m")])
    return write_editable(model, path.with_name("raised.onnx"))[0]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("case", CASES)
def test_resizing_takes_the_places_it_took(saved, run, case, mode: str):
    path = saved(resizing(*case, mode))
    want, found = run(path, {"x": X})["y"], run(raised(path), {"m/x": X})["m/y"]
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_resizing_inside_a_branch(saved, run):
    weights = [helper.make_tensor("s", TensorProto.FLOAT, [4], [1.0, 1.0, 2.3, 2.0])]
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    branches = {
        key: helper.make_graph(
            [helper.make_node("Resize", ["x", "s"], ["r"], mode=mode)],
            key,
            [],
            [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["a", "b", "c", "d"])],
        )
        for key, mode in (("then_branch", "linear"), ("else_branch", "nearest"))
    }
    path = saved(_model([helper.make_node("If", ["c"], ["y"], **branches)], 10, weights, [condition]))
    other = raised(path)
    for way in (np.array(True), np.array(False)):
        want, found = run(path, {"x": X, "c": way})["y"], run(other, {"m/x": X, "m/c": way})["m/y"]
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_resizing_that_no_later_opset_says(saved):
    with pytest.raises(ModelError, match=r"\(Resize\): its scales \[1.0, 1.0, 2.0, 0.5\] grow and shrink; "):
        raised(saved(resizing("Resize", 10, 2.0, 0.5, "nearest")))
    scales = helper.make_tensor_value_info("s", TensorProto.FLOAT, [4])
    node = helper.make_node("Resize", ["x", "s"], ["y"], mode="nearest")
    with pytest.raises(ModelError, match=r"\(Resize\): its scales are not known; "):
        raised(saved(_model([node], 10, inputs=[scales])))


def test_hardmax_over_several_axes_is_refused(saved, run):
    last = saved(_model([helper.make_node("Hardmax", ["x"], ["y"], axis=-1)], 11))
    np.testing.assert_array_equal(run(raised(last), {"m/x": X})["m/y"], run(last, {"x": X})["y"])
    for axis in ({}, {"axis": 2}):
        path = saved(_model([helper.make_node("Hardmax", ["x"], ["y"], **axis)], 11))
        with pytest.raises(ModelError, match=r"\(Hardmax\): axis [12]; -1 was expected before opset 13$"):
            raised(path)


def test_sparse_weights_cannot_be_converted(saved):
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [1], [3]), [11])
    proto = _model([helper.make_node("Add", ["x", "w"], ["y"])], 11)
    proto.graph.sparse_initializer.append(sparse)
    with pytest.raises(ModelError, match="^m: cannot be converted from opset 11 to 13: .*parse tensors"):
        raised(saved(proto))
