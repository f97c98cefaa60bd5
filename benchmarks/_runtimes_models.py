"""Build the six models of the page on runtimes with ``onnx`` alone: three as ``gkest demo`` does, three of its parts."""

from __future__ import annotations

import math
from pathlib import Path

from gkestimator.onnx_io.demo import DemoGraph, write_resnet50
from gkestimator.onnx_io.demo_models import write_minilm, write_mobilenet_v2

WIDTH = 768
_HEADS, _LAYERS = 12, 12
_PIXELS, _PATCH = 224, 16
_TOKENS = 128
_WORDS = 50_257
_UNET_WIDTHS = (32, 64, 128, 256)
_UNET_PIXELS = 256


def write_models(folder: Path) -> dict[str, Path]:
    """Write the models into ``folder`` and return their paths by the names that the page gives them."""
    return {
        "ResNet-50": write_resnet50(folder),
        "MobileNetV2": write_mobilenet_v2(folder),
        "MiniLM, 128 tokens": write_minilm(folder),
        "ViT-B/16": write_vit(folder),
        "U-Net": write_unet(folder),
        "GPT-2, 128 tokens": write_gpt2(folder),
    }


class _Transformer(DemoGraph):
    """Hold the parts of a transformer that normalises before it attends, broken up as exporters write them."""

    def __init__(self, name: str, tokens: int) -> None:
        super().__init__(name)
        self.constant("heads", [0, tokens, _HEADS, WIDTH // _HEADS])
        self.constant("joined", [0, tokens, WIDTH])
        values = {"root": math.sqrt(WIDTH / _HEADS), "sqrt2": math.sqrt(2), "one": 1.0, "half": 0.5}
        for constant, value in values.items():
            self.constant(constant, value)

    def linear(self, x: str, name: str, inside: int, outside: int) -> str:
        """Append a linear layer."""
        product = self.node("MatMul", f"{name}/MatMul", x, self.weight(f"{name}.weight", inside, outside))
        return self.node("Add", f"{name}/Add", product, self.weight(f"{name}.bias", outside))

    def norm(self, x: str, name: str) -> str:
        """Append a layer normalisation."""
        weights = self.weight(f"{name}.weight", WIDTH), self.weight(f"{name}.bias", WIDTH)
        return self.node(
            "LayerNormalization", f"{name}/LayerNormalization", x, *weights, axis=-1, epsilon=1e-6
        )

    def block(self, x: str, name: str, mask: str) -> str:
        """Append one layer; ``mask`` is added to its scores where it is not empty."""
        y = self.attention(self.norm(x, f"{name}.ln_1"), f"{name}.attn", mask)
        x = self.node("Add", f"{name}/Add", x, y)
        y = self.linear(self.norm(x, f"{name}.ln_2"), f"{name}.fc", WIDTH, 4 * WIDTH)
        erf = self.node("Erf", f"{name}/Erf", self.node("Div", f"{name}/Div", y, "sqrt2"))
        y = self.node("Mul", f"{name}/Mul", y, self.node("Add", f"{name}/Add_1", erf, "one"))
        y = self.linear(self.node("Mul", f"{name}/Mul_1", y, "half"), f"{name}.proj", 4 * WIDTH, WIDTH)
        return self.node("Add", f"{name}/Add_2", x, y)

    def attention(self, x: str, name: str, mask: str) -> str:
        """Append multi-head self-attention."""
        heads = []
        for part, order in (("query", (0, 2, 1, 3)), ("key", (0, 2, 3, 1)), ("value", (0, 2, 1, 3))):
            y = self.linear(x, f"{name}.{part}", WIDTH, WIDTH)
            y = self.node("Reshape", f"{name}.{part}/Reshape", y, "heads")
            heads.append(self.node("Transpose", f"{name}.{part}/Transpose", y, perm=order))
        query, key, value = heads
        scores = self.node("MatMul", f"{name}/scores/MatMul", query, key)
        scores = self.node("Div", f"{name}/Div", scores, "root")
        if mask:
            scores = self.node("Add", f"{name}/Add", scores, mask)
        weights = self.node("Softmax", f"{name}/Softmax", scores, axis=-1)
        y = self.node("MatMul", f"{name}/context/MatMul", weights, value)
        y = self.node("Transpose", f"{name}/Transpose", y, perm=(0, 2, 1, 3))
        return self.linear(self.node("Reshape", f"{name}/Reshape", y, "joined"), f"{name}.out", WIDTH, WIDTH)


def write_vit(folder: Path) -> Path:
    """Write a ViT-B/16 (Dosovitskiy et al. 2021) of 196 patches whose mean is classified."""
    patches = (_PIXELS // _PATCH) ** 2
    build = _Transformer("vit_b16", patches)
    build.constant("flat", [0, WIDTH, patches])
    weight = build.weight("patch.weight", WIDTH, 3, _PATCH, _PATCH)
    x = build.node(
        "Conv", "patch/Conv", "input", weight, build.weight("patch.bias", WIDTH), kernel_shape=[_PATCH] * 2,
        strides=[_PATCH] * 2,
    )  # fmt: skip
    x = build.node(
        "Transpose", "patch/Transpose", build.node("Reshape", "patch/Reshape", x, "flat"), perm=(0, 2, 1)
    )
    x = build.node("Add", "positions/Add", x, build.weight("positions", 1, patches, WIDTH))
    for layer in range(_LAYERS):
        x = build.block(x, f"layer.{layer}", "")
    x = build.node("ReduceMean", "mean/ReduceMean", build.norm(x, "norm"), axes=[1], keepdims=0)
    build.linear(x, "head", WIDTH, 1000)
    return build.write_vision(folder)


def write_gpt2(folder: Path) -> Path:
    """Write a GPT-2 of 124 million parameters (Radford et al. 2019) that reads 128 tokens and scores every next one."""
    build = _Transformer("gpt2", _TOKENS)
    words = build.node("Gather", "words/Gather", build.weight("words", _WORDS, WIDTH), "input_ids")
    x = build.node("Add", "positions/Add", words, build.weight("positions", 1, _TOKENS, WIDTH))
    mask = build.weight("mask", 1, 1, _TOKENS, _TOKENS)
    for layer in range(_LAYERS):
        x = build.block(x, f"layer.{layer}", mask)
    build.node("MatMul", "head/MatMul", build.norm(x, "norm"), build.weight("head.weight", WIDTH, _WORDS))
    return build.write(folder, {"input_ids": (build.types.INT64, ["N", _TOKENS])}, ["N", _TOKENS, _WORDS])


def write_unet(folder: Path) -> Path:
    """Write a U-Net (Ronneberger et al. 2015) of four levels that segments images of 256 x 256 pixels."""
    build = DemoGraph("unet")

    def pair(x: str, name: str, inside: int, outside: int) -> str:
        for part, channels in (("a", (inside, outside)), ("b", (outside, outside))):
            x = build.node("Relu", f"{name}.{part}/Relu", build.convolution(x, f"{name}.{part}", channels, 3))
        return x

    x, inside, levels = "input", 3, []
    for level, width in enumerate(_UNET_WIDTHS):
        if level:
            x = build.node("MaxPool", f"down.{level}/MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = pair(x, f"down.{level}", inside, width)
        levels.append(x)
        inside = width
    for level in range(len(_UNET_WIDTHS) - 2, -1, -1):
        width = _UNET_WIDTHS[level]
        weight = build.weight(f"up.{level}.weight", 2 * width, width, 2, 2)
        up = build.node(
            "ConvTranspose", f"up.{level}/ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2]
        )
        x = pair(
            build.node("Concat", f"up.{level}/Concat", levels[level], up, axis=1),
            f"up.{level}",
            2 * width,
            width,
        )
    last = build.weight("last.weight", 2, _UNET_WIDTHS[0], 1, 1)
    build.node("Conv", "last/Conv", x, last, build.weight("last.bias", 2), kernel_shape=[1, 1])
    size = [_UNET_PIXELS] * 2
    return build.write(folder, {"input": (build.types.FLOAT, ["N", 3, *size])}, ["N", 2, *size])
