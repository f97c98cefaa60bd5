"""TensorRT's groups in whole networks: layers of public engines, and public graphs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import KernelGraph
from gkestimator.lowering import lower
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

# Kernels of 12 layers: queries, keys and values are one product.
_GRAPHS = {
    "ethz/resnet50": {"conv": 37, "conv.sum": 16},
    "ethz/bert": {"linear": 50, "attention": 12, "layernorm.layer_norm": 25},
    "ethz/gpt2": {"linear": 49, "attention": 12, "layernorm.layer_norm": 25},
    "timm/vit_base_patch16_224": {"linear": 49, "attention": 12, "layernorm.layer_norm": 25},
}


def _shared() -> Path:
    folder = os.environ.get("GKEST_SHARED")
    if not folder:
        pytest.skip("GKEST_SHARED is not set: the folder with the public graphs and tables is missing")
    return Path(folder)


def _lowered(path: Path, runtime: str) -> KernelGraph:
    options = LoweringOptions(
        runtime=runtime,
        dtype="fp16",
        matmul_precision=Precision.FP16,
        conv_precision=Precision.FP16,
        half=Precision.FP16,
    )
    model = read_model(path)
    return lower(
        model.bind(batch_size=1, dims={name: 128 for name in model.sizes if name != model.batch_dim}), options
    )


@pytest.mark.shared
def test_layers_of_ten_engines() -> None:
    """Hold the share of layers that are lowered to the same group to the issue's 90 %."""
    from tensorrt_layers import ENGINES, compared

    table = pd.read_parquet(_shared() / "data/tensorrt/tensorrt_layers.parquet")
    counts = Counter[str]()
    for engine in ENGINES:
        theirs, ours = compared(table, engine, "tensorrt")
        counts.update(layers=theirs.total(), same=(theirs & ours).total())
    assert counts["layers"] > 400
    assert counts["same"] >= 0.9 * counts["layers"]


@pytest.mark.shared
@pytest.mark.parametrize("name", _GRAPHS)
def test_kernels_of_public_graphs(name: str) -> None:
    graph = _lowered(_shared() / f"models/{name}.onnx", "tensorrt")
    counts = Counter(kernel.name for step in graph.steps for kernel in step.kernels)
    assert {kind: counts[kind] for kind in _GRAPHS[name]} == _GRAPHS[name]


@pytest.mark.shared
@pytest.mark.slow
def test_every_public_graph_keeps_its_work_and_loses_kernels() -> None:
    """Hold FLOPs to those under ONNX Runtime within 1 % (activations are counted by their parts), and bytes below."""
    paths = sorted(_shared().glob("models/*/*.onnx"))
    assert len(paths) > 100
    for path in paths:
        ours, theirs = (_lowered(path, runtime) for runtime in ("tensorrt", "onnxruntime"))
        ours_flops, theirs_flops = (
            sum(kernel.flops * step.repeat for step in graph.steps for kernel in step.kernels)
            for graph in (ours, theirs)
        )
        assert ours_flops == pytest.approx(theirs_flops, rel=0.01), path.name
        kernels = [sum(len(step.kernels) for step in graph.steps) for graph in (ours, theirs)]
        assert kernels[0] < kernels[1], path.name
