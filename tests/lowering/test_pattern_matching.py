"""Every fusion pattern: the forms that exporters write, and for each refusal the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gkestimator.core.graph import OperatorGraph
from gkestimator.lowering.patterns import PATTERNS, explain, find_matches
from gkestimator.operators.registry import LoweringOptions

Graphs = Callable[..., OperatorGraph]
Options = Callable[..., LoweringOptions]

_IO = "(float[2,8,16] x0) => (float[2,8,16] y) {{ x = Relu(x0) {0} y = Abs(r) }}"
_C: dict[str, Any] = {
    "root2": math.sqrt(2), "rsqrt2": math.sqrt(0.5), "one": 1.0, "half": 0.5, "two": 2.0, "three": 3.0, "six": 6.0,
    "zero": 0.0, "sixth": 1 / 6, "beta": math.sqrt(2 / math.pi), "kappa": 0.044715, "eps": 1e-5, "quick": 1.702,
    "gain": (16,), "shift": (16,),
}  # fmt: skip
_CENTRE = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) "
_VARIANCE = "v = ReduceMean<axes=[-1]>(p) e = Add(v, eps) s = Sqrt(e) "
_LN = _CENTRE + "p = Pow(d, two) " + _VARIANCE
_RMS = "p = Pow(x, two) " + _VARIANCE
_ERF = "a = Div(x, root2) b = Erf(a) "
_CUBE = "p = Pow(x, three) a = Mul(p, kappa) b = Add(x, a) c = Mul(b, beta) d = Tanh(c) e = Add(d, one) "

# body of the graph, what torch finds, what onnxruntime finds; -: nothing
_CASES = {
    "gelu": (_ERF + "c = Add(b, one) d = Mul(x, c) r = Mul(d, half)", "Gelu", "Gelu"),
    "gelu_swapped": (_ERF + "c = Add(one, b) d = Mul(c, x) r = Mul(half, d)", "Gelu", "Gelu"),
    "gelu_half_on_x": (_ERF + "c = Add(b, one) d = Mul(half, x) r = Mul(d, c)", "Gelu", "Gelu"),
    "gelu_half_inside": (_ERF + "c = Add(b, one) d = Mul(c, half) r = Mul(x, d)", "Gelu", "-"),
    "gelu_by_product": (
        "a = Mul(rsqrt2, x) b = Erf(a) c = Add(b, one) d = Mul(x, c) r = Mul(d, half)", "Gelu", "-"),
    "gelu_biased": (
        "i = Add(x, gain) a = Div(i, root2) b = Erf(a) c = Add(b, one) d = Mul(i, c) r = Mul(d, half)",
        "Gelu", "BiasGelu"),
    "tanh_gelu_functional": (_CUBE + "f = Mul(x, e) r = Mul(half, f)", "Gelu", "-"),
    "tanh_gelu_functional_inner": (_CUBE + "f = Mul(e, half) r = Mul(f, x)", "Gelu", "-"),
    "tanh_gelu_gpt2": (_CUBE + "h = Mul(x, half) r = Mul(h, e)", "-", "FastGelu"),
    "tanh_gelu_torchscript": (
        "q = Mul(x, x) p = Mul(x, q) a = Mul(kappa, p) b = Add(x, a) c = Mul(beta, b) d = Tanh(c) e = Add(one, d) "
        "h = Mul(half, x) r = Mul(h, e)", "Gelu", "-"),
    "tanh_gelu_bloom": (
        "h = Mul(x, half) a = Mul(x, beta) k = Mul(x, kappa) q = Mul(k, x) b = Add(one, q) c = Mul(a, b) d = Tanh(c) "
        "e = Add(one, d) r = Mul(h, e)", "-", "FastGelu"),
    "tanh_gelu_biased": (
        "i = Add(x, gain) h = Mul(i, half) p = Pow(i, three) a = Mul(p, kappa) b = Add(i, a) c = Mul(b, beta) "
        "d = Tanh(c) e = Add(d, one) r = Mul(h, e)", "-", "FastGelu"),
    "silu": ("a = Sigmoid(x) r = Mul(x, a)", "Swish", "QuickGelu"),
    "silu_swapped": ("a = Sigmoid(x) r = Mul(a, x)", "Swish", "QuickGelu"),
    "quick_gelu": ("m = Mul(quick, x) a = Sigmoid(m) r = Mul(a, x)", "-", "QuickGelu"),
    "hard_sigmoid": ("a = HardSigmoid<alpha=0.16666667, beta=0.5>(x) r = Mul(x, a)", "HardSwish", "-"),
    "clip_swish": ("a = Add(x, three) c = Clip(a, zero, six) b = Mul(x, c) r = Div(b, six)", "HardSwish", "-"),
    "clip_swish_gate": (
        "a = Add(three, x) c = Clip(a, zero, six) b = Mul(c, sixth) r = Mul(b, x)", "HardSwish", "-"),
    "mish": ("a = Softplus(x) b = Tanh(a) r = Mul(x, b)", "Mish", "-"),
    "layer_norm": (
        _LN + "n = Div(d, s) g = Mul(n, gain) r = Add(g, shift)", "LayerNormalization", "LayerNormalization"),
    "layer_norm_swapped": (
        _LN + "n = Div(d, s) g = Mul(gain, n) r = Add(shift, g)", "LayerNormalization", "LayerNormalization"),
    "layer_norm_square": (
        _CENTRE + "p = Mul(d, d) " + _VARIANCE + "n = Div(d, s) g = Mul(n, gain) r = Add(g, shift)",
        "LayerNormalization", "-"),
    "layer_norm_reciprocal": (
        _LN + "i = Reciprocal(s) n = Mul(d, i) g = Mul(n, gain) r = Add(g, shift)", "LayerNormalization", "-"),
    "layer_norm_plain": (_LN + "r = Div(d, s)", "LayerNormalization", "-"),
    "layer_norm_scale": (_LN + "n = Div(d, s) r = Mul(n, gain)", "LayerNormalization", "RMSNormalization"),
    "layer_norm_casts": (
        _CENTRE + "d2 = Cast<to=1>(d) p = Pow(d2, two) " + _VARIANCE + "n = Div(d, s) g = Mul(n, gain) "
        "r = Add(g, shift)", "LayerNormalization", "LayerNormalization"),
    "rms_norm": (_RMS + "n = Div(x, s) r = Mul(n, gain)", "-", "RMSNormalization"),
    "rms_norm_inverse": (_RMS + "i = Div(one, s) n = Mul(x, i) r = Mul(gain, n)", "Rsqrt", "RMSNormalization"),
    "rms_norm_llama": (_RMS + "i = Reciprocal(s) n = Mul(x, i) r = Mul(gain, n)", "Rsqrt", "-"),
    "relu_clip": ("a = Neg(x) b = Relu(a) r = Clip(b, zero, six)", "-", "Clip"),
}  # fmt: skip


def _found(graph: OperatorGraph, options: LoweringOptions) -> list[str]:
    return [match.op_type for match in find_matches(graph, options)]


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_elementwise_and_normalisation_forms(
    case: str, runtime: str, graph_of: Graphs, lowering_options: Options
) -> None:
    body, torch, ort = _CASES[case]
    expected = torch if runtime == "torch" else ort
    graph = graph_of(_IO.format(body), _C)
    matches = find_matches(graph, lowering_options(runtime))
    assert [m.op_type for m in matches] == ([] if expected == "-" else [expected])
    for match in matches:
        # The group ends where the last covered operator did, and what it reads is made before or outside.
        assert match.writes == graph.operators[match.position].outputs
        made = {v.name for i in match.covered for v in graph.operators[i].outputs if v is not None}
        assert not made & {v.name for v in match.reads}


@pytest.mark.parametrize("case", _CASES)
def test_onnxruntime_itself_fuses_the_same(
    case: str,
    graph_of: Graphs,
    onnx_model: Callable[..., Any],
    optimised_operators: Callable[[Any], list[str]],
    lowered_operators: Callable[[OperatorGraph], list[str]],
) -> None:
    if case == "layer_norm_casts":
        pytest.skip("onnxruntime drops the cast to the same type before, here the reader does")
    text = _IO.format(_CASES[case][0])
    ours = lowered_operators(graph_of(text, _C))
    theirs = optimised_operators(onnx_model(text, _C))
    assert ours == theirs


_STANDARD = ("Gelu", "Swish", "HardSwish", "Mish", "LayerNormalization", "RMSNormalization", "Clip")


@pytest.mark.parametrize(
    ("case", "runtime"),
    [(c, r) for c, (_, *found) in _CASES.items() for r, t in zip(("torch", "onnxruntime"), found, strict=True)
     if t in _STANDARD],
)  # fmt: skip
def test_the_fused_operator_computes_what_the_group_did(
    case: str, runtime: str, graph_of: Graphs, lowering_options: Options, onnx_model: Callable[..., Any]
) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    text = _IO.format(_CASES[case][0])
    before = onnx_model(text, _C)
    graph = graph_of(text, _C)
    (match,) = find_matches(graph, lowering_options(runtime))
    if not onnx.defs.has(match.op_type):
        pytest.skip(f"onnx {onnx.__version__} does not know {match.op_type}")
    nodes = [
        node if index not in match.covered else onnx.helper.make_node(
            match.op_type, [v.name if v is not None else "" for v in match.operator.inputs],
            [v.name for v in match.writes], **match.operator.attributes,
        )
        for index, node in enumerate(before.graph.node)
        if index not in match.covered or index == match.position
    ]  # fmt: skip
    constants = list(before.graph.initializer)
    if match.op_type == "LayerNormalization" and match.operator.inputs[1] is None:  # ONNX wants a scale
        nodes[match.covered[0]].input[1] = "unit"
        constants.append(onnx.numpy_helper.from_array(np.ones(16, np.float32), "unit"))
    after = onnx.helper.make_model(
        onnx.helper.make_graph(
            nodes, "fused", list(before.graph.input), list(before.graph.output), constants
        ),
        opset_imports=[onnx.helper.make_opsetid("", 24)],
    )
    x = np.random.default_rng(1).normal(0.0, 3.0, (2, 8, 16)).astype(np.float32)
    (expected,) = ReferenceEvaluator(before).run(None, {"x0": x})
    (found,) = ReferenceEvaluator(after).run(None, {"x0": x})
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


def test_a_whole_group_is_covered(graph_of: Graphs, lowering_options: Options) -> None:
    body = _CASES["layer_norm"][0]
    (match,) = find_matches(graph_of(_IO.format(body), _C), lowering_options("torch"))
    assert match.covered == tuple(range(1, 10))  # all but the Relu before and the Abs after
    assert [v.name for v in match.reads] == ["x", "gain", "shift"]
    assert match.operator.attributes["axis"] == -1
    assert match.operator.attributes["epsilon"] == pytest.approx(1e-5)


_REFUSED = {
    "gelu_constant": (
        _ERF + "c = Add(b, two) d = Mul(x, c) r = Mul(d, half)", "torch", "gelu", "two is 2, expected 1"),
    "gelu_half": (_ERF + "c = Add(b, one) d = Mul(x, c) r = Mul(d, two)", "torch", "gelu", "two is 2, expected 0.5"),
    "gelu_inverted": (
        "a = Div(root2, x) b = Erf(a) c = Add(b, one) d = Mul(x, c) r = Mul(d, half)", "torch", "gelu", "divides"),
    "gelu_read_outside": (
        _ERF + "c = Add(b, one) d = Mul(x, c) r0 = Mul(d, half) r = Add(r0, a)", "torch", "gelu",
        "a is read by Add#6 too"),
    "gelu_other_x": (
        _ERF + "c = Add(b, one) d = Mul(x0, c) r = Mul(d, half)", "torch", "gelu", "x0 comes from no operator"),
    "gate": ("a = Sigmoid(x0) r = Mul(x, a)", "torch", "sigmoid_gate", "gates another tensor, x"),
    "silu_read_outside": (
        "a = Sigmoid(x) r0 = Mul(x, a) r = Add(r0, a)", "torch", "sigmoid_gate", "read by several"),
    "hard_sigmoid_slope": ("a = HardSigmoid(x) r = Mul(x, a)", "torch", "hard_sigmoid_swish", "slope"),
    "clip_bounds": (
        "a = Add(x, three) c = Clip(a, zero, three) b = Mul(x, c) r = Div(b, six)", "torch", "clip_swish",
        "clips to 0.0..3.0, expected 0..6"),
    "mish": ("a = Softplus(x) b = Tanh(a) r = Mul(x0, b)", "torch", "mish", "does not multiply by x"),
    "layer_norm_axis": (
        _LN.replace("axes=[-1]", "axes=[1]") + "n = Div(d, s) g = Mul(n, gain) r = Add(g, shift)", "torch",
        "layer_norm", "axes [1] of 3, expected the last ones"),
    "layer_norm_mixed_axes": (
        _LN.replace("axes=[-1]", "axes=[1, 2]", 1) + "n = Div(d, s) r = Mul(n, gain)", "torch", "layer_norm",
        "different axes"),
    "layer_norm_cube": (_LN.replace("two", "three") + "r = Div(d, s)", "torch", "layer_norm", "three is 3"),
    "layer_norm_read_outside": (
        _LN + "n = Div(d, s) r = Add(n, v)", "torch", "layer_norm", "v is read by Add#8 too"),
    "rms_norm_torch": (_RMS + "n = Div(x, s) r = Mul(n, gain)", "torch", "rms_norm", "python arithmetic"),
    "rms_norm_reciprocal": (
        _RMS + "i = Reciprocal(s) n = Mul(x, i) r = Mul(gain, n)", "onnxruntime", "rms_norm", "only Pow"),
    "gelu_ort_form": (
        _ERF + "c = Add(b, one) d = Mul(c, half) r = Mul(x, d)", "onnxruntime", "gelu", "onnxruntime fuses only"),
}  # fmt: skip


@pytest.mark.parametrize("case", _REFUSED)
def test_a_refusal_says_why(case: str, graph_of: Graphs, lowering_options: Options) -> None:
    body, runtime, pattern, reason = _REFUSED[case]
    graph = graph_of(_IO.format(body), _C)
    options = lowering_options(runtime)
    assert pattern not in {m.name for m in find_matches(graph, options)}
    reasons = [r.reason for r in explain(graph, options) if r.pattern == pattern]
    assert any(reason in found for found in reasons), reasons


def test_a_hidden_constant_is_accepted_by_structure(graph_of: Graphs, lowering_options: Options) -> None:
    from dataclasses import replace

    graph = graph_of(_IO.format(_CASES["gelu"][0]), _C)

    def hide(value: Any) -> Any:
        return replace(value, value=None) if value is not None and value.is_weight else value

    hidden = replace(
        graph,
        operators=tuple(replace(op, inputs=tuple(hide(v) for v in op.inputs)) for op in graph.operators),
    )
    assert _found(hidden, lowering_options("torch")) == ["Gelu"]


def test_an_intermediate_that_leaves_the_graph_is_kept(graph_of: Graphs, lowering_options: Options) -> None:
    text = "(float[2,8,16] x) => (float[2,8,16] y, float[2,8,16] d) {" + _LN + "y = Div(d, s) }"
    graph = graph_of(text, _C)
    assert find_matches(graph, lowering_options("torch")) == []
    assert any("output of the graph" in r.reason for r in explain(graph, lowering_options("torch")))


def test_groups_never_overlap_and_priorities_hold(graph_of: Graphs, lowering_options: Options) -> None:
    body = "h = MatMul(x, w) i = Add(h, gain) a = Div(i, root2) b = Erf(a) c = Add(b, one) d = Mul(i, c) r = Mul(d, half)"
    graph = graph_of(_IO.format(body), {**_C, "w": (16, 16)})
    assert _found(graph, lowering_options("torch")) == ["Linear", "Gelu"]
    assert _found(graph, lowering_options("onnxruntime")) == ["BiasGelu"]
    for runtime in ("torch", "onnxruntime"):
        covered = [i for m in find_matches(graph, lowering_options(runtime)) for i in m.covered]
        assert len(covered) == len(set(covered))


def test_pattern_names_are_unique() -> None:
    names = [pattern.name for pattern in PATTERNS]
    assert len(names) == len(set(names))
    assert all(pattern.anchors for pattern in PATTERNS)
