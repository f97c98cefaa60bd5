"""Build a small CNN and a small encoder of text as ONNX files, beside the ResNet-50 of the demo."""

from __future__ import annotations

import math
from pathlib import Path

from gkestimator.onnx_io.demo import DemoGraph

MOBILENET_V2_PARAMETERS = 3_504_872
"""Trainable parameters, as torchvision counts them."""

MINILM_PARAMETERS = 22_565_376
"""Parameters of all-MiniLM-L6-v2 without its pooler, which embeddings of sentences do not use."""

# Sandler et al. 2018, table 2: widening, channels, blocks, stride of the first block.
BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_LAYERS, _WIDTH, _HEADS, _INNER = 6, 384, 12, 1536
_WORDS, _POSITIONS = 30_522, 512


def write_mobilenet_v2(folder: Path) -> Path:
    """Write ``mobilenet_v2.onnx`` (Sandler et al. 2018; input ``[N, 3, 224, 224]``) into ``folder``; return its path.

    It is as complete as :func:`gkestimator.onnx_io.demo.write_resnet50`'s. Raises OutputError.
    """
    build = DemoGraph("mobilenet_v2")
    limits = build.constant("zero", 0.0), build.constant("six", 6.0)

    def unit(
        x: str, name: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1
    ) -> str:
        y = build.convolution(x, name, channels, kernel, stride, group)
        return build.node("Clip", f"{name}/Clip", y, *limits)

    x = unit("input", "features.0", (3, 32), 3, 2)
    inside, number = 32, 0
    for widening, outside, blocks, first_stride in BOTTLENECKS:
        for block in range(blocks):
            number += 1
            name = f"features.{number}"
            stride = first_stride if block == 0 else 1
            inner = inside * widening
            y = unit(x, f"{name}.expand", (inside, inner), 1) if widening > 1 else x
            y = unit(y, f"{name}.depthwise", (inner, inner), 3, stride, inner)
            y = build.convolution(y, f"{name}.project", (inner, outside), 1)
            x = build.node("Add", f"{name}/Add", x, y) if stride == 1 and inside == outside else y
            inside = outside
    build.classifier(unit(x, f"features.{number + 1}", (inside, 1280), 1), "classifier", 1280)
    return build.write_vision(folder)


class _Encoder(DemoGraph):
    """Hold the parts that an encoder repeats, broken up as exporters write them."""

    def linear(self, x: str, name: str, inside: int, outside: int) -> str:
        """Append a linear layer on three dimensions."""
        product = self.node("MatMul", f"{name}/MatMul", x, self.weight(f"{name}.weight", inside, outside))
        return self.node("Add", f"{name}/Add", product, self.weight(f"{name}.bias", outside))

    def normalised_sum(self, x: str, y: str, name: str) -> str:
        """Append the layer normalisation of a sum."""
        weights = self.weight(f"{name}.weight", _WIDTH), self.weight(f"{name}.bias", _WIDTH)
        return self.node(
            "LayerNormalization",
            f"{name}/LayerNormalization",
            self.node("Add", f"{name}/Add", x, y),
            *weights,
            axis=-1,
            epsilon=1e-12,
        )

    def attention(self, x: str, mask: str, name: str) -> str:
        """Append multi-head self-attention whose scores have ``mask`` added."""
        heads = []
        for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
            y = self.linear(x, f"{name}.self.{part}", _WIDTH, _WIDTH)
            y = self.node("Reshape", f"{name}.self.{part}/Reshape", y, "heads")
            heads.append(self.node("Transpose", f"{name}.self.{part}/Transpose", y, perm=order))
        query, key, value = heads
        scores = self.node("MatMul", f"{name}.self/scores/MatMul", query, key)
        scores = self.node("Div", f"{name}.self/Div", scores, "root")
        scores = self.node("Add", f"{name}.self/Add", scores, mask)
        weights = self.node("Softmax", f"{name}.self/Softmax", scores, axis=-1)
        y = self.node("MatMul", f"{name}.self/context/MatMul", weights, value)
        y = self.node("Transpose", f"{name}.self/Transpose", y, perm=(0, 2, 1, 3))
        y = self.node("Reshape", f"{name}.self/Reshape", y, "joined")
        return self.linear(y, f"{name}.output.dense", _WIDTH, _WIDTH)

    def gelu(self, x: str, name: str) -> str:
        """Append GELU by erf."""
        erf = self.node("Erf", f"{name}/Erf", self.node("Div", f"{name}/Div", x, "sqrt2"))
        return self.node(
            "Mul",
            f"{name}/Mul_1",
            self.node("Mul", f"{name}/Mul", x, self.node("Add", f"{name}/Add", erf, "one")),
            "half",
        )


def write_minilm(folder: Path) -> Path:
    """Write ``minilm.onnx`` into ``folder`` and return its path.

    The network is all-MiniLM-L6-v2 (Wang et al. 2020; a BERT of 6 layers and width 384), which makes vectors of
    sentences, with its dimensions ``N`` and ``sequence`` left open. It is as complete as the ResNet-50; its data file
    is 47 MB long, of zeros. Raises OutputError.
    """
    build = _Encoder("minilm")
    size = _WIDTH // _HEADS
    build.constant("heads", [0, 0, _HEADS, size])
    build.constant("joined", [0, 0, _WIDTH])
    build.constant("first", [0])
    build.constant("masked", [1, 2])
    for name, value in (("root", math.sqrt(size)), ("sqrt2", math.sqrt(2)), ("one", 1.0), ("half", 0.5)):
        build.constant(name, value)
    build.constant("lowest", -3.4e38)

    words = build.node("Gather", "embeddings/words", build.weight("words", _WORDS, _WIDTH), "input_ids")
    types = build.node("Gather", "embeddings/types", build.weight("types", 2, _WIDTH), "token_type_ids")
    length = build.node("Shape", "embeddings/Shape", "input_ids", start=1, end=2)
    table = build.weight("positions", _POSITIONS, _WIDTH)
    positions = build.node("Slice", "embeddings/Slice", table, "first", length, "first")
    x = build.node("Add", "embeddings/Add", words, types)
    x = build.normalised_sum(x, positions, "embeddings.LayerNorm")
    mask = build.node("Cast", "mask/Cast", "attention_mask", to=build.types.FLOAT)
    mask = build.node("Unsqueeze", "mask/Unsqueeze", mask, "masked")
    mask = build.node("Mul", "mask/Mul", build.node("Sub", "mask/Sub", "one", mask), "lowest")
    for layer in range(_LAYERS):
        name = f"encoder.layer.{layer}"
        y = build.attention(x, mask, f"{name}.attention")
        x = build.normalised_sum(y, x, f"{name}.attention.output.LayerNorm")
        y = build.linear(x, f"{name}.intermediate.dense", _WIDTH, _INNER)
        y = build.gelu(y, f"{name}.intermediate")
        y = build.linear(y, f"{name}.output.dense", _INNER, _WIDTH)
        x = build.normalised_sum(y, x, f"{name}.output.LayerNorm")
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    tokens = (build.types.INT64, ["N", "sequence"])
    return build.write(folder, dict.fromkeys(inputs, tokens), ["N", "sequence", _WIDTH])
