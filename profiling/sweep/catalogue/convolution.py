"""Convolutions: dense, pointwise, depthwise, grouped, dilated, strided, transposed; without bias, some with one."""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import CONVOLUTIONS, TRANSPOSED, ConvLayer
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, item, operator, weight, x
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

BATCHES = (1, 8, 32, 128)


def conv(
    batch: int,
    layer: ConvLayer,
    *,
    bias: bool = False,
) -> Fragment:
    """A two-dimensional convolution of ``batch`` images, padded so that the size is kept up to the stride."""
    c_in, c_out, (kh, kw), stride, groups, dilation, (h, w) = layer
    pads = (dilation * (kh - 1) // 2, dilation * (kw - 1) // 2)
    if kh == stride and kh > 1:  # patches
        pads = (0, 0)
    return operator(
        "Conv",
        x(batch, c_in, h, w),
        weight(c_out, c_in // groups, kh, kw),
        *([weight(c_out)] if bias else []),
        attributes={
            "dilations": (dilation, dilation),
            "group": groups,
            "kernel_shape": (kh, kw),
            "pads": (*pads, *pads),
            "strides": (stride, stride),
        },
    )


def conv_transpose(batch: int, c_in: int, c_out: int, kernel: int, stride: int, size: int) -> Fragment:
    """A transposed convolution that multiplies the size by ``stride`` (kernel = stride or stride + 2)."""
    pad = max(0, (kernel - stride) // 2)
    return operator(
        "ConvTranspose",
        x(batch, c_in, size, size),
        weight(c_in, c_out, kernel, kernel),
        attributes={
            "kernel_shape": (kernel, kernel),
            "pads": (pad, pad, pad, pad),
            "strides": (stride, stride),
        },
    )


def real() -> Iterator[CatalogueItem]:
    """The distinct layers of known architectures; detection sizes at small batches alone."""
    for source, layers in CONVOLUTIONS.items():
        batches = (1, 4) if source == "detection" else BATCHES
        for number, layer in enumerate(layers):
            for batch in batches:
                yield item(conv(batch, layer), source)
            if number % 8 == 0:
                yield item(conv(8, layer, bias=True), source)
    for c_in, c_out, kernel, stride, size in TRANSPOSED:
        for batch in (1, 8, 32):
            yield item(conv_transpose(batch, c_in, c_out, kernel, stride, size), "vision")


def corners() -> Iterator[CatalogueItem]:
    """Tiny and huge images, one channel, odd sizes, one pixel, large kernels, 1-D and 3-D."""
    layers: list[tuple[int, ConvLayer]] = []
    for kernel in (1, 3, 5, 7):
        k = (kernel, kernel)
        layers += [
            (1, ConvLayer(1, 1, k, 1, 1, 1, (7, 7))),
            (1, ConvLayer(3, 7, k, 1, 1, 1, (513, 513))),
            (1, ConvLayer(513, 511, k, 1, 1, 1, (13, 13))),
            (1, ConvLayer(2048, 2048, k, 1, 1, 1, (7, 7))),
            (2, ConvLayer(16, 16, k, 1, 1, 1, (1024, 1024))),
            (128, ConvLayer(64, 64, k, 1, 1, 1, (1, 1))),
            (1, ConvLayer(64, 64, k, 2, 1, 1, (1, 4096))),
            (128, ConvLayer(4, 4, k, 1, 1, 1, (64, 64))),
        ]
    for kernel in (3, 5, 7, 9, 13, 31):
        k = (kernel, kernel)
        layers += [
            (1, ConvLayer(7, 7, k, 1, 7, 1, (57, 57))),
            (8, ConvLayer(256, 256, k, 1, 256, 1, (56, 56))),
            (64, ConvLayer(1024, 1024, k, 1, 1024, 1, (14, 14))),
            (1, ConvLayer(64, 128, k, 1, 64, 1, (32, 32))),
        ]
    for dilation in (2, 4, 8):
        layers += [(4, ConvLayer(c, c, (3, 3), 1, 1, dilation, (65, 65))) for c in (8, 96, 512)]
    for groups in (2, 4, 8, 16):
        layers += [(4, ConvLayer(128, 128, (3, 3), 1, groups, 1, (s, s))) for s in (7, 28, 112)]
    for sides in ((1, 7), (7, 1), (1, 3), (3, 1), (1, 15)):
        layers += [(8, ConvLayer(c, c, sides, 1, 1, 1, (17, 17))) for c in (32, 192)]
    for batch, layer in layers:
        yield item(conv(batch, layer), "corner")
    for batch, c_in, c_out, kernel, length, stride in (
        (1, 80, 384, 3, 3000, 1),
        (8, 384, 384, 3, 3000, 2),
        (1, 1, 512, 10, 64000, 5),
        (4, 512, 512, 3, 12799, 2),
        (16, 64, 64, 9, 1024, 1),
        (32, 256, 256, 1, 512, 1),
    ):
        attributes = {
            "kernel_shape": (kernel,),
            "pads": (kernel // 2, kernel // 2),
            "strides": (stride,),
        }
        yield item(
            operator("Conv", x(batch, c_in, length), weight(c_out, c_in, kernel), attributes=attributes),
            "corner",
        )
    for batch, c_in, c_out, kernel, size in ((1, 3, 64, 3, 56), (1, 64, 64, 3, 28), (4, 32, 64, 1, 28)):
        pad = kernel // 2
        yield item(
            operator(
                "Conv",
                x(batch, c_in, 16, size, size),
                weight(c_out, c_in, kernel, kernel, kernel),
                attributes={"kernel_shape": (kernel,) * 3, "pads": (pad,) * 6, "strides": (1, 1, 1)},
            ),
            "corner",
        )
    for channels, kernel, stride, size in ((1, 2, 2, 7), (7, 3, 2, 33), (512, 4, 2, 4), (32, 4, 4, 128)):
        yield item(conv_transpose(1, channels, channels, kernel, stride, size), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Half dense (kernels 1, 3, 5, 7), a quarter depthwise, the rest grouped, dilated or transposed."""
    ranges = ((1, 128), (3, 2048), (4, 2048), (4, 512))
    kinds = ("dense", "dense", "dense", "dense", "depthwise", "depthwise", "grouped", "dilated", "transposed")
    kernels = (1, 1, 3, 3, 3, 5, 7)
    picked = sampler.pick(count, kinds)
    chosen = sampler.pick(count, kernels)
    strided = sampler.pick(count, (1, 1, 2))
    for n, (batch, c_in, c_out, size) in enumerate(sampler.sizes(count, ranges)):
        kind = kinds[picked[n]]
        kernel = kernels[chosen[n]]
        stride = (1, 1, 2)[strided[n]]
        k = (kernel, kernel)
        s = (size, size)
        if kind == "depthwise":
            k = (max(3, kernel),) * 2
            layer = ConvLayer(c_in, c_in, k, stride, c_in, 1, s)
        elif kind == "grouped":
            groups = (2, 4, 8, 16, 32)[c_out % 5]
            width = max(1, c_in // groups) * groups
            layer = ConvLayer(width, width, k, stride, groups, 1, s)
        elif kind == "dilated":
            layer = ConvLayer(c_in, c_out, (3, 3), 1, 1, (2, 4, 6)[c_out % 3], s)
        elif kind == "transposed":
            yield item(
                conv_transpose(
                    batch, c_in, c_out, (2, 4)[c_out % 2] if stride == 2 else 3, stride, min(size, 128)
                ),
                "sampled",
            )
            continue
        else:
            layer = ConvLayer(c_in, c_out, k, stride, 1, 1, s)
        yield item(conv(batch, layer, bias=n % 16 == 0), "sampled")
