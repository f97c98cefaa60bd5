"""Merges of small random families: a base model and siblings whose weights are the same, shifted, or drawn anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from _unchanged_calls import call, digest, inside
from onnx import TensorProto, helper, numpy_helper

__all__ = ["merges"]

CLASSES = 10
OPTIONS = (
    (),
    ("--always",),
    ("--always", "--tau-ms", "inf"),
    ("--always", "--tau-ms", "inf", "--omega", "0.8"),
    ("--always", "--tau-ms", "inf", "--tolerance", "1e-3"),
    ("--price", "gpu", "--tau-ms", "inf"),
    ("--always", "--tau-ms", "inf", "--runtime", "torch", "--gpu", "T4"),
    ("--always", "--tau-ms", "inf", "--dtype", "fp16", "--batch-size", "4"),
)


@dataclass
class Model:
    """Collect nodes and weights of one model of a family; weights come from the seed of the family."""

    draw: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def weight(self, *shape: int) -> str:
        """Add a random weight; return its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.draw.standard_normal(shape) * 0.2).astype(np.float32)
        return name

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name


def convolutional(model: Model, size: int) -> tuple[str, list[int | str]]:
    """Build convolutions with shortcuts, pooling and a classifier; return the result and the input's shape."""
    value, channels = "x", 3
    for level in range(2):
        width = 8 * size * (level + 1)
        value = _convolved(model, value, channels, width, stride=2)
        shortcut = value
        for _ in range(2):
            value = _convolved(model, value, width, width, stride=1)
        value, channels = model.add("Add", value, shortcut), width
    flat = model.add("Flatten", model.add("GlobalAveragePool", value))
    return model.add("Gemm", flat, model.weight(channels, CLASSES), model.weight(CLASSES)), ["n", 3, 32, 32]


def _convolved(model: Model, value: str, before: int, after: int, *, stride: int) -> str:
    weight, bias = model.weight(after, before, 3, 3), model.weight(after)
    value = model.add("Conv", value, weight, bias, pads=[1, 1, 1, 1], strides=[stride, stride])
    return model.add("Relu", value)


def encoder(model: Model, size: int) -> tuple[str, list[int | str]]:
    """Build attention of one head and a feed-forward part, twice; return the result and the input's shape."""
    value, width = "x", 16 * size
    for _ in range(2):
        query, key, content = (model.add("MatMul", value, model.weight(width, width)) for _ in range(3))
        scores = model.add("MatMul", query, model.add("Transpose", key, perm=[0, 2, 1]))
        mixed = model.add("MatMul", model.add("Softmax", scores, axis=-1), content)
        value = _normalised(model, model.add("Add", value, mixed), width)
        wide = model.add(
            "Add", model.add("MatMul", value, model.weight(width, 2 * width)), model.weight(2 * width)
        )
        narrow = model.add("MatMul", model.add("Relu", wide), model.weight(2 * width, width))
        value = _normalised(model, model.add("Add", value, narrow), width)
    return model.add("MatMul", value, model.weight(width, CLASSES)), ["n", 12, width]


def _normalised(model: Model, value: str, width: int) -> str:
    return model.add("LayerNormalization", value, model.weight(width), model.weight(width), axis=-1)


def perceptron(model: Model, size: int) -> tuple[str, list[int | str]]:
    """Build four dense layers; return the result and the input's shape."""
    value, width = "x", 32 * size
    for _ in range(4):
        value = model.add("Relu", model.add("Gemm", value, model.weight(width, width), model.weight(width)))
    return model.add("Gemm", value, model.weight(width, CLASSES), model.weight(CLASSES)), ["n", width]


FAMILIES = (convolutional, encoder, perceptron)


def merges(folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """Yield the name and hash of report and merged file of ``count`` random families."""
    with inside(folder):
        for number in range(count):
            rng = random.Random(f"merge {number}")
            family = FAMILIES[number % len(FAMILIES)]
            size, seed = rng.randint(1, 3), rng.randrange(1000)
            names = []
            for place in range(rng.randint(2, 3)):
                name = f"{family.__name__}_{place}.onnx"
                onnx.save(_sibling(family, size, seed, place, rng), name)
                names.append(name)
            if rng.random() < 0.2:
                onnx.save(_sibling(perceptron, 2, seed, 0, rng), "stranger.onnx")
                names.append("stranger.onnx")
            options = rng.choice(OPTIONS)
            out = Path("merged.onnx")
            out.unlink(missing_ok=True)
            answer = call(
                ["merge", *names, *options, "--format", "json", "--report", "--samples", "0", "-o", out]
            )
            yield f"{number} {' '.join((*names, *options))}", digest(answer, out)


def _sibling(family: object, size: int, seed: int, place: int, rng: random.Random) -> onnx.ModelProto:
    """Return model number ``place`` of the family; all but the first have some weights changed."""
    model = Model(np.random.default_rng(seed))
    result, shape = family(model, size)  # type: ignore[operator]
    names = list(model.weights)
    kind = rng.choice(("equal", "fine-tuned", "near", "shifted")) if place else "equal"
    changed = {"equal": [], "fine-tuned": names[-rng.randint(1, 4) :]}.get(
        kind, rng.sample(names, len(names) // 2)
    )
    other = np.random.default_rng([seed, place])
    for name in changed:
        model.weights[name] = _changed(model.weights[name], kind, other)
    graph = helper.make_graph(
        model.nodes,
        f"{family.__name__}_{place}",  # type: ignore[attr-defined]
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in model.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _changed(weight: np.ndarray, kind: str, draw: np.random.Generator) -> np.ndarray:
    """Return ``weight`` drawn anew, with noise of 5e-8, or moved along its first axis with new values in the gap."""
    fresh = (draw.standard_normal(weight.shape) * 0.2).astype(np.float32)
    if kind == "fine-tuned":
        return fresh
    if kind == "near":
        return (weight + draw.uniform(-5e-8, 5e-8, weight.shape)).astype(np.float32)
    moved = np.roll(weight, 1, axis=0)
    moved[0] = fresh[0]
    return moved
