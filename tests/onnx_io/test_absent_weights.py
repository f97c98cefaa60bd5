"""Weights that a file declares and does not hold are weights all the same."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from gkestimator.core.errors import ModelError
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.reading.convert import convert_model


def _linear(declared: list[int | str]) -> Model:
    """Return x @ w, whose weight is declared with ``declared`` sizes and defined by nothing."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        value_info=[helper.make_tensor_value_info("w", TensorProto.FLOAT, declared)],
    )
    return Model(
        convert_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])), name="m"
    )


def test_a_declared_tensor_that_nothing_defines_is_a_weight() -> None:
    graph = _linear([4, 3]).bind(batch_size=2)
    assert dict(graph.weights) == {"w": 48}
    assert graph.outputs[0].nbytes == 2 * 3 * 4


@pytest.mark.parametrize("declared", [["K", 3], [4, None]])
def test_one_without_numbers_is_an_error_that_names_it(declared: list[int | str]) -> None:
    with pytest.raises(ModelError, match="reads tensor 'w', which nothing defines"):
        _linear(declared)
