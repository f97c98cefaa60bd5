"""Linear layers under ``fp8``, ``w8a16`` and ``w4a16``: which are narrowed, their kernels, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import KernelGraph
from gkestimator.lowering import lower
from gkestimator.operators.registry import LoweringOptions

TWO_LAYERS = "(float[ROWS,256] x) => (float[ROWS,64] y) { h = MatMul(x, w)  r = Relu(h)  y = MatMul(r, v) }"
SIZES = {"w": (256, 128), "v": (128, 64), "u": (128, 128), "odd": (128, 100), "back": (100, 128)}


def options(dtype: str, runtime: str = "torch") -> LoweringOptions:
    half = Precision.BF16 if dtype == "fp8" else Precision.FP16
    return LoweringOptions(
        runtime=runtime, dtype=dtype, matmul_precision=half, conv_precision=half, half=half
    )


@pytest.fixture
def lowered(graph_of: Callable[[str, Mapping[str, Any]], OperatorGraph]) -> Callable[..., KernelGraph]:
    def lower_text(
        dtype: str, *, runtime: str = "torch", rows: int = 8, text: str = TWO_LAYERS
    ) -> KernelGraph:
        used = {name: shape for name, shape in SIZES.items() if f", {name})" in text or f"({name}," in text}
        graph = graph_of(text.replace("ROWS", str(rows)), used)
        return lower(graph, options(dtype, runtime))

    return lower_text


def kernels(graph: KernelGraph) -> list[tuple[str, str]]:
    return [(k.name, k.precision.value) for s in graph.steps for k in s.kernels]


def test_fp8_quantises_the_activations_of_every_layer_but_the_last(
    lowered: Callable[..., KernelGraph],
) -> None:
    graph = lowered("fp8")
    assert kernels(graph) == [
        ("quantize.quantize", "fp8"),
        ("linear.scaled.vllm", "fp8"),
        ("elementwise.relu", "bf16"),
        ("linear", "bf16"),
    ]
    step = graph.steps[0]
    assert step.host_calls == 2
    quantise, product = step.kernels
    assert (quantise.read_bytes, quantise.write_bytes) == (2 * 8 * 256, 8 * 256)
    # Activations and weights of a byte, a float32 scale a column, and a result in half precision.
    assert product.read_bytes == 8 * 256 + 256 * 128 + 4 * 128
    assert product.weight_bytes == 256 * 128 + 4 * 128
    assert product.write_bytes == 2 * 8 * 128


@pytest.mark.parametrize(
    ("dtype", "narrow_bytes"),
    [
        ("fp16", 2 * 256 * 128),
        ("fp8", 256 * 128 + 4 * 128),
        ("w8a16", 256 * 128 + 2 * 128),
        ("w4a16", 256 * 128 // 2 + 2 * 128 * 2),  # a scale for 128 rows of each column
    ],
)
def test_memory_counts_weights_as_they_are_stored(
    lowered: Callable[..., KernelGraph], dtype: str, narrow_bytes: int
) -> None:
    last = 2 * 128 * 64
    assert sorted(lowered(dtype).weights.values()) == sorted([narrow_bytes, last])


@pytest.mark.parametrize("dtype", ["w8a16", "w4a16"])
def test_weights_alone_are_narrow_and_the_arithmetic_is_not(
    lowered: Callable[..., KernelGraph], dtype: str
) -> None:
    graph = lowered(dtype)
    assert kernels(graph)[0] == ("linear.weight_only", dtype)
    assert graph.steps[0].kernels[0].write_bytes == 2 * 8 * 128
    assert graph.steps[0].host_calls == 1


def test_onnxruntime_widens_the_weight_for_more_than_one_row(lowered: Callable[..., KernelGraph]) -> None:
    widen, product = lowered("w4a16", runtime="onnxruntime").steps[0].kernels
    assert (widen.name, widen.write_bytes) == ("quantize.dequantize", 2 * 256 * 128)
    assert (product.name, product.precision) == ("linear", Precision.FP16)
    assert widen.workspace_bytes == product.workspace_bytes == 2 * 256 * 128
    (alone,) = lowered("w4a16", runtime="onnxruntime", rows=1).steps[0].kernels
    assert (alone.name, alone.precision) == ("linear.weight_only", Precision.W4A16)


def test_a_weight_that_something_else_reads_stays_in_half_precision(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = """(float[ROWS,256] x, int64[4] i) => (float[ROWS,64] y, float[4,128] e) {
     h = MatMul(x, w)  g = Gather(w, i)  e = Relu(g)  s = MatMul(h, u)  r = Relu(s)  y = MatMul(r, v) }"""
    names = [name for name, _ in kernels(lowered("w8a16", text=text)) if name.startswith("linear")]
    assert names == ["linear", "linear.weight_only", "linear"]


def test_sizes_that_16_does_not_divide_stay_in_half_precision(lowered: Callable[..., KernelGraph]) -> None:
    text = TWO_LAYERS.replace(
        "r = Relu(h)", "a = Relu(h)  b = MatMul(a, odd)  c = MatMul(b, back)  r = Relu(c)"
    )
    names = [name for name, _ in kernels(lowered("w8a16", text=text)) if name.startswith("linear")]
    assert names == ["linear.weight_only", "linear", "linear", "linear"]


def test_a_model_without_linear_layers_is_refused_in_one_line(lowered: Callable[..., KernelGraph]) -> None:
    with pytest.raises(UsageError, match="dtype fp8 needs linear layers .* found none; use fp16 or bf16"):
        lowered("fp8", text="(float[ROWS,256] x) => (float[ROWS,256] y) { y = Relu(x) }")
