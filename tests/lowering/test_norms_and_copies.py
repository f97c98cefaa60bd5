"""Normalisations in half precision, torch.addcmul, and copies: what they convert first, what they fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import lower
from gkestimator.lowering.patterns import find_matches
from gkestimator.lowering.sectors import fetched_per_byte
from gkestimator.lowering.strides import contiguous
from gkestimator.operators.registry import LoweringOptions

Graphs = Callable[..., OperatorGraph]
Options = Callable[..., LoweringOptions]

_HALF = {"dtype": "amp", "half": Precision.FP16}
_NORM = "LayerNormalization<axis=-1>"
# A product first, whose result is half, then one norm of tokens and one of an image's channels.
_TOKENS = f"(float[2,8,16] x) => (float[2,8,16] y) {{ h = MatMul(x, w)  y = {_NORM}(h, gain, shift) }}"
_IMAGE = (
    "(float[2,16,4,4] x) => (float[2,16,4,4] y) { h = Conv(x, kernel)  a = Transpose<perm=[0,2,3,1]>(h) "
    f"b = {_NORM}(a, gain, shift)  c = Transpose<perm=[0,3,1,2]>(b)  y = Abs(c) }}"
)
_C: dict[str, Any] = {
    "w": (16, 16),
    "kernel": (16, 16, 1, 1),
    "gain": (16,),
    "shift": (16,),
    "one": 1.0,
    "three": 3.0,
}


def _kernels(graph: OperatorGraph, options: LoweringOptions) -> list[Kernel]:
    return [kernel for step in lower(graph, options).steps for kernel in step.kernels]


@pytest.mark.parametrize(
    ("norms", "tokens", "image"), [("fp32", 4, 4), ("half", 2, 2), ("images", 4, 2)]
)  # fmt: skip
def test_autocast_norms_calculate_in_what_the_option_says(
    norms: str, tokens: int, image: int, graph_of: Graphs, lowering_options: Options
) -> None:
    options = lowering_options("torch", amp_norms=norms, **_HALF)
    for text, size in ((_TOKENS, tokens), (_IMAGE, image)):
        kernels = _kernels(graph_of(text, _C), options)
        (norm,) = [k for k in kernels if k.family is Family.LAYERNORM]
        assert norm.element_bytes == size
        widened = [k for k in kernels if k.variant == "cast" and k.element_bytes == 4]
        assert len(widened) == (size == 4)  # the product's half result, where the norm wants fp32


_SCALED = "(float[2,8,16] x) => (float[2,8,16] y) {{ m = Mul(gain, x) o = Mul(m, {0}) y = Add(shift, o) }}"


def test_a_product_that_is_multiplied_by_one_and_added_is_addcmul(
    graph_of: Graphs, lowering_options: Options
) -> None:
    options = lowering_options("torch")
    (kernel,) = _kernels(graph_of(_SCALED.format("one"), _C), options)
    assert (kernel.name, kernel.inputs, kernel.flops) == ("elementwise.addcmul", 3, 3 * 2 * 8 * 16)
    assert find_matches(graph_of(_SCALED.format("three"), _C), options) == []
    assert find_matches(graph_of(_SCALED.format("one"), _C), lowering_options("onnxruntime")) == []


def test_addcmul_widens_what_is_narrower_first(graph_of: Graphs, lowering_options: Options) -> None:
    text = "(float[2,8,16] x) => (float[2,8,16] y) { h = MatMul(x, w) m = Mul(gain, h) o = Mul(m, one) y = Add(shift, o) }"
    kernels = _kernels(graph_of(text, _C), lowering_options("torch", **_HALF))
    assert [(k.name, k.element_bytes) for k in kernels[-2:]] == [("copy.cast", 4), ("elementwise.addcmul", 4)]


def test_what_autocast_converts_is_copied_after_the_conversion(
    graph_of: Graphs, lowering_options: Options
) -> None:
    text = "(float[2,16,8] x) => (float[2,8,16] y) { t = Transpose<perm=[0,2,1]>(x) y = MatMul(t, v) }"
    kernels = _kernels(graph_of(text, {"v": (16, 16)}), lowering_options("torch", **_HALF))
    (copy,) = [k for k in kernels if k.variant == "contiguous"]
    assert (copy.element_bytes, copy.read_bytes, copy.write_bytes) == (2, 2 * 256, 2 * 256)


def test_a_linear_layer_on_a_strided_tensor_adds_its_bias_apart(
    graph_of: Graphs, lowering_options: Options
) -> None:
    text = "(float[2,16,8] x) => (float[2,8,16] y) { t = Transpose<perm=[0,2,1]>(x) a = MatMul(t, v) y = Add(a, b) }"
    kernels = _kernels(graph_of(text, {"v": (16, 16), "b": (16,)}), lowering_options("torch", **_HALF))
    assert [k.name for k in kernels if k.family is not Family.COPY] == ["linear", "elementwise.add"]


def test_sectors_that_a_copy_fetches() -> None:
    image = (8, 64, 56, 56)
    rows = contiguous(image)
    channels_last = (64 * 56 * 56, 1, 56 * 64, 64)
    nchw, nhwc = (0, 1, 2, 3), (0, 2, 3, 1)
    assert fetched_per_byte(image, rows, 2, nchw) == 1
    # Each of 512 neighbouring pixels of one channel lies in a sector of its own: 32 bytes for 2, or for 4.
    assert fetched_per_byte(image, channels_last, 2, nchw) == 16
    assert fetched_per_byte(image, channels_last, 4, nchw) == 8
    # A block writes 8 pixels of 64 channels: 8 of the 16 pixels in a sector.
    assert fetched_per_byte(image, rows, 2, nhwc) == 2
    # Heads and tokens swapped: runs of 64 elements stay together.
    assert fetched_per_byte((8, 12, 197, 64), (197 * 768, 64, 768, 1), 2, nchw) == 1
    assert fetched_per_byte((8, 12, 1, 64), (768, 64, 0, 1), 2, nchw) == 1


def test_a_transposing_copy_takes_longer_than_its_bytes() -> None:
    from gkestimator.core.dtypes import DType
    from gkestimator.core.kernels import KernelTable
    from gkestimator.hardware.gpus import gpu_catalogue
    from gkestimator.kernel_models.analytical import analytical_duration_us
    from gkestimator.lowering.torch_layouts import contiguous_copy

    gpu, _ = gpu_catalogue((), bundles=()).resolve("RTX-3090")
    shape, count = (1024, 64, 56, 56), int(np.prod((1024, 64, 56, 56)))
    copies = [contiguous_copy(DType.FLOAT16, shape, count, False, fetched) for fetched in (1, 2, 16)]
    plain, close, apart = analytical_duration_us(KernelTable.from_kernels(copies), gpu).tolist()
    assert plain == close
    assert 1.3 < apart / plain < 4
