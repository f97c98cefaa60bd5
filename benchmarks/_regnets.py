"""Describe RegNets without graphs: their convolutions and the bytes of everything else, from published parameters.

Radosavovic et al., Designing Network Design Spaces, CVPR 2020; timm's ``regnet.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel

_HALF = 2  # bytes
_STEM = 32


@dataclass(frozen=True, slots=True)
class RegNet:
    """Hold the parameters of one network: initial width, slope, quantisation, channels a group, blocks, attention."""

    width: int
    slope: float
    step: float
    group: int
    depth: int
    attention: bool


REGNETS = {
    "regnetx_002": RegNet(24, 36.44, 2.49, 8, 13, False),
    "regnetx_004": RegNet(24, 24.48, 2.54, 16, 22, False),
    "regnetx_006": RegNet(48, 36.97, 2.24, 24, 16, False),
    "regnetx_008": RegNet(56, 35.73, 2.28, 16, 16, False),
    "regnetx_016": RegNet(80, 34.01, 2.25, 24, 18, False),
    "regnetx_040": RegNet(96, 38.65, 2.43, 40, 23, False),
    "regnetx_064": RegNet(184, 60.83, 2.07, 56, 17, False),
    "regnetx_080": RegNet(80, 49.56, 2.88, 120, 23, False),
    "regnety_002": RegNet(24, 36.44, 2.49, 8, 13, True),
    "regnety_004": RegNet(48, 27.89, 2.09, 8, 16, True),
    "regnety_006": RegNet(48, 32.54, 2.32, 16, 15, True),
    "regnety_008": RegNet(56, 38.84, 2.4, 16, 14, True),
    "regnety_040": RegNet(96, 31.41, 2.24, 64, 22, True),
    "regnety_064": RegNet(112, 33.22, 2.27, 72, 25, True),
}
"""Those of timm's table whose graphs are not in ``models/timm3090`` (which holds development and reported ones)."""


@dataclass(slots=True)
class Described:
    """Hold a network at one batch and image size: convolutions, grouped ones apart, and bytes of all other kernels."""

    dense: list[Kernel] = field(default_factory=list)
    grouped: list[Kernel] = field(default_factory=list)
    other_bytes: float = 0.0


def described(net: RegNet, *, batch: int, pixels: int, variant: str) -> Described:
    """Return the kernels of ``net`` in half precision; ``variant`` says the layout of its convolutions."""
    result = Described()

    def add(channels: int, filters: int, size: int, kernel: int, stride: int = 1, groups: int = 1) -> int:
        convolution = _convolution(batch, channels, filters, size, kernel, stride, groups, variant)
        if groups > 1:
            result.grouped.append(convolution)
        else:
            result.dense.append(convolution)
        return -(-size // stride)

    def pass_over(channels: int, size: int, passes: float) -> None:
        result.other_bytes += passes * _HALF * batch * channels * size * size

    size = add(3, _STEM, pixels, 3, 2)
    pass_over(_STEM, size, 4)  # normalisation and activation, each read and written
    channels = _STEM
    for width, blocks, group in stages(net):
        for block in range(blocks):
            stride = 2 if block == 0 else 1
            before = size
            add(channels, width, size, 1)
            pass_over(width, size, 4)
            size = add(width, width, size, 3, stride, width // group)
            pass_over(width, size, 4)
            if net.attention:
                pass_over(width, size, 3)
            add(width, width, size, 1)
            pass_over(width, size, 2 + 5)  # normalisation; addition and activation
            if block == 0:
                add(channels, width, before, 1, 2)
                pass_over(width, size, 2)
            channels = width
    return result


def stages(net: RegNet) -> list[tuple[int, int, int]]:
    """Return width, blocks and channels a group of every stage."""
    linear = net.width + net.slope * np.arange(net.depth)
    exponent = np.round(np.log(linear / net.width) / np.log(net.step))
    widths = (np.round(net.width * net.step**exponent / 8) * 8).astype(int)
    result = []
    for width, blocks in zip(*np.unique(widths, return_counts=True), strict=True):
        group = min(net.group, int(width))
        result.append((round(width / group) * group, int(blocks), group))
    return result


def _convolution(
    batch: int, channels: int, filters: int, size: int, kernel: int, stride: int, groups: int, variant: str
) -> Kernel:
    out = -(-size // stride)
    depth = channels // groups * kernel * kernel
    outputs = batch * filters * out * out
    weights = _HALF * filters * depth
    return Kernel(
        name="conv",
        family=Family.CONV,
        variant=variant,
        precision=Precision.FP16,
        flops=2 * outputs * depth,
        read_bytes=_HALF * batch * channels * size * size + weights,
        write_bytes=_HALF * outputs,
        weight_bytes=weights,
        rows=outputs,
        element_bytes=_HALF,
        inputs=2,
        gemm=GemmShape(batch=groups, m=batch * out * out, n=filters // groups, k=depth),
        conv=ConvShape(
            batch=batch,
            in_channels=channels,
            out_channels=filters,
            groups=groups,
            in_h=size,
            in_w=size,
            out_h=out,
            out_w=out,
            kernel_h=kernel,
            kernel_w=kernel,
            stride_h=stride,
            stride_w=stride,
            dilation_h=1,
            dilation_w=1,
        ),
    )
