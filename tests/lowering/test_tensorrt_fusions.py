"""Fusions of TensorRT: which operators become one kernel, what that costs, and what is never fused away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Kernel, KernelGraph
from gkestimator.estimation.remarks import unfused_lines
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import targets_of
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.lowering import lower
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

Graphs = Callable[..., OperatorGraph]

_C: dict[str, Any] = {
    "w": (16, 32), "w2": (16, 32), "square": (16, 16), "b": (32,), "b2": (32,), "gain": (16,), "shift": (16,), "half": 0.5,
    "one": 1.0, "root2": 1.4142135, "eps": 1e-5, "two": 2.0, "zero": 0.0, "six": 6.0, "low": -1e4, "scale": 0.25,
    "k": (8, 8, 3, 3), "k1": (8, 8, 1, 1), "c4": (1, 8, 1, 1), "c": (8,), "positive": np.ones(8, np.float32), "mask": (1, 1, 8, 8),
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64), "heads": np.array([2, 8, 4, 16], np.int64),
    "rows": np.array([16, 16], np.int64), "tokens": np.array([2, 8, 32], np.int64), "joined": np.array([2, 8, 64], np.int64),
    "axes": np.array([-1], np.int64), "begin": np.array([0], np.int64), "middle": np.array([16], np.int64),
    "end": np.array([32], np.int64),
}  # fmt: skip
_IMAGE = "(float[2,8,6,6] x, float[2,8,6,6] z) => (float[2,8,6,6] y) {{ {0} }}"
_CONV = "a = Conv<pads=[1,1,1,1]>(x, k, c) "
_ROWS = "(float[2,8,16] x) => (float[2,8,16] y) {{ {0} }}"
_WIDE = "(float[2,8,16] x) => (float[2,8,32] y) {{ {0} }}"
_GELU = "d = Div(i, root2) e = Erf(d) f = Add(e, one) g = Mul(i, f) y = Mul(g, half)"
_HEADS = "(float[2,4,8,16] q, float[2,4,8,16] k0, float[2,4,8,16] v) => (float[2,4,8,16] y) {{ {0} }}"
_KEYS = "t = Transpose<perm=[0,1,3,2]>(k0) "
_VARIANCE = "v = ReduceMean<axes=[-1]>(p) e = Add(v, eps) s = Sqrt(e) "

# what the graph is: the kernels, each with the operators that it stands for
_CASES: dict[str, tuple[str, list[str]]] = {
    "relu": (_IMAGE.format(_CONV + "b1 = Relu(a) y = Add(b1, z)"), ["conv: Conv Relu", "elementwise.add: Add"]),
    "shortcut": (_IMAGE.format(_CONV + "s = Add(z, a) y = Relu(s)"), ["conv.sum: Conv Add Relu"]),
    "folded": (
        _IMAGE.format("a = Conv<pads=[1,1,1,1]>(x, k) n = BatchNormalization(a, c, c, c, positive) s = Add(n, z) y = Clip(s, zero, six)"),
        ["conv.sum: Conv BatchNormalization Add Clip"]),
    "scaled": (
        _IMAGE.format(_CONV + "s = Mul(half, a) t = Add(s, z) y = Relu(t)"), ["conv.sum: Conv Mul Add Relu"]),
    "divided_by": (
        _IMAGE.format(_CONV + "y = Div(c4, a)"), ["conv: Conv", "elementwise.div: Div"]),
    "last_convolution_sums": (
        _IMAGE.format(_CONV + "d = Conv(z, k1) s = Add(a, d) y = Relu(s)"), ["conv: Conv", "conv.sum: Conv Add Relu"]),
    "silu": (_IMAGE.format(_CONV + "g = Sigmoid(a) y = Mul(a, g)"), ["conv: Conv Sigmoid Mul"]),
    "padded": (_IMAGE.format("p = Pad(x, pads) a = Conv(p, k) y = Relu(a)"), ["conv: Pad Conv Relu"]),
    "broadcast_is_no_shortcut": (
        _IMAGE.format(_CONV + "m = GlobalAveragePool(z) y = Add(a, m)"),
        ["conv: Conv", "reduction.global_average_pool: GlobalAveragePool", "elementwise.add: Add"]),
    "transposed": (
        "(float[2,8,6,6] x) => (float[2,8,8,8] y) { a = ConvTranspose(x, k) y = LeakyRelu(a) }",
        ["conv_transpose: ConvTranspose LeakyRelu"]),
    "gelu": (_WIDE.format("a = MatMul(x, w) i = Add(a, b) " + _GELU), ["linear: MatMul Add Div Erf Add Mul Mul"]),
    "residual": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y) { a = MatMul(x, square) i = Add(a, shift) y = Add(z, i) }",
        ["linear: MatMul Add Add"]),
    "two_residuals": (
        "(float[2,8,16] x, float[2,8,16] z, float[2,8,16] u) => (float[2,8,16] y) { a = MatMul(x, square) i = Add(a, z) y = Add(i, u) }",
        ["linear: MatMul Add", "elementwise.add: Add"]),
    "rows_as_tokens": (
        "(float[16,16] x) => (float[2,8,32] y) { a = Gemm(x, w, b) i = Reshape(a, tokens) " + _GELU + " }",
        ["linear: Gemm Reshape Div Erf Add Mul Mul"]),
    "side_by_side": (
        "(float[2,8,16] x) => (float[2,8,32] y) { a = MatMul(x, w) i = Add(a, b) e = MatMul(x, w2) j = Add(e, b2) "
        "s = Sigmoid(i) y = Mul(s, j) }",
        ["linear: MatMul Add MatMul Add", "elementwise.pointwise: Sigmoid Mul"]),
    "side_by_side_and_read_in_between": (
        _WIDE.format("a = MatMul(x, w) s = Softmax(a) e = MatMul(x, w2) y = Add(s, e)"),
        ["linear: MatMul MatMul", "softmax.softmax: Softmax", "elementwise.add: Add"]),
    "products_of_what_is_made_later": (
        "(float[2,8,16] x, float[16,32] u) => (float[2,8,32] y) { a = MatMul(x, w) e = MatMul(x, u) y = Mul(a, e) }",
        ["linear: MatMul", "linear: MatMul", "elementwise.mul: Mul"]),
    "factors": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,8] y) { u = Mul(x, scale) t = Transpose<perm=[0,2,1]>(z) y = MatMul(u, t) }",
        ["bmm: Mul Transpose MatMul"]),
    "layer_norm": (
        _ROWS.format("m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) p = Pow(d, two) " + _VARIANCE
                     + "n = Div(d, s) g = Mul(n, gain) y = Add(g, shift)"),
        ["layernorm.layer_norm: ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"]),
    "rms_norm": (
        _ROWS.format("p = Mul(x, x) " + _VARIANCE + "i = Reciprocal(s) n = Mul(x, i) y = Mul(gain, n)"),
        ["layernorm.rms_norm: Mul ReduceMean Add Sqrt Reciprocal Mul Mul"]),
    "residual_norm": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y) { a = MatMul(x, square) i = Add(a, shift) s = Add(i, z) "
        "y = LayerNormalization(s, gain, shift) }",
        ["linear: MatMul", "layernorm.layer_norm: Add Add LayerNormalization"]),
    "sum_that_is_read_again": (
        "(float[2,8,16] x, float[2,8,16] z) => (float[2,8,16] y, float[2,8,16] s) { a = MatMul(x, square) s = Add(a, z) "
        "y = LayerNormalization(s, gain, shift) }",
        ["linear: MatMul Add", "layernorm.layer_norm: LayerNormalization"]),
    "masked_softmax": (
        "(float[2,4,8,8] x) => (float[2,4,8,8] y) { a = Mul(x, scale) s = Add(a, mask) y = Softmax<axis=-1>(s) }",
        ["softmax.softmax: Mul Add Softmax"]),
    "bias_before_softmax": (
        _WIDE.format("a = MatMul(x, w) i = Add(a, b) y = Softmax(i)"), ["linear: MatMul Add", "softmax.softmax: Softmax"]),
    "reduced_squares": (
        "(float[2,8,16] x) => (float[2,8,1] y) { a = Mul(x, x) y = ReduceSum(a, axes) }", ["reduction.sum: Mul ReduceSum"]),
    "gate": (
        "(float[2,8,32] x) => (float[2,8,16] y) { a, g = Split<axis=-1>(x) s = Sigmoid(g) y = Mul(a, s) }",
        ["elementwise.pointwise: Split Sigmoid Mul"]),
    "gate_of_slices": (
        "(float[2,8,32] x) => (float[2,8,16] y) { a = Slice(x, begin, middle, axes) g = Slice(x, middle, end, axes) "
        "s = Tanh(g) y = Mul(a, s) }",
        ["elementwise.pointwise: Slice Slice Tanh Mul"]),
    "half_a_gate": (
        "(float[2,8,32] x) => (float[2,8,16] y, float[2,8,16] a) { a, g = Split<axis=-1>(x) y = Sigmoid(g) }",
        ["copy.split: Split", "elementwise.sigmoid: Sigmoid"]),
    "branches": (
        _ROWS.format("a = Sigmoid(x) d = Tanh(x) e = Mul(a, d) f = Greater(e, zero) y = Where(f, e, x)"),
        ["elementwise.pointwise: Sigmoid Tanh Mul Greater Where"]),
    "shuffle": (
        "(float[2,8,16] x) => (float[16,16] y) { a = Transpose<perm=[1,0,2]>(x) r = Reshape(a, rows) y = Transpose(r) }",
        ["copy.transpose: Transpose Reshape Transpose"]),
    "activated_norm": (
        _IMAGE.format("n = InstanceNormalization(x, c, c) g = Sigmoid(n) h = Mul(n, g) y = Add(h, z)"),
        ["layernorm.instance_norm: InstanceNormalization Sigmoid Mul", "elementwise.add: Add"]),
    "joined_in_place": (
        "(float[2,8,6,6] x) => (float[2,24,6,6] y) { a = Conv<pads=[1,1,1,1]>(x, k, c) r = Relu(a) d = Conv(x, k1) "
        "y = Concat<axis=1>(r, d, x) }",
        ["conv: Conv Relu", "conv: Conv", "copy.concat: Concat"]),
    "float_attention_stays": (
        _HEADS.format(_KEYS + "a = MatMul(q, t) m = Mul(a, scale) n = Add(m, mask) p = Softmax<axis=-1>(n) y = MatMul(p, v)"),
        ["bmm: Transpose MatMul Mul", "softmax.softmax: Add Softmax", "bmm: MatMul"]),
}  # fmt: skip


def _options(dtype: str = "fp32") -> LoweringOptions:
    precision = {"fp32": Precision.FP32, "fp16": Precision.FP16}[dtype]
    half = precision if dtype == "fp16" else None
    return LoweringOptions(
        runtime="tensorrt", dtype=dtype, matmul_precision=precision, conv_precision=precision, half=half
    )


def _kernels(graph: KernelGraph) -> list[Kernel]:
    return [kernel for step in graph.steps for kernel in step.kernels]


def _groups(graph: KernelGraph) -> list[str]:
    """Return every kernel with the types of the operators that it stands for."""
    lines = []
    for step in graph.steps:
        members = graph.groups.get(step.name, (step.name,))
        types = " ".join(name.partition("#")[0] for name in members)
        lines += [f"{kernel.name}: {types}" for kernel in step.kernels]
    return lines


@pytest.mark.parametrize("case", _CASES)
def test_what_becomes_one_kernel(case: str, graph_of: Graphs) -> None:
    text, expected = _CASES[case]
    assert _groups(lower(graph_of(text, _C), _options())) == expected


@pytest.mark.parametrize("case", _CASES)
def test_the_work_of_a_group_is_that_of_its_parts(case: str, graph_of: Graphs) -> None:
    """Hold FLOPs to the sum of the operators' own but for what folds into weights, and bytes below the parts'."""
    graph = graph_of(_CASES[case][0], _C)
    together = _kernels(lower(graph, _options()))
    apart = [kernel for op in graph.operators for kernel in _kernels(lower(_alone(graph, op), _options()))]
    folded = case in {"folded", "scaled", "factors", "float_attention_stays"}
    norms = case in {"layer_norm", "rms_norm"}  # counted by their own formula
    if not folded and not norms:
        assert sum(k.flops for k in together) == sum(k.flops for k in apart)
    moved = [sum(k.read_bytes + k.write_bytes for k in kernels) for kernels in (together, apart)]
    assert moved[0] <= moved[1]
    assert all(k.read_bytes >= k.weight_bytes for k in together)


def _alone(graph: OperatorGraph, op: Any) -> OperatorGraph:
    values = [v for v in op.inputs if v is not None and not v.is_weight]
    return OperatorGraph(
        name="g",
        operators=(op,),
        inputs=tuple(values),
        outputs=op.outputs,
        weights=graph.weights,
        batch_size=1,
    )


def test_a_shortcut_is_read_and_added_in_the_convolution(graph_of: Graphs) -> None:
    graph = lower(graph_of(_CASES["shortcut"][0], _C), _options())
    (kernel,) = _kernels(graph)
    image = 2 * 8 * 6 * 6
    assert kernel.variant == "conv.sum.tensorrt"
    assert kernel.flops == 2 * image * 8 * 9 + 3 * image  # bias, sum, Relu
    assert kernel.read_bytes == 4 * (2 * image + 8 * 8 * 9 + 8)
    assert (kernel.write_bytes, kernel.weight_bytes) == (4 * image, 4 * (8 * 8 * 9 + 8))
    assert graph.steps[0].reads == ("x", "k", "c", "z")


def test_operands_that_move_are_joined_without_a_copy(graph_of: Graphs) -> None:
    *_, copy = _kernels(lower(graph_of(_CASES["joined_in_place"][0], _C), _options()))
    assert (copy.read_bytes, copy.write_bytes) == (
        4 * 2 * 8 * 36,
        4 * 2 * 8 * 36,
    )  # x alone: no kernel writes it
    text = "(float[2,8,6,6] x) => (float[2,16,6,6] y, float[2,16,6,6] z) {{ r = Relu(x) d = Tanh(x) y = Concat<axis={0}>(r, d) z = Neg(y) }}"
    graph = lower(graph_of(text.format(1), _C), _options())
    assert [kernel.name for kernel in _kernels(graph)] == [
        "elementwise.relu",
        "elementwise.tanh",
        "elementwise.neg",
    ]
    joined = graph.steps[2]
    assert (joined.reads, joined.writes) == (("r", "d"), (("y", 4 * 2 * 16 * 36),))
    again = text.replace("z = Neg(y)", "z = Concat<axis=1>(d, r)")
    assert _groups(lower(graph_of(again.format(1), _C), _options()))[2:] == ["copy.concat: Concat"]


def test_a_chain_reads_each_tensor_once_and_constants_never(graph_of: Graphs) -> None:
    (kernel,) = _kernels(lower(graph_of(_CASES["branches"][0], _C), _options()))
    assert (kernel.read_bytes, kernel.write_bytes, kernel.inputs) == (4 * 256, 4 * 256, 1)
    assert kernel.flops == (4 + 1 + 1 + 1 + 1) * 256


def test_a_chain_repeats_what_it_broadcasts_and_reads_no_shape(graph_of: Graphs) -> None:
    text = "(float[2,1,16] x, float[2,8,16] z) => (float[2,8,16] y) { a = Exp(z) e = Expand(x, whole) y = Add(a, e) }"
    (kernel,) = _kernels(lower(graph_of(text, {"whole": np.array([2, 8, 16], np.int64)}), _options()))
    assert (kernel.read_bytes, kernel.write_bytes) == (4 * (2 * 16 + 2 * 8 * 16), 4 * 2 * 8 * 16)


_LEAKING = {
    "relu": ("(float[2,8,6,6] x) => (float[2,8,6,6] y, float[2,8,6,6] a) { a = Conv<pads=[1,1,1,1]>(x, k, c) y = Relu(a) }", "a"),
    "epilogue": (_WIDE.format("a = MatMul(x, w) i = Add(a, b) r = Relu(i) s = Softmax(i) y = Add(r, s)"), "i"),
    "chain": ("(float[2,8,16] x) => (float[2,8,16] y, float[2,8,16] a) { a = Tanh(x) y = Exp(a) }", "a"),
    "attention": (
        "(float16[2,4,8,16] q, float16[2,4,8,16] k0, float16[2,4,8,16] v) => (float16[2,4,8,16] y, float16[2,4,8,8] p) "
        "{ t = Transpose<perm=[0,1,3,2]>(k0) a = MatMul(q, t) p = Softmax<axis=-1>(a) y = MatMul(p, v) }", "p"),
}  # fmt: skip


@pytest.mark.parametrize("case", _LEAKING)
def test_a_result_that_is_read_elsewhere_ends_its_group(case: str, graph_of: Graphs) -> None:
    text, result = _LEAKING[case]
    operators = graph_of(text, _C)
    (maker,) = [
        op.name for op in operators.operators if op.outputs[0] is not None and op.outputs[0].name == result
    ]
    assert maker in [step.name for step in lower(operators, _options("fp16")).steps]


def test_everything_is_written_before_it_is_read(graph_of: Graphs) -> None:
    for text, _ in _CASES.values():
        graph = lower(graph_of(text, _C), _options())
        known = {*graph.inputs, *graph.weights}
        for step in graph.steps:
            assert set(step.reads) <= known, step.name
            known |= {storage for storage, _ in step.writes}
        assert set(graph.outputs) <= known


def _layer(before: bool) -> str:
    """Return a transformer's layer in ONNX's syntax, with normalisation ``before`` or behind its halves."""
    first = "n = LayerNormalization(x, gain, shift) " if before else "n = Identity(x) "
    lines = [
        "g (float[2,8,64] x, float[2,1,1,8] mask) => (float[2,8,64] y) {",
        first.replace("gain", "g1").replace("shift", "s1"),
    ]
    for name in "qkv":
        lines.append(
            f"{name}1 = MatMul(n, w{name}) {name}2 = Add({name}1, b{name}) {name}3 = Reshape({name}2, heads)"
        )
        order = "0,2,3,1" if name == "k" else "0,2,1,3"
        lines.append(f"{name} = Transpose<perm=[{order}]>({name}3)")
    lines.append(
        "a = MatMul(q, k) a2 = Div(a, scale) a3 = Add(a2, mask) p = Softmax<axis=-1>(a3) o = MatMul(p, v)"
    )
    lines.append(
        "o2 = Transpose<perm=[0,2,1,3]>(o) o3 = Reshape(o2, joined) o4 = MatMul(o3, wo) o5 = Add(o4, bo)"
    )
    lines.append("h = Add(o5, x) m = LayerNormalization(h, g1, s1)")
    lines.append(
        "f = MatMul(m, wf) i = Add(f, bf) d = Div(i, root2) e = Erf(d) u = Add(e, one) c = Mul(i, u)"
    )
    lines.append("t = Mul(c, half) z = MatMul(t, wz) z2 = Add(z, bz)")
    if before:
        lines.append("y = Add(z2, h) }")
    else:
        lines.append("l = Add(z2, m) y = LayerNormalization(l, g1, s1) }")
    return " ".join(lines).removeprefix("g ")


_LAYER: dict[str, Any] = {
    "heads": np.array([2, 8, 4, 16], np.int64), "joined": np.array([2, 8, 64], np.int64), "scale": 4.0, "root2": 1.4142135,
    "one": 1.0, "half": 0.5, "g1": (64,), "s1": (64,), "wf": (64, 256), "bf": (256,), "wz": (256, 64), "bz": (64,),
    **{f"w{name}": (64, 64) for name in "qkvo"}, **{f"b{name}": (64,) for name in "qkvo"},
}  # fmt: skip


@pytest.mark.parametrize("before", [False, True])
def test_a_layer_of_a_transformer_is_seven_kernels(before: bool, graph_of: Graphs) -> None:
    graph = lower(graph_of(_layer(before), _LAYER), _options("fp16"))
    half = ["linear", "attention", "linear", "layernorm.layer_norm", "linear", "linear"]
    names = ["layernorm.layer_norm", *half] if before else [*half, "layernorm.layer_norm"]
    kernels = [kernel for kernel in _kernels(graph) if kernel.variant != "reformat"]
    assert [kernel.name for kernel in kernels] == names
    by_name = {kernel.name: kernel for kernel in kernels}
    merged = kernels[1 if before else 0]
    assert merged.gemm is not None and (merged.gemm.m, merged.gemm.n, merged.gemm.k) == (16, 192, 64)
    attention = by_name["attention"]
    assert attention.variant == "attention.tensorrt"
    # Queries, keys and values as the product wrote them, and the mask.
    assert attention.read_bytes == 2 * (3 * 2 * 8 * 64 + 2 * 8)
    assert attention.write_bytes == 2 * 2 * 8 * 64


def test_attention_of_one_query_reads_its_cache_and_its_mask(graph_of: Graphs) -> None:
    text = (
        "(float[2,4,1,16] q, float[2,4,64,16] k0, float[2,4,64,16] v, float[2,1,1,64] far) => (float[2,4,1,16] y) { "
        "t = Transpose<perm=[0,1,3,2]>(k0) a = MatMul(q, t) s = Add(a, far) p = Softmax<axis=-1>(s) y = MatMul(p, v) }"
    )
    kernels = _kernels(lower(graph_of(text, {}), _options("fp16")))
    (kernel,) = [kernel for kernel in kernels if kernel.name == "attention.decode"]
    assert kernel.variant == "decode.trtllm"
    assert kernel.read_bytes == 2 * (2 * 4 * 16 + 2 * 2 * 4 * 64 * 16 + 2 * 64)


@pytest.mark.parametrize(("gpu", "fused"), [("V100-SXM2-16GB", False), ("T4", True)])
def test_attention_is_fused_from_turing_on(gpu: str, fused: bool, graph_of: Graphs) -> None:
    request = EstimateRequest(models=("x",), gpus=(gpu,), runtime="tensorrt", dtype="fp16")
    (target,) = targets_of(request, gpu_catalogue(), load_runtime("tensorrt")).known
    graph = lower(graph_of(_layer(False), _LAYER), target.options)
    assert ("attention" in [kernel.name for kernel in _kernels(graph)]) is fused
    assert ("attention" in [what for what, _ in graph.unfused]) is not fused


def test_a_view_that_changes_nothing_does_not_part_attention_from_its_transposition(graph_of: Graphs) -> None:
    """As PyTorch 2 exports scaled_dot_product_attention."""
    text = _layer(False).replace("(o) o3", "(o0) o3").replace("o2 =", "o0 = Reshape(o, same) o2 =")
    same = np.array([2, 4, 8, 16], np.int64)
    graph = lower(graph_of(text, {**_LAYER, "same": same}), _options("fp16"))
    assert "copy.transpose" not in [kernel.name for kernel in _kernels(graph)]


def test_float32_attention_is_products_and_a_softmax(graph_of: Graphs) -> None:
    graph = lower(graph_of(_layer(False), _LAYER), _options())
    assert [k.name for k in _kernels(graph)].count("bmm") == 2
    assert "attention" not in [k.name for k in _kernels(graph)]


def test_what_stays_apart_is_told_with_its_reason(graph_of: Graphs) -> None:
    graph = lower(graph_of(_layer(False), _LAYER), _options())
    assert list(unfused_lines(graph)) == [
        "g: not fused: 1 x attention (fused kernels are for half precision, this is float)"
    ]
    many = replace(graph, unfused={(f"Op{i}", "why"): 2 for i in range(7)})
    assert list(unfused_lines(many))[3:] == ["g: not fused: 2 x Op3 (why)", "g: not fused: 6 x other kernels"]
    by_hand = lower(graph_of(_CASES["relu"][0], _C), _options())
    assert dict(by_hand.unfused) == {("Add", "the Relu before it takes none in"): 1}


@pytest.mark.slow
def _calls_of(graph: OperatorGraph) -> int:
    """Return how many functions, built-in ones too, lowering calls: its work, whatever else the machine does."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    sys.setprofile(count)
    try:
        lower(graph, _options())
    finally:
        sys.setprofile(None)
    return calls


def test_lowering_is_linear_in_the_number_of_operators(graph_of: Graphs) -> None:
    """A value with many readers, and many chains: four times the operators are about four times the work."""
    calls = []
    for count in (500, 2000):
        body = ["a0 = Relu(x)"]
        for i in range(1, count):
            body.append(f"a{i} = Add(a{i - 1}, x)" if i % 20 else f"a{i} = Softmax(a{i - 1})")
        text = f"(float[2,16] x) => (float[2,16] y) {{ {' '.join(body)} y = Neg(a{count - 1}) }}"
        calls.append(_calls_of(graph_of(text, {})))
    assert 3 < calls[1] / calls[0] < 6


@pytest.mark.parametrize(("batch", "copies"), [(1, 0), (2, 1)])
def test_a_transposition_that_moves_nothing_is_a_view(batch: int, copies: int, graph_of: Graphs) -> None:
    text = f"(float[{batch},8,16] x) => (float[8,{batch},16] y) {{ a = Relu(x) t = Transpose<perm=[1,0,2]>(a) y = Softmax(t) }}"
    names = [kernel.name for kernel in _kernels(lower(graph_of(text, {}), _options()))]
    assert names.count("copy.transpose") == copies


def test_bindings_of_one_file_do_not_share_what_moves_nothing(tmp_path: Path) -> None:
    """At batch 1 the Transpose is a view; at batch 2, of the same file, it is a copy: in either order."""
    path = tmp_path / "swapped.onnx"
    text = "g (float[N,8,16] x) => (float[8,N,16] y) { a = Relu(x) t = Transpose<perm=[1,0,2]>(a) y = Softmax(t) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    onnx.save(model, path)
    bound = read_model(path)
    for batches in ([1, 2, 1], [2, 1, 2]):
        for batch in batches:
            names = [k.name for k in _kernels(lower(bound.bind(batch_size=batch), _options()))]
            assert names.count("copy.transpose") == (batch > 1)


def test_a_layer_under_the_fusions_of_8_0_has_attention_and_normalisations_apart(graph_of: Graphs) -> None:
    options = replace(_options("fp16"), graph_level="basic")
    kernels = [
        k for k in _kernels(lower(graph_of(_layer(False), _LAYER), options)) if k.variant != "reformat"
    ]
    names = [kernel.name for kernel in kernels]
    assert "attention" not in names
    assert names.count("bmm") == 2
    assert names.index("softmax.softmax") > names.index(
        "elementwise.add"
    )  # the mask is added before, by itself
    assert names.count("linear") == 4  # products still have their epilogues
