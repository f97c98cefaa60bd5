"""Relatives of a model: fine-tuned siblings, cousins with shifted blocks, copies within a tolerance."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from family_parts import drawn, stored, values


def weighted_layers(model: onnx.ModelProto) -> list[list[str]]:
    """Names of the weight and bias of each layer, in the graph's order; an Add of a MatMul's bias is its layer's."""
    held = {t.name for t in model.graph.initializer}
    layers: list[list[str]] = []
    for node in model.graph.node:
        own = [name for name in node.input if name in held]
        if node.op_type in ("MatMul", "Gemm", "Conv") and own:
            layers.append(own)
        elif layers and node.op_type in ("Add", "BatchNormalization"):
            stem = layers[-1][0].removesuffix(".weight")
            layers[-1] += [name for name in own if name.startswith(stem + ".")]
    return layers


def sibling(model: onnx.ModelProto, *, last: int = 1, seed: int = 1) -> onnx.ModelProto:
    """``model`` fine-tuned in its last layers: their weights (and biases) re-drawn at the scale they had."""
    again = {name for layer in weighted_layers(model)[-last:] for name in layer} if last else set()
    return _changed(model, again, lambda name, old: _redrawn(name, old, seed))


def nudged(model: onnx.ModelProto, *, by: float = 5e-8, seed: int = 1) -> onnx.ModelProto:
    """Every weight of a layer moved by at most ``by``, evenly at random."""
    moved = {name for layer in weighted_layers(model) for name in layer}

    def move(name: str, old: np.ndarray) -> np.ndarray:
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return np.asarray(old + generator.uniform(-by, by, old.shape), np.float32)

    return _changed(model, moved, move)


def shifted(
    model: onnx.ModelProto, *, share: float = 0.8, seed: int = 1, layers: Sequence[int] | None = None
) -> onnx.ModelProto:
    """A cousin: each layer's weight is drawn anew, but for a block of the old one that stands at another place.

    The block has sqrt(``share``) of the rows and of the columns (so at least about ``share`` of the values; a
    depthwise Conv has rows alone). ``layers``: which of :func:`weighted_layers` keep a block (None: all).
    """
    every = weighted_layers(model)
    kept = {every[i][0] for i in (range(len(every)) if layers is None else layers)}

    def place(name: str, old: np.ndarray) -> np.ndarray:
        new = _redrawn(name, old, seed)
        if name not in kept:
            return new
        generator = np.random.default_rng([seed, 7, zlib.crc32(name.encode())])
        spans = [math.ceil(size * share**0.5) for size in old.shape[:2]]
        there = [
            int(generator.integers(size - span + 1)) for size, span in zip(old.shape, spans, strict=False)
        ]
        here = [
            int(generator.integers(size - span + 1)) for size, span in zip(old.shape, spans, strict=False)
        ]
        into, out = (
            tuple(slice(at, at + span) for at, span in zip(place, spans, strict=True))
            for place in (here, there)
        )
        new[into] = old[out]
        return new

    return _changed(model, {name for layer in every for name in layer}, place)


def _redrawn(name: str, old: np.ndarray, seed: int) -> np.ndarray:
    return drawn(seed + 1000)(name, old.shape, float(old.std()) or 1.0) + np.float32(old.mean())


def _changed(
    model: onnx.ModelProto, names: set[str], change: Callable[[str, np.ndarray], np.ndarray]
) -> onnx.ModelProto:
    new = onnx.ModelProto()
    new.CopyFrom(model)
    for tensor in new.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(stored(tensor.name, change(tensor.name, values(tensor)), tensor.data_type))
    return new
