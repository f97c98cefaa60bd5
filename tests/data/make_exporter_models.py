"""Writes tests/data/exporters: small models as several exporters, optimisers and quantisers write them.

Run by hand with torch, onnxscript and onnxruntime installed (``python tests/data/make_exporter_models.py``); the files
are committed, some kilobytes each, so that the tests need none of these. Weights are zeros or of a fixed seed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from onnxruntime.transformers import float16
from onnxscript import FLOAT, opset18, script
from onnxscript.values import Opset
from torch import nn

FOLDER = Path(__file__).parent / "exporters"
MOST_BYTES = 60_000
OWN = Opset("tests.functions", 1)


# --- onnxscript: functions that call functions, with attributes ---------------------------------------------------


@script(OWN)
def scaled_gelu(x, scale: float):  # type: ignore[no-untyped-def]
    """0.5 x (1 + erf(x / sqrt 2)), scaled."""
    half = opset18.Constant(value_float=0.5)
    root = opset18.Constant(value_float=0.70710678)
    one = opset18.Constant(value_float=1.0)
    by = opset18.Constant(value_float=scale)
    return opset18.Mul(
        opset18.Mul(opset18.Mul(x, half), opset18.Add(opset18.Erf(opset18.Mul(x, root)), one)), by
    )


@script(OWN)
def feed_forward(x, up, down, scale: float):  # type: ignore[no-untyped-def]
    """Two products around the activation."""
    return opset18.MatMul(scaled_gelu(opset18.MatMul(x, up), scale=scale), down)


TOKENS = FLOAT["N", "tokens", 16]


@script()
def two_blocks(x: TOKENS, up: FLOAT[16, 64], down: FLOAT[64, 16]) -> TOKENS:  # type: ignore[valid-type]
    """Residual feed-forward blocks that share their weights."""
    a = opset18.Add(x, feed_forward(x, up, down, scale=1.0))
    return opset18.Add(a, feed_forward(a, up, down, scale=0.5))


# --- torch --------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A transformer block in the form that ONNX Runtime's optimiser knows from BERT exports."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], 4, 4).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / 2.0, dim=-1)
        mixed = torch.matmul(scores, v).permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.first(x + self.o(mixed))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Vision(nn.Module):
    """Convolution, BatchNorm, ReLU, residual, pooling, classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.a(x)))
        y = torch.relu(self.b(y) + y)
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1))


class Recurrent(nn.Module):
    """One LSTM layer and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.lstm(x)
        return self.head(y)


class Looping(nn.Module):
    """Python control flow that torch.jit.script keeps: a loop over an input's length and a branch on data."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0]
        for i in range(1, x.size(1)):
            state = torch.tanh(self.step(state)) + x[:, i]
        if bool(state.sum() > 0):
            return torch.relu(state)
        return -state


def torch_export(
    module: nn.Module,
    example: torch.Tensor,
    axes: Sequence[str | None],
    *,
    opset: int = 17,
    scripted: bool = False,
) -> onnx.ModelProto:
    torch.manual_seed(7)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "m.onnx")
        dynamic = {"x": {i: name for i, name in enumerate(axes) if name}}
        target = torch.jit.script(module.eval()) if scripted else module.eval()
        torch.onnx.export(
            target, (example,), path, input_names=["x"], output_names=["y"], dynamic_axes=dynamic,
            opset_version=opset, dynamo=False,
        )  # fmt: skip
        return onnx.load(path)


# --- onnxruntime: optimiser, quantiser, float16 -------------------------------------------------------------------


def optimised(model: onnx.ModelProto, level: str) -> onnx.ModelProto:
    """``model`` as ONNX Runtime's graph optimiser leaves it for its CPU provider."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(Path(folder) / "o.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


class _Data(quantization.CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(7)
        self.left: Iterator[dict[str, np.ndarray]] = iter(
            [{"x": rng.standard_normal(shape, dtype=np.float32)} for _ in range(2)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def quantised(model: onnx.ModelProto, how: str, shape: tuple[int, ...] = ()) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "f.onnx", Path(folder) / "q.onnx"
        onnx.save(model, source)
        if how == "dynamic":
            quantization.quantize_dynamic(source, target)
        else:
            form = getattr(quantization.QuantFormat, how)
            types = {
                "activation_type": quantization.QuantType.QUInt8,
                "weight_type": quantization.QuantType.QInt8,
            }
            quantization.quantize_static(source, target, _Data(shape), quant_format=form, **types)
        return onnx.load(target)


# --- by hand: what converters for other frameworks write ----------------------------------------------------------


def tensorflow_style() -> onnx.ModelProto:
    """tf2onnx at opset 9: NHWC inputs, transposes, names with colons, Upsample, Pad and Slice by attributes."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    node = helper.make_node
    nodes = [
        node("Transpose", ["image:0"], ["conv/nchw:0"], "conv/Transpose", perm=[0, 3, 1, 2]),
        node(
            "Pad", ["conv/nchw:0"], ["conv/pad:0"], "conv/Pad", mode="constant", pads=[0, 0, 0, 0, 0, 0, 1, 1]
        ),
        node(
            "Conv",
            ["conv/pad:0", "conv/kernel:0"],
            ["conv:0"],
            "conv/Conv2D",
            strides=[2, 2],
            kernel_shape=[3, 3],
        ),
        node(
            "BatchNormalization",
            ["conv:0", "g:0", "b:0", "m:0", "v:0"],
            ["bn:0"],
            "bn/FusedBatchNorm",
            epsilon=1e-3,
        ),
        node("Clip", ["bn:0"], ["relu6:0"], "Relu6", min=0.0, max=6.0),
        node("Upsample", ["relu6:0", "scales:0"], ["up:0"], "up/ResizeNearest", mode="nearest"),
        node("Slice", ["up:0"], ["crop:0"], "strided_slice", axes=[2, 3], starts=[0, 0], ends=[16, 16]),
        node("Transpose", ["crop:0"], ["nhwc:0"], "Transpose_1", perm=[0, 2, 3, 1]),
        node("ReduceMean", ["nhwc:0"], ["mean:0"], "Mean", axes=[1, 2], keepdims=0),
        node("MatMul", ["mean:0", "dense/kernel:0"], ["dense:0"], "dense/MatMul"),
        node("Add", ["dense:0", "dense/bias:0"], ["logits:0"], "dense/BiasAdd"),
        node("Softmax", ["logits:0"], ["Identity:0"], "Softmax", axis=1),
    ]
    weights = [
        weight("conv/kernel:0", 8, 3, 3, 3), weight("g:0", 8), weight("b:0", 8), weight("m:0", 8), weight("v:0", 8),
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales:0"), weight("dense/kernel:0", 8, 5),
        weight("dense/bias:0", 5),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "tf2onnx", [helper.make_tensor_value_info("image:0", TensorProto.FLOAT, ["unk__7", 32, 32, 3])],
        [helper.make_tensor_value_info("Identity:0", TensorProto.FLOAT, ["unk__8", 5])], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 9)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=4, producer_name="tf2onnx")


def sklearn_style() -> onnx.ModelProto:
    """skl2onnx at opset 9: scaler, linear classifier, probabilities as a list of maps."""
    node = helper.make_node
    nodes = [
        node("Scaler", ["x"], ["scaled"], "Scaler", domain="ai.onnx.ml", offset=[0.0] * 4, scale=[1.0] * 4),
        node(
            "LinearClassifier", ["scaled"], ["label", "raw"], "LinearClassifier", domain="ai.onnx.ml",
            coefficients=[0.5] * 12, intercepts=[0.0] * 3, classlabels_ints=[0, 1, 2], multi_class=1,
            post_transform="SOFTMAX",
        ),
        node("Normalizer", ["raw"], ["probabilities"], "Normalizer", domain="ai.onnx.ml", norm="L1"),
    ]  # fmt: skip
    out = [
        helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 3]),
    ]
    graph = helper.make_graph(
        nodes, "sklearn", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])], out
    )
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=4, producer_name="skl2onnx")


def scanning() -> onnx.ModelProto:
    """A Scan over time whose body is an Elman cell with outer-scope weights."""
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["h", "x_t"], ["hx"], axis=1),
            helper.make_node("MatMul", ["hx", "w"], ["z"]),
            helper.make_node("Tanh", ["z"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["y_t"]),
        ],
        "cell",
        [helper.make_tensor_value_info(n, 1, None) for n in ("h", "x_t")],
        [helper.make_tensor_value_info(n, 1, None) for n in ("h_next", "y_t")],
    )
    weight = numpy_helper.from_array(np.zeros((24, 16), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Scan", ["h0", "x"], ["h_last", "y"], num_scan_inputs=1, body=body)],
        "rnn",
        [
            helper.make_tensor_value_info("h0", 1, ["batch", 16]),
            helper.make_tensor_value_info("x", 1, [12, "batch", 8]),
        ],
        [helper.make_tensor_value_info("h_last", 1, None), helper.make_tensor_value_info("y", 1, None)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Name and model of every file."""
    yield "onnxscript_functions", two_blocks.to_model_proto()
    torch.manual_seed(7)
    encoder = torch_export(Encoder(), torch.zeros(2, 8, 16), ("N", "tokens", None))
    vision = torch_export(Vision(), torch.zeros(2, 3, 16, 16), ("N", None, None, None))
    recurrent = torch_export(Recurrent(), torch.zeros(5, 2, 8), (None, "N", None))
    yield "onnxruntime_optimised_encoder", optimised(encoder, "ORT_ENABLE_EXTENDED")
    yield "onnxruntime_optimised_vision", optimised(vision, "ORT_ENABLE_EXTENDED")
    yield "onnxruntime_layout_vision", optimised(vision, "ORT_ENABLE_ALL")
    yield "onnxruntime_qdq_vision", quantised(vision, "QDQ", (2, 3, 16, 16))
    yield "onnxruntime_qoperator_vision", quantised(vision, "QOperator", (2, 3, 16, 16))
    yield "onnxruntime_dynamic_encoder", quantised(encoder, "dynamic")
    yield "onnxruntime_dynamic_recurrent", quantised(recurrent, "dynamic")
    yield "float16_encoder", float16.convert_float_to_float16(encoder, keep_io_types=True)
    yield "torch_jit_loop", torch_export(Looping(), torch.zeros(2, 5, 8), ("N", None, None), scripted=True)
    yield "tensorflow_opset9", tensorflow_style()
    yield "sklearn_opset9", sklearn_style()
    yield "scan", scanning()


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, model in models():
        data = model.SerializeToString()
        if len(data) > MOST_BYTES:
            raise SystemExit(f"{name} has {len(data)} bytes, expected at most {MOST_BYTES}")
        (FOLDER / f"{name}.onnx").write_bytes(data)
        kinds = sorted({f"{n.domain}.{n.op_type}".lstrip(".") for n in model.graph.node})
        print(f"{name}: {len(data)} bytes, {', '.join(kinds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
