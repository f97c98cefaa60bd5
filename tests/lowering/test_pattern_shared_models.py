"""How often each pattern is found in the public graphs, and that onnxruntime finds the same."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gkestimator.core.graph import OperatorGraph
from gkestimator.lowering.patterns import find_matches
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

Options = Callable[..., LoweringOptions]
pytestmark = pytest.mark.shared

# Layers counted from the architectures: encoder blocks, MLPs, gates. gpt2 and bloom write their GELU in
# python and llama its RMSNorm, so torch launches the pieces; bloom and xlnet do not call
# scaled_dot_product_attention.
_TORCH: dict[str, dict[str, int]] = {
    "ethz/resnet50": {},
    "ethz/bert": {"linear": 72, "attention": 12, "gelu": 12},
    "ethz/gpt2": {"attention": 12},
    "ethz/bloom_560": {"linear": 96},
    "ethz/xlnet": {"linear": 24, "gelu": 12},
    "ethz/efficientnet_b7": {"silu": 163},
    "llm/llama2_7b_s512": {"attention": 32, "silu": 32, "rsqrt": 65},
    "timm/convnext_tiny": {"linear": 36, "gelu": 18},
    "timm/efficientnet_b0": {"silu": 49},
    "timm/mixer_b16_224": {"linear": 48, "gelu": 24},
    "timm/mobilenetv3_large_100": {},
    "timm/swin_tiny_patch4_window7_224": {"linear": 48, "gelu": 12},
    "timm/vit_base_patch16_224": {"linear": 48, "attention": 12, "gelu": 12},
}
# bias_softmax is a fusion of the CUDA provider (swin's five shifted blocks reshape in between). bert's and
# vit's skip_layer_norm need shapes that onnxruntime's own inference loses behind a computed Reshape; a bound
# graph cannot show that.
_ORT: dict[str, dict[str, int]] = {
    "ethz/resnet50": {},
    "ethz/bert": {"fused_matmul": 12, "bias_gelu": 12, "skip_layer_norm": 24},
    "ethz/gpt2": {"fused_matmul": 12, "fast_gelu": 12, "bias_softmax": 12, "skip_layer_norm": 1},
    "ethz/bloom_560": {"fused_matmul": 24, "fast_gelu": 24, "bias_softmax": 24, "skip_layer_norm": 1},
    "ethz/xlnet": {"skip_layer_norm": 24},
    "ethz/efficientnet_b7": {"quick_gelu": 163},
    "llm/llama2_7b_s512": {"fused_matmul": 32, "quick_gelu": 32, "bias_softmax": 32},
    "timm/convnext_tiny": {"bias_gelu": 18},
    "timm/efficientnet_b0": {"quick_gelu": 49},
    "timm/mixer_b16_224": {"fused_matmul": 12, "bias_gelu": 24, "skip_layer_norm": 1},
    "timm/mobilenetv3_large_100": {},
    "timm/swin_tiny_patch4_window7_224": {"fused_matmul": 12, "bias_gelu": 12, "bias_softmax": 7},
    "timm/vit_base_patch16_224": {"fused_matmul": 12, "bias_gelu": 12, "skip_layer_norm": 1},
}


def _path(name: str) -> Path:
    folder = os.environ.get("GKEST_SHARED")
    if not folder:
        pytest.skip("GKEST_SHARED is not set: the folder with the public graphs (models/) is missing")
    path = Path(folder) / "models" / f"{name}.onnx"
    if not path.is_file():
        pytest.skip(f"models/{name}.onnx is missing below GKEST_SHARED")
    return path


def _counts(graph: OperatorGraph, options: LoweringOptions) -> dict[str, int]:
    matches = find_matches(graph, options)
    covered = [index for match in matches for index in match.covered]
    assert len(covered) == len(set(covered))
    return dict(Counter(match.name for match in matches))


@pytest.mark.parametrize("name", _TORCH)
def test_patterns_found_in_the_public_graphs(name: str, lowering_options: Options) -> None:
    graph = read_model(_path(name)).bind(batch_size=4)
    assert _counts(graph, lowering_options("torch")) == _TORCH[name]
    assert _counts(graph, lowering_options("onnxruntime")) == _ORT[name]


def test_matching_is_fast(lowering_options: Options) -> None:
    graph = read_model(_path("llm/llama2_7b_s512")).bind(batch_size=1)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        find_matches(graph, lowering_options("onnxruntime"))
        best = min(best, time.perf_counter() - start)
    print(f"\n{len(graph.operators)} operators matched in {best * 1e3:.1f} ms")
    assert best < 0.05


# onnxruntime's names of the provider-independent fusions, ours in the same words
_THEIRS = {"QuickGelu": "quick_gelu", "BiasGelu": "bias_gelu", "FusedMatMul": "fused_matmul", "Gelu": "gelu",
           "FastGelu": "fast_gelu"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["timm/efficientnet_b0", "timm/mobilenetv3_large_100", "timm/convnext_tiny",
             "timm/swin_tiny_patch4_window7_224"]
)  # fmt: skip
def test_onnxruntime_fuses_the_same_in_the_public_graphs(
    name: str, optimised_operators: Callable[[Any], list[str]]
) -> None:
    import onnx

    model = onnx.load(_path(name), load_external_data=False)
    for weight in model.graph.initializer:
        if weight.data_location == onnx.TensorProto.EXTERNAL:
            weight.ClearField("external_data")
            weight.data_location = onnx.TensorProto.DEFAULT
            dtype = onnx.helper.tensor_dtype_to_np_dtype(weight.data_type)
            weight.raw_data = np.full(tuple(weight.dims), 0.01, dtype=dtype).tobytes()
    found = Counter(_THEIRS[t] for t in optimised_operators(model) if t in _THEIRS)
    ours = {k: v for k, v in _ORT[name].items() if k in _THEIRS.values()}
    assert dict(found) == ours
