"""ResNet-50 as an ONNX file: the real network, so that the first thing a newcomer sees is a real estimate."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import OutputError

RESNET50_PARAMETERS = 25_557_032
"""Trainable parameters: He et al. 2016, table 1, as torchvision counts them (the stride in the 3x3
convolution)."""

_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride of the first block
_EXPANSION = 4
_EPSILON = 1e-5


class _Builder:
    """Nodes and initializers in the making. Every weight is float32 and lies in the data file at offset 0:
    the file is as long as the largest weight, all zeros, and shared by all of them (weights need not be
    told apart to be counted)."""

    def __init__(self, location: str) -> None:
        from onnx import TensorProto, helper

        self.helper = helper
        self.types = TensorProto
        self.location = location
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.largest_bytes = 0

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Declare a weight whose values lie in the data file."""
        size = 4 * math.prod(shape)
        tensor = self.types(
            name=name, data_type=self.types.FLOAT, dims=shape, data_location=self.types.EXTERNAL
        )
        for key, value in (("location", self.location), ("offset", "0"), ("length", str(size))):
            entry = tensor.external_data.add()
            entry.key = key
            entry.value = value
        self.initializers.append(tensor)
        self.largest_bytes = max(self.largest_bytes, size)
        return name

    def node(self, op_type: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node with one output, which has the node's name."""
        self.nodes.append(
            self.helper.make_node(op_type, list(inputs), [f"{name}_out"], name=name, **attributes)
        )
        return f"{name}_out"

    def convolution(
        self, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int, *, relu: bool
    ) -> str:
        """Convolution without bias, batch normalisation, and a ReLU where ``relu`` says so."""
        inside, outside = channels
        pad = kernel // 2
        weight = self.weight(f"{name}.weight", (outside, inside, kernel, kernel))
        y = self.node(
            "Conv",
            f"{name}/Conv",
            (x, weight),
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            dilations=[1, 1],
            group=1,
        )
        statistics = [
            self.weight(f"{name}.bn.{part}", (outside,)) for part in ("scale", "bias", "mean", "var")
        ]
        y = self.node("BatchNormalization", f"{name}/BatchNormalization", (y, *statistics), epsilon=_EPSILON)
        if relu:
            return self.node("Relu", f"{name}/Relu", (y,))
        return y


def _body(build: _Builder) -> None:
    x = build.convolution("input", "conv1", (3, 64), 7, 2, relu=True)
    x = build.node("MaxPool", "maxpool", (x,), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inside = 64
    for number, (blocks, width, first_stride) in enumerate(_STAGES, start=1):
        outside = width * _EXPANSION
        for block in range(blocks):
            name = f"layer{number}.{block}"
            if block == 0:
                stride = first_stride
            else:
                stride = 1
            y = build.convolution(x, f"{name}.conv1", (inside, width), 1, 1, relu=True)
            y = build.convolution(y, f"{name}.conv2", (width, width), 3, stride, relu=True)
            y = build.convolution(y, f"{name}.conv3", (width, outside), 1, 1, relu=False)
            if block == 0:
                x = build.convolution(x, f"{name}.downsample", (inside, outside), 1, stride, relu=False)
            x = build.node("Relu", f"{name}/Relu", (build.node("Add", f"{name}/Add", (y, x)),))
            inside = outside
    x = build.node("GlobalAveragePool", "avgpool", (x,))
    x = build.node("Flatten", "flatten", (x,), axis=1)
    weight = build.weight("fc.weight", (1000, inside))
    bias = build.weight("fc.bias", (1000,))
    build.nodes.append(
        build.helper.make_node(
            "Gemm", [x, weight, bias], ["output"], name="fc/Gemm", alpha=1.0, beta=1.0, transB=1
        )
    )


def write_resnet50(folder: Path) -> Path:
    """Write ``resnet50.onnx`` (opset 17, input ``[N, 3, 224, 224]``) and ``resnet50.onnx.data`` into
    ``folder``.

    The model is complete: ONNX's checker accepts it and a runtime loads it (its weights are zeros). The data
    file is 9.4 MB long and takes no room on file systems with sparse files. Returns the path of the model;
    raises OutputError.
    """
    import onnx

    path = folder / "resnet50.onnx"
    data = folder / "resnet50.onnx.data"
    build = _Builder(data.name)
    _body(build)
    helper = build.helper
    float32 = build.types.FLOAT
    graph = helper.make_graph(
        build.nodes,
        "resnet50",
        [helper.make_tensor_value_info("input", float32, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("output", float32, ["N", 1000])],
        initializer=build.initializers,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="gkestimator", ir_version=8
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(data, "wb") as stream:
            os.truncate(stream.fileno(), build.largest_bytes)
        path.write_bytes(onnx.ModelProto.SerializeToString(model))
    except OSError as e:
        raise OutputError(f"{folder}: the model cannot be written: {e.strerror or e}") from e
    return path
