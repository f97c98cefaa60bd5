"""Images in NHWC: which kernels take them as they lie, which copy them first, and what their results lie in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import gkestimator
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, KernelGraph
from gkestimator.lowering import lower
from gkestimator.lowering import strides as st
from gkestimator.operators.registry import LoweringOptions

NHWC = LoweringOptions(
    runtime="torch",
    dtype="fp16",
    matmul_precision=Precision.FP16,
    conv_precision=Precision.FP16,
    half=Precision.FP16,
    layout="nhwc",
)
IMAGE = "(float[2,32,8,8] x)"
CONV = "<pads=[1,1,1,1]>"
Lowered = Callable[..., KernelGraph]


@pytest.fixture
def lowered(graph_of: Callable[[str, Mapping[str, Any]], OperatorGraph]) -> Lowered:
    def build(text: str, options: LoweringOptions = NHWC, **constants: Any) -> KernelGraph:
        return lower(graph_of(text, constants), options)

    return build


def names(graph: KernelGraph) -> list[str]:
    return [kernel.name for step in graph.steps for kernel in step.kernels]


def copies(graph: KernelGraph) -> int:
    return sum(k.variant == "contiguous" for step in graph.steps for k in step.kernels)


def test_a_chain_of_images_stays_in_nhwc(lowered: Lowered) -> None:
    text = f"""{IMAGE} => (float[2,16,4,4] y) {{
     c = Conv{CONV}(x, w)  n = BatchNormalization(c, s, s, s, s)  r = Relu(n)  a = Add(r, c)
     p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)  y = Conv(p, v) }}"""
    graph = lowered(text, w=(32, 32, 3, 3), s=(32,), v=(16, 32, 1, 1))
    assert copies(graph) == 0
    assert [n for n in names(graph) if n.endswith("channels_last")] == [
        "conv.channels_last",
        "batchnorm.batch_norm.channels_last",
        "pooling.max_pool.channels_last",
        "conv.channels_last",
    ]
    assert any("layout nhwc" in warning for warning in graph.warnings)


def test_nothing_is_copied_or_said_in_nchw(lowered: Lowered) -> None:
    text = f"{IMAGE} => (float[2,32,8,8] y) {{ c = Conv{CONV}(x, w)  y = Relu(c) }}"
    graph = lowered(text, replace(NHWC, layout="nchw"), w=(32, 32, 3, 3))
    assert names(graph) == ["conv", "elementwise.relu"]
    assert graph.warnings == ()


def test_weights_in_nhwc_bring_back_what_a_norm_made_contiguous(lowered: Lowered) -> None:
    text = f"""{IMAGE} => (float[2,32,8,8] y) {{
     c = Conv{CONV}(x, w)  n = InstanceNormalization(c, s, s)  y = Conv{CONV}(n, w) }}"""
    graph = lowered(text, w=(32, 32, 3, 3), s=(32,))
    assert copies(graph) == 2  # into the norm, which calculates in NCHW, and out of it


def test_a_part_of_the_channels_is_copied_but_stays_in_nhwc(lowered: Lowered) -> None:
    text = f"""{IMAGE} => (float[2,32,8,8] y) {{
     a, b = Split<axis=1>(x)  c = Conv{CONV}(a, w)  d = Conv{CONV}(b, w)  y = Concat<axis=1>(c, d) }}"""
    graph = lowered(text + "", w=(16, 16, 3, 3))
    assert copies(graph) == 2
    text = text.replace("y = Concat<axis=1>(c, d)", f"e = Concat<axis=1>(c, d)  y = Conv{CONV}(e, v)")
    assert copies(lowered(text, w=(16, 16, 3, 3), v=(32, 32, 3, 3))) == 2  # the concatenation lies in NHWC


def test_a_stack_of_images_is_contiguous(lowered: Lowered) -> None:
    text = f"""{IMAGE} => (float[2,32,8,8] y) {{
     c = Conv{CONV}(x, w)  u = Unsqueeze(c, one)  s = Concat<axis=1>(u, u)
     r = ReduceSum<keepdims=0>(s, one)  y = Conv{CONV}(r, w) }}"""
    import numpy as np

    graph = lowered(text, w=(32, 32, 3, 3), one=np.array([1]))
    assert copies(graph) == 1  # for the second convolution


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 32, 8, 8), (2048, 1, 256, 32), True),
        ((2, 16, 8, 8), (2048, 1, 256, 32), True),  # half of the channels
        ((2, 32, 8, 8), (2048, 64, 8, 1), False),
        ((2, 32, 1, 1), (32, 1, 1, 1), False),
        ((2, 1, 8, 8), (64, 64, 8, 1), False),
    ],
)
def test_torch_suggests_a_layout_by_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: bool
) -> None:
    assert st.suggests_channels_last(shape, strides) is expected


def test_the_option_reaches_the_row_and_other_runtimes_refuse_it(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
     net (float[N, 32, 8, 8] x) => (float[N, 32, 8, 8] y) { y = Relu (x) }"""
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    rows = gkestimator.estimate(path, "RTX-3090", layout="nhwc")
    assert "layout nhwc" in rows["warnings"].iloc[0]
    with pytest.raises(UsageError, match="layout: found nhwc, expected nchw under onnxruntime"):
        gkestimator.estimate(path, "RTX-3090", layout="nhwc", runtime="onnxruntime")


def test_a_convolution_of_a_view_in_nhwc_runs_there_whatever_the_weights(lowered: Lowered) -> None:
    text = f"""(float[2,8,8,32] x) => (float[2,32,8,8] y) {{
     t = Transpose<perm=[0,3,1,2]>(x)  y = Conv{CONV}(t, w) }}"""
    graph = lowered(text, replace(NHWC, layout="nchw"), w=(32, 32, 3, 3))
    (kernel,) = (k for step in graph.steps for k in step.kernels if k.family is Family.CONV)
    assert kernel.variant == "channels_last"
    assert copies(graph) == 0
