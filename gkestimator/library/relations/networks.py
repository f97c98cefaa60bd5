"""Build the small networks that relations are looked at on: one of each kind, as wide as asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from gkestimator.onnx_io.demo import DemoGraph, write_resnet50

Writer: TypeAlias = Callable[[Path, int], Path]


def write_convolutions(folder: Path, width: int, *, swapped: bool = False) -> Path:
    """Write two branches of convolutions that meet; ``swapped``: the nodes of the second come first in the file."""
    build = DemoGraph(f"convolutions_{width}{'_swapped' if swapped else ''}")
    channels = 32 * width
    x = build.convolution("input", "stem", (3, channels), 3, 2)
    ends: dict[str, str] = {}
    kernels = {"narrow": 1, "wide": 3}
    for branch in sorted(kernels, reverse=swapped):
        y = build.convolution(x, f"{branch}.0", (channels, channels), kernels[branch])
        y = build.node("Relu", f"{branch}/Relu", y)
        ends[branch] = build.convolution(y, f"{branch}.1", (channels, 2 * channels), 3, 2)
    x = build.node("Add", "meet", *sorted(ends.values()))
    build.classifier(x, "fc", 2 * channels)
    return build.write_vision(folder)


def write_transformer(folder: Path, width: int) -> Path:
    """Write a layer of attention and its feed-forward part over 128 tokens."""
    build = DemoGraph(f"transformer_{width}")
    size = 128 * width

    def linear(x: str, name: str, inside: int, outside: int) -> str:
        return build.node("MatMul", name, x, build.weight(f"{name}.weight", inside, outside))

    query, key, value = (linear("input", name, size, size) for name in ("query", "key", "value"))
    turned = build.node("Transpose", "turned", key, perm=[0, 2, 1])
    scores = build.node("Softmax", "softmax", build.node("MatMul", "scores", query, turned), axis=-1)
    x = build.node("Add", "residual", "input", build.node("MatMul", "mixed", scores, value))
    scale, bias = build.weight("norm.scale", size), build.weight("norm.bias", size)
    x = build.node("LayerNormalization", "norm", x, scale, bias)
    x = build.node("Relu", "relu", linear(x, "up", size, 4 * size))
    linear(x, "down", 4 * size, size)
    return build.write(folder, {"input": (build.types.FLOAT, ["N", 128, size])}, ["N", 128, size])


def write_recurrent(folder: Path, width: int) -> Path:
    """Write an LSTM over 32 steps, and scores of what it ends with."""
    build = DemoGraph(f"recurrent_{width}")
    hidden = 64 * width
    weights = [build.weight("w", 1, 4 * hidden, 64), build.weight("r", 1, 4 * hidden, hidden)]
    build.node("LSTM", "lstm", "input", *weights, hidden_size=hidden)
    return build.write(folder, {"input": (build.types.FLOAT, [32, "N", 64])}, [32, 1, "N", hidden])


def write_embedding(folder: Path, width: int) -> Path:
    """Write a bag of 64 words: their vectors' mean, and scores."""
    build = DemoGraph(f"embedding_{width}")
    size = 64 * width
    x = build.node("Gather", "words", build.weight("table", 50_000, size), "input")
    x = build.node("ReduceMean", "mean", x, axes=[1], keepdims=0)
    build.node("Gemm", "scores", x, build.weight("fc", 1000, size), transB=1)
    return build.write(folder, {"input": (build.types.INT64, ["N", 64])}, ["N", 1000])


NETWORKS: Mapping[str, Writer] = {
    "convolutions": write_convolutions,
    "transformer": write_transformer,
    "recurrent": write_recurrent,
    "embedding": write_embedding,
    "resnet50": lambda folder, _: write_resnet50(folder),
}
"""The networks by name; ResNet-50 has one width."""
