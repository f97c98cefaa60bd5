"""The models of the golden set: real graphs that the onnx package ships, the demo's ResNet-50, and networks
generated here layer by layer, so that the set needs nothing but the repository and its requirements.

Weights are declared and absent (external data that is not there), which no estimate minds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.onnx_io.demo_models import write_mobilenet_v2

_LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet",
    "vgg19", "zfnet512",
)  # fmt: skip


class Graph:
    """Nodes, weights and integer constants in the making; activations are named by their node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []

    def weight(self, shape: Sequence[int]) -> str:
        """A float32 weight without values."""
        name = f"w{len(self.initializers)}"
        tensor = TensorProto(
            name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
        )
        pairs = (("location", "absent"), ("offset", "0"), ("length", str(4 * math.prod(shape))))
        for key, value in pairs:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        self.initializers.append(tensor)
        return name

    def constant(self, values: Sequence[int] | float) -> str:
        """A list of int64, or one float32."""
        name = f"c{len(self.initializers)}"
        if isinstance(values, float):
            tensor = helper.make_tensor(name, TensorProto.FLOAT, [], [values])
        else:
            tensor = helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values))
        self.initializers.append(tensor)
        return name

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; returns the name of its one output."""
        out = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [out], name=out, **attributes))
        return out

    def linear(self, x: str, inside: int, outside: int, *, bias: bool = True) -> str:
        """MatMul (and Add), as exporters write a linear layer on three dimensions."""
        y = self("MatMul", x, self.weight((inside, outside)))
        return self("Add", y, self.weight((outside,))) if bias else y

    def conv(self, x: str, inside: int, outside: int, kernel: int, *, stride: int = 1, group: int = 1) -> str:
        """Convolution, same padding, without bias."""
        return self(
            "Conv", x, self.weight((outside, inside // group, kernel, kernel)), group=group,
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4, dilations=[1, 1],
        )  # fmt: skip

    def batch_norm(self, x: str, channels: int) -> str:
        """Inference batch normalisation."""
        return self("BatchNormalization", x, *(self.weight((channels,)) for _ in range(4)), epsilon=1e-5)

    def layer_norm(self, x: str, width: int) -> str:
        """LayerNormalization over the last axis."""
        return self("LayerNormalization", x, self.weight((width,)), self.weight((width,)), axis=-1)

    def gelu(self, x: str) -> str:
        """GELU by erf, broken up as exporters do."""
        half = self("Mul", x, self.constant(0.5))
        erf = self("Erf", self("Div", x, self.constant(math.sqrt(2))))
        return self("Mul", half, self("Add", erf, self.constant(1.0)))

    def attention(self, x: str, seq: int, width: int, heads: int, *, bias: bool = True) -> str:
        """Multi-head self-attention, broken up as exporters do."""
        size = width // heads
        q, k, v = (
            self(
                "Transpose",
                self(
                    "Reshape", self.linear(x, width, width, bias=bias), self.constant([-1, seq, heads, size])
                ),
                perm=perm,
            )
            for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
        )
        scores = self("Div", self("MatMul", q, k), self.constant(math.sqrt(size)))
        mixed = self("Transpose", self("MatMul", self("Softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        merged = self("Reshape", mixed, self.constant([-1, seq, width]))
        return self.linear(merged, width, width, bias=bias)

    def write(self, folder: Path, inputs: dict[str, tuple[int, Sequence[int | str]]], output: str) -> Path:
        """Write ``<name>.onnx`` (opset 17) with ``inputs`` as name -> (type, shape)."""
        declared = [helper.make_tensor_value_info(n, t, list(s)) for n, (t, s) in inputs.items()]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, self.name, declared, [result], initializer=self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path = folder / f"{self.name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path


def encoder(folder: Path) -> Path:
    """Four BERT-base blocks (Devlin et al. 2019: width 768, 12 heads, 3,072) on 128 tokens, embeddings before."""
    g = Graph("encoder_s128")
    seq, width = 128, 768
    x = g("Gather", g.weight((30522, width)), "ids")
    x = g.layer_norm(g("Add", x, g.weight((1, seq, width))), width)
    for _ in range(4):
        x = g.layer_norm(g("Add", g.attention(x, seq, width, 12), x), width)
        y = g.linear(g.gelu(g.linear(x, width, 4 * width)), 4 * width, width)
        x = g.layer_norm(g("Add", y, x), width)
    return g.write(folder, {"ids": (TensorProto.INT64, ("N", seq))}, x)


def decoder(folder: Path) -> Path:
    """Two Llama-like blocks (RMS norm, gated SiLU, no biases; width 2,048, 16 heads, 5,632) on 512 tokens with
    the projection to 32,000 words."""
    g = Graph("decoder_s512")
    seq, width, inner = 512, 2048, 5632

    def rms_norm(x: str) -> str:
        square = g("ReduceMean", g("Pow", x, g.constant(2.0)), axes=[-1], keepdims=1)
        root = g("Sqrt", g("Add", square, g.constant(1e-6)))
        return g("Mul", g("Mul", x, g("Reciprocal", root)), g.weight((width,)))

    x = g("Gather", g.weight((32000, width)), "ids")
    for _ in range(2):
        x = g("Add", x, g.attention(rms_norm(x), seq, width, 16, bias=False))
        y = rms_norm(x)
        gate = g.linear(y, width, inner, bias=False)
        y = g("Mul", g("Mul", gate, g("Sigmoid", gate)), g.linear(y, width, inner, bias=False))
        x = g("Add", x, g.linear(y, inner, width, bias=False))
    x = g.linear(rms_norm(x), width, 32000, bias=False)
    return g.write(folder, {"ids": (TensorProto.INT64, ("N", seq))}, x)


def convnext(folder: Path) -> Path:
    """ConvNeXt-Tiny's third stage (Liu et al. 2022: nine blocks of width 384 at 14x14): depthwise 7x7, LayerNorm
    over channels, GELU, layer scale."""
    g = Graph("convnext_stage3")
    width = 384
    x = "features"
    for _ in range(9):
        y = g("Transpose", g.conv(x, width, width, 7, group=width), perm=(0, 2, 3, 1))
        y = g.linear(g.gelu(g.linear(g.layer_norm(y, width), width, 4 * width)), 4 * width, width)
        y = g("Transpose", g("Mul", y, g.weight((width,))), perm=(0, 3, 1, 2))
        x = g("Add", x, y)
    return g.write(folder, {"features": (TensorProto.FLOAT, ("N", width, 14, 14))}, x)


def segmenter(folder: Path) -> Path:
    """A U-Net of two levels (Ronneberger et al. 2015) on 128x128: 3x3 convolutions, pooling, transposed
    convolution, concatenation."""
    g = Graph("unet_128")

    def double(x: str, inside: int, outside: int) -> str:
        for channels in (inside, outside):
            x = g("Relu", g.batch_norm(g.conv(x, channels, outside, 3), outside))
        return x

    levels = []
    x, inside = "image", 3
    for outside in (64, 128):
        x = double(x, inside, outside)
        levels.append((x, outside))
        x, inside = g("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), outside
    x = double(x, inside, 256)
    inside = 256
    for skip, outside in reversed(levels):
        up = g("ConvTranspose", x, g.weight((inside, outside, 2, 2)), kernel_shape=[2, 2], strides=[2, 2])
        x = double(g("Concat", skip, up, axis=1), 2 * outside, outside)
        inside = outside
    x = g.conv(x, 64, 2, 1)
    return g.write(folder, {"image": (TensorProto.FLOAT, ("N", 3, 128, 128))}, x)


def resnext_stage(folder: Path) -> Path:
    """ResNeXt-50 32x4d's second stage (Xie et al. 2017): grouped 3x3 convolutions between 1x1 ones."""
    g = Graph("resnext_stage2")
    x = "features"
    for _ in range(4):
        y = g("Relu", g.batch_norm(g.conv(x, 512, 256, 1), 256))
        y = g("Relu", g.batch_norm(g.conv(y, 256, 256, 3, group=32), 256))
        y = g.batch_norm(g.conv(y, 256, 512, 1), 512)
        x = g("Relu", g("Add", x, y))
    return g.write(folder, {"features": (TensorProto.FLOAT, ("N", 512, 28, 28))}, x)


_GENERATED: tuple[Callable[[Path], Path], ...] = (
    write_resnet50, encoder, decoder, write_mobilenet_v2, convnext, segmenter, resnext_stage,
)  # fmt: skip


def golden_models(folder: Path) -> list[Path]:
    """Write the generated models into ``folder``; these and the onnx package's, in a fixed order.

    A light model that this version of the onnx package lacks is not in the list.
    """
    shipped = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    light = [shipped / f"light_{name}.onnx" for name in _LIGHT]
    return [*(make(folder) for make in _GENERATED), *(path for path in light if path.exists())]
