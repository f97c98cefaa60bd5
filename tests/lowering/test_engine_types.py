"""Types of a graph that TensorRT compiles: 8 bits of float models, QDQ files as they stand, copies between types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Kernel, KernelGraph
from gkestimator.lowering import lower
from gkestimator.operators.registry import LoweringOptions

Graphs = Callable[..., OperatorGraph]
FP16, FP32, TF32, INT8, FP8 = (Precision(word) for word in ("fp16", "fp32", "tf32", "int8", "fp8"))
_PERMITS = {
    "fp32": (FP32,),
    "tf32": (TF32, FP32),
    "fp16": (FP16, TF32, FP32),
    "int8": (INT8, FP16, TF32, FP32),
    "fp8": (FP8, FP16, TF32, FP32),
}
_VALUES: dict[str, Any] = {
    "k3": (8, 3, 3, 3), "k": (8, 8, 3, 3), "k1": (8, 8, 1, 1), "c": (8,), "g": (8, 16), "square": (16, 16), "gain": (16,),
    "s": np.array(0.1, np.float32), "t": np.array(0.2, np.float32), "z": np.array(0, np.int8), "wide": (16, 64),
    "back": (64, 16), "flat": np.array([2, 64], np.int64),
}  # fmt: skip


def options(word: str) -> LoweringOptions:
    permits = _PERMITS[word]
    single = TF32 if TF32 in permits else FP32
    return LoweringOptions(
        runtime="tensorrt",
        dtype=word,
        matmul_precision=single,
        conv_precision=single,
        half=FP16 if FP16 in permits else None,
        permits=permits,
    )


@pytest.fixture
def lowered(graph_of: Graphs) -> Callable[..., KernelGraph]:
    def make(text: str, word: str) -> KernelGraph:
        used = {name: value for name, value in _VALUES.items() if f"{name})" in text or f"{name}," in text}
        return lower(graph_of(text, used), options(word))

    return make


def kernels(graph: KernelGraph) -> list[Kernel]:
    return [kernel for step in graph.steps for kernel in step.kernels]


def told(graph: KernelGraph) -> list[str]:
    """Return the kernels with what they calculate in and the bytes of an element that they write."""
    return [f"{k.name} {k.precision.value} {k.element_bytes:g}" for k in kernels(graph)]


def quantised(name: str, source: str, scale: str = "s") -> str:
    return f"{name}_q = QuantizeLinear({source}, {scale}, z) {name} = DequantizeLinear({name}_q, {scale}, z) "


_CONV = "Conv<pads=[1,1,1,1]>"
_FLOAT = (
    "(float[2,3,8,8] x) => (float[2,16] y) { " + f"a = {_CONV}(x, k3, c) b = Relu(a) m = Conv(b, k1) d = {_CONV}(m, k, c) e = Add(d, b) "
    "f = Relu(e) p = GlobalAveragePool(f) r = Flatten(p) y = Gemm(r, g) }"
)  # fmt: skip


def test_int8_of_a_float_model_is_in_bytes_from_the_image_to_the_classifier(
    lowered: Callable[..., KernelGraph],
) -> None:
    graph = lowered(_FLOAT, "int8")
    assert told(graph) == [
        "copy.reformat int8 1",
        "conv int8 1",
        "conv int8 1",
        "conv.sum int8 1",
        "reduction.global_average_pool int8 1",
        "linear int8 4",  # it writes the float32 of the output itself
    ]
    copy, first, _, second, _, product = kernels(graph)
    image = 2 * 3 * 8 * 8
    assert (copy.read_bytes, copy.write_bytes) == (4 * image, image)
    weights = 8 * 3 * 9
    assert first.read_bytes == image + weights + 2 * 8  # the bias stays in half precision
    assert second.read_bytes == 2 * 2 * 8 * 64 + 8 * 8 * 9 + 2 * 8
    assert first.permits == product.permits == (FP16, TF32, FP32)
    assert graph.weights["k"] == 8 * 8 * 9
    assert graph.weights["c"] == 2 * 8
    assert any("int8 of a float model" in line and "accuracy" in line for line in graph.warnings)


def test_fp8_is_brought_about_alike(lowered: Callable[..., KernelGraph]) -> None:
    assert told(lowered(_FLOAT, "fp8")) == [
        line.replace("int8", "fp8") for line in told(lowered(_FLOAT, "int8"))
    ]


def test_half_precision_is_converted_at_both_ends(lowered: Callable[..., KernelGraph]) -> None:
    graph = lowered(_FLOAT, "fp16")
    assert told(graph) == [
        "copy.reformat fp16 2",
        "conv fp16 2",
        "conv fp16 2",
        "conv.sum fp16 2",
        "reduction.global_average_pool fp16 2",
        "linear fp16 2",
        "copy.reformat fp32 4",
    ]
    # Each in the step of the layer that needs it, as one call more.
    assert [len(step.kernels) for step in graph.steps] == [2, 1, 1, 1, 2]
    assert [step.host_calls for step in graph.steps] == [2, 1, 1, 1, 2]
    assert graph.inputs == {"x": 4 * 2 * 3 * 8 * 8}
    assert not graph.warnings


def test_tf32_rearranges_the_image_behind_the_layers_that_stay_linear(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = f"(float[2,3,8,8] x) => (float[2,8,4,4] y) {{ a = {_CONV}(x, k3) p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(a) " \
        f"b = {_CONV}(p, k) y = {_CONV}(b, k) }}"  # fmt: skip
    names = ["conv tf32 4", "pooling.max_pool fp32 4", "copy.reformat fp32 4", "conv tf32 4", "conv tf32 4"]
    assert told(lowered(text, "tf32")) == names
    assert "copy.reformat fp32 4" not in told(lowered(text, "fp32"))


def test_normalisations_attention_and_gates_stay_in_half_precision(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = "(float[4,16] x) => (float[4,16] y) { n = LayerNormalization(x, gain, gain) h = MatMul(n, wide) p = Softmax<axis=-1>(h) " \
        "o = MatMul(p, back) y = Add(o, x) }"  # fmt: skip
    graph = lowered(text, "int8")
    assert told(graph) == [
        "copy.reformat fp16 2",
        "layernorm.layer_norm fp16 1",  # calculates in half precision, writes what the product reads
        "linear int8 2",
        "softmax.softmax fp16 2",
        "copy.reformat int8 1",
        "linear int8 2",
        "copy.reformat fp32 4",
    ]


def test_products_of_activations_and_what_is_no_product_are_not_quantised(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = "(float[4,16] x, float[16,4] u) => (float[4,4] y) { h = MatMul(x, u) y = Relu(h) }"
    graph = lowered(text, "int8")
    assert [k.precision.value for k in kernels(graph) if k.family == "linear"] == ["fp16"]
    assert not graph.warnings  # nothing was quantised, so nothing is to be checked


def test_a_tensor_that_two_layers_want_in_bytes_is_converted_once(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = "(float[2,8,8,8] x) => (float[2,8,8,8] y, float[2,8,8,8] w) { a = Softmax<axis=1>(x) " \
        f"y = {_CONV}(a, k) w = Conv(a, k1) }}"  # fmt: skip
    assert told(lowered(text, "int8")).count("copy.reformat int8 1") == 1


def test_pairs_around_a_layer_cost_nothing(lowered: Callable[..., KernelGraph]) -> None:
    text = "(float[2,8,8,8] x) => (float[2,8,8,8] y) { " + quantised("a", "x") + f"b = {_CONV}(a, k, c) d = Relu(b) " \
        + quantised("e", "d") + f"y = {_CONV}(e, k, c) }}"  # fmt: skip
    for word in ("int8", "fp16", "tf32"):
        graph = lowered(text, word)
        # The file says so itself, under any word; the last convolution writes float32.
        assert told(graph) == ["copy.reformat int8 1", "conv int8 1", "conv int8 4"], word
        assert all(k.permits == () for k in kernels(graph)), word
        assert not graph.warnings
        assert graph.weights["k"] == 8 * 8 * 9


def test_what_is_read_in_floating_point_too_is_quantised_by_a_kernel_of_its_own(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = "(float[2,8,8,8] x) => (float[2,8,8,8] y) { " + quantised("a", "x") + f"b = {_CONV}(a, k) d = Relu(b) " \
        + quantised("e", "d") + "l = Conv(e, k1) " + quantised("m", "l") + f"f = {_CONV}(m, k) h = Add(f, d) y = Relu(h) }}"  # fmt: skip
    assert told(lowered(text, "int8")) == [
        "copy.reformat int8 1",
        "conv int8 2",
        "copy.reformat int8 1",
        "conv int8 1",
        "conv.sum int8 2",
        "copy.reformat fp32 4",
    ]


def _sums(shortcut: str) -> str:
    end = quantised("i", "h") + f"y = {_CONV}(i, k) }}"
    return "(float[2,8,8,8] x) => (float[2,8,8,8] y) { " + quantised("a", "x") + f"b = {_CONV}(a, k) d = Relu(b) " \
        + quantised("e", "d") + "l = Conv(e, k1) " + quantised("m", "l") \
        + f"f = {_CONV}(m, k) {shortcut} u = Add(f, j) h = Relu(u) " + end  # fmt: skip


def test_a_sum_is_in_bytes_where_its_shortcut_is(lowered: Callable[..., KernelGraph]) -> None:
    both = lowered(_sums(quantised("j", "d", "t")), "int8")
    assert told(both) == [
        "copy.reformat int8 1",
        "conv int8 1",
        "conv int8 1",
        "conv.sum int8 1",
        "conv int8 4",
    ]
    # Read in floating point by the sum, which writes what it reads.
    one = lowered(_sums("j = Identity(d)"), "int8")
    assert told(one) == [
        "copy.reformat int8 1",
        "conv int8 2",
        "copy.reformat int8 1",
        "conv int8 1",
        "conv.sum int8 2",
        "copy.reformat int8 1",
        "conv int8 4",
    ]


def test_a_quantised_shortcut_of_a_sum_in_floating_point_is_dequantised_first(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = _sums(quantised("j", "d", "t")).replace(quantised("i", "h"), "i = Softmax<axis=1>(h) ")
    assert told(lowered(text, "int8"))[:6] == [
        "copy.reformat int8 1",
        "conv int8 1",
        "conv int8 1",
        "copy.reformat fp16 2",
        "conv.sum int8 2",
        "softmax.softmax fp16 2",
    ]


def test_an_average_of_what_bytes_wrote_in_halves_needs_another_layout(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = "(float[2,8,8,8] x) => (float[2,16] y) { " + quantised("a", "x") + f"b = {_CONV}(a, k) p = GlobalAveragePool(b) " \
        "f = Flatten(p) " + quantised("e", "f") + "y = Gemm(e, g) }"  # fmt: skip
    assert told(lowered(text, "int8")) == [
        "copy.reformat int8 1",
        "conv int8 2",
        "copy.reformat fp16 2",
        "reduction.global_average_pool fp16 2",
        "copy.reformat int8 1",
        "linear int8 4",
    ]


def test_dequantising_goes_behind_what_moves(lowered: Callable[..., KernelGraph]) -> None:
    text = "(float[2,8,8,8] x) => (float[2,8,8,8] y) { " + quantised("a", "x") + "b = Transpose<perm=[0,1,3,2]>(a) " \
        f"y = {_CONV}(b, k) }}"  # fmt: skip
    assert told(lowered(text, "int8")) == ["copy.reformat int8 1", "copy.transpose int8 1", "conv int8 4"]


def test_quantising_goes_before_what_moves(lowered: Callable[..., KernelGraph]) -> None:
    text = "(float[2,8,8,8] x) => (float[2,8,4,4] y) { " + quantised("a", "x") + f"b = {_CONV}(a, k) " \
        "p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(b) " + quantised("e", "p") + f"y = {_CONV}(e, k) }}"  # fmt: skip
    assert told(lowered(text, "int8")) == [
        "copy.reformat int8 1",
        "conv int8 1",
        "pooling.max_pool int8 1",
        "conv int8 4",
    ]


def test_a_quantised_output_of_the_graph_is_a_kernel(lowered: Callable[..., KernelGraph]) -> None:
    text = f"(float[2,8,8,8] x) => (int8[2,8,8,8] y) {{ a = {_CONV}(x, k) y = QuantizeLinear(a, s, z) }}"
    assert told(lowered(text, "fp16")) == ["copy.reformat fp16 2", "conv fp16 2", "quantize.quantize int8 1"]


def test_what_lay_behind_dequantising_alone_stays_in_half_precision(
    lowered: Callable[..., KernelGraph],
) -> None:
    # Activations that nobody quantised: TensorRT folds the weight's pair away and multiplies in half precision.
    text = "(float[2,8,8,8] x, int8[8,8,3,3] w) => (float[2,8,8,8] y) { v = DequantizeLinear(w, s, z) " \
        f"y = {_CONV}(x, v) }}"  # fmt: skip
    precisions = [k.precision.value for k in kernels(lowered(text, "fp16")) if k.family == "conv"]
    assert precisions == ["fp16"]


def test_integers_that_nobody_dequantises_keep_their_type(lowered: Callable[..., KernelGraph]) -> None:
    text = "(uint8[2,8] x, float[2,16] u) => (float[2,16] y, uint8[2,8] w) { w = BitwiseNot(x) " \
        + quantised("a", "u") + "y = MatMul(a, square) }"  # fmt: skip
    graph = lowered(text.replace("BitwiseNot(x)", "Identity(x)"), "int8")
    assert told(graph) == ["copy.reformat int8 1", "linear int8 4"]
    text = "(float[2,16] u) => (float[2,16] y) { m1 = Cast<to=2>(u) m2 = Cast<to=1>(m1) y = Relu(m2) }"
    assert told(lowered(text, "int8"))[-1] == "copy.reformat fp32 4"


@pytest.mark.parametrize(("word", "element"), [("int8", 1), ("fp16", 2), ("tf32", 4)])
def test_a_weight_that_the_file_has_in_bytes_is_stored_as_its_product_reads_it(
    word: str, element: int, graph_of: Graphs
) -> None:
    # Binding folds what dequantises a weight: a float32 tensor in a storage of a byte an element.
    graph = graph_of("(float[2,16] x) => (float[2,16] y) { y = MatMul(x, square) }", {"square": (16, 16)})
    graph = replace(graph, weights={"square": 16 * 16})
    assert lower(graph, options(word)).weights == {"square": element * 16 * 16}
