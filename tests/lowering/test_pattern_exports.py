"""The patterns on what torch's two exporters write for single modules (data/make_pattern_exports.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.graph import OperatorGraph
from gkestimator.lowering import lower
from gkestimator.lowering.patterns import find_matches
from gkestimator.lowering.torch_layouts import folded_batchnorm
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

Options = Callable[..., LoweringOptions]
_FOLDER = Path(__file__).parent.parent / "data" / "pattern_exports"

# What torch launches as one call in these modules; operators that ONNX has itself need no pattern.
_TORCH = {
    "gelu.script": ["Gelu"], "gelu.dynamo": ["Gelu"],
    "gelu_tanh.script": ["Gelu"], "gelu_tanh.dynamo": ["Gelu"],
    "silu.script": ["Swish"], "silu.dynamo": ["Swish"],
    "quick_gelu.script": [], "quick_gelu.dynamo": [],
    "hardswish.script": [], "hardswish.dynamo": [],
    "mish.script": ["Mish"], "mish.dynamo": [],
    "layer_norm.script": ["LayerNormalization"], "layer_norm.dynamo": [],
    "layer_norm_plain.script": ["LayerNormalization"], "layer_norm_plain.dynamo": [],
    "layer_norm_two_axes.script": ["LayerNormalization"], "layer_norm_two_axes.dynamo": [],
    "llama_norm.script": ["Rsqrt"], "llama_norm.dynamo": ["Rsqrt"],
    "rms_norm.dynamo": ["Rsqrt"],
    "group_norm.script": ["GroupNormalization"], "group_norm.dynamo": ["GroupNormalization"],
    "group_norm_plain.script": ["GroupNormalization"], "group_norm_plain.dynamo": ["GroupNormalization"],
    "linear.script": ["Linear"], "linear.dynamo": ["Linear"],
    "attention.script": ["Linear", "Attention"], "attention.dynamo": ["Linear", "Attention"],
    "attention_causal.script": ["Linear", "Attention"], "attention_causal.dynamo": ["Linear", "Attention"],
    "attention_masked.script": ["Linear", "Attention"], "attention_masked.dynamo": ["Linear", "Attention"],
    "linear_transposed.script": ["Linear"], "linear_transposed.dynamo": ["Linear"],
    "attention_merged.script": ["Linear", "Attention"], "attention_merged.dynamo": ["Linear", "Attention"],
    "conv_plain_norm_relu.script": [], "conv_plain_norm_relu.dynamo": [],
    "conv_norm_relu.script": [], "conv_norm_relu.dynamo": [],
}  # fmt: skip
# Fusions that do not depend on the provider. LayerNormalization apart: newer exporters write it themselves.
_SHARED_FUSIONS = frozenset(
    {"Gelu", "BiasGelu", "FastGelu", "QuickGelu", "RMSNormalization", "SkipLayerNormalization", "FusedMatMul",
     "LayerNormalization"}
)  # fmt: skip


def test_every_exported_module_is_listed() -> None:
    assert {path.name.removesuffix(".onnx") for path in _FOLDER.glob("*.onnx")} == set(_TORCH)


@pytest.mark.parametrize("name", _TORCH)
def test_exported_modules_are_one_call_in_torch(name: str, lowering_options: Options) -> None:
    graph = read_model(_FOLDER / f"{name}.onnx").bind()
    options = lowering_options("torch")
    matches = find_matches(graph, options)
    assert [match.op_type for match in matches] == _TORCH[name]
    for match in matches:
        lowered = match.lower(options)
        assert len(lowered.kernels) == 1 and lowered.host_calls == 1


# Left out: with every dimension fixed onnxruntime makes a Gemm of a rank-3 product and keeps the Transpose; with
# the symbolic batch that lowering assumes, it makes a FusedMatMul.
@pytest.mark.parametrize("name", [name for name in _TORCH if not name.startswith("linear_transposed")])
def test_onnxruntime_makes_the_same_of_exported_modules(
    name: str,
    optimised_operators: Callable[[Any], list[str]],
    lowered_operators: Callable[[OperatorGraph], list[str]],
) -> None:
    import onnx

    path = _FOLDER / f"{name}.onnx"
    theirs = Counter(t for t in optimised_operators(onnx.load(path)) if t in _SHARED_FUSIONS)
    ours = Counter(t for t in lowered_operators(read_model(path).bind()) if t in _SHARED_FUSIONS)
    assert ours == theirs


# Kernels of the whole module in torch eager, counted with a TorchDispatchMode on the modules themselves; the
# bias of a convolution is an addition of its own on CUDA. The script exporter's names do not say whether a
# convolution that BatchNorm was folded into had a bias.
_KERNELS = {
    "attention_merged.script": ["abs", "linear", "attention", "relu"],
    "attention_merged.dynamo": ["abs", "linear", "attention", "relu"],
    "conv_plain_norm_relu.script": ["abs", "conv", "batch_norm", "relu", "relu"],
    "conv_plain_norm_relu.dynamo": ["abs", "conv", "batch_norm", "relu", "relu"],
    "conv_norm_relu.script": ["abs", "conv", "batch_norm", "relu", "relu"],
    "conv_norm_relu.dynamo": ["abs", "bias_add", "conv", "batch_norm", "relu", "relu"],
}


@pytest.mark.parametrize("name", _KERNELS)
def test_exported_modules_launch_what_torch_launches(name: str, lowering_options: Options) -> None:
    lowered = lower(read_model(_FOLDER / f"{name}.onnx").bind(), lowering_options("torch"))
    found = [kernel.name.rpartition(".")[2] for step in lowered.steps for kernel in step.kernels]
    assert sorted(found) == sorted(_KERNELS[name])


def test_a_convolution_without_batchnorm_stays_one(lowering_options: Options) -> None:
    """``<weight>.bias`` and a plain name are no sign of a folded BatchNorm."""
    graph = read_model(_FOLDER / "conv_norm_relu.dynamo.onnx").bind()
    (convolution,) = (op for op in graph.operators if op.op_type == "Conv")
    assert folded_batchnorm(convolution)
    assert not folded_batchnorm(replace(convolution, name="node_conv2d"))


def test_a_linear_on_a_transposed_tensor_adds_its_bias_apart(lowering_options: Options) -> None:
    """at::linear takes addmm for contiguous tensors alone: else a copy, a product and an addition."""
    lowered = lower(read_model(_FOLDER / "linear_transposed.dynamo.onnx").bind(), lowering_options("torch"))
    (step,) = (step for step in lowered.steps if step.op_type == "Linear")
    copy, product, addition = step.kernels
    assert (copy.name, product.name, addition.name) == ("copy.contiguous", "linear", "elementwise.add")
    rows, inner, outer = 2 * 16, 8, 4
    assert product.flops + addition.flops == rows * outer * (2 * inner + 1)
    assert product.read_bytes == 4 * (rows * inner + inner * outer)
    assert step.host_calls == 3
