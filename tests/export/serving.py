"""What the tests of Ray Serve and Triton share: deployments, and small networks with real weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gkestimator.exporting.deployment import Deployment, Instance
from gkestimator.hardware.gpus import gpu_catalogue

V100 = "V100-SXM2-16GB"
MIB = 2**20


def instance(model: str = "resnet50", **fields: Any) -> Instance:
    """A replica on the first V100, every field known."""
    spec = gpu_catalogue().spec(fields.get("gpu_type", V100))
    size, percent = fields.pop("mreq_bytes", 2000 * MIB), fields.pop("mreq_pct", None)
    if size is None and percent is not None:
        size = math.ceil(percent / 100 * spec.memory_visible_bytes)
    if percent is None and size is not None:
        percent = 100 * size / spec.memory_visible_bytes
    known: dict[str, Any] = {
        "id": f"{model}-0",
        "model": model,
        "gpu_id": f"{spec.name}-0",
        "gpu_type": spec.name,
        "runtime": "onnxruntime",
        "dtype": "auto",
        "dims": "",
        "batch_size": 8,
        "sm_share_pct": 100.0,
        "partition": None,
        "latency_ms": 12.5,
        "slo_ms": 100.0,
        "max_wait_ms": 40.0,
        "goodput_rps": 300.0,
        "creq_pct": 31.234,
        "mreq_bytes": size,
        "mreq_pct": percent,
    }
    return Instance(**known | fields)


def deployment(instances: Sequence[Instance], **fields: Any) -> Deployment:
    specs = {i.gpu_type: gpu_catalogue().spec(i.gpu_type) for i in instances}
    known: dict[str, Any] = {
        "origin": "plan",
        "source": "plan.json",
        "creq": "sm-util-mean",
        "instances": tuple(instances),
        "specs": specs,
        "models": {},
    }
    return Deployment(**known | fields)


def network(path: Path, *, batch: str | int = "N", sides: int | None = 8, seed: int = 0) -> Path:
    """A small image classifier: convolution, pooling, a product; its weights are drawn by ``seed``. ``sides`` of its
    images, None: any."""
    draw = np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((draw.standard_normal(shape) / 3).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["scores"]),
    ]
    weights = [weight("w1", 6, 3, 3, 3), weight("b1", 6), weight("w2", 6, 5), weight("b2", 5)]
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, sides or "H", sides or "W"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 5])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def slow_network(path: Path, *, layers: int = 8, channels: int = 64, side: int = 32) -> Path:
    """A network of few inputs, whose convolutions take milliseconds a sample on a CPU (0.6 GFLOP with the usual sizes)."""
    draw = np.random.default_rng(0)
    weight = numpy_helper.from_array(
        (draw.standard_normal((channels, channels, 3, 3)) / (3 * channels**0.5)).astype(np.float32), "w"
    )
    spread = numpy_helper.from_array(np.ones((1, channels, side, side), np.float32), "spread")
    corner = numpy_helper.from_array(np.array([0, 1, 1, 1], np.int64), "corner")
    nodes = [
        helper.make_node("Reshape", ["x", "corner"], ["r"]),
        helper.make_node("Mul", ["r", "spread"], ["c0"]),
    ]
    for n in range(layers):
        nodes.append(helper.make_node("Conv", [f"c{n}", "w"], [f"c{n + 1}"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("GlobalAveragePool", [f"c{layers}"], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", channels])]
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, [weight, spread, corner])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def two_outputs(path: Path) -> Path:
    """One output by sample, one with the time first."""
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Transpose", ["x"], ["state"])]
    outputs = [("y", ["N", 6]), ("state", [6, "N"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def with_weights(path: Path, *, seed: int = 0) -> None:
    """Give the model at ``path``, which comes without, weights: matrices and kernels are drawn with the variance that keeps
    activations as large as they are (He et al. 2015), vectors are ones."""
    draw = np.random.default_rng(seed)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
        assert dtype == np.float32, (tensor.name, dtype)
        if len(shape) > 1:
            inputs = shape[0] if len(shape) == 2 else math.prod(shape[1:])
            values = draw.standard_normal(shape, dtype=np.float32) * math.sqrt(2 / inputs)
        else:
            values = np.ones(shape, np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    onnx.save(model, path)
