"""ONNX's own node tests: every operator type has a rule of the right kind, every case lowers, FLOPs match
counted references.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family
from gkestimator.lowering import LOWERINGS, LoweringOptions, covered_operators, lower
from gkestimator.lowering.results import checked_result
from gkestimator.onnx_io import read_model

pytestmark = pytest.mark.slow

# What each kind of rule is allowed to cover, written down independently of the registry.
KINDS: dict[str, str] = {
    "elementwise": (
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
        "BitwiseXor Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual "
        "HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg "
        "Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign "
        "Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
    ),
    "gated_activation": "SwiGLU",
    "gemm": "MatMul Gemm Einsum",
    "integer_gemm": "MatMulInteger QLinearMatMul",
    "convolution": "Conv CausalConvWithState",
    "transposed_convolution": "ConvTranspose",
    "integer_convolution": "ConvInteger QLinearConv",
    "deformable_convolution": "DeformConv",
    "column_scatter": "Col2Im",
    "attention": "Attention ai.onnx.preview.FlexAttention",
    "linear_attention": "LinearAttention",
    "rotary_embedding": "RotaryEmbedding",
    "recurrent": "LSTM GRU RNN",
    "softmax": "Softmax LogSoftmax Hardmax",
    "layer_norm": "LayerNormalization RMSNormalization MeanVarianceNormalization",
    "group_norm": "InstanceNormalization GroupNormalization",
    "batch_norm": "BatchNormalization",
    "lp_norm": "LpNormalization",
    "local_response_norm": "LRN",
    "pool": "MaxPool AveragePool LpPool",
    "global_pool": "GlobalMaxPool GlobalAveragePool",
    "unpool": "MaxUnpool",
    "reduction": (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
        "ReduceSum ReduceSumSquare"
    ),
    "arg_reduction": "ArgMax ArgMin",
    "scan": "CumSum CumProd",
    "determinant": "Det",
    "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "view": "Reshape Squeeze Unsqueeze Flatten Identity BitCast Dropout",
    "view_or_copy": "Transpose Expand Slice Split",
    "copy": "Concat Tile DepthToSpace SpaceToDepth CenterCropPad ReverseSequence Trilu Pad",
    "cast": "Cast CastLike",
    "gather": "Gather GatherElements GatherND ai.onnx.ml.ArrayFeatureExtractor",
    "scatter": "Scatter ScatterElements ScatterND TensorScatter",
    "top_k": "TopK",
    "sort": "Unique",
    "selection": "NonZero Compress",
    "non_max_suppression": "NonMaxSuppression",
    "one_hot": "OneHot",
    "resample": "Resize Upsample GridSample",
    "affine_grid": "AffineGrid",
    "roi_align": "RoiAlign",
    "fft": "DFT STFT",
    "window": "HannWindow HammingWindow BlackmanWindow",
    "filter_bank": "MelWeightMatrix",
    "constant": "Constant",
    "fill": "ConstantOfShape EyeLike Range",
    "random": "Bernoulli RandomUniformLike",
    "quantize": "QuantizeLinear DynamicQuantizeLinear",
    "dequantize": "DequantizeLinear",
    "host_string": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    "host_image": "ImageDecoder",
    "host_ml": "ai.onnx.ml.Binarizer ai.onnx.ml.LabelEncoder",
    "host_trees": "ai.onnx.ml.TreeEnsemble",
    "control_flow": "If Loop Scan SequenceMap",
    "sequence": "SequenceAt SequenceConstruct SequenceInsert Optional OptionalGetElement",
    "metadata": "SequenceEmpty SequenceLength OptionalHasElement Shape Size",
    "sequence_split": "SplitToSequence",
    "optimiser": (
        "ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Adam ai.onnx.preview.training.Momentum"
    ),
}
EXPECTED = {name: kind for kind, names in KINDS.items() for name in names.split()}


def options(runtime: str, attention: str = "fused") -> LoweringOptions:
    return LoweringOptions(
        runtime=runtime,
        dtype="fp32",
        matmul_precision=Precision.FP32,
        conv_precision=Precision.FP32,
        attention=attention,
    )


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    from onnx.backend.test.loader import load_node_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_node_model_tests())


def _walk(nodes: Any, found: set[str]) -> None:
    for node in nodes:
        domain = "" if node.domain in ("", "ai.onnx") else node.domain
        found.add(f"{domain}.{node.op_type}" if domain else node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _walk(attribute.g.node, found)
            for graph in attribute.graphs:
                _walk(graph.node, found)


def test_every_node_test_operator_has_a_rule_of_its_kind(cases: list[Any]) -> None:
    found: set[str] = set()
    for case in cases:
        _walk(case.model.graph.node, found)
        for function in case.model.functions:
            _walk(function.node, found)
    covered = {f"{d}.{n}" if d else n: kind for (d, n), kind in covered_operators().items()}
    for name in sorted(found):
        print(f"{name:45s} {covered.get(name, 'NO RULE')}")
    assert len(found) >= 190, "the loader finds too few operator types: the list would prove nothing"
    assert not found - covered.keys(), "operator types without a rule"
    assert not {n for n in found if EXPECTED.get(n) != covered[n]}, "rules of another kind than written down"


def test_no_rule_function_serves_two_kinds() -> None:
    kinds: dict[Any, set[str]] = defaultdict(set)
    for key, rule in LOWERINGS.items():
        kinds[rule].add(covered_operators()[key])
    assert not {rule.__name__: found for rule, found in kinds.items() if len(found) > 1}


def _bind(case: Any, folder: Any) -> OperatorGraph | None:
    path = folder / "m.onnx"
    path.write_bytes(case.model.SerializeToString())
    try:
        model = read_model(path, name=case.name)
    except GkestimatorError:
        return None
    values = {}
    if case.data_sets:
        for info, data in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
            if isinstance(data, np.ndarray) and data.dtype.kind in "iu" and data.size <= 64:
                values[info.name] = data
    for attempt in ({}, {"inputs": values}):
        try:
            return model.bind(**attempt)
        except GkestimatorError:
            continue
    return None


@pytest.fixture(scope="module")
def graphs(
    cases: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, OperatorGraph]]:
    folder = tmp_path_factory.mktemp("node_tests")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bound = ((case, _bind(case, folder)) for case in cases)
        return {case.name: (case, graph) for case, graph in bound if graph is not None}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_every_bound_case_lowers(
    graphs: dict[str, tuple[Any, OperatorGraph]], cases: list[Any], runtime: str
) -> None:
    failed: dict[str, str] = {}
    for name, (_, graph) in graphs.items():
        try:
            lowered = lower(graph, options(runtime))
        except GkestimatorError as error:
            failed[name] = str(error)
            continue
        for op in graph.operators:
            rule = LOWERINGS[op.key]
            checked_result(rule, op, rule(op, options(runtime)))
        for step in lowered.steps:
            for kernel in step.kernels:
                ok = (
                    kernel.flops >= 0
                    and kernel.read_bytes >= kernel.weight_bytes >= 0
                    and kernel.write_bytes >= 0
                )
                if not ok or kernel.rows < 1 or kernel.cols < 1 or kernel.workspace_bytes < 0:
                    failed[name] = f"{step.name}: {kernel}"
    print(f"{runtime}: {len(graphs)} of {len(cases)} cases bound, {len(failed)} not lowered: {failed}")
    assert len(graphs) >= 0.95 * len(cases)
    assert not failed


class Tally:
    """NumPy arithmetic that counts its operations."""

    def __init__(self) -> None:
        self.flops = 0

    def each(self, result: np.ndarray, count: int = 1) -> np.ndarray:
        self.flops += count * result.size
        return result

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        result = np.matmul(a, b)
        self.flops += 2 * result.size * a.shape[-1]
        return result

    def sigmoid(self, x: np.ndarray) -> np.ndarray:
        return self.each(1 / (1 + np.exp(-x)), 4)

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return self.each(np.tanh(x))


def _attributes(node: Any) -> dict[str, Any]:
    import onnx

    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _reference_lstm(node: Any, arrays: list[Any], outputs: list[Any]) -> int:
    x, w, r = arrays[:3]
    attributes = _attributes(node)
    batch_first = bool(attributes.get("layout", 0))
    if batch_first:
        x = x.swapaxes(0, 1)
    backwards = attributes.get("direction") == b"reverse"
    finals = []
    given = dict(zip(node.input, arrays, strict=False))
    named = [given.get(n) if n else None for n in node.input] + [None] * 8
    bias, peep = named[3], named[7]
    hidden, tally = r.shape[2], Tally()
    for d in range(r.shape[0]):
        h = np.zeros((x.shape[1], hidden), np.float32)
        c = np.zeros_like(h)
        if named[5] is not None:
            h, c = named[5][d], named[6][d]
        for step in x[::-1] if backwards or d == 1 else x:
            gates = tally.each(tally.matmul(step, w[d].T) + tally.matmul(h, r[d].T))
            if bias is not None:
                gates = tally.each(tally.each(gates + bias[d][: 4 * hidden]) + bias[d][4 * hidden :])
            i, o, f, g = np.split(gates, 4, axis=-1)
            if peep is not None:
                pi, po, pf = np.split(peep[d], 3)
                i, f = tally.each(i + pi * c, 2), tally.each(f + pf * c, 2)
            c = tally.each(tally.sigmoid(f) * c + tally.sigmoid(i) * tally.tanh(g), 3)
            if peep is not None:
                o = tally.each(o + po * c, 2)
            h = tally.each(tally.sigmoid(o) * tally.tanh(c))
        finals.append(h)
    if len(node.output) > 1 and node.output[1]:  # this loop is an LSTM: its last hidden states agree
        last = outputs[[n for n in node.output if n].index(node.output[1])]
        stacked = np.stack(finals, axis=1 if batch_first else 0)
        np.testing.assert_allclose(last, stacked, rtol=1e-3, atol=1e-5)
    return tally.flops


def _reference_attention(node: Any, arrays: list[Any], outputs: list[Any]) -> int:
    given = dict(zip((n for n in node.input if n), arrays, strict=True))
    named = [given.get(n) for n in node.input] + [None] * 7
    attributes = _attributes(node)
    q, k, v = named[:3]

    def heads(x: np.ndarray, count: int) -> np.ndarray:
        if x.ndim == 4:
            return x
        return x.reshape(x.shape[0], x.shape[1], count, -1).swapaxes(1, 2)

    q = heads(q, attributes.get("q_num_heads", 0))
    k, v = heads(k, attributes.get("kv_num_heads", 0)), heads(v, attributes.get("kv_num_heads", 0))
    if named[4] is not None:
        k, v = np.concatenate([named[4], k], axis=2), np.concatenate([named[5], v], axis=2)
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    tally = Tally()
    q, k, v = (a.astype(np.float32) for a in (q, k, v))
    scores = tally.each(tally.matmul(q, k.swapaxes(-1, -2)))
    if attributes.get("softcap", 0.0):
        scores = tally.each(scores, 3)
    if named[3] is not None or named[6] is not None or attributes.get("is_causal", 0):
        scores = tally.each(scores)
    tally.matmul(tally.each(scores, 5), v)
    return tally.flops


def _reference(op_type: str, node: Any, arrays: list[Any], outputs: list[Any]) -> int:
    attributes = _attributes(node)
    if op_type == "MatMul":
        return int(2 * outputs[0].size * arrays[0].shape[-1])
    if op_type == "Gemm":
        inner = arrays[0].shape[0 if attributes.get("transA", 0) else 1]
        flops = 2 * outputs[0].size * inner + (outputs[0].size if len(arrays) > 2 else 0)
        flops += outputs[0].size if attributes.get("alpha", 1.0) != 1.0 else 0
        return int(flops + (arrays[2].size if len(arrays) > 2 and attributes.get("beta", 1.0) != 1.0 else 0))
    if op_type == "Conv":
        flops = 0
        for _ in np.ndindex(outputs[0].shape):  # one dot product per result
            flops += 2 * math.prod(arrays[1].shape[1:]) + (1 if len(arrays) > 2 else 0)
        return flops
    return (_reference_lstm if op_type == "LSTM" else _reference_attention)(node, arrays, outputs)


@pytest.mark.parametrize(
    ("op_type", "least"), [("MatMul", 5), ("Gemm", 8), ("Conv", 4), ("Attention", 30), ("LSTM", 3)]
)
def test_flops_match_a_counted_reference(
    graphs: dict[str, tuple[Any, OperatorGraph]], op_type: str, least: int
) -> None:
    seen = 0
    for name, (case, graph) in graphs.items():
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != op_type or nodes[0].domain:
            continue
        inputs, outputs = case.data_sets[0]
        reference = _reference(op_type, nodes[0], inputs, outputs)
        kernels = [k for s in lower(graph, options("onnxruntime")).steps for k in s.kernels]
        flops = sum(k.flops for k in kernels if k.family not in (Family.COPY,))
        assert flops == pytest.approx(reference, rel=0.01), name
        if op_type == "Attention":
            eager = lower(graph, options("torch", "eager"))
            assert sum(k.flops for s in eager.steps for k in s.kernels) == pytest.approx(
                reference, rel=0.01
            ), name
        seen += 1
    print(f"{op_type}: {seen} cases")
    assert seen >= least
