"""What ends up in the operator graph: weights and their storages, folding, types, names."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.operators.registry import SequenceType, TensorType


def test_views_share_storage_and_identity_does_not(load):
    graph = load(
        """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}> {
        t = Transpose(w)  i = Identity(w)  c = Cast<to = 10>(w)  d = Cast<to = 1>(c)
        a = MatMul(x, w)  b = MatMul(a, t)  e = MatMul(b, i)  y = MatMul(e, d) }"""
    ).bind(batch_size=2)
    assert [o.op_type for o in graph.operators] == ["MatMul"] * 4
    assert graph.folded == 4
    assert graph.weights == {"w": 64, "i": 64, "d": 64}
    assert all(o.inputs[1].is_weight for o in graph.operators)


def test_dequantised_weight_stays_quantised_in_memory(load):
    graph = load(
        """g (float[N,4] x) => (float[N,4] y) <int8[4,4] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15},
        float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear(w, s, z)
        m = MatMul(d, v)  o = QuantizeLinear(m, s, z)  y = DequantizeLinear(o, s, z) }"""
    ).bind(batch_size=2)
    assert [o.op_type for o in graph.operators] == [
        "QuantizeLinear", "DequantizeLinear", "MatMul", "QuantizeLinear", "DequantizeLinear",
    ]  # fmt: skip
    weight = graph.operators[2].inputs[1]
    assert (weight.dtype, weight.storage) == (DType.FLOAT, "w")
    assert graph.weights["w"] == 16


def test_quantised_operators(load):
    graph = load(
        """g (uint8[N,3,8,8] x) => (uint8[N,4,8,8] y) <float s = {0.5}, uint8 z = {0}, int8[4,3,1,1] w =
        {1,2,3,4,5,6,7,8,9,10,11,12}, int8 zw = {0}> { y = QLinearConv(x, s, z, w, s, zw, s, z) }"""
    ).bind(batch_size=2)
    assert graph.outputs[0].shape == (2, 4, 8, 8)
    assert graph.outputs[0].dtype is DType.UINT8


def test_half_precision(load):
    graph = load("g (float16[N,4] x, float16[4,8] w) => (float16[N,8] y) { y = MatMul(x, w) }").bind(
        batch_size=2
    )
    assert graph.outputs[0].dtype is DType.FLOAT16
    assert graph.outputs[0].nbytes == 32


def test_shape_arithmetic_is_folded_and_dead_nodes_are_dropped(load):
    model = load(
        """g (float[N,T,8] x) => (float[N,T,2,4] y) <int64 z = {0}, int64 o = {1}, int64[2] tail = {2, 4}, int64[1] a = {0}> {
        s = Shape(x)  n = Gather(s, z)  t = Gather(s, o)  n1 = Unsqueeze(n, a)  t1 = Unsqueeze(t, a)
        d = Concat<axis = 0>(n1, t1, tail)  unused = Relu(x)  y = Reshape(x, d) }"""
    )
    graph = model.bind(batch_size=3, dims={"T": 5})
    assert [o.op_type for o in graph.operators] == ["Reshape"]
    assert graph.outputs[0].shape == (3, 5, 2, 4)
    assert graph.dims == (("T", 5),)
    target = graph.operators[0].inputs[1]
    assert target.value.tolist() == [3, 5, 2, 4]
    assert graph.weights == {}, "a target shape is read by the host"


def test_random_constants_are_operators(load):
    graph = load("g (float[N,4] x) => (float[N,4] y) { r = RandomNormal<shape = [4]>() y = Add(x, r) }").bind(
        batch_size=1
    )
    assert [o.op_type for o in graph.operators] == ["RandomNormal", "Add"]


def test_sparse_initializer_and_initializers_listed_as_inputs(load):
    values = numpy_helper.from_array(np.array([1.0, 2.0], dtype=np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 5]), "i"), [4, 8])
    weight = numpy_helper.from_array(np.ones(8, dtype=np.float32), "b")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4]), helper.make_tensor_value_info("b", 1, [8])],
        [helper.make_tensor_value_info("y", 1, ["N", 8])],
        [weight],
        sparse_initializer=[sparse],
    )
    model = helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("ai.onnx", 9)])
    bound = load(model).bind(batch_size=2)
    assert [i.name for i in bound.inputs] == ["x"]
    assert bound.operators[0].version == 9
    assert bound.weights == {"w": 128, "b": 32}


def test_file_without_opset(load):
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["": 1]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }'
    )
    model.ClearField("opset_import")
    model.ir_version = 2
    assert load(model).bind(batch_size=2).operators[0].version == 1


def test_anonymous_dimensions_are_addressable(load):
    x = helper.make_tensor_value_info("x", 1, [None, None, 8])
    y = helper.make_tensor_value_info("y", 1, None)
    model = load(
        helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    )
    assert model.dims == ("x.0", "x.1")
    assert model.batch_dim == "x.0"
    assert model.bind(batch_size=2, dims={"x.1": 5}).outputs[0].shape == (2, 5, 8)


def test_types_and_values_of_inputs_can_be_given(load):
    model = load("g (float[N,8] x, int64[K] s) => (float[A,B] y) { y = Reshape(x, s) }")
    graph = model.bind(batch_size=3, inputs={"s": np.array([4, 6])})
    assert graph.outputs[0].shape == (4, 6)
    model = load(
        "g (seq(float[N,8]) q) => (float[A,B] y) { z = Constant<value_int = 1>() y = SequenceAt(q, z) }"
    )
    parts = SequenceType((TensorType(DType.FLOAT, (1, 8)), TensorType(DType.FLOAT, (2, 8))))
    assert model.bind(inputs={"q": parts}).outputs[0].shape == (2, 8)
    assert model.bind(batch_size=4, dims={"q.length": 3}).outputs[0].shape == (4, 8)


def test_operator_names_are_unique(load):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N,4] x) => (float[N,4] y) { a = Relu(x) b = Exp(a) y = Neg(b) }'
    )
    for node in model.graph.node:
        node.name = "same"
    names = [o.name for o in load(model).bind(batch_size=1).operators]
    assert names == ["same", "same#2", "same#3"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Mod(a, b)", "y = Div(a, b)", "y = Pow(a, b)", "y = Max(a, b)", "y = Where(c, a, b)", "y = CumSum(a, z)",
        "y = CumSum<reverse = 1, exclusive = 1>(a, z)", "y = ReduceProd<keepdims = 0>(a)", "y = Range(z, n, o)",
        "y = Slice(a, o1, n1)", "y = Slice(a, m1, lo, z1, m1)", "y = Tile(a, n1)", "y = Pad(a, p)", "y = Neg(a)",
        "y = Gather(a, b2)", "y = ArgMax(a)", "y = Trilu(m)", "y = Cast<to = 1>(a)", "y = Sqrt(f)", "y = Clip(a, z, o)",
        "y = Transpose(m)", "s, y = Split(a, p)", "y = GatherND(a, b3)", "y = GatherElements(a, b2)", "y = Equal(a, b)",
        "y = Expand(a, e)", "y = ConstantOfShape(p)", "y = Floor(f)", "y = Round(f)",
        "y = Reciprocal(f)", "y = Not(c)", "y = MatMul(m, m)", "y = Softmax(f)",
    ],
)  # fmt: skip
def test_folded_values_equal_the_reference_evaluator(load, body):
    from onnx.reference import ReferenceEvaluator

    constants = {
        "a": np.array([7, -3, 0, 5]), "b": np.array([2, 2, 3, 4]), "c": np.array([True, False, True, True]),
        "z": np.array(0), "o": np.array(1), "n": np.array(9), "o1": np.array([1]), "n1": np.array([3]),
        "m1": np.array([-1]), "lo": np.array([-(2**62)]), "z1": np.array([0]), "p": np.array([1, 3]),
        "b2": np.array([1, 3]), "b3": np.array([[1], [3]]), "e": np.array([2, 4]), "m": np.arange(9).reshape(3, 3),
        "f": np.array([0.25, 1.5, 2.5, 9.0], dtype=np.float32),
    }  # fmt: skip
    text = '<ir_version: 10, opset_import: ["": 21]> g () => (int64[K] y) { ' + body + " }"
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    model.graph.output[0].type.tensor_type.ClearField("shape")
    expected = ReferenceEvaluator(model).run(None, {})[-1]
    got = load(model).bind().outputs[0]
    assert got.shape == expected.shape
    assert got.value is not None, "not evaluated"
    np.testing.assert_allclose(got.value, expected, rtol=1e-6)
    assert got.value.dtype == expected.dtype
    assert TensorProto.DataType.Value(got.dtype.name) == helper.np_dtype_to_tensor_dtype(expected.dtype)


def test_split_into_unknown_pieces_is_bounded_by_the_whole(load):
    graph = load(
        "g (float[N,8] x, int64[K] s) => (float[N,M] y) { q = SplitToSequence<axis = 1>(x, s)"
        " z = Constant<value_int = 0>() y = SequenceAt(q, z) }"
    ).bind(batch_size=3, dims={"K": 2})
    assert graph.outputs[0].shape == (3, 8)
    assert graph.outputs[0].bounded
