"""Shape rules of com.microsoft operators against what ONNX Runtime really returns on the CPU.

Single nodes are run as they stand; whole models go through ONNX Runtime's optimiser first, every tensor of
the result is made an output, and each is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Tensor
from gkestimator.onnx_io import read_model

ort = pytest.importorskip("onnxruntime")

_MS = "com.microsoft"
_DTYPES = {t.value: t for t in DType} | {"float32": DType.FLOAT, "float64": DType.DOUBLE}
_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(_MS, 1)]


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _open(name: str) -> onnx.ValueInfoProto:
    """An output of which nothing is declared, so that the rule alone can name its shape."""
    return helper.make_empty_tensor_value_info(name)


def _session(path: Path, level: str = "ORT_DISABLE_ALL", save: Path | None = None) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if save is not None:
        options.optimized_model_filepath = str(save)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _compare(path: Path, feeds: dict[str, np.ndarray]) -> None:
    session = _session(path)
    stored = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    found = {o.name: o for o in read_model(path).bind().outputs}
    assert set(found) == set(stored)
    for name, array in stored.items():
        tensor = found[name]
        assert isinstance(tensor, Tensor)
        assert (tensor.dtype, tensor.shape) == (_DTYPES[array.dtype.name], array.shape), name


def _f(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _u8(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)


_S, _Z = np.float32(0.1), np.uint8(3)
# op type, attributes, inputs (None: omitted; a tuple marks an initializer), number of outputs
_NODES: list[tuple[str, dict[str, Any], list[Any], int]] = [
    ("Gelu", {}, [_f(2, 3)], 1),
    ("FastGelu", {}, [_f(2, 4), _f(4)], 1),
    ("QuickGelu", {"alpha": 1.7}, [_f(2, 4)], 1),
    ("BiasGelu", {}, [_f(2, 3, 8), _f(8)], 1),
    ("BiasSoftmax", {"axis": 3, "is_inner_broadcast": 0}, [_f(2, 3, 4, 4), _f(2, 1, 1, 4)], 1),
    ("SkipLayerNormalization", {}, [_f(2, 3, 8), _f(2, 3, 8), _f(8), _f(8), _f(8)], 4),
    ("SkipSimplifiedLayerNormalization", {}, [_f(2, 3, 8), _f(2, 3, 8), _f(8)], 1),
    ("EmbedLayerNormalization", {}, [
        np.zeros((2, 5), np.int32), np.zeros((2, 5), np.int32), _f(11, 8), _f(9, 8), _f(2, 8), _f(8), _f(8),
        np.ones((2, 5), np.int32)], 3),
    ("FusedMatMul", {"transA": 1, "alpha": 0.5}, [_f(2, 5, 3), _f(5, 4)], 1),
    ("FusedMatMul", {"transB": 1}, [_f(2, 3, 5), _f(2, 4, 5)], 1),
    ("FusedMatMul", {"transBatchA": 1, "transBatchB": 1}, [_f(3, 2, 5), _f(5, 2, 4)], 1),
    ("TransposeMatMul", {"transB": 1}, [_f(3, 5), _f(4, 5)], 1),
    ("FusedGemm", {"transB": 1, "activation": "Relu"}, [_f(3, 5), _f(4, 5), _f(4)], 1),
    ("FusedConv", {"activation": "Relu", "pads": [1, 1, 1, 1], "strides": [2, 2]}, [
        _f(2, 3, 9, 9), _f(4, 3, 3, 3)], 1),
    ("Attention", {"num_heads": 2}, [_f(2, 3, 8), _f(8, 24), _f(24)], 2),
    ("Attention", {"num_heads": 2, "unidirectional": 1}, [
        _f(2, 3, 8), _f(8, 24), _f(24), None, _f(2, 2, 2, 4, 4)], 2),
    ("Attention", {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}, [_f(2, 3, 8), _f(8, 28), _f(28)], 1),
    ("MultiHeadAttention", {"num_heads": 2}, [_f(2, 3, 8), _f(2, 5, 8), _f(2, 5, 12)], 1),
    ("MultiHeadAttention", {"num_heads": 2}, [_f(2, 3, 8), _f(2, 3, 8), _f(2, 3, 8)], 3),
    ("MultiHeadAttention", {"num_heads": 2}, [
        _f(2, 1, 8), _f(2, 1, 8), _f(2, 1, 8), None, None, None, _f(2, 2, 4, 4), _f(2, 2, 4, 4)], 3),
    ("GroupQueryAttention", {"num_heads": 4, "kv_num_heads": 2}, [
        _f(1, 6, 64), _f(1, 6, 32), _f(1, 6, 32), None, None, np.array([5], np.int32),
        (np.array(6, np.int32),)], 3),
    ("GroupQueryAttention", {"num_heads": 4, "kv_num_heads": 2}, [
        _f(1, 1, 128), None, None, _f(1, 2, 7, 16), _f(1, 2, 7, 16), np.array([7], np.int32),
        (np.array(8, np.int32),)], 3),
    ("RotaryEmbedding", {}, [_f(2, 3, 16), np.zeros((2, 3), np.int64), _f(10, 4), _f(10, 4)], 1),
    ("QLinearAdd", {}, [_u8(2, 3, 4), _S, _Z, _u8(3, 1), _S, _Z, _S, _Z], 1),
    ("QLinearMul", {}, [_u8(2, 3), _S, _Z, _u8(2, 3), _S, _Z, _S, _Z], 1),
    ("QLinearSigmoid", {}, [_u8(2, 3), (_S,), (_Z,), (_S,), (_Z,)], 1),
    ("QLinearLeakyRelu", {"alpha": 0.1}, [_u8(2, 3), (_S,), (_Z,), (_S,), (_Z,)], 1),
    ("QLinearSoftmax", {"axis": -1, "opset": 13}, [
        _u8(2, 3), (_S,), (_Z,), (np.float32(1 / 256),), (np.uint8(0),)], 1),
    ("QLinearAveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, [
        _u8(1, 2, 8, 8), (_S,), (_Z,), (_S,), (_Z,)], 1),
    ("QLinearGlobalAveragePool", {"channels_last": 1}, [_u8(1, 5, 5, 3), (_S,), (_Z,), (_S,), (_Z,)], 1),
    ("QLinearConcat", {"axis": 1}, [_S, _Z, _u8(2, 3), _S, _Z, _u8(2, 4), _S, _Z], 1),
    ("QLinearWhere", {}, [np.ones((2, 1), bool), _u8(2, 3), _S, _Z, _u8(1, 3), _S, _Z, _S, _Z], 1),
    ("DynamicQuantizeMatMul", {}, [_f(2, 3, 5), (_u8(5, 4),), (_S,), (_Z,)], 1),
    ("MatMulIntegerToFloat", {}, [_u8(2, 3, 5), _u8(5, 4), _S, _S, _Z, _Z], 1),
    ("QGemm", {"transB": 1}, [_u8(3, 5), _S, _Z, _u8(4, 5), _S, _Z, None, _S, _Z], 1),
    ("QGemm", {}, [_u8(3, 5), _S, _Z, _u8(5, 4), _S, _Z], 1),
    ("QAttention", {"num_heads": 2}, [
        _u8(2, 3, 8), (_u8(8, 24),), _f(24), (_S,), (_S,), None, (_Z,), (_Z,)], 1),
    ("MatMulNBits", {"K": 32, "N": 6, "bits": 4, "block_size": 16}, [
        _f(2, 3, 32), (_u8(6, 2, 8),), (_f(6, 2),)], 1),
    ("GatherBlockQuantized", {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4}, [
        (_u8(7, 16),), np.array([[1, 2, 3]], np.int64), (_f(7, 2),)], 1),
    ("Trilu", {}, [_f(2, 4, 4)], 1),
    ("Inverse", {}, [_f(2, 4, 4)], 1),
    ("CDist", {"metric": "euclidean"}, [_f(4, 3), _f(5, 3)], 1),
    ("Rfft", {"signal_ndim": 1, "normalized": 0, "onesided": 1}, [_f(2, 8)], 1),
    ("QuantizeLinear", {}, [_f(2, 3), _S, _Z], 1),
    ("DequantizeLinear", {}, [_u8(2, 3), _S, _Z], 1),
    ("ExpandDims", {}, [_f(2, 3), (np.array(-1, np.int32),)], 1),
    ("UnfoldTensor", {"dim": 1, "size": 3, "step": 2}, [_f(2, 9)], 1),
    ("NhwcMaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [_u8(1, 8, 8, 3)], 1),
    ("GridSample", {}, [_f(1, 2, 4, 4), _f(1, 3, 5, 2)], 1),
    ("MoE", {"k": 1, "activation_type": "relu"}, [_f(6, 8), _f(6, 2), _f(2, 16, 8), None, _f(2, 8, 16)], 1),
]  # fmt: skip


def _write_node(
    path: Path, op: str, attributes: dict[str, Any], inputs: list[Any], outputs: int
) -> dict[str, np.ndarray]:
    names, weights, feeds = [], [], {}
    for index, data in enumerate(inputs):
        name = "" if data is None else f"x{index}"
        names.append(name)
        if isinstance(data, tuple):
            weights.append(numpy_helper.from_array(np.asarray(data[0]), name))
        elif data is not None:
            feeds[name] = np.asarray(data)
    out = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, out, domain=_MS, **attributes)
    graph = helper.make_graph(
        [node], "g", [_info(n, a) for n, a in feeds.items()], [_open(n) for n in out], weights
    )
    path.write_bytes(helper.make_model(graph, opset_imports=_OPSETS, ir_version=8).SerializeToString())
    return feeds


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "outputs"), _NODES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_node_has_the_shapes_that_onnx_runtime_returns(
    tmp_path: Path, op: str, attributes: dict[str, Any], inputs: list[Any], outputs: int
) -> None:
    path = tmp_path / "node.onnx"
    feeds = _write_node(path, op, attributes, inputs, outputs)
    try:
        _session(path)
    except Exception as e:  # onnxruntime raises its own classes, without a public base
        if "NOT_IMPLEMENTED" in str(e) or "is not a registered function/op" in str(e):
            pytest.skip(f"this onnxruntime has no CPU kernel for {op}")
        raise
    _compare(path, feeds)


def test_inner_dimensions_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "node.onnx"
    _write_node(path, "FusedMatMul", {"transB": 1}, [_f(3, 5), _f(5, 4)], 1)
    with pytest.raises(ShapeError, match=r"FusedMatMul.*inner dimensions of \[3, 5\] and \[4, 5\]"):
        read_model(path).bind()


def _optimised(path: Path, model: onnx.ModelProto) -> set[str]:
    """Optimise ``model`` into ``path``, every tensor an output; the com.microsoft types it then holds."""
    raw, fused = path.with_suffix(".raw.onnx"), path.with_suffix(".fused.onnx")
    raw.write_bytes(model.SerializeToString())
    _session(raw, "ORT_ENABLE_EXTENDED", fused)
    return _opened(path, onnx.load(str(fused)))


def _opened(path: Path, model: onnx.ModelProto) -> set[str]:
    """Write ``model`` with every tensor an output and nothing declared of any; its com.microsoft types."""
    names = [n for node in model.graph.node for n in node.output if n]
    del model.graph.output[:], model.graph.value_info[:]
    model.graph.output.extend(_open(n) for n in names)
    path.write_bytes(model.SerializeToString())
    return {n.op_type for n in model.graph.node if n.domain == _MS}


def _model(text: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return model


_HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
_MODELS: dict[str, tuple[str, dict[str, np.ndarray], dict[str, np.ndarray], set[str]]] = {
    "convolution": (
        _HEAD + """g (float[2,3,16,16] x) => (float y) {
            c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b)
            r = Relu(c)
            d = Conv<group=8>(r, dw)
            y = Sigmoid(d)
        }""",
        {"w": _f(8, 3, 3, 3), "b": _f(8), "dw": _f(8, 1, 3, 3)}, {"x": _f(2, 3, 16, 16)}, {"FusedConv"},
    ),
    "feed_forward": (
        _HEAD + """g (float[2,5,8] x, float[2,5,8] s) => (float y) {
            m = MatMul(x, w)
            a = Add(m, b)
            d = Div(a, root)
            e = Erf(d)
            p = Add(e, one)
            q = Mul(a, p)
            h = Mul(q, half)
            o = MatMul(h, v)
            t = Add(o, s)
            y = LayerNormalization<axis=-1>(t, gamma, beta)
        }""",
        {"w": _f(8, 16), "b": _f(16), "root": np.float32(1.4142135), "one": np.float32(1),
         "half": np.float32(0.5),
         "v": _f(16, 8), "gamma": _f(8), "beta": _f(8)},
        {"x": _f(2, 5, 8), "s": _f(2, 5, 8)}, {"Gelu", "SkipLayerNormalization"},
    ),
    "attention": (
        _HEAD + """g (float[2,5,16] x, int64[2,5] mask) => (float y) {
            n = LayerNormalization<axis=-1>(x, gamma, beta)
            qm = MatMul(n, qw)
            qa = Add(qm, qb)
            qr = Reshape(qa, split)
            q = Transpose<perm=[0,2,1,3]>(qr)
            km = MatMul(n, kw)
            ka = Add(km, kb)
            kr = Reshape(ka, split)
            k = Transpose<perm=[0,2,3,1]>(kr)
            vm = MatMul(n, vw)
            va = Add(vm, vb)
            vr = Reshape(va, split)
            v = Transpose<perm=[0,2,1,3]>(vr)
            m1 = Unsqueeze(mask, one_i)
            m2 = Unsqueeze(m1, two_i)
            mf = Cast<to=1>(m2)
            ms = Sub(one, mf)
            mm = Mul(ms, low)
            s = MatMul(q, k)
            d = Div(s, root)
            a = Add(d, mm)
            p = Softmax<axis=3>(a)
            c = MatMul(p, v)
            t = Transpose<perm=[0,2,1,3]>(c)
            r = Reshape(t, join)
            o = MatMul(r, ow)
            ob1 = Add(o, ob)
            z = Add(ob1, n)
            y = LayerNormalization<axis=-1>(z, gamma, beta)
        }""",
        {"gamma": _f(16), "beta": _f(16), "qw": _f(16, 16), "kw": _f(16, 16), "vw": _f(16, 16),
         "ow": _f(16, 16),
         "qb": _f(16), "kb": _f(16), "vb": _f(16), "ob": _f(16), "split": np.array([0, 0, 2, 8]),
         "join": np.array([0, 0, 16]), "one_i": np.array([1]), "two_i": np.array([2]), "one": np.float32(1),
         "low": np.float32(-10000), "root": np.float32(8**0.5)},
        {"x": _f(2, 5, 16), "mask": np.ones((2, 5), np.int64)}, {"FusedMatMul", "SkipLayerNormalization"},
    ),
    "transposed_product": (
        _HEAD + """g (float[2,4,5,6] q, float[2,4,7,6] k) => (float y) {
            t = Transpose<perm=[0,1,3,2]>(k)
            m = MatMul(q, t)
            y = Mul(m, scale)
        }""",
        {"scale": np.float32(0.5)}, {"q": _f(2, 4, 5, 6), "k": _f(2, 4, 7, 6)}, {"FusedMatMul"},
    ),
    "gemm": (
        _HEAD + """g (float[3,5] x) => (float y) {
            m = Gemm<transB=1>(x, w, b)
            y = Relu(m)
        }""",
        {"w": _f(4, 5), "b": _f(4)}, {"x": _f(3, 5)}, {"FusedGemm"},
    ),
    "quick_gelu": (
        _HEAD + """g (float[3,5] x) => (float y) {
            a = Mul(x, alpha)
            s = Sigmoid(a)
            y = Mul(x, s)
        }""",
        {"alpha": np.float32(1.702)}, {"x": _f(3, 5)}, {"QuickGelu"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(_MODELS))
def test_a_model_optimised_by_onnx_runtime_has_the_shapes_it_returns(tmp_path: Path, name: str) -> None:
    text, weights, feeds, expected = _MODELS[name]
    path = tmp_path / "model.onnx"
    assert expected <= _optimised(path, _model(text, weights))
    _compare(path, feeds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("attention", {"Attention", "SkipLayerNormalization"}),
        ("feed_forward", {"BiasGelu", "SkipLayerNormalization"}),
    ],
)
def test_a_model_fused_by_the_transformers_tool_has_the_shapes_it_returns(
    tmp_path: Path, name: str, expected: set[str]
) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    text, weights, feeds, _ = _MODELS[name]
    raw, path = tmp_path / "raw.onnx", tmp_path / "model.onnx"
    raw.write_bytes(_model(text, weights).SerializeToString())
    fused = optimizer.optimize_model(str(raw), model_type="bert", num_heads=2, hidden_size=16, opt_level=0)
    assert expected <= _opened(path, fused.model)
    _compare(path, feeds)


def test_a_model_quantised_by_onnx_runtime_has_the_shapes_it_returns(tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    text, weights, feeds, _ = _MODELS["feed_forward"]
    raw, quantised, path = tmp_path / "raw.onnx", tmp_path / "quantised.onnx", tmp_path / "model.onnx"
    raw.write_bytes(_model(text, weights).SerializeToString())
    quantization.quantize_dynamic(str(raw), str(quantised), weight_type=quantization.QuantType.QUInt8)
    found = _optimised(path, onnx.load(str(quantised)))
    assert found & {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
    _compare(path, feeds)
