"""Normalisations and softmax: statistics along rows, scale and shift per channel."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import ACTIVATIONS, ATTENTIONS, ROWS
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, item, operator, weight, x
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

_BATCHES = (1, 8, 32)


def layer_norm(*shape: int) -> Fragment:
    """Along the last axis, with scale and shift."""
    return operator(
        "LayerNormalization",
        x(*shape),
        weight(shape[-1]),
        weight(shape[-1]),
        attributes={"axis": -1, "epsilon": 1e-5},
    )


def rms_norm(*shape: int) -> Fragment:
    """Root mean square along the last axis, with scale."""
    return operator(
        "RMSNormalization", x(*shape), weight(shape[-1]), attributes={"axis": -1, "epsilon": 1e-6}, opset=23
    )


def group_norm(groups: int, *shape: int) -> Fragment:
    """Over groups of channels and all positions."""
    return operator(
        "GroupNormalization",
        x(*shape),
        weight(shape[1]),
        weight(shape[1]),
        attributes={"epsilon": 1e-5, "num_groups": groups},
        opset=21,
    )


def batch_norm(*shape: int) -> Fragment:
    """Inference: scale and shift per channel."""
    channels = shape[1]
    return operator(
        "BatchNormalization",
        x(*shape),
        weight(channels),
        weight(channels),
        weight(channels),
        weight(channels, fill="positive"),
        attributes={"epsilon": 1e-5},
    )


def softmax(*shape: int, axis: int = -1, op_type: str = "Softmax") -> Fragment:
    """Along ``axis``."""
    return operator(op_type, x(*shape), attributes={"axis": axis})


def real() -> Iterator[CatalogueItem]:
    """Layer and RMS normalisations of transformers; group normalisations of diffusion models."""
    for source, rows in ROWS.items():
        for number, (tokens, width) in enumerate(rows):
            for batch in _BATCHES:
                yield item(layer_norm(batch, tokens, width), source)
                if source == "language" and number >= 6:
                    yield item(rms_norm(batch, tokens, width), source)
    for channels, size in ((320, 64), (640, 32), (1280, 16), (512, 64), (128, 256)):
        for batch in (1, 4):
            yield item(group_norm(32, batch, channels, size, size), "vision")
    for channels, size in ((64, 128), (256, 64)):
        yield item(
            operator("InstanceNormalization", x(4, channels, size, size), weight(channels), weight(channels)),
            "vision",
        )


def corners() -> Iterator[CatalogueItem]:
    """One row, one column, odd widths, very wide and very many rows."""
    for rows, width in (
        (1, 1),
        (1, 64),
        (1, 65536),
        (7, 7),
        (513, 513),
        (100000, 32),
        (1000000, 8),
        (4096, 1000),
        (2, 12289),
        (65536, 768),
        (16, 100000),
        (333, 4095),
        (8192, 8192),
    ):
        yield item(layer_norm(rows, width), "corner")
        yield item(rms_norm(rows, width), "corner")
    for groups, channels, size in ((1, 32, 16), (4, 12, 57), (8, 512, 7)):
        yield item(group_norm(groups, 2, channels, size, size), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """1 to 131,072 rows of 32 to 16,384."""
    for n, (rows, width) in enumerate(sampler.sizes(count, ((1, 131072), (32, 16384)))):
        yield item(rms_norm(rows, width) if n % 3 == 0 else layer_norm(rows, width), "sampled")


def batch_norm_real() -> Iterator[CatalogueItem]:
    """After the convolutions of known architectures."""
    for source in ("vision", "detection"):
        for shape in ACTIVATIONS[source]:
            for batch in _BATCHES:
                if len(shape) == 3:
                    yield item(batch_norm(batch, *shape), source)


def batch_norm_corners() -> Iterator[CatalogueItem]:
    """One channel, one pixel, odd images."""
    for shape in (
        (1, 1, 1, 1),
        (1, 1, 1024, 1024),
        (128, 2048, 1, 1),
        (3, 7, 57, 57),
        (64, 513, 13, 13),
        (8, 3, 511, 511),
    ):
        yield item(batch_norm(*shape), "corner")


def batch_norm_sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Batches 1 to 128, 8 to 2,048 channels, sides 1 to 256."""
    for batch, channels, size in sampler.sizes(count, ((1, 128), (8, 2048), (1, 256))):
        yield item(batch_norm(batch, channels, size, size), "sampled")


def softmax_real() -> Iterator[CatalogueItem]:
    """Of attention scores, of class scores, of vocabularies."""
    for source, heads, _, _, lengths in ATTENTIONS:
        for length in lengths:
            for batch in _BATCHES:
                yield item(softmax(batch, heads, length, length), source)
    for batch in (1, 8, 32, 128):
        yield item(softmax(batch, 1000), "vision")
        yield item(softmax(batch, 50257), "language")
        yield item(softmax(batch, 21, 65, 65, axis=1), "vision")
        yield item(softmax(batch, 4, 16, 8400, axis=2), "detection")
        yield item(softmax(batch, 128, 32000, op_type="LogSoftmax"), "language")


def softmax_corners() -> Iterator[CatalogueItem]:
    """Short and long rows, few and many, along the first axis."""
    for rows, width in (
        (1, 1),
        (1, 7),
        (1, 1000000),
        (1000000, 2),
        (513, 513),
        (65536, 49),
        (2048, 1025),
        (3, 50257),
        (262144, 32),
        (4096, 4096),
    ):
        yield item(softmax(rows, width), "corner")
        yield item(softmax(width, rows, axis=0), "corner")


def softmax_sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """1 to 131,072 rows of 4 to 16,384."""
    for rows, width in sampler.sizes(count, ((1, 131072), (4, 16384))):
        yield item(softmax(rows, width), "sampled")
