"""Build real networks as ONNX files, node by node: what a newcomer sees first is a real estimate."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import OutputError

RESNET50_PARAMETERS = 25_557_032
"""Trainable parameters: He et al. 2016, table 1, as torchvision counts them (the stride in the 3x3
convolution)."""

_STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride of the first block
_EXPANSION = 4
_EPSILON = 1e-5


class DemoGraph:
    """Hold nodes and initializers in the making.

    Every weight is float32 and lies in the data file at offset 0: the file is as long as the largest weight, all
    zeros, and shared by all of them (weights need not be told apart to be counted).
    """

    def __init__(self, name: str) -> None:
        from onnx import TensorProto, helper

        self.name = name
        self.helper = helper
        self.types = TensorProto
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.largest_bytes = 0

    def weight(self, name: str, *shape: int) -> str:
        """Declare a weight whose values lie in the data file."""
        size = 4 * math.prod(shape)
        tensor = self.types(
            name=name, data_type=self.types.FLOAT, dims=shape, data_location=self.types.EXTERNAL
        )
        for key, value in (("location", f"{self.name}.onnx.data"), ("offset", "0"), ("length", str(size))):
            entry = tensor.external_data.add()
            entry.key = key
            entry.value = value
        self.initializers.append(tensor)
        self.largest_bytes = max(self.largest_bytes, size)
        return name

    def constant(self, name: str, values: float | Sequence[int]) -> str:
        """Declare a float, or a list of integers, whose values lie in the model file."""
        if isinstance(values, float):
            tensor = self.helper.make_tensor(name, self.types.FLOAT, [], [values])
        else:
            tensor = self.helper.make_tensor(name, self.types.INT64, [len(values)], values)
        self.initializers.append(tensor)
        return name

    def node(self, op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output, which has the node's name."""
        self.nodes.append(self.helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def convolution(
        self, x: str, name: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1
    ) -> str:
        """Append a convolution without bias and its batch normalisation."""
        inside, outside = channels
        weight = self.weight(f"{name}.weight", outside, inside // group, kernel, kernel)
        y = self.node(
            "Conv",
            f"{name}/Conv",
            x,
            weight,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[kernel // 2] * 4,
            dilations=[1, 1],
            group=group,
        )
        statistics = [self.weight(f"{name}.bn.{part}", outside) for part in ("scale", "bias", "mean", "var")]
        return self.node("BatchNormalization", f"{name}/BatchNormalization", y, *statistics, epsilon=_EPSILON)

    def classifier(self, x: str, name: str, channels: int) -> None:
        """Append what ends a network on ImageNet: the mean over the image, and scores of 1,000 classes."""
        x = self.node("GlobalAveragePool", "avgpool", x)
        x = self.node("Flatten", "flatten", x, axis=1)
        weight = self.weight(f"{name}.weight", 1000, channels)
        self.node("Gemm", f"{name}/Gemm", x, weight, self.weight(f"{name}.bias", 1000), transB=1)

    def write(
        self, folder: Path, inputs: Mapping[str, tuple[int, Sequence[int | str]]], shape: Sequence[int | str]
    ) -> Path:
        """Write ``<name>.onnx`` (opset 17) and its data file into ``folder`` and return the model's path.

        ``inputs``: element type and shape by name. The last node's output, of float32 and ``shape``, is called
        ``output``. Raises OutputError.
        """
        helper = self.helper
        self.nodes[-1].output[0] = "output"
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info(name, *value) for name, value in inputs.items()],
            [helper.make_tensor_value_info("output", self.types.FLOAT, shape)],
            initializer=self.initializers,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="gkestimator", ir_version=8
        )
        path = folder / f"{self.name}.onnx"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / f"{self.name}.onnx.data", "wb") as stream:
                os.truncate(stream.fileno(), self.largest_bytes)
            path.write_bytes(model.SerializeToString())
        except OSError as e:
            raise OutputError(f"{folder}: the model cannot be written: {e.strerror or e}") from e
        return path

    def write_vision(self, folder: Path) -> Path:
        """Write a network that takes images of 224 x 224 pixels and scores 1,000 classes."""
        return self.write(folder, {"input": (self.types.FLOAT, ["N", 3, 224, 224])}, ["N", 1000])


def write_resnet50(folder: Path) -> Path:
    """Write ``resnet50.onnx`` (opset 17, input ``[N, 3, 224, 224]``) and ``resnet50.onnx.data`` into
    ``folder``.

    The model is complete: ONNX's checker accepts it and a runtime loads it (its weights are zeros). The data
    file is 9.4 MB long and takes no room on file systems with sparse files. Returns the path of the model;
    raises OutputError.
    """
    build = DemoGraph("resnet50")

    def unit(x: str, name: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        return build.node("Relu", f"{name}/Relu", build.convolution(x, name, channels, kernel, stride))

    x = unit("input", "conv1", (3, 64), 7, 2)
    x = build.node("MaxPool", "maxpool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inside = 64
    for number, (blocks, width, first_stride) in enumerate(_STAGES, start=1):
        outside = width * _EXPANSION
        for block in range(blocks):
            name = f"layer{number}.{block}"
            stride = first_stride if block == 0 else 1
            y = unit(x, f"{name}.conv1", (inside, width), 1)
            y = unit(y, f"{name}.conv2", (width, width), 3, stride)
            y = build.convolution(y, f"{name}.conv3", (width, outside), 1)
            if block == 0:
                x = build.convolution(x, f"{name}.downsample", (inside, outside), 1, stride)
            x = build.node("Relu", f"{name}/Relu", build.node("Add", f"{name}/Add", y, x))
            inside = outside
    build.classifier(x, "fc", inside)
    return build.write_vision(folder)
