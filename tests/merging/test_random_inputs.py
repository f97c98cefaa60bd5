"""Random inputs: within their tables, the same for the same seed, of every type."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.errors import ModelError
from gkestimator.core.graph import OperatorGraph
from gkestimator.merging.random_inputs import index_limits, random_inputs
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.reading.convert import convert_model


def graph(
    nodes: list, inputs: dict[str, tuple[int, list]], weights: dict[str, np.ndarray], output: str
) -> OperatorGraph:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    )
    return Model(convert_model(proto), name="m").bind(batch_size=2)


def looked_up() -> OperatorGraph:
    """Tokens through Cast and Reshape into a table of 7, whose places are also looked up in one of 3 by way of a sum."""
    node = helper.make_node
    return graph(
        [
            node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
            node("Reshape", ["wide", "flat"], ["one"]),
            node("Gather", ["words", "one"], ["x"], axis=0),
            node("Concat", ["one", "more"], ["both"], axis=0),
            node("Gather", ["columns", "both"], ["z"], axis=1),
            node("Add", ["step", "step"], ["twice"]),
            node("Gather", ["columns", "twice"], ["w"], axis=1),
            node("ReduceSum", ["x"], ["a"], keepdims=0),
            node("ReduceSum", ["z"], ["b"], keepdims=0),
            node("ReduceSum", ["w"], ["c"], keepdims=0),
            node("Sum", ["a", "b", "c"], ["y"]),
        ],
        {
            "ids": (TensorProto.INT32, ["batch", 50]),
            "more": (TensorProto.INT64, [200]),
            "step": (TensorProto.INT64, [4]),
            "attention_mask": (TensorProto.INT64, ["batch", 50]),
            "pixels": (TensorProto.UINT8, ["batch", 64]),
            "float": (TensorProto.FLOAT, ["batch", 1000]),
            "half": (TensorProto.FLOAT16, ["batch", 8]),
            "flag": (TensorProto.BOOL, [3]),
        },
        {
            "words": np.zeros((7, 2), np.float32),
            "columns": np.zeros((2, 9), np.float32),
            "flat": np.array([-1], np.int64),
        },
        "y",
    )


def test_indices_stay_within_the_smallest_table() -> None:
    found = looked_up()
    assert index_limits(found) == {"ids": 7, "more": 9}
    values = random_inputs(found, limits=index_limits(found), seed=0, sample=0)
    assert set(np.unique(values["ids"])) == set(range(7))
    assert set(np.unique(values["more"])) == set(range(9))
    assert (
        values["step"] == 1
    ).all()  # calculated with before it is looked up: nothing is known of its range


def test_every_type_and_shape() -> None:
    found = looked_up()
    values = random_inputs(found, limits=index_limits(found), seed=0, sample=0)
    assert {name: (v.dtype.name, v.shape) for name, v in values.items()} == {
        "ids": ("int32", (2, 50)),
        "more": ("int64", (200,)),
        "step": ("int64", (4,)),
        "attention_mask": ("int64", (2, 50)),
        "pixels": ("uint8", (2, 64)),
        "float": ("float32", (2, 1000)),
        "half": ("float16", (2, 8)),
        "flag": ("bool", (3,)),
    }
    assert (values["attention_mask"] == 1).all() and values["flag"].all()
    assert values["pixels"].max() > 200
    assert abs(values["float"].std() - 1) < 0.1 and abs(values["float"].mean()) < 0.1


def test_the_same_seed_gives_the_same_values() -> None:
    found = looked_up()
    first, again, other, later = (
        random_inputs(found, limits=index_limits(found), seed=seed, sample=sample)
        for seed, sample in ((3, 1), (3, 1), (4, 1), (3, 2))
    )
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["float"], other["float"])
    assert not np.array_equal(first["float"], later["float"])


@pytest.mark.parametrize(
    ("op_type", "attributes", "table", "indices", "below"),
    [
        ("GatherElements", {"axis": 1}, (4, 6), [4, 5], 6),
        ("GatherND", {}, (4, 6), [5, 2], 4),
        ("GatherND", {"batch_dims": 1}, (2, 6), [2, 1], 6),
    ],
)
def test_other_ways_to_look_up(
    op_type: str, attributes: dict[str, int], table: tuple[int, ...], indices: list[int], below: int
) -> None:
    found = graph(
        [
            helper.make_node(op_type, ["table", "ids"], ["x"], **attributes),
            helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0),
        ],
        {"ids": (TensorProto.INT64, indices), "other": (TensorProto.FLOAT, ["batch", 1])},
        {"table": np.zeros(table, np.float32)},
        "y",
    )
    assert index_limits(found) == {"ids": below}


def test_a_type_that_numpy_lacks_is_refused() -> None:
    found = graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
        {"x": (TensorProto.BFLOAT16, ["batch", 2])},
        {},
        "y",
    )
    with pytest.raises(ModelError, match="input 'x' is bfloat16"):
        random_inputs(found, limits=index_limits(found), seed=0, sample=0)
