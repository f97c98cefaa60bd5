"""Normalisations and softmax: statistics along rows, scale and shift per channel."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, operator, weight, x
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table

_BATCHES = (1, 8, 32)


def layer_norm(*shape: int) -> Fragment:
    """Return one along the last axis, with scale and shift."""
    parameter = weight(shape[-1])
    return operator("LayerNormalization", x(*shape), parameter, parameter, axis=-1, epsilon=1e-5)


def rms_norm(*shape: int) -> Fragment:
    """Return a root mean square along the last axis, with scale."""
    return operator("RMSNormalization", x(*shape), weight(shape[-1]), axis=-1, epsilon=1e-6, opset=23)


def group_norm(groups: int, *shape: int) -> Fragment:
    """Return one over groups of channels and all positions."""
    parameter = weight(shape[1])
    operands = (x(*shape), parameter, parameter)
    return operator("GroupNormalization", *operands, epsilon=1e-5, num_groups=groups, opset=21)


def batch_norm(*shape: int) -> Fragment:
    """Return one as at inference: scale and shift per channel."""
    parameter = weight(shape[1])
    # A negative variance has no root.
    variance = weight(shape[1], fill="positive")
    operands = (x(*shape), parameter, parameter, parameter, variance)
    return operator("BatchNormalization", *operands, epsilon=1e-5)


def softmax(*shape: int, axis: int = -1, op_type: str = "Softmax") -> Fragment:
    """Return one along ``axis``."""
    return operator(op_type, x(*shape), axis=axis)


def real() -> Iterator[CatalogueItem]:
    """Yield layer and RMS normalisations of transformers; group normalisations of diffusion models."""
    for source, rows in table("normalisation").items():
        for number, (tokens, width) in enumerate(rows):
            for batch in _BATCHES:
                yield CatalogueItem(layer_norm(batch, tokens, width), source)
                if source == "language" and number >= 6:
                    yield CatalogueItem(rms_norm(batch, tokens, width), source)
    for channels, size in table("normalisation", "group"):
        for batch in (1, 4):
            yield CatalogueItem(group_norm(32, batch, channels, size, size), "vision")
    for channels, size in table("normalisation", "instance"):
        parameter = weight(channels)
        image = x(4, channels, size, size)
        yield CatalogueItem(operator("InstanceNormalization", image, parameter, parameter), "vision")


def corners() -> Iterator[Fragment]:
    """Yield one row, one column, odd widths, very wide and very many rows."""
    for row in table("normalisation", "corners"):
        yield layer_norm(*row)
        yield rms_norm(*row)
    for row in table("normalisation", "group_corners"):
        yield group_norm(*row)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield 1 to 131,072 rows of 32 to 16,384."""
    for n, row in enumerate(sampler.sizes(count, table("normalisation", "between"))):
        make = rms_norm if n % 3 == 0 else layer_norm
        yield make(*row)


def batch_norm_real() -> Iterator[CatalogueItem]:
    """Yield those after the convolutions of known architectures."""
    for source in ("vision", "detection"):
        for shape in table("activation")[source]:
            if len(shape) == 3:
                for batch in _BATCHES:
                    yield CatalogueItem(batch_norm(batch, *shape), source)


def batch_norm_corners() -> Iterator[Fragment]:
    """Yield one channel, one pixel, odd images."""
    for shape in table("normalisation", "batch_corners"):
        yield batch_norm(*shape)


def batch_norm_sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield batches 1 to 128, 8 to 2,048 channels, sides 1 to 256."""
    for batch, channels, size in sampler.sizes(count, table("normalisation", "batch_between")):
        yield batch_norm(batch, channels, size, size)


def softmax_real() -> Iterator[CatalogueItem]:
    """Yield those of attention scores, of class scores, of vocabularies."""
    for source, rows in table("attention").items():
        for heads, _, _, lengths in rows:
            for length in lengths:
                for batch in _BATCHES:
                    yield CatalogueItem(softmax(batch, heads, length, length), source)
    for source, op_type, axis, shape in table("normalisation", "softmax"):
        yield CatalogueItem(softmax(*shape, axis=axis, op_type=op_type), source)


def softmax_corners() -> Iterator[Fragment]:
    """Yield short and long rows, few and many, along the first axis."""
    for rows, width in table("normalisation", "softmax_corners"):
        yield softmax(rows, width)
        yield softmax(width, rows, axis=0)


def softmax_sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield 1 to 131,072 rows of 4 to 16,384."""
    for row in sampler.sizes(count, table("normalisation", "softmax_between")):
        yield softmax(*row)
