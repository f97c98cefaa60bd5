"""Autocast: a fused group casts as the one call it is; channels-last images stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, KernelGraph
from gkestimator.lowering import lower
from gkestimator.operators.registry import LoweringOptions

AMP = LoweringOptions(
    runtime="torch",
    dtype="amp",
    matmul_precision=Precision.FP16,
    conv_precision=Precision.FP16,
    half=Precision.FP16,
)
LINEAR = "(float[8,64] x) => (float[8,32] y) { p = MatMul(x, w)  y = Add(p, b) }"
GELU = """(float[8,64] x) => (float[8,16] y) {
 p = MatMul(x, w)  h = Add(p, b)  d = Div(h, root)  e = Erf(d)  o = Add(e, one)  m = Mul(h, o)  g = Mul(m, half)
 y = MatMul(g, v) }"""


@pytest.fixture
def lowered(graph_of: Callable[[str, Mapping[str, Any]], OperatorGraph]) -> Callable[..., KernelGraph]:
    return lambda text, **constants: lower(graph_of(text, constants), AMP)


def kernels(graph: KernelGraph) -> list[tuple[str, float]]:
    return [(k.name, k.element_bytes) for s in graph.steps for k in s.kernels]


def test_a_linear_layer_casts_its_bias_instead_of_widening(lowered: Callable[..., KernelGraph]) -> None:
    graph = lowered(LINEAR, w=(64, 32), b=(32,))
    assert graph.outputs == {"y": 2 * 8 * 32}
    assert kernels(graph) == [("copy.cast", 2.0)] * 3 + [("linear", 2.0)]


def test_gelu_stays_in_half_precision(lowered: Callable[..., KernelGraph]) -> None:
    graph = lowered(GELU, w=(64, 32), b=(32,), v=(32, 16), root=float(np.sqrt(2.0)), one=1.0, half=0.5)
    names = kernels(graph)
    assert ("elementwise.gelu", 2.0) in names
    assert [n for n, _ in names].count("copy.cast") == 4  # x, w, b and v: the GELU's result is half already
    assert graph.outputs == {"y": 2 * 8 * 16}


def test_a_scale_that_is_no_bias_widens(lowered: Callable[..., KernelGraph]) -> None:
    text = "(float[8,64] x) => (float[8,32] y) { p = MatMul(x, w)  h = Add(p, b)  y = Mul(h, gamma) }"
    graph = lowered(text, w=(64, 32), b=(32,), gamma=(32,))
    assert graph.outputs == {"y": 4 * 8 * 32}  # as convnext's layer scale: half times a float32 parameter


def test_a_shortcut_added_in_place_keeps_the_type_of_what_it_is_added_to(
    lowered: Callable[..., KernelGraph],
) -> None:
    text = """(float[2,32,8,8] x) => (float[2,32,16,16] y) {
     u = Resize<mode="nearest">(x, , scales)  c = Conv<pads=[1,1,1,1]>(u, w)  s = Add(c, u)  y = ACTIVATION(s) }"""
    scales = np.array([1, 1, 2, 2], dtype=np.float32)
    elements = 2 * 32 * 16 * 16
    for activation, expected in (("Relu", 2), ("Tanh", 4)):
        graph = lowered(text.replace("ACTIVATION", activation), w=(32, 32, 3, 3), scales=scales)
        assert list(graph.outputs.values()) == [expected * elements]  # autocast interpolates in fp32


@pytest.mark.parametrize("groups", [1, 32])
def test_an_image_that_lies_in_nhwc_is_taken_as_it_is(
    groups: int, lowered: Callable[..., KernelGraph]
) -> None:
    text = """(float[2,8,8,32] x) => (float[2,32,8,8] y) {
     t = Transpose<perm=[0,3,1,2]>(x)  y = Conv<pads=[1,1,1,1], group=GROUPS>(t, w) }"""
    graph = lowered(text.replace("GROUPS", str(groups)), w=(32, 32 // groups, 3, 3))
    assert not any(k.variant == "contiguous" for s in graph.steps for k in s.kernels)
    main = [k for s in graph.steps for k in s.kernels if k.family in (Family.CONV, Family.DEPTHWISE)]
    assert [k.variant for k in main] == ["channels_last"]
