"""Fragments: JSON there and back, strangers' JSON, ONNX that the checker and ONNX Runtime take, and lowering."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import GkestimatorError, ModelError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io.fragment_models import element_type, fragment_graph, fragment_model

CONV = Fragment(
    opsets={"": 17},
    nodes=(
        FragmentNode(
            op_type="Conv", domain="", attributes={"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)},
            inputs=("x", "w"), outputs=("y",),
        ),
    ),
    tensors=(
        FragmentTensor(name="x", dtype=DType.FLOAT, shape=(2, 8, 14, 14)),
        FragmentTensor(name="w", dtype=DType.FLOAT, shape=(16, 8, 3, 3), role="weight"),
    ),
    outputs=("y",),
)  # fmt: skip
GATHER = Fragment(
    opsets={"": 13},
    nodes=(
        FragmentNode(op_type="Gather", domain="", attributes={}, inputs=("table", "ids"), outputs=("y",)),
    ),
    tensors=(
        FragmentTensor(name="table", dtype=DType.FLOAT16, shape=(50, 8), role="weight"),
        FragmentTensor(name="ids", dtype=DType.INT64, shape=(2, 3), fill="index", below=50),
    ),
    outputs=("y",),
)
CLIP = Fragment(
    opsets={"": 13},
    nodes=(FragmentNode(op_type="Clip", domain="", attributes={}, inputs=("x", "low", ""), outputs=("y",)),),
    tensors=(
        FragmentTensor(name="x", dtype=DType.FLOAT, shape=(2, 3)),
        FragmentTensor(name="low", dtype=DType.FLOAT, shape=(), role="constant", fill="value", values=(0.5,)),
    ),
    outputs=("y",),
)
SELU = Fragment(
    opsets={"": 6},
    nodes=(FragmentNode(op_type="Selu", domain="", attributes={"alpha": 2}, inputs=("x",), outputs=("y",)),),
    tensors=(FragmentTensor(name="x", dtype=DType.FLOAT, shape=(4,)),),
    outputs=("y",),
)
ALL = (CONV, GATHER, CLIP, SELU)


@pytest.mark.parametrize("fragment", ALL, ids=lambda f: f.op_type)
def test_json_gives_the_fragment_back(fragment: Fragment) -> None:
    assert Fragment.parse(fragment.text(), where="test") == fragment
    assert Fragment.parse(fragment.text(), where="test").digest() == fragment.digest()


def test_digests_tell_fragments_apart() -> None:
    assert len({f.digest() for f in ALL}) == len(ALL)


@pytest.mark.parametrize("fragment", ALL, ids=lambda f: f.op_type)
def test_it_is_a_model_that_onnxruntime_runs_with_the_shapes_that_we_say(fragment: Fragment) -> None:
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    types = {DType.FLOAT: np.float32, DType.FLOAT16: np.float16, DType.INT64: np.int64}

    def values(tensor: FragmentTensor) -> np.ndarray:
        if tensor.fill == "index":
            return rng.integers(0, tensor.below, tensor.shape).astype(np.int64)
        return rng.standard_normal(tensor.shape).astype(types[tensor.dtype])

    model = fragment_model(fragment, values)
    for value, shape in zip(
        model.graph.output, (t.shape for t in fragment_graph(fragment).outputs), strict=True
    ):  # type: ignore[union-attr]
        value.CopyFrom(
            onnx.helper.make_tensor_value_info(value.name, element_type(fragment.tensors[0].dtype), shape)
        )
    onnx.checker.check_model(model, full_check=True)
    session = runtime.InferenceSession(fragment_model(fragment, values).SerializeToString())
    feeds = {t.name: values(t) for t in fragment.tensors if t.role == "input"}
    made = session.run(None, feeds)
    assert [a.shape for a in made] == [t.shape for t in fragment_graph(fragment).outputs]  # type: ignore[union-attr]


def test_an_integer_in_json_is_a_float_where_the_operator_wants_one() -> None:
    (attribute,) = fragment_model(SELU).graph.node[0].attribute
    assert attribute.type == onnx.AttributeProto.FLOAT and attribute.f == 2.0


def test_weights_are_counted_and_never_opened() -> None:
    graph = fragment_graph(CONV)
    assert dict(graph.weights) == {"w": 16 * 8 * 9 * 4}
    options = LoweringOptions(
        runtime="torch", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
    )
    (step,) = lower(graph, options).steps
    (kernel,) = step.kernels
    assert kernel.flops == 2 * 2 * 16 * 7 * 7 * 8 * 9


def test_an_attribute_that_does_not_fit_is_named() -> None:
    document = CONV.document()
    document["nodes"][0]["attributes"]["kernel_shape"] = 3
    with pytest.raises(ModelError, match="Conv: attribute kernel_shape"):
        fragment_graph(Fragment.from_document(document, where="test"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("nodes"), "no nodes"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d.update(opsets={"": 0}), "opsets"),
        (lambda d: d["tensors"][0].update(dtype="float33"), r"tensors\[0\]\.dtype"),
        (lambda d: d["tensors"][0].update(shape=[2, -1]), r"tensors\[0\]\.shape"),
        (lambda d: d["tensors"][0].update(shape=[2**20, 2**20]), "elements"),
        (lambda d: d["tensors"][0].update(shape=[1.5]), r"tensors\[0\]\.shape"),
        (lambda d: d["tensors"][0].update(fill="zeros"), "fill"),
        (lambda d: d["tensors"][0].update(fill="index"), "below"),
        (lambda d: d["tensors"][0].update(values=[1]), "values"),
        (lambda d: d["tensors"][1].update(name="x"), "distinct"),
        (lambda d: d["nodes"][0].update(inputs=["nowhere"]), "nowhere"),
        (lambda d: d["nodes"][0].update(outputs=["x"]), "a new name"),
        (lambda d: d["nodes"][0].update(op_type="rm -rf /"), "op_type"),
        (lambda d: d["nodes"][0]["attributes"].update(pads=[1, "a"]), "pads"),
        (lambda d: d["nodes"][0]["attributes"].update(pads=None), "pads"),
        (lambda d: d.update(outputs=["z"]), "outputs"),
        (lambda d: d.update(nodes=[]), "outputs"),
        (lambda d: d.update(pattern="a b"), "pattern"),
    ],
)
def test_a_strangers_json_is_refused_in_one_line(change: Any, says: str) -> None:
    document = copy.deepcopy(CONV.document())
    change(document)
    with pytest.raises(ModelError, match=says) as caught:
        Fragment.from_document(document, where="plan.json: entry 7")
    assert str(caught.value).startswith("plan.json: entry 7: ") and "\n" not in str(caught.value)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda c: (
            st.lists(c, max_size=4)
            | st.dictionaries(
                st.sampled_from(["opsets", "nodes", "tensors", "outputs", "", "x"]), c, max_size=5
            )
        ),
        max_leaves=20,
    )
)
def test_no_json_raises_anything_else(document: Any) -> None:
    with pytest.raises(GkestimatorError):
        Fragment.from_document(document, where="test")
