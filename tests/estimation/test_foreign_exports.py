"""Forms that today's exporters give to models, each as a graph of a few nodes: found on the models of
``benchmarks/export_outsiders.py``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UnboundDimensionError
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.onnx_io import read_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, Shape]],
    outputs: Sequence[str],
    **weights: np.ndarray,
) -> Path:
    """Write a model of opset 18."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return what ``gkest inspect`` says of one model."""
    assert run(["inspect", *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)[0]


# --- normalisations that the exporter folded ----------------------------------------------------------------------


def convolution(path: Path, *, weight: str, bias: str | None, name: str, result: str) -> Path:
    """Write one convolution under the names that an exporter gives."""
    weights = {weight: np.ones((8, 3, 3, 3), np.float32)}
    if bias is not None:
        weights[bias] = np.ones(8, np.float32)
    node = helper.make_node("Conv", ["x", *weights], [result], name=name)
    return save(path, [node], {"x": (FLOAT, ["batch", 3, 16, 16])}, [result], **weights)


def torch_row(path: Path) -> Any:
    return gkestimator.estimate([path], gpus=["V100"], runtime="torch").iloc[0]


@pytest.mark.parametrize("bias", ["conv1.weight_bias", None])
def test_torch_export_leaves_a_folded_batchnorm_without_bias_where_all_shifts_are_zero(
    tmp_path: Path, bias: str | None
) -> None:
    """Networks before training are exported so: torch runs their normalisations as it does after it."""
    row = torch_row(
        convolution(
            tmp_path / "a.onnx", weight="conv1.weight", bias=bias, name="node_Conv_1", result="getitem"
        )
    )
    assert row.kernels == 2
    assert "BatchNorms that the exporter folded into 1 of the convolutions" in row.warnings
    plain = torch_row(
        convolution(
            tmp_path / "b.onnx", weight="conv1.weight", bias=None, name="node_conv2d", result="conv2d"
        )
    )
    assert plain.kernels == 1


def test_a_convolution_whose_weight_alone_is_new_had_no_batchnorm(tmp_path: Path) -> None:
    """The TorchScript exporter evaluates weight_norm and renames the weight, not the bias."""
    path = convolution(
        tmp_path / "a.onnx", weight="onnx::Conv_17", bias="conv.bias", name="/conv/Conv", result="y"
    )
    assert "BatchNorm" not in torch_row(path).warnings


# --- decoders with their past -------------------------------------------------------------------------------------


def decoder(path: Path, layers: int = 3) -> Path:
    """Write what stands for a decoding step: a token, a mask, keys and values of before, named as optimum does."""
    past: Shape = ["batch", 2, "past_sequence_length", 4]
    keys = [f"past_key_values.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    presents = [key.replace("past_key_values", "present") for key in keys]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["logits"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=FLOAT),
        *(helper.make_node("Relu", [key], [present]) for key, present in zip(keys, presents, strict=True)),
    ]
    inputs: dict[str, tuple[int, Shape]] = {
        "input_ids": (INT64, ["batch", "sequence_length"]),
        "attention_mask": (INT64, ["batch", "past_sequence_length + sequence_length"]),
        **dict.fromkeys(keys, (FLOAT, past)),
    }
    return save(path, nodes, inputs, ["logits", "mask", *presents], table=np.ones((10, 4), np.float32))


def test_a_dimension_that_is_a_sum_of_others_follows_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = decoder(tmp_path / "decoder.onnx")
    model = read_model(path)
    bound = model.bind(dims={"sequence_length": 2, "past_sequence_length": 7})
    assert dict(bound.dims)["past_sequence_length + sequence_length"] == 9
    said = model.bind(
        dims={
            "sequence_length": 2,
            "past_sequence_length": 7,
            "past_sequence_length + sequence_length": 64,
        }
    )
    assert dict(said.dims)["past_sequence_length + sequence_length"] == 64, "a number that is given holds"
    with pytest.raises(UnboundDimensionError, match="past_sequence_length"):
        model.bind(dims={"sequence_length": 2})
    asked = inspected(capsys, str(path))
    derived = {dimension["name"]: dimension["derived"] for dimension in asked["dimensions"]}
    assert derived == {
        "sequence_length": False,
        "past_sequence_length": False,
        "past_sequence_length + sequence_length": True,
    }
    assert run(["inspect", str(path)]) == 0
    next_line = capsys.readouterr().out.splitlines()[-1]
    assert next_line.endswith("--dim sequence_length=... --dim past_sequence_length=...")


@pytest.mark.parametrize(
    "name",
    ["past.length", "past - ", "f(past)", "past ** 2", "(" * 300, "past + other", "past // 0", "1.5*past"],
)
def test_other_names_are_names(tmp_path: Path, name: str) -> None:
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    mask = helper.make_node("Relu", ["mask"], ["z"])
    inputs: dict[str, tuple[int, Shape]] = {"x": (FLOAT, ["batch", "past"]), "mask": (FLOAT, ["batch", name])}
    model = read_model(save(tmp_path / "a.onnx", [node, mask], inputs, ["y", "z"]))
    assert model.derived_dims == ()
    with pytest.raises(UnboundDimensionError):
        model.bind(dims={"past": 3})


def test_a_row_says_which_pass_of_a_language_model_it_is(tmp_path: Path) -> None:
    path = decoder(tmp_path / "decoder.onnx")
    for past, words in ((7, "one pass over 1 token after a past of 7 (decoding step)"), (0, "(prefill)")):
        dims = {"sequence_length": 1, "past_sequence_length": past}
        row = gkestimator.estimate([path], gpus=["V100"], dims=dims).iloc[0]
        assert words in row.warnings


def test_alike_inputs_stand_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(decoder(tmp_path / "decoder.onnx", layers=32))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 16
    assert (
        "  input       past_key_values.0.key to past_key_values.31.value (64 inputs): "
        "float [batch, 2, past_sequence_length, 4]" in lines
    )
    assert "  output      logits, mask and 64 more up to present.31.value" in lines


# --- counts -------------------------------------------------------------------------------------------------------


def test_weights_of_four_bits_are_counted_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=64, N=16, bits=4, block_size=32
    )
    weights = {"w": np.zeros((16, 2, 16), np.uint8), "s": np.ones(32, np.float32)}
    path = save(tmp_path / "a.onnx", [node], {"x": (FLOAT, ["batch", 64])}, ["y"], **weights)
    said = inspected(capsys, str(path))
    assert said["parameters"] == 64 * 16 + 32
    assert said["parameter_bytes"] == 64 * 16 // 2 + 4 * 32
    assert said["opset"] == 18


def test_work_that_depends_on_data_is_said_to_be_a_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Cast", ["at"], ["places"], to=FLOAT),
        helper.make_node("Relu", ["places"], ["y"]),
    ]
    path = save(tmp_path / "a.onnx", nodes, {"x": (FLOAT, ["batch", 64])}, ["y"])
    assert inspected(capsys, str(path))["at_most"]
    assert run(["inspect", str(path)]) == 0
    assert "at most " in capsys.readouterr().out


def test_a_second_batch_dimension_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [name], [f"{name}_out"]) for name in ("texts", "images")]
    inputs: dict[str, tuple[int, Shape]] = {
        "texts": (FLOAT, ["text_batch_size", 8]),
        "images": (FLOAT, ["image_batch_size", 8]),
    }
    model = read_model(save(tmp_path / "a.onnx", nodes, inputs, ["texts_out", "images_out"]))
    assert model.batch_dim == "text_batch_size"
    assert "image_batch_size is a dimension of its own" in model.batch_reason


# --- quantised files ----------------------------------------------------------------------------------------------


def pairs(path: Path, *, given_out: bool = False) -> Path:
    """Write a convolution as quantize_static leaves one that a BatchNorm had been folded into. ``given_out``: what it
    reads is an output in 8 bits, too."""
    weight = "onnx::Conv_538_quantized"
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", [weight, "s", "z"], ["onnx::Conv_538_DequantizeLinear_Output"]),
        helper.make_node("Conv", ["xd", "onnx::Conv_538_DequantizeLinear_Output", "onnx::Conv_539"], ["y"]),
    ]
    weights = {
        "s": np.float32(0.1),
        "z": np.int8(0),
        weight: np.ones((8, 3, 3, 3), np.int8),
        "onnx::Conv_539": np.ones(8, np.float32),
    }
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    outputs = ["y", "xq"] if given_out else ["y"]
    return save(path, nodes, {"x": (FLOAT, ["batch", 3, 16, 16])}, outputs, **arrays)


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_pairs_are_said_to_calculate_in_floats(tmp_path: Path, runtime: str) -> None:
    """The row's dtype is fp32, which nobody who quantised a file expects."""
    row = gkestimator.estimate([pairs(tmp_path / "a.onnx")], gpus=["V100"], runtime=runtime).iloc[0]
    assert row["dtype"] == "fp32"
    assert f"quantised in pairs (QuantizeLinear, DequantizeLinear): {runtime} calculates" in row.warnings
    assert "BatchNorm" not in row.warnings


@pytest.mark.parametrize("runtime", [name for name, traits in RUNTIMES.items() if traits.permits])
def test_pairs_are_8_bits_to_a_compiler(tmp_path: Path, runtime: str) -> None:
    path = pairs(tmp_path / "a.onnx", given_out=True)
    row = gkestimator.estimate([path], gpus=["T4"], runtime=runtime, dtype="int8").iloc[0]
    assert "in floats" not in row.warnings


def test_what_quantises_as_it_runs_has_no_gpu_kernel_in_onnxruntime(tmp_path: Path) -> None:
    """Checked in libonnxruntime_providers_cuda.so of onnxruntime-gpu 1.31.1: the name is not in it."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    path = save(tmp_path / "a.onnx", nodes, {"x": (FLOAT, ["batch", 64])}, ["y"])
    row = gkestimator.estimate([path], gpus=["V100"], runtime="onnxruntime").iloc[0]
    assert "onnxruntime has no GPU kernel for DynamicQuantizeLinear" in row.warnings
