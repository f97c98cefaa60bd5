"""Rebuild the ONNX graphs of which public engines show the layers, node names as the exporters gave them.

torch's old exporter names nodes by their type and place (``Conv_5``), constants counted; its networks trained for
quantisation (QAT) hold a pair QuantizeLinear, DequantizeLinear before every input and weight of a convolution. tf2onnx
keeps TensorFlow's names and writes the shortcut's convolution after the main branch. Weights hold no values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gkestimator.onnx_io.demo_models import BOTTLENECKS


class Network:
    """Collect the nodes of one graph; nodes are numbered as torch's exporter does unless a name is given."""

    def __init__(self, batch: int, shape: Sequence[int]) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._input = helper.make_tensor_value_info("input", TensorProto.FLOAT, (batch, *shape))
        self._batch = batch
        self.next = 0  # the number of the next node

    def node(
        self, op_type: str, *inputs: str, name: str = "", constants: int = 0, **attributes: object
    ) -> str:
        """Add a node with one result and return its name, which is that of its result too; ``constants`` are nodes that the
        exporter wrote before it.
        """
        self.next += constants
        name = name or f"{op_type}_{self.next}"
        self.next += 1
        self._nodes.append(helper.make_node(op_type, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        """Add a weight without values."""
        tensor = TensorProto(name=name, dims=shape, data_type=dtype)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent")
        self._initializers.append(tensor)
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add a small constant."""
        self._initializers.append(numpy_helper.from_array(values, name))
        return name

    def quantised(self, value: str, *, name: str = "", constants: tuple[int, int] = (2, 0)) -> str:
        """Return ``value`` behind QuantizeLinear and DequantizeLinear; ``constants`` are the numbers of nodes that the
        exporter wrote before either.
        """
        key = name or f"q{self.next}"
        scale = self.constant(f"{key}/scale", np.array(0.1, np.float32))
        zero = self.constant(f"{key}/zero", np.array(0, np.int8))
        low = self.node("QuantizeLinear", value, scale, zero, name=name, constants=constants[0])
        behind = f"{name}/back" if name else ""
        return self.node("DequantizeLinear", low, scale, zero, name=behind, constants=constants[1])

    def quantised_weight(self, name: str, *shape: int, channels: bool = True, before: int = 0) -> str:
        """Return a weight in 8 bits behind DequantizeLinear, by channel or as a whole.

        The exporter wrote ``before`` other nodes for it, a QuantizeLinear among them, which no engine runs.
        """
        many = (shape[0],) if channels else ()
        scale = self.constant(f"{name}/scale", np.full(many, 0.1, np.float32))
        zero = self.constant(f"{name}/zero", np.zeros(many, np.int8))
        weight = self.weight(name, *shape, dtype=TensorProto.INT8)
        attributes = {"axis": 0} if channels else {}
        self.next += before
        return self.node("DequantizeLinear", weight, scale, zero, name=f"{name}/back", **attributes)

    def scaled(self, value: str, channels: int, *, name: str = "") -> str:
        """Return ``value`` behind a BatchNormalization."""
        parameters = [
            self.weight(f"bn{self.next}/{part}", channels) for part in ("scale", "shift", "mean", "variance")
        ]
        return self.node("BatchNormalization", value, *parameters, name=name)

    def model(self, result: str) -> onnx.ModelProto:
        """Return the model whose output is ``result``."""
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, (self._batch, 1000))
        graph = helper.make_graph(
            self._nodes, "network", [self._input], [output], initializer=self._initializers
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


class _Torch(Network):
    """Add what torch's exporter writes for a layer, with or without quantisation.

    ``residual`` says that shortcuts are quantised too, ``apart`` that a pair's constants are written for each of its nodes
    (a later exporter).
    """

    def __init__(self, batch: int, *, qat: bool, residual: bool = False, apart: bool = False) -> None:
        super().__init__(batch, (3, 224, 224))
        self.qat = qat
        self.residual = residual
        self._pair = (2, 2) if apart else (2, 0)
        self._before_weight = 5 if apart else 4

    def conv(self, value: str, shape: tuple[int, int], kernel: int, stride: int = 1, groups: int = 1) -> str:
        """Return the convolution of ``value`` from and to ``shape`` channels, and its BatchNorm where that is not folded."""
        source, channels = shape
        before = self.next
        sizes = (channels, source // groups, kernel, kernel)
        attributes = {
            "kernel_shape": [kernel] * 2,
            "strides": [stride] * 2,
            "pads": [kernel // 2] * 4,
            "group": groups,
        }
        if not self.qat:
            weight = self.weight(f"w{before}", *sizes)
            return self.node("Conv", value, weight, self.weight(f"b{before}", channels), **attributes)
        value = self.quantised(value, constants=self._pair)
        weight = self.quantised_weight(f"w{before}", *sizes, before=self._before_weight)
        return self.scaled(self.node("Conv", value, weight, **attributes), channels)

    def shortcut(self, value: str) -> str:
        """Return what a block adds: quantised where shortcuts are, for which the exporter wrote six nodes."""
        if self.residual:
            return self.quantised(value, constants=(4, 0))
        return value

    def linear(self, value: str, width: int) -> str:
        """Return the classifier."""
        if self.qat:
            value = self.quantised(value, constants=self._pair)
            weight = self.quantised_weight("fc.weight", 1000, width, before=self._before_weight)
        else:
            weight = self.weight("fc.weight", 1000, width)
        return self.node("Gemm", value, weight, self.weight("fc.bias", 1000), transB=1)


def torch_resnet18(
    batch: int, *, qat: bool = False, residual: bool = False, pooling: bool = False
) -> onnx.ModelProto:
    """Return torchvision's ResNet-18; ``pooling``: what is pooled last is quantised too."""
    net = _Torch(batch, qat=qat, residual=residual)
    value = net.node("Relu", net.conv("input", (3, 64), 7, 2))
    value = net.node("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            shortcut = value
            value = net.node("Relu", net.conv(value, (width, channels), 3, stride))
            value = net.conv(value, (channels, channels), 3)
            if stride == 2:
                shortcut = net.conv(shortcut, (width, channels), 1, 2)
            value = net.node("Relu", net.node("Add", value, net.shortcut(shortcut)))
            width = channels
    if pooling:
        value = net.quantised(value, constants=(4, 0))
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    return net.model(net.linear(value, width))


def torch_mobilenet(*, residual: bool, apart: bool) -> onnx.ModelProto:
    """Return torchvision's MobileNet v2, trained for quantisation."""
    net = _Torch(1, qat=True, residual=residual, apart=apart)
    low = net.constant("low", np.array(0, np.float32))
    high = net.constant("high", np.array(6, np.float32))

    def clipped(value: str) -> str:
        return net.node("Clip", value, low, high, constants=2)

    value = clipped(net.conv("input", (3, 32), 3, 2))
    width = 32
    for expansion, channels, count, first_stride in BOTTLENECKS:
        for block in range(count):
            stride = 1 if block else first_stride
            adds = stride == 1 and width == channels
            shortcut = net.shortcut(value) if adds else ""
            hidden = width * expansion
            inner = value
            if expansion > 1:
                inner = clipped(net.conv(inner, (width, hidden), 1))
            inner = clipped(net.conv(inner, (hidden, hidden), 3, stride, hidden))
            value = net.conv(inner, (hidden, channels), 1)
            if adds:
                value = net.node("Add", shortcut, value)
            width = channels
    value = clipped(net.conv(value, (width, 1280), 1))
    value = net.node("GlobalAveragePool", value)
    value = net.node("Flatten", value, constants=7 if apart else 6)
    return net.model(net.linear(value, 1280))


def tensorflow_resnet50(batch: int, *, qat: bool) -> onnx.ModelProto:
    """Return Keras' ResNet-50 as tf2onnx writes it: images in NHWC, a transposition first, padding apart."""
    return _Keras(batch, qat).network()


class _Keras:
    """Build ResNet-50 with TensorFlow's names."""

    def __init__(self, batch: int, qat: bool) -> None:
        self.net = Network(batch, (224, 224, 3))
        self.qat = qat
        self._pads = self.net.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
        self._sizes = 0

    def conv(self, name: str, value: str, shape: tuple[int, int], kernel: int, stride: int = 1) -> str:
        """Return a convolution whose BatchNorm the exporter folded (and, with quantisation, did not)."""
        net = self.net
        source, channels = shape
        sizes = (channels, source, kernel, kernel)
        same = kernel // 2 if kernel < 7 else 0
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [same] * 4}
        if self.qat:
            value = net.quantised(value, name=f"{name}/q")
            weight = net.quantised_weight(f"{name}/weight", *sizes)
        else:
            weight = net.weight(f"{name}/weight", *sizes)
        return net.node("Conv", value, weight, net.weight(f"{name}/bias", channels), name=name, **attributes)

    def _stem(self) -> str:
        net = self.net
        if not self.qat:
            value = net.node("Transpose", "input", name="resnet50/conv1_conv/Conv2D__6", perm=[0, 3, 1, 2])
            weight = net.weight("stem/weight", 64, 3, 7, 7)
            attributes = {"kernel_shape": [7, 7], "strides": [2, 2], "pads": [3] * 4}
            value = net.node(
                "Conv", value, weight, net.weight("stem/bias", 64), name="Conv__435", **attributes
            )
        else:
            pads = net.constant("pads1", np.array([0, 3, 3, 0, 0, 3, 3, 0], np.int64))
            value = net.node("Pad", "input", pads, name="resnet50/conv1_pad/Pad")
            value = net.quantised(value, name="QuantLinearNode__838")
            value = net.node(
                "Transpose", value, name="resnet50/quant_conv1_conv/BiasAdd__1121", perm=[0, 3, 1, 2]
            )
            weight = net.quantised_weight("stem/weight", 64, 3, 7, 7)
            bias = net.weight("stem/bias", 64)
            attributes = {"kernel_shape": [7, 7], "strides": [2, 2]}
            value = net.node(
                "Conv", value, weight, bias, name="resnet50/quant_conv1_conv/BiasAdd", **attributes
            )
        value = net.node("Relu", value, name="resnet50/conv1_relu/Relu")
        value = net.node("Pad", value, self._pads, name="resnet50/pool1_pad/Pad")
        if self.qat:
            value = net.quantised(value, name="pool1/q")
        return net.node(
            "MaxPool", value, name="resnet50/pool1_pool/MaxPool", kernel_shape=[3, 3], strides=[2, 2]
        )

    def network(self) -> onnx.ModelProto:
        """Return the model."""
        net = self.net
        value = self._stem()
        width = 64
        word = "quant_" if self.qat else ""
        for stage, (channels, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
            for block in range(1, count + 1):
                value = self._block(
                    value, f"conv{stage}_block{block}", (width, channels), first=block == 1, stage=stage
                )
                width = 4 * channels
        if self.qat:
            value = net.quantised(value, name="avg_pool/q")
        value = net.node("GlobalAveragePool", value, name=f"resnet50/{word}avg_pool/Mean")
        value = net.node("Flatten", value, name="flat")
        bias = net.weight("fc/bias", 1000)
        if self.qat:
            value = net.quantised(value, name="fc/q")
            weight = net.quantised_weight("fc/weight", 2048, 1000, channels=False)
            value = net.node("MatMul", value, weight, name="resnet50/quant_predictions/MatMul")
            value = net.node("Add", value, bias, name="resnet50/quant_predictions/BiasAdd")
        else:
            weight = net.weight("fc/weight", 2048, 1000)
            value = net.node("Gemm", value, weight, bias, name="resnet50/predictions/MatMul")
        return net.model(net.node("Softmax", value, name=f"resnet50/{word}predictions/Softmax"))

    def _block(self, value: str, name: str, shape: tuple[int, int], *, first: bool, stage: int) -> str:
        width, channels = shape
        net = self.net
        word = "quant_" if self.qat else ""
        stride = 2 if first and stage > 2 else 1
        path = f"resnet50/{word}{name}"
        inner = self.conv(f"{path}_1_conv/Conv2D", value, (width, channels), 1, stride)
        inner = net.node("Relu", inner, name=f"resnet50/{name}_1_relu/Relu")
        inner = self.conv(f"{path}_2_conv/Conv2D", inner, (channels, channels), 3)
        inner = net.node("Relu", inner, name=f"resnet50/{name}_2_relu/Relu")
        inner = self.conv(f"{path}_3_conv/Conv2D", inner, (channels, 4 * channels), 1)
        shortcut = value
        if first:
            shortcut = self.conv(f"{path}_0_conv/Conv2D", value, (width, 4 * channels), 1, stride)
        if self.qat:
            shortcut = net.quantised(shortcut, name=f"{path}_add/q")
        value = net.node("Add", shortcut, inner, name=f"{path}_add/add")
        return net.node("Relu", value, name=f"resnet50/{name}_out/Relu")
