"""Patterns around matrix products, convolutions, quantisation and group normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gkestimator.core.graph import OperatorGraph
from gkestimator.lowering.patterns import explain, find_matches
from gkestimator.operators.registry import LoweringOptions

Graphs = Callable[..., OperatorGraph]
Options = Callable[..., LoweringOptions]

_C: dict[str, Any] = {
    "scale": 0.125, "eight": 8.0, "root": 0.35, "low": -1e9, "zero": 0.0, "w": (16, 32), "b": (32,), "gain": (16,), "shift": (16,),
    "mask": (1, 1, 8, 8), "kernel": (8, 8, 3, 3), "c": (8,), "c4": (1, 8, 1, 1), "c3": (8, 1, 1), "gate": (1, 8, 16, 16),
    "positive": np.ones(8, np.float32), "to_groups": np.array([0, 4, -1], np.int64),
    "back": np.array([2, 8, 16, 16], np.int64), "ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32),
}  # fmt: skip
_QKV = "(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) {{ {0} }}"
_KT = "t = Transpose<perm=[0,1,3,2]>(k) "
_END = " p = Softmax<axis=-1>(s) y = MatMul(p, v)"

_ATTENTION = {
    "scale_after": (_KT + "a = MatMul(q, t) s = Mul(a, scale)" + _END, 3),
    "divided_after": (_KT + "a = MatMul(q, t) s = Div(a, eight)" + _END, 3),
    "scale_on_q": ("u = Mul(q, scale) " + _KT + "s = MatMul(u, t)" + _END, 3),
    "scale_on_both": ("u = Mul(q, root) " + _KT + "w2 = Mul(t, root) s = MatMul(u, w2)" + _END, 3),
    "scale_on_both_before": ("u = Mul(q, root) k2 = Mul(root, k) t = Transpose<perm=[0,1,3,2]>(k2) s = MatMul(u, t)" + _END, 3),
    "masked": (_KT + "a = MatMul(q, t) m = Mul(a, scale) s = Add(m, mask)" + _END, 4),
    "masked_swapped": (_KT + "a = MatMul(q, t) m = Mul(scale, a) s = Add(mask, m)" + _END, 4),
    "selected": (_KT + "a = MatMul(q, t) m = Mul(a, scale) f = Less(mask, zero) s = Where(f, low, m)" + _END, 4),
    "dropout": (_KT + "a = MatMul(q, t) s = Mul(a, scale) p = Softmax<axis=-1>(s) d = Dropout(p) y = MatMul(d, v)", 3),
    "guarded": (
        _KT + "a = MatMul(q, t) s = Add(a, mask) p = Softmax<axis=-1>(s) n = IsNaN(p) g = Where(n, zero, p) "
        "y = MatMul(g, v)", 4),
    "unscaled": (_KT + "s = MatMul(q, t)" + _END, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", _ATTENTION)
def test_attention_forms(case: str, graph_of: Graphs, lowering_options: Options) -> None:
    body, reads = _ATTENTION[case]
    graph = graph_of(_QKV.format(body), _C)
    (match,) = find_matches(graph, lowering_options("torch"))
    assert (match.name, match.op_type) == ("attention", "Attention")
    assert len(match.reads) == reads
    assert [getattr(v, "shape", None) for v in match.reads[:3]] == [(2, 4, 8, 16)] * 3
    left = [op.op_type for i, op in enumerate(graph.operators) if i not in match.covered]
    assert left == (["Less"] if case == "selected" else [])
    assert find_matches(graph, lowering_options("torch", attention="eager")) == []
    assert "Attention" not in {m.op_type for m in find_matches(graph, lowering_options("onnxruntime"))}


def test_attention_lowers_to_one_kernel_with_its_exact_flops(
    graph_of: Graphs, lowering_options: Options
) -> None:
    import gkestimator.operators.attention  # noqa: F401  (registers the rule)

    options = lowering_options("torch")
    (match,) = find_matches(graph_of(_QKV.format(_ATTENTION["scale_after"][0]), _C), options)
    (kernel,) = match.lower(options).kernels
    products = 2 * (2 * 2 * 4 * 8 * 8 * 16)  # two products, a multiply-add counted as two
    assert products < kernel.flops <= products + 8 * (2 * 4 * 8 * 8)  # softmax and scale: a few per score
    assert kernel.read_bytes == 3 * 4 * 2 * 4 * 8 * 16
    assert kernel.write_bytes == 4 * 2 * 4 * 8 * 16


def test_equal_groups_share_their_kernels(graph_of: Graphs, lowering_options: Options) -> None:
    options = lowering_options("torch")
    text = "(float[2,8,16] x) => (float[2,8,16] y) { h = MatMul(x, square) u = Add(h, gain) i = MatMul(u, square) y = Add(i, shift) }"
    first, second = find_matches(graph_of(text, {**_C, "square": (16, 16)}), options)
    assert first.lower(options).kernels[0] is second.lower(options).kernels[0]


def test_two_masks_both_stay_alive(graph_of: Graphs, lowering_options: Options) -> None:
    body = _KT + "a = MatMul(q, t) m = Add(a, mask) s = Add(m, gate2)" + _END
    graph = graph_of(_QKV.format(body), {**_C, "gate2": (2, 1, 8, 8)})
    (match,) = find_matches(graph, lowering_options("torch"))
    assert [v.name for v in match.reads] == ["q", "k", "v", "gate2", "mask"]
    assert match.operator.inputs[3] is not None and match.operator.inputs[3].name == "gate2"  # the larger one


def test_a_transposition_of_more_than_the_last_two_dimensions_is_part_of_the_call(
    graph_of: Graphs, lowering_options: Options
) -> None:
    text = (
        "(float[2,4,8,16] q, float[2,8,4,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) "
        "{ t = Transpose<perm=[0,2,3,1]>(k) s = MatMul(q, t)" + _END + " }"
    )
    (match,) = find_matches(graph_of(text, _C), lowering_options("torch"))
    assert match.covered == (0, 1, 2, 3)
    assert [(v.name, getattr(v, "shape", None)) for v in match.reads][1] == ("k", (2, 4, 8, 16))


_NO_ATTENTION = {
    "axis": (_KT + "s = MatMul(q, t) p = Softmax<axis=2>(s) y = MatMul(p, v)", "along axis 2"),
    "sum": (_KT + "a = MatMul(q, t) s = Add(a, a)" + _END, "for every head"),
    "scores_read": (_KT + "a = MatMul(q, t) s = Mul(a, scale) p = Softmax<axis=-1>(s) u = Add(p, a) y = MatMul(u, v)", "expected MatMul"),
    "right": (_KT + "s = MatMul(q, t) p = Softmax<axis=-1>(s) z = Transpose<perm=[0,1,3,2]>(v) x = MatMul(z, p) "
              "y = Transpose<perm=[0,1,3,2]>(x)", "right operand"),
}  # fmt: skip


@pytest.mark.parametrize("case", _NO_ATTENTION)
def test_no_attention_and_why(case: str, graph_of: Graphs, lowering_options: Options) -> None:
    body, reason = _NO_ATTENTION[case]
    graph = graph_of(_QKV.format(body), _C)
    options = lowering_options("torch")
    assert not [m for m in find_matches(graph, options) if m.name == "attention"]
    assert any(reason in r.reason for r in explain(graph, options) if r.pattern == "attention")


def test_products_of_rank_three_are_bmm_calls(graph_of: Graphs, lowering_options: Options) -> None:
    text = (
        "(float[2,8,16] q, float[2,16,8] t, float[2,8,16] v) => (float[2,8,16] y) { s = MatMul(q, t)"
        + _END
        + " }"
    )
    graph = graph_of(text, _C)
    assert find_matches(graph, lowering_options("torch")) == []
    assert "rank 3 and 3, expected 4" in explain(graph, lowering_options("torch"))[0].reason


# body, constants apart; what torch finds; what onnxruntime finds (verified against its optimiser where it can show it)
_CASES = {
    "linear": ("(float[2,8,16] x) => (float[2,8,32] y) { a = MatMul(x, w) y = Add(a, b) }", ["Linear"], []),
    "linear_swapped": ("(float[2,8,16] x) => (float[2,8,32] y) { a = MatMul(x, w) y = Add(b, a) }", ["Linear"], []),
    "matrix": ("(float[8,16] x) => (float[8,32] y) { a = MatMul(x, w) y = Add(a, b) }", ["Linear"], ["Gemm"]),
    "scaled": (
        "(float[2,8,16] x, float[2,16,8] z) => (float[2,8,8] y) { a = MatMul(x, z) y = Mul(a, scale) }", [],
        ["FusedMatMul"]),
    "scaled_operands": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,8] y) { u = Mul(x, scale) t = Transpose<perm=[0,2,1]>(z) "
        "s = Mul(t, scale) y = MatMul(u, s) }", [], ["FusedMatMul"]),
    "transposed": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,8] y) { t = Transpose<perm=[0,2,1]>(z) y = MatMul(x, t) }", [],
        ["FusedMatMul"]),
    "transposed_otherwise": (
        "(float[2,4,8,16] x, float[2,8,4,16] z) => (float[2,4,8,8] y) { t = Transpose<perm=[0,2,3,1]>(z) "
        "y = MatMul(x, t) }", [], []),
    "skip": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y) { a = Add(x, z) y = LayerNormalization(a, gain, shift) }",
        [], ["SkipLayerNormalization"]),
    "skip_pre_norm": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y) { a = Add(x, z) n = LayerNormalization(a, gain, shift) "
        "y = Add(n, a) }", [], []),
    "skip_broadcast": (
        "(float[2,8,16] x, float[1,8,16] z) => (float[2,8,16] y) { a = Add(x, z) y = LayerNormalization(a, gain, shift) }",
        [], []),
    "skip_rank_two": (
        "(float[8,16] x, float[8,16] z) => (float[8,16] y) { a = Add(x, z) y = LayerNormalization(a, gain, shift) }", [], []),
    "conv_norm": (
        "(float[2,8,16,16] x) => (float[2,8,14,14] y) { a = Conv(x, kernel) "
        "y = BatchNormalization(a, c, c, c, positive) }", [], ["Conv"]),
    "conv_norm_relu": (
        "(float[2,8,16,16] x) => (float[2,8,14,14] y) { a = Conv(x, kernel) "
        "n = BatchNormalization(a, c, c, c, positive) y = Relu(n) }", [], ["Conv"]),
    "conv_scale_shift": (
        "(float[2,8,16,16] x) => (float[2,8,14,14] y) { a = Conv(x, kernel) m = Mul(a, c4) y = Add(m, c4) }", [],
        ["Conv"]),
    "conv_residual": (
        "(float[2,8,16,16] x, float[2,8,14,14] z) => (float[2,8,14,14] y) { a = Conv(x, kernel) y = Add(a, z) }", [], []),
    "norm_after_pool": (
        "(float[2,8,16,16] x) => (float[2,8,16,16] y) { a = Abs(x) y = BatchNormalization(a, c, c, c, positive) }", [],
        []),
}  # fmt: skip


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_product_and_convolution_forms(
    case: str, runtime: str, graph_of: Graphs, lowering_options: Options
) -> None:
    text, torch, ort = _CASES[case]
    found = [m.op_type for m in find_matches(graph_of(text, _C), lowering_options(runtime))]
    assert found == (torch if runtime == "torch" else ort)


@pytest.mark.parametrize(
    "case", sorted(set(_CASES) - {"linear", "linear_swapped"})
)  # fused there: sizes are numbers
def test_onnxruntime_itself_fuses_the_same(
    case: str,
    graph_of: Graphs,
    onnx_model: Callable[..., Any],
    optimised_operators: Callable[[Any], list[str]],
    lowered_operators: Callable[[OperatorGraph], list[str]],
) -> None:
    text = _CASES[case][0]
    assert lowered_operators(graph_of(text, _C)) == optimised_operators(onnx_model(text, _C))


def test_onnxruntime_keeps_linear_layers_apart_when_the_batch_is_symbolic(
    onnx_model: Callable[..., Any], optimised_operators: Callable[[Any], list[str]]
) -> None:
    text = _CASES["linear"][0].replace("[2,8,", "[N,8,")
    assert optimised_operators(onnx_model(text, _C)) == ["Add", "MatMul"]


def test_a_folded_convolution_reads_a_bias_even_where_the_file_has_none(
    graph_of: Graphs, lowering_options: Options
) -> None:
    (match,) = find_matches(graph_of(_CASES["conv_norm"][0], _C), lowering_options("onnxruntime"))
    assert [v.name for v in match.reads] == ["x", "kernel", "c"]
    assert match.covered == (0, 1)


def test_linear_is_one_gemm_with_the_bias_in_its_epilogue(
    graph_of: Graphs, lowering_options: Options
) -> None:
    options = lowering_options("torch")
    (match,) = find_matches(graph_of(_CASES["linear"][0], _C), options)
    (kernel,) = match.lower(options).kernels
    assert kernel.gemm is not None
    assert (kernel.gemm.batch, kernel.gemm.m, kernel.gemm.n, kernel.gemm.k) == (1, 16, 32, 16)
    assert kernel.flops == 2 * 16 * 32 * 16 + 16 * 32
    assert kernel.read_bytes == 4 * (16 * 16 + 16 * 32 + 32)
    assert kernel.weight_bytes == 4 * (16 * 32 + 32)


_SOFTMAX = {
    "inner": ("float[2,1,1,8] m", "a = Add(x, m)", True),
    "outer": ("float[1,1,8,8] m", "a = Add(m, x)", True),
    "same": ("float[2,4,8,8] m", "a = Add(x, m)", False),
    "separated": ("float[2,1,8,8] m", "a = Add(x, m)", True),
    "column": ("float[2,4,8,1] m", "a = Add(x, m)", False),
}


@pytest.mark.parametrize("case", _SOFTMAX)
def test_bias_softmax(case: str, graph_of: Graphs, lowering_options: Options) -> None:
    mask, body, expected = _SOFTMAX[case]
    text = f"(float[2,4,8,8] x, {mask}) => (float[2,4,8,8] y) {{ {body} y = Softmax<axis=-1>(a) }}"
    found = [m.op_type for m in find_matches(graph_of(text, _C), lowering_options("onnxruntime"))]
    assert found == (["BiasSoftmax"] if expected else [])
    assert find_matches(graph_of(text, _C), lowering_options("torch")) == []


def test_group_norm_with_and_without_affine(graph_of: Graphs, lowering_options: Options) -> None:
    head = "(float[2,8,16,16] x) => (float[2,8,16,16] y) { g = Reshape(x, to_groups) n = InstanceNormalization(g, ones, zeros) "
    plain = graph_of(head + "y = Reshape(n, back) }", _C)
    affine = graph_of(head + "r = Reshape(n, back) m = Mul(r, c3) y = Add(c3, m) }", _C)
    for graph, parameters in ((plain, ["ones", "zeros"]), (affine, ["c3", "c3"])):
        (match,) = find_matches(graph, lowering_options("torch"))
        assert match.op_type == "GroupNormalization"
        assert match.operator.attributes["num_groups"] == 4
        assert [v.name for v in match.reads[1:]] == parameters
        assert match.covered == tuple(range(len(graph.operators)))
        assert find_matches(graph, lowering_options("onnxruntime")) == []


_Q = "(float[2,8,16,16] x) => (float[2,8,14,14] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) " \
     "k = DequantizeLinear(wq, s, z) "  # fmt: skip


def test_quantised_convolution_only_where_int8_is_asked_for(
    graph_of: Graphs, lowering_options: Options, onnx_model: Callable[..., Any],
    optimised_operators: Callable[[Any], list[str]],
) -> None:  # fmt: skip
    constants = {"s": 0.1, "z": np.array(0, np.int8), "wq": np.ones((8, 8, 3, 3), np.int8)}
    text = _Q + "a = Conv(d, k) e = QuantizeLinear(a, s, z) y = DequantizeLinear(e, s, z) }"
    graph = graph_of(text, constants)
    for runtime in ("torch", "onnxruntime"):
        assert find_matches(graph, lowering_options(runtime)) == []
        (match,) = find_matches(graph, lowering_options(runtime, dtype="int8"))
        assert match.op_type == "QLinearConv"
        assert [v.name for v in match.reads] == ["q", "s", "z", "wq", "s", "z", "s", "z"]
        assert match.covered == (1, 2, 3, 4)
    assert optimised_operators(onnx_model(text, constants)).count("QLinearConv") == 1  # on its CPU provider


@pytest.mark.parametrize(("zero_point", "absorbed"), [(-128, True), (0, False)])
def test_a_relu_is_absorbed_only_where_the_zero_point_clips(
    zero_point: int, absorbed: bool, graph_of: Graphs, lowering_options: Options,
    onnx_model: Callable[..., Any], optimised_operators: Callable[[Any], list[str]],
) -> None:  # fmt: skip
    constants = {
        "s": 0.1, "z": np.array(0, np.int8), "zo": np.array(zero_point, np.int8), "wq": np.ones((8, 8, 3, 3), np.int8)
    }  # fmt: skip
    text = _Q + "a = Conv(d, k) r = Relu(a) e = QuantizeLinear(r, s, zo) y = DequantizeLinear(e, s, zo) }"
    found = find_matches(graph_of(text, constants), lowering_options("onnxruntime", dtype="int8"))
    assert [m.op_type for m in found] == (["QLinearConv"] if absorbed else [])
    assert ("QLinearConv" in optimised_operators(onnx_model(text, constants))) == absorbed


def test_a_quantised_operator_needs_both_ends(graph_of: Graphs, lowering_options: Options) -> None:
    constants = {"s": 0.1, "z": np.array(0, np.int8), "wq": np.ones((8, 8, 3, 3), np.int8)}
    graph = graph_of(_Q + "y = Conv(d, k) }", constants)
    options = lowering_options("onnxruntime", dtype="int8")
    assert find_matches(graph, options) == []
    assert "leaves the graph" in explain(graph, options)[0].reason


_ODD = {
    "vectors": "(float[2,3] q, float[3] k, float[2] v) => (float y) { a = MatMul(q, k) p = Softmax<axis=-1>(a) y = MatMul(p, v) }",
    "scalar_statistics": "(float x) => (float r) { p = Mul(x, x) m = ReduceMean<keepdims=1>(p) e = Add(m, zero) "
                         "s = Sqrt(e) r = Div(x, s) }",
    "self_product": "(float[2,2] x) => (float[2,2] y) { a = MatMul(x, x) b = Mul(a, a) c = Add(b, b) y = Softmax<axis=-1>(c) }",
    "self_sigmoid": "(float[4] x) => (float[4] y) { a = Sigmoid(x) y = Mul(a, a) }",
    "self_norm": "(float[2,4] x) => (float[2,4] y) { a = Add(x, x) y = Add(a, a) }",
    "erf_of_itself": "(float[4] x) => (float[4] y) { a = Mul(x, x) b = Erf(a) c = Add(b, b) d = Mul(c, c) y = Mul(d, d) }",
}  # fmt: skip


@pytest.mark.parametrize("case", _ODD)
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_odd_graphs_are_refused_without_a_traceback(
    case: str, runtime: str, dtype: str, graph_of: Graphs, lowering_options: Options
) -> None:
    graph = graph_of(_ODD[case], {"zero": 0.0})
    assert find_matches(graph, lowering_options(runtime, dtype=dtype)) == []
    assert all(refusal.reason for refusal in explain(graph, lowering_options(runtime, dtype=dtype)))
