"""Which nodes are operators that can be merged, and how their weights are seen."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from _matching_graphs import model

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditNode, ValueShape
from gkestimator.merging.editing.form import AttributeValue
from gkestimator.merging.matching import candidates
from gkestimator.merging.operators import WeightOperator

DRAW = np.random.default_rng(3)


def _weights(*shape: int) -> np.ndarray:
    return DRAW.normal(size=shape).astype(np.float32)


def _found(
    op_type: str,
    w: np.ndarray,
    x: tuple[int | None, ...],
    bias: np.ndarray | None = None,
    *,
    dtype: DType = DType.FLOAT,
    domain: str = "",
    inputs: tuple[str, ...] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    fed: tuple[str, ...] = ("x",),
    before: tuple[EditNode, ...] = (),
    opaque: tuple[bytes, ...] = (),
    **attributes: AttributeValue,
) -> WeightOperator | None:
    """The one node of a model as a candidate, or None."""
    held = {"w": w} | ({} if bias is None else {"b": bias}) | (weights or {})
    node = EditNode(
        name="op",
        op_type=op_type,
        inputs=inputs or (("x", "w") if bias is None else ("x", "w", "b")),
        outputs=("y",),
        domain=domain,
        attributes=attributes,
        opaque=opaque,
    )
    m = model("m", [*before, node], held, fed)
    found = candidates(m, 4, {"x": ValueShape(dtype=dtype, dims=x)}, {"op": 2.5})
    assert len(found) <= 1
    if found:
        assert found[0].node is node
        assert (found[0].model, found[0].start_ms, found[0].position) == (4, 2.5, len(before))
    return found[0] if found else None


def _computed(op: WeightOperator, x: np.ndarray, w: np.ndarray, *more: np.ndarray) -> np.ndarray:
    """What ONNX Runtime calculates for the node; onnx's reference ignores auto_pad VALID before 1.23."""
    node = onnx.helper.make_node(
        op.node.op_type, ["x", "w", "b"][: 2 + len(more)], ["y"], **op.node.attributes
    )
    ends = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)
        for n in ["x", "w", "b"][: 2 + len(more)]
    ]
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "g", ends, [out])
    m = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    fed = dict(zip(["x", "w", "b"], [x, w, *more], strict=False))
    return np.asarray(onnxruntime.InferenceSession(m.SerializeToString()).run(None, fed)[0])


def test_matmul_is_rows_times_columns() -> None:
    w = _weights(3, 5)
    op = _found("MatMul", w, (None, None, 3))
    assert op is not None
    assert (op.kind, op.x, op.y, op.weight_name, op.bias, op.geometry) == ("matmul", "x", "y", "w", None, ())
    assert (op.matrix.rows, op.matrix.columns, op.matrix.taps) == (3, 5, 1)
    assert np.array_equal(op.matrix.array(), w[:, :, None])
    assert np.shares_memory(op.matrix.array(), w)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5)])
def test_gemm_with_its_bias(turned: int, bias: tuple[int, ...] | None) -> None:
    w, x = (_weights(5, 3) if turned else _weights(3, 5)), _weights(2, 3)
    b = None if bias is None else _weights(*bias)
    op = _found("Gemm", w, (None, 3), b, transB=turned, alpha=1.0, beta=1.0)
    assert op is not None
    assert op.kind == "gemm"
    assert (op.matrix.rows, op.matrix.columns, op.matrix.array().shape) == (3, 5, (3, 5, 1))
    assert np.shares_memory(op.matrix.array(), w)
    added = 0.0
    if b is not None:
        assert op.bias is not None
        assert (op.bias.name, op.bias.shape, op.bias.values.array().shape) == ("b", (5,), (5,))
        added = op.bias.values.array()
    else:
        assert op.bias is None
    expected = _computed(op, x, w, *([] if b is None else [b]))
    np.testing.assert_allclose(x @ op.matrix.array()[:, :, 0] + added, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [(3,), (3, 2), (2, 1, 3)])
def test_conv_is_channels_in_times_channels_out_times_taps(kernel: tuple[int, ...]) -> None:
    w, x = _weights(4, 3, *kernel), _weights(2, 3, *kernel)
    op = _found("Conv", w, (None, 3, *kernel), _weights(4))
    assert op is not None
    n = len(kernel)
    assert op.kind == "conv"
    assert op.geometry == (kernel, (1,) * n, (1,) * n, (0,) * 2 * n, ())
    assert (op.matrix.rows, op.matrix.columns, op.matrix.taps) == (3, 4, math.prod(kernel))
    assert np.shares_memory(op.matrix.array(), w)
    assert op.bias is not None
    by_matrix = np.einsum("nct,cmt->nm", x.reshape(2, 3, -1), op.matrix.array()) + op.bias.values.array()
    expected = _computed(op, x, w, op.bias.values.array()).reshape(2, 4)
    np.testing.assert_allclose(by_matrix, expected, rtol=1e-4, atol=1e-5)


def test_grouped_conv_is_one_row_a_group() -> None:
    w, x = _weights(6, 2, 3, 3), _weights(1, 6, 3, 3)
    op = _found("Conv", w, (1, 6, 3, 3), group=3)
    assert op is not None
    assert op.kind == "grouped_conv"
    assert op.geometry[-1] == (2, 2)
    assert (op.matrix.rows, op.matrix.columns, op.matrix.taps) == (3, 1, 36)
    assert np.shares_memory(op.matrix.array(), w)
    taps = op.matrix.array().reshape(3, 2, 2 * 9)
    by_matrix = np.einsum("gt,got->go", x.reshape(3, 18), taps).reshape(1, 6, 1, 1)
    np.testing.assert_allclose(by_matrix, _computed(op, x, w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (1, 2), (2, 1), (3, 1)])
@pytest.mark.parametrize("size", [7, 8])
def test_auto_pad_becomes_pads_that_give_the_same(auto: str, stride: int, dilation: int, size: int) -> None:
    w, x = _weights(2, 1, 3, 2), _weights(1, 1, size, size)
    if auto.startswith("SAME") and dilation > 1:
        # onnx's reference takes no dilation into account here; ONNX Runtime does, as the formula.
        op = _found("Conv", w, (1, 1, size, size), auto_pad=auto, dilations=(dilation,) * 2)
        assert op is not None
        reach = (2 * dilation, dilation)
        assert tuple(a + b for a, b in zip(op.geometry[3][:2], op.geometry[3][2:], strict=True)) == reach
        return
    options = {"strides": (stride,) * 2, "dilations": (dilation,) * 2}
    op = _found("Conv", w, (1, 1, size, size), auto_pad=auto, **options)
    assert op is not None
    plain = _found("Conv", w, (1, 1, size, size), pads=op.geometry[3], **options)
    assert plain is not None
    assert plain.geometry == op.geometry
    expected = _computed(op, x, w)
    np.testing.assert_allclose(_computed(plain, x, w), expected, rtol=1e-5, atol=1e-6)


def test_auto_pad_by_a_size_that_is_not_known() -> None:
    w = _weights(2, 1, 3, 3)
    assert _found("Conv", w, (1, 1, None, None), auto_pad="SAME_UPPER", strides=(2, 2)) is None
    op = _found("Conv", w, (1, 1, None, None), auto_pad="SAME_UPPER")
    assert op is not None
    assert op.geometry[3] == (1, 1, 1, 1)


def test_weights_behind_identity_and_transpose() -> None:
    w = _weights(5, 3)
    for perm in ({}, {"perm": (1, 0)}):
        chain = (
            EditNode(name="i", op_type="Identity", inputs=("w",), outputs=("i",)),
            EditNode(name="t", op_type="Transpose", inputs=("i",), outputs=("t",), attributes=perm),
        )
        op = _found("MatMul", w, (2, 3), inputs=("x", "t"), before=chain)
        assert op is not None
        assert op.weight_name == "t"
        assert np.array_equal(op.matrix.array()[:, :, 0], w.T)
        assert np.shares_memory(op.matrix.array(), w)
    for perm in ((0, 0), (0,), (0, 2), (0, 1, 2), ("1", "0"), 1):
        chain = (
            EditNode(name="t", op_type="Transpose", inputs=("w",), outputs=("t",), attributes={"perm": perm}),
        )
        assert _found("MatMul", w, (2, 3), inputs=("x", "t"), before=chain) is None


@pytest.mark.parametrize(
    ("array", "dtype", "seen"),
    [
        (np.ones((3, 3), np.float16), DType.FLOAT16, True),
        (np.ones((3, 3), np.uint16), DType.BFLOAT16, True),
        (np.ones((3, 3), np.float32), DType.FLOAT16, False),
        (np.ones((3, 3), np.int64), DType.INT64, False),
        (np.ones((3, 0), np.float32), DType.FLOAT, False),
    ],
)
def test_types_of_weights(array: np.ndarray, dtype: DType, seen: bool) -> None:
    op = _found("MatMul", array, (2, 3), dtype=dtype)
    assert (op is not None) is seen


def test_products_that_are_no_candidates() -> None:
    w, square = _weights(3, 5), _weights(3, 3)
    assert _found("MatMul", w, (2, 3)) is not None
    assert _found("MatMul", w, (3,)) is None  # the result would be a vector
    assert _found("MatMul", w, (2, 4)) is None
    assert _found("MatMul", _weights(2, 3, 5), (2, 2, 3)) is None
    assert _found("MatMul", square, (3, 3), inputs=("w", "x")) is None  # the constant is on the left
    assert _found("MatMul", square, (3, 3), inputs=("v", "w"), weights={"v": square}) is None
    assert _found("MatMul", square, (3, 3), inputs=("x", "")) is None
    assert _found("MatMul", square, (3, 3), inputs=("x",)) is None
    assert _found("MatMul", square, (3, 3), fed=("x", "w")) is None  # an input: the caller may replace it
    assert _found("MatMul", square, (3, 3), domain="com.example") is None
    assert _found("MatMul", square, (3, 3), inputs=("elsewhere", "w")) is None  # of unknown shape
    assert _found("Gemm", w, (2, 3), alpha=0.5) is None
    assert _found("Gemm", w, (2, 3), beta=0.5) is not None  # there is no C
    assert _found("Gemm", w, (2, 3), _weights(5), beta=0.5) is None
    assert _found("Gemm", square, (3, 3), transA=1) is None
    assert _found("Gemm", square, (3, 3), transB=2) is None
    assert _found("Gemm", w, (2, 3), _weights(2, 5)) is None
    assert _found("Gemm", w, (2, 3), _weights(1)) is None
    assert _found("Gemm", w, (2, 3), inputs=("x", "w", "x")) is None  # a bias that is computed
    assert _found("Gemm", w, (2, 3), inputs=("x", "w", "")) is not None
    assert _found("Gemm", w, (2, 3), _weights(5).astype(np.float16)) is None
    assert _found("Gemm", w, (2, 3), opaque=(b"?",)) is None


def test_convolutions_that_are_no_candidates() -> None:
    w, x = _weights(4, 2, 3, 3), (None, 2, 8, 8)
    assert _found("Conv", w, x) is not None
    assert _found("Conv", w, x, kernel_shape=(3, 3)) is not None
    assert _found("Conv", w, (None, 3, 8, 8)) is None
    assert _found("Conv", w, (None, 2, 8)) is None
    assert _found("Conv", _weights(4, 2), (None, 2)) is None
    assert _found("Conv", w, x, _weights(3)) is None
    assert _found("Conv", w, x, inputs=("x", "w", "x")) is None
    assert _found("Conv", w, (None, 6, 8, 8), group=3) is None  # 4 channels out of 3 groups
    wrong: list[dict[str, AttributeValue]] = [
        {"kernel_shape": (2, 3)},
        {"kernel_shape": 3},
        {"strides": (1,)},
        {"strides": (0, 1)},
        {"strides": (1.0, 1.0)},
        {"dilations": "11"},
        {"pads": (0, 0)},
        {"pads": (-1, 0, 0, 0)},
        {"group": 0},
        {"group": "1"},
        {"auto_pad": "SAME"},
        {"auto_pad": 3},
        {"colour": 1},
    ]
    for attributes in wrong:
        assert _found("Conv", w, x, **attributes) is None, attributes


def test_nodes_that_are_not_on_the_timeline_start_at_nan() -> None:
    node = EditNode(name="op", op_type="MatMul", inputs=("x", "w"), outputs=("y",))
    m = model("m", [node], {"w": _weights(3, 3)})
    (op,) = candidates(m, 0, {"x": ValueShape(dtype=DType.FLOAT, dims=(2, 3))}, {})
    assert math.isnan(op.start_ms)
