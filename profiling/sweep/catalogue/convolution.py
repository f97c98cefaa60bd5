"""Convolutions: dense, pointwise, depthwise, grouped, dilated, strided, transposed; without bias, some with one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, operator, weight, x
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table

BATCHES = (1, 8, 32, 128)


class ConvLayer(NamedTuple):
    """Name what a two-dimensional convolution is made of; kernel and image are (height, width)."""

    c_in: int
    c_out: int
    kernel: Sequence[int]
    stride: int
    groups: int
    dilation: int
    image: Sequence[int]


def _conv(
    image: Sequence[int],
    c_out: int,
    kernel: Sequence[int],
    *,
    pads: Sequence[int],
    stride: int,
    groups: int = 1,
    bias: bool = False,
    **attributes: Any,
) -> Fragment:
    """Return a Conv of an image (batch, channels, sizes...); ``pads``, before as after, and kernel by dimension."""
    operands = [x(*image), weight(c_out, image[1] // groups, *kernel)]
    if bias:
        operands.append(weight(c_out))
    return operator(
        "Conv",
        *operands,
        kernel_shape=tuple(kernel),
        pads=(*pads, *pads),
        strides=(stride,) * len(kernel),
        **attributes,
    )


def conv(batch: int, layer: ConvLayer, *, bias: bool = False) -> Fragment:
    """Return a two-dimensional convolution of ``batch`` images, padded so that the size is kept up to the stride."""
    height, width = layer.kernel
    pads = (layer.dilation * (height - 1) // 2, layer.dilation * (width - 1) // 2)
    # Cut out side by side, so nothing is padded.
    if height == layer.stride and height > 1:  # patches
        pads = (0, 0)
    return _conv(
        (batch, layer.c_in, *layer.image),
        layer.c_out,
        layer.kernel,
        pads=pads,
        stride=layer.stride,
        groups=layer.groups,
        bias=bias,
        dilations=(layer.dilation, layer.dilation),
        group=layer.groups,
    )


def conv_transpose(batch: int, c_in: int, c_out: int, kernel: int, stride: int, size: int) -> Fragment:
    """Return a transposed convolution that multiplies the size by ``stride`` (kernel = stride or stride + 2)."""
    pad = max(0, (kernel - stride) // 2)
    return operator(
        "ConvTranspose",
        x(batch, c_in, size, size),
        weight(c_in, c_out, kernel, kernel),
        kernel_shape=(kernel, kernel),
        pads=(pad, pad, pad, pad),
        strides=(stride, stride),
    )


def real() -> Iterator[CatalogueItem]:
    """Yield the distinct layers of known architectures; detection sizes at small batches alone."""
    for source, layers in table("convolution").items():
        batches = (1, 4) if source == "detection" else BATCHES
        for number, row in enumerate(layers):
            layer = ConvLayer(*row)
            for batch in batches:
                yield CatalogueItem(conv(batch, layer), source)
            if number % 8 == 0:
                yield CatalogueItem(conv(8, layer, bias=True), source)
    for row in table("convolution", "transposed"):
        for batch in (1, 8, 32):
            yield CatalogueItem(conv_transpose(batch, *row), "vision")


def corners() -> Iterator[Fragment]:
    """Yield tiny and huge images, one channel, odd sizes, one pixel, large kernels, 1-D and 3-D."""
    for batch, *row in table("convolution", "corners"):
        yield conv(batch, ConvLayer(*row))
    for batch, c_in, c_out, kernel, length, stride in table("convolution", "signals"):
        yield _conv((batch, c_in, length), c_out, (kernel,), pads=(kernel // 2,), stride=stride)
    for batch, c_in, c_out, kernel, size in table("convolution", "volumes"):
        image = (batch, c_in, 16, size, size)
        yield _conv(image, c_out, (kernel,) * 3, pads=(kernel // 2,) * 3, stride=1)
    for channels, kernel, stride, size in table("convolution", "transposed_corners"):
        yield conv_transpose(1, channels, channels, kernel, stride, size)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield half dense ones (kernels 1, 3, 5, 7), a quarter depthwise, the rest grouped, dilated or transposed."""
    kinds = ("dense", "dense", "dense", "dense", "depthwise", "depthwise", "grouped", "dilated", "transposed")
    kernels = (1, 1, 3, 3, 3, 5, 7)
    strides = (1, 1, 2)
    of_kind = sampler.pick(count, kinds)
    of_kernel = sampler.pick(count, kernels)
    of_stride = sampler.pick(count, strides)
    sizes = sampler.sizes(count, table("convolution", "between"))
    for n, (batch, c_in, c_out, size) in enumerate(sizes):
        kind = of_kind[n]
        kernel = of_kernel[n]
        stride = of_stride[n]
        if kind == "transposed":
            kernel = (2, 4)[c_out % 2] if stride == 2 else 3
            yield conv_transpose(batch, c_in, c_out, kernel, stride, min(size, 128))
            continue
        groups = dilation = 1
        if kind == "depthwise":
            kernel = max(3, kernel)
            c_out = groups = c_in
        elif kind == "grouped":
            groups = (2, 4, 8, 16, 32)[c_out % 5]
            c_in = c_out = max(1, c_in // groups) * groups
        elif kind == "dilated":
            kernel = 3
            stride = 1
            dilation = (2, 4, 6)[c_out % 3]
        layer = ConvLayer(c_in, c_out, (kernel, kernel), stride, groups, dilation, (size, size))
        yield conv(batch, layer, bias=n % 16 == 0)
