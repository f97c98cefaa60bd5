"""The shared graphs: published multiply-add counts, distinct kernels, and speed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io import read_model

pytestmark = pytest.mark.shared

# GMACs a sample of Conv, Gemm and MatMul: torchvision's documented figures (weights enum, "_ops": GFLOPS as
# multiply-adds).
GMACS = {
    "ethz/resnet50": 4.089, "ethz/vgg19": 19.632, "ethz/mobilenet_v2": 0.301, "ethz/densenet121": 2.834,
    "ethz/resnext50_32x4d": 4.230, "ethz/alexnet": 0.714, "timm/resnet101": 7.801, "timm/inception_v3": 5.713,
}  # fmt: skip


def folder() -> Path:
    root = os.environ.get("GKEST_SHARED")
    if root is None or not (Path(root) / "models").is_dir():
        pytest.skip("GKEST_SHARED does not name a folder with models/: the public graphs are missing")
    return Path(root) / "models"


def options(runtime: str, dtype: str = "fp32") -> LoweringOptions:
    half = {"amp": Precision.FP16, "fp16": Precision.FP16}.get(dtype)
    precision = half or Precision.FP32
    return LoweringOptions(
        runtime=runtime, dtype=dtype, matmul_precision=precision, conv_precision=precision, half=half
    )


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
@pytest.mark.parametrize("name", sorted(GMACS))
def test_multiply_adds_of_vision_graphs(name: str, runtime: str) -> None:
    graph = read_model(folder() / f"{name}.onnx").bind(batch_size=3)
    kernels = [k for s in lower(graph, options(runtime)).steps for k in s.kernels]
    families = {Family.CONV, Family.DEPTHWISE, Family.LINEAR, Family.BMM}
    shapes = [k.gemm for k in kernels if k.family in families and k.gemm is not None]
    macs = sum(g.batch * g.m * g.n * g.k for g in shapes)
    assert macs / 3e9 == pytest.approx(GMACS[name], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "amp"])
def test_every_shared_graph_lowers(dtype: str) -> None:
    files = sorted(folder().glob("*/*.onnx"))
    assert len(files) >= 28
    for file in files:
        model = read_model(file)
        graph = model.bind(batch_size=2, dims={d: 64 for d in model.dims if d != model.batch_dim})
        for runtime in ("torch", "onnxruntime"):
            lowered = lower(graph, options(runtime, dtype))
            known = set(lowered.weights) | set(lowered.inputs)
            for step in lowered.steps:  # every storage a step reads was written, put in, or is a weight
                missing = [s for s in step.reads if s not in known]
                assert not missing, (file.name, runtime, step.name, missing)
                known.update(name for name, _ in step.writes)
            assert set(lowered.outputs) <= known, (file.name, runtime)
            assert all(k.flops >= 0 and k.read_bytes >= 0 for s in lowered.steps for k in s.kernels)


def test_lowering_again_is_fast() -> None:
    graph = read_model(folder() / "ethz" / "bloom_560.onnx").bind(batch_size=2)
    lower(graph, options("onnxruntime"))
    best = min(_timed(graph) for _ in range(5))
    print(f"bloom_560, {len(graph.operators)} operators, warm: {best * 1e3:.1f} ms")
    assert best < 0.1  # a tenth of that on an idle machine; the bound catches a lost memo


def _timed(graph: object) -> float:
    started = time.perf_counter()
    lower(graph, options("onnxruntime"))  # type: ignore[arg-type]
    return time.perf_counter() - started
