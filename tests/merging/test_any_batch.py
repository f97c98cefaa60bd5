"""Merged files of small graphs give what the originals give, at batches of one and of more, other in each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from same_outputs import outputs

import gkestimator

pytest.importorskip("scipy")
pytest.importorskip("onnxruntime")

DRAW = np.random.default_rng(11)
WEIGHTS = {"w": DRAW.standard_normal((4, 4)), "v": DRAW.standard_normal((4, 4))}
BATCHES = ((2, 3), (1, 3), (3, 1), (1, 1), (5, 4))


def _model(
    nodes: Sequence[onnx.NodeProto],
    dims: Sequence[int],
    numbers: dict[str, Sequence[int]],
    **constants: float,
) -> onnx.ModelProto:
    """``nodes`` on the input x [batch, *dims], to z; the output y is z as rows. ``w`` and ``v`` are [4, 4]."""
    rows = helper.make_node("Reshape", ["z", "rows"], ["y"], name="rows")
    numbers = {**numbers, "rows": [-1, 4]}
    weights = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in WEIGHTS.items()]
    weights += [numpy_helper.from_array(np.array(a, np.int64), n) for n, a in numbers.items()]
    weights += [numpy_helper.from_array(np.float32(a), n) for n, a in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *dims])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])
    graph = helper.make_graph([*nodes, rows], "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _same(models: Sequence[onnx.ModelProto], folder: Path, dims: Sequence[int]) -> gkestimator.MergeResult:
    """Merge all that can be; every output at :data:`BATCHES` is the original's."""
    paths = [folder / f"{name}.onnx" for name in "ab"]
    for model, path in zip(models, paths, strict=True):
        onnx.save(model, path)
    merged = folder / "merged.onnx"
    found = gkestimator.merge(paths, merged, always=True, tau_ms=float("inf"), group_distance=1.0)
    for batches in BATCHES:
        given = [DRAW.standard_normal((n, *dims), np.float32) for n in batches]
        got = outputs(merged, {f"{name}/x": x for name, x in zip("ab", given, strict=True)})
        for name, path, x in zip("ab", paths, given, strict=True):
            wanted = outputs(path, {"x": x})["y"]
            assert got[f"{name}/y"].shape == wanted.shape, batches
            np.testing.assert_allclose(
                got[f"{name}/y"], wanted, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(wanted).max()))
            )
    return found


def _chain(*first: onnx.NodeProto) -> list[onnx.NodeProto]:
    """``first`` (x to c), and two products with an operator between them."""
    return [
        *first,
        helper.make_node("MatMul", ["c", "w"], ["m"], name="first"),
        helper.make_node("Tanh", ["m"], ["t"], name="tanh"),
        helper.make_node("MatMul", ["t", "v"], ["z"], name="last"),
    ]


@pytest.mark.parametrize(
    ("op_type", "inputs", "numbers", "dims"),
    [
        ("Slice", ["s", "e"], {"s": [0], "e": [2]}, (3, 4)),  # the first two samples, or the one there is
        ("Squeeze", [], {}, (1, 3, 4)),  # takes axis 0 of a batch of one away
    ],
)
def test_shapes_that_are_other_ones_at_a_batch_of_one(
    op_type: str, inputs: list[str], numbers: dict[str, list[int]], dims: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = _chain(helper.make_node(op_type, ["x", *inputs], ["c"], name="first of all"))
    _same([_model(nodes, dims, numbers)] * 2, tmp_path, dims)


@pytest.mark.parametrize(("op_type", "constants"), [("Div", (1e-8, 6e-8)), ("Max", (1e-12, 5e-8))])
def test_small_numbers_are_not_equal_because_they_are_small(
    op_type: str, constants: tuple[float, float], tmp_path: Path
) -> None:
    models = [
        _model(
            [
                helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
                helper.make_node("Mul", ["m", "least"], ["s"], name="scaled"),
                helper.make_node(op_type, ["s", "small"], ["d"], name="small"),
                helper.make_node("Reciprocal", ["d"], ["r"], name="reciprocal"),
                helper.make_node("MatMul", ["r", "v"], ["z"], name="last"),
            ],
            (3, 4),
            {},
            small=small,
            least=1.0 if op_type == "Div" else 1e-20,
        )
        for small in constants
    ]
    assert any(m.merged for m in _same(models, tmp_path, (3, 4)).report.merged)


def test_products_that_no_output_needs(tmp_path: Path) -> None:
    unread = helper.make_node("MatMul", ["t", "w"], ["unread"], name="unread")
    nodes = [*_chain(helper.make_node("Identity", ["x"], ["c"], name="same")), unread]
    found = _same([_model(nodes, (3, 4), {})] * 2, tmp_path, (3, 4))
    assert [m.operators for m in found.report.merged] == [("a/first", "b/first"), ("a/last", "b/last")]


def test_statistics_of_a_batch_norm_that_trains_are_not_shared(tmp_path: Path) -> None:
    # ONNX Runtime writes the running statistics into the weights they came from; the bias is equal to one of them.
    # (12 channels: equal weights of 8 values and fewer it shares itself, and is wrong by itself.)
    names = ["scale", "bias", "mean", "var"]
    train = helper.make_node(
        "BatchNormalization", ["x", *names], ["c", "m2", "v2"], name="train", training_mode=1, momentum=0.5
    )
    model = _model(_chain(train), (12, 4), {})
    for name, value in zip(names, (2.0, 1.0, 0.0, 1.0), strict=True):
        model.graph.initializer.append(numpy_helper.from_array(np.full(12, value, np.float32), name))
    _same([model] * 2, tmp_path, (12, 4))
