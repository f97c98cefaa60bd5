"""The assembly: views and the copies they cause, in-place results, unfolded BatchNorms, dtypes, unknown
operators, plug-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import ModelError, UnsupportedOperatorError, UsageError
from gkestimator.core.graph import Attribute, Operator, OperatorGraph, Tensor
from gkestimator.core.kernels import KernelGraph
from gkestimator.lowering import LoweringOptions, covered_operators, load_plugin, lower
from gkestimator.lowering import strides as st
from gkestimator.operators.records import OPERATORS, restore_operators


def tensor(
    name: str, *shape: int, dtype: DType = DType.FLOAT, weight: bool = False, value: object = None
) -> Tensor:
    array = None if value is None else np.asarray(value)
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name, is_weight=weight, value=array)


class Graph:
    """A few operators in order; the last one's outputs are the graph's."""

    def __init__(self, *inputs: Tensor) -> None:
        self.inputs = inputs
        self.operators: list[Operator] = []

    def add(
        self, op_type: str, inputs: tuple[Tensor | None, ...], *outputs: Tensor, domain: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Tensor:  # fmt: skip
        name = f"{op_type}#{len(self.operators)}"
        self.operators.append(
            Operator(
                name=name,
                domain=domain,
                op_type=op_type,
                version=17,
                attributes=attributes or {},
                inputs=inputs,
                outputs=outputs,
            )
        )
        return outputs[0]

    def lower(
        self, runtime: str = "torch", dtype: str = "fp32", *, allow_unknown: bool = False
    ) -> KernelGraph:
        weights = {
            v.storage: v.nbytes
            for op in self.operators
            for v in op.inputs
            if isinstance(v, Tensor) and v.is_weight
        }
        graph = OperatorGraph(
            name="g",
            operators=tuple(self.operators),
            inputs=self.inputs,
            outputs=tuple(v for v in self.operators[-1].outputs if v is not None),
            weights=weights,
            batch_size=1,
        )
        half = {"amp": Precision.FP16, "fp16": Precision.FP16, "bf16": Precision.BF16}.get(dtype)
        precision = half or (Precision.TF32 if dtype == "tf32" else Precision.FP32)
        options = LoweringOptions(
            runtime=runtime, dtype=dtype, matmul_precision=precision, conv_precision=precision, half=half
        )
        return lower(graph, options, allow_unknown=allow_unknown)


def names(graph: KernelGraph) -> list[str]:
    return [k.name for s in graph.steps for k in s.kernels]


def heads() -> Graph:
    """x -> (batch, length, heads, size) -> transposed -> flattened back: what no stride can express."""
    x = tensor("x", 2, 8, 12)
    graph = Graph(x)
    split = graph.add("Reshape", (x,), tensor("a", 2, 8, 3, 4))
    turned = graph.add("Transpose", (split,), tensor("b", 2, 3, 8, 4), attributes={"perm": (0, 2, 1, 3)})
    graph.add("Reshape", (turned,), tensor("y", 6, 8, 4))
    return graph


def test_transposed_view_costs_a_copy_only_where_a_reshape_cannot_stay_a_view() -> None:
    assert names(heads().lower("torch")) == ["copy.contiguous"]
    assert names(heads().lower("onnxruntime")) == ["copy.transpose"]
    x = tensor("x", 1, 8, 12)  # one sequence: the merged dimension keeps a single stride
    graph = Graph(x)
    split = graph.add("Reshape", (x,), tensor("a", 1, 8, 3, 4))
    turned = graph.add("Transpose", (split,), tensor("b", 1, 3, 8, 4), attributes={"perm": (0, 2, 1, 3)})
    graph.add("Reshape", (turned,), tensor("y", 3, 8, 4))
    assert names(graph.lower("torch")) == []


def test_consumers_of_a_transposed_view() -> None:
    def after(op_type: str, *more: Tensor, shape: tuple[int, ...] = (2, 12, 8)) -> list[str]:
        x = tensor("x", 2, 8, 12)
        graph = Graph(x)
        turned = graph.add("Transpose", (x,), tensor("t", 2, 12, 8), attributes={"perm": (0, 2, 1)})
        graph.add(op_type, (turned, *more), tensor("y", *shape))
        return names(graph.lower("torch"))

    assert after("Relu") == ["elementwise.relu"]
    assert after("MatMul", tensor("b", 2, 8, 5), shape=(2, 12, 5)) == ["bmm"]
    assert after("Softmax") == ["copy.contiguous", "softmax.softmax"]
    scale = tensor("s", 8, weight=True)
    assert after("LayerNormalization", scale, scale) == ["copy.contiguous", "layernorm.layer_norm"]


def test_strides_agree_with_numpy() -> None:
    rng = np.random.default_rng(1)
    copies = 0
    for _ in range(300):
        base = np.zeros(rng.integers(1, 5, size=3), np.int8)
        array = base.transpose(rng.permutation(3))[:: int(rng.integers(1, 3))]
        target = [(array.size,), (*array.shape, 1), (array.shape[0], -1), (-1, array.shape[2])][
            rng.integers(4)
        ]
        reshaped = array.reshape(target)
        found = st.view(array.shape, array.strides, reshaped.shape)
        shared = bool(np.shares_memory(reshaped, array))
        assert (found is not None) == shared, (array.shape, array.strides, reshaped.shape)
        copies += not shared
        if found is not None:
            wide = [(s, f) for n, s, f in zip(reshaped.shape, reshaped.strides, found, strict=True) if n > 1]
            assert all(s == f for s, f in wide)
    assert 20 < copies < 280  # both answers occur


def test_views_share_their_source_for_liveness_and_in_place_relu_keeps_one_buffer() -> None:
    x, w = tensor("x", 1, 4, 8, 8), tensor("w", 4, 4, 1, 1, weight=True)
    graph = Graph(x)
    conv = graph.add("Conv", (x, w), tensor("c", 1, 4, 8, 8))
    relu = graph.add("Relu", (conv,), tensor("r", 1, 4, 8, 8))
    flat = graph.add("Flatten", (relu,), tensor("f", 1, 256))
    graph.add("Gemm", (flat, tensor("v", 256, 2, weight=True)), tensor("y", 1, 2))
    lowered = graph.lower("torch")
    assert [s.op_type for s in lowered.steps] == ["Conv", "Relu", "Gemm"]
    assert lowered.steps[1].writes == (("c", 1024),)
    assert "c" in lowered.steps[2].reads
    assert lowered.outputs == {"y": 8}


def test_a_relu_whose_input_is_needed_later_is_not_in_place() -> None:
    x, w = tensor("x", 1, 4, 8, 8), tensor("w", 4, 4, 1, 1, weight=True)
    for runtime in ("torch", "onnxruntime"):
        graph = Graph(x)
        conv = graph.add("Conv", (x, w), tensor("c", 1, 4, 8, 8))
        relu = graph.add("Sigmoid" if runtime == "onnxruntime" else "Relu", (conv,), tensor("r", 1, 4, 8, 8))
        graph.add("Sub", (conv, relu), tensor("y", 1, 4, 8, 8))
        assert graph.lower(runtime).steps[1].writes == (("r", 1024),)


def folded(dtype: str = "fp32", runtime: str = "torch") -> KernelGraph:
    x = tensor("x", 2, 16, 8, 8)
    graph = Graph(x)
    weight, bias = tensor("onnx::Conv_7", 32, 16, 3, 3, weight=True), tensor("onnx::Conv_8", 32, weight=True)
    graph.add("Conv", (x, weight, bias), tensor("y", 2, 32, 8, 8), attributes={"pads": (1, 1, 1, 1)})
    return graph.lower(runtime, dtype)


def test_folded_batchnorm_is_a_kernel_of_its_own_in_torch() -> None:
    lowered = folded()
    assert names(lowered) == ["conv", "batchnorm.batch_norm"]
    assert lowered.notes["batchnorm_unfolded"] == 1
    assert any("BatchNorms that the exporter folded into 1" in w for w in lowered.warnings)
    conv, norm = lowered.steps
    assert conv.kernels[0].flops == 2 * 2 * 32 * 64 * 16 * 9
    assert (
        conv.writes[0][0] in norm.reads and "x" in norm.reads
    )  # Python holds the input until the norm is done
    assert sum(lowered.weights.values()) == 4 * (32 * 16 * 9 + 4 * 32)
    assert names(folded(runtime="onnxruntime")) == ["conv", "elementwise.bias_add"]


def test_half_precision_stores_half_and_autocast_casts() -> None:
    def build() -> Graph:
        x = tensor("x", 4, 64)
        graph = Graph(x)
        y = graph.add("MatMul", (x, tensor("w", 64, 32, weight=True)), tensor("h", 4, 32))
        s = graph.add("Softmax", (y,), tensor("s", 4, 32), attributes={"axis": -1})
        graph.add("MatMul", (s, tensor("v", 32, 8, weight=True)), tensor("y", 4, 8))
        return graph

    half = build().lower("torch", "fp16")
    assert sum(half.weights.values()) == 2 * (64 * 32 + 32 * 8)
    assert names(half) == ["linear", "softmax.softmax", "linear"]
    assert half.steps[0].kernels[0].read_bytes == 2 * (4 * 64 + 64 * 32)
    assert half.outputs == {"y": 64}
    amp = build().lower("torch", "amp")
    assert sum(amp.weights.values()) == 4 * (64 * 32 + 32 * 8)
    cast = "copy.cast"  # x and w; the softmax runs in float32; its result and v are cast again
    assert names(amp) == [cast, cast, "linear", cast, "softmax.softmax", cast, cast, "linear"]
    assert amp.steps[-1].kernels[-1].precision is Precision.FP16
    assert build().lower("torch", "bf16").steps[0].kernels[0].precision is Precision.BF16


def test_equal_operators_share_their_kernels() -> None:
    x = tensor("x", 4, 64)
    graph = Graph(x)
    y = graph.add("Tanh", (x,), tensor("a", 4, 64))
    graph.add("Tanh", (y,), tensor("b", 4, 64))
    first, second = graph.lower().steps
    assert first.kernels[0] is second.kernels[0]


def test_an_operand_named_twice_is_read_once_and_a_broadcast_at_its_own_size() -> None:
    x = tensor("x", 4, 64)
    graph = Graph(x)
    square = graph.add("Mul", (x, x), tensor("a", 4, 64))
    graph.add("Add", (square, tensor("row", 64, weight=True)), tensor("b", 4, 64))
    mul, add = (s.kernels[0] for s in graph.lower().steps)
    assert (mul.read_bytes, mul.inputs) == (1024, 1)
    assert (add.read_bytes, add.weight_bytes, add.inputs) == (1024 + 256, 256, 2)


def unknown_graph() -> Graph:
    x = tensor("x", 4)
    graph = Graph(x)
    y = graph.add("Frobnicate", (x,), tensor("a", 4), domain="my.domain")
    y = graph.add("Wobble", (y,), tensor("b", 4))
    graph.add("Relu", (y,), tensor("c", 4))
    return graph


def test_unknown_operators_refuse_the_model_all_named() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        unknown_graph().lower()
    assert caught.value.operators == ("Wobble", "my.domain.Frobnicate")
    text = str(caught.value)
    assert "\n" not in text and "Wobble#1" in text and "Frobnicate#0" in text


def test_unknown_operators_may_be_allowed_and_are_marked() -> None:
    lowered = unknown_graph().lower(allow_unknown=True)
    assert lowered.unknown_operators == ("Wobble", "my.domain.Frobnicate")
    assert [s.unknown for s in lowered.steps] == [True, True, False]
    assert lowered.steps[0].writes == (("a", 16),)


def test_a_rule_that_cannot_digest_a_node_names_it() -> None:
    x = tensor("x", 4)
    graph = Graph(x)
    graph.add("Conv", (x, tensor("w", 4, weight=True)), tensor("y", 4))
    with pytest.raises(ModelError, match="Conv#0"):
        graph.lower("onnxruntime")
    graph = Graph(x)
    graph.add("NonMaxSuppression", (x, x), tensor("y", 1, 3, dtype=DType.INT64))
    with pytest.raises(ModelError, match="NonMaxSuppression#0"):
        graph.lower()


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(UsageError, match="tvm"):
        unknown_graph().lower("tvm")


PLUGIN = """
from gkestimator.operators.builders import elementwise_kernel, output_at, tensor_inputs
from gkestimator.operators.registry import Lowered, lowering_rule

@lowering_rule("Frobnicate", domain="my.domain")
def frobnicate(op, options):
    return Lowered(kernels=(elementwise_kernel("frobnicate", tensor_inputs(op), (output_at(op),),
    flops_per_element=7),), host_calls=1)
"""


def test_a_plug_in_brings_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text(PLUGIN)
    before = dict(OPERATORS)
    load_plugin(str(file))
    load_plugin(str(file))  # naming it twice is no error
    try:
        assert covered_operators()[("my.domain", "Frobnicate")] == "frobnicate"
        x = tensor("x", 4)
        graph = Graph(x)
        graph.add("Frobnicate", (x,), tensor("y", 4), domain="my.domain")
        assert graph.lower().steps[0].kernels[0].flops == 28
    finally:
        restore_operators(before)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("raise RuntimeError('two\\nlines')\n", "RuntimeError: two lines"),
        (PLUGIN + "\nimport sys\nsys.exit(3)\n", "SystemExit"),
        ("x = 1\n", "registers no rule"),
        (PLUGIN.replace('"Frobnicate", domain="my.domain"', '"Relu"'), "two lowering rules"),
    ],
)
def test_a_broken_plug_in_is_one_line_and_leaves_nothing(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    before = dict(OPERATORS)
    with pytest.raises(UsageError) as caught:
        load_plugin(str(file))
    assert words in str(caught.value) and "broken.py" in str(caught.value) and "\n" not in str(caught.value)
    assert before == OPERATORS


def test_a_missing_plug_in(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_plugin(str(tmp_path / "absent.py"))
    with pytest.raises(UsageError, match="no_such_module_here"):
        load_plugin("no_such_module_here")
