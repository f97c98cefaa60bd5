"""Half-precision convolutions on tensor cores: layouts, thin images and groups, as measured networks show them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.roofline import roofline

GPU = gpu_catalogue().resolve("RTX-3090")[0]
P100 = gpu_catalogue().resolve("P100-PCIE-16GB")[0]


def convolution(
    channels: int, pixels: int, *, kernel: int = 3, groups: int = 1, batch: int = 256, variant: str = "conv"
) -> Kernel:
    """Return a convolution of ``channels`` into as many of square images, in fp16."""
    width = channels // groups
    elements = batch * channels * pixels * pixels
    shape: dict[str, Any] = {
        "batch": batch, "in_channels": channels, "out_channels": channels, "groups": groups,
        "in_h": pixels, "in_w": pixels, "out_h": pixels, "out_w": pixels, "kernel_h": kernel, "kernel_w": kernel,
        "stride_h": 1, "stride_w": 1, "dilation_h": 1, "dilation_w": 1,
    }  # fmt: skip
    depth = width * kernel * kernel
    weights = 2 * channels * depth
    return Kernel(
        name="conv",
        family=Family.DEPTHWISE if width == 1 and groups > 1 else Family.CONV,
        variant=variant,
        precision=Precision.FP16,
        flops=2 * elements * depth,
        read_bytes=2 * elements + weights,
        write_bytes=2 * elements,
        weight_bytes=weights,
        rows=elements,
        element_bytes=2.0,
        inputs=2,
        gemm=GemmShape(batch=groups, m=batch * pixels * pixels, n=width, k=depth),
        conv=ConvShape(**shape),
    )


def microseconds(*kernels: Kernel) -> np.ndarray:
    return ANCHORS["half_convolution"](KernelTable.from_kernels(kernels), GPU)


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("pixels", [14, 28])
@pytest.mark.parametrize("groups", [1, 3, 4])
def test_nhwc_is_faster_but_for_narrow_groups_without_a_kernel(kernel: int, pixels: int, groups: int) -> None:
    first, last = microseconds(
        convolution(192, pixels, kernel=kernel, groups=groups),
        convolution(192, pixels, kernel=kernel, groups=groups, variant="channels_last"),
    )
    assert last < first


def test_a_product_over_whole_rows_of_pixels_needs_no_transposition() -> None:
    """28 x 28 pixels are 98 vectors of eight, 14 x 14 are 24.5."""

    def extra(pixels: int, batch: int) -> float:
        first, last = microseconds(
            convolution(256, pixels, kernel=1, batch=batch),
            convolution(256, pixels, kernel=1, batch=batch, variant="channels_last"),
        )
        return float(first / last)

    assert extra(28, 64) < extra(14, 256) - 0.3


def test_thin_convolutions_are_bound_by_memory() -> None:
    thin = convolution(16, 112, variant="channels_last")
    bytes_us = roofline(KernelTable.from_kernels([thin]), GPU).memory_us
    assert microseconds(thin) < 4 * bytes_us


def test_groups_without_a_kernel_of_their_own_pay_for_whole_tiles() -> None:
    own, generic = microseconds(
        convolution(768, 28, groups=24, variant="channels_last"),
        convolution(768, 28, groups=32, variant="channels_last"),  # 24 channels each
    )
    assert generic > 3 * own


def test_narrow_groups_are_packed() -> None:
    eights, fours = microseconds(
        convolution(256, 56, groups=32, variant="channels_last"),
        convolution(256, 56, groups=64, variant="channels_last"),
    )
    assert fours < 1.1 * eights


def test_cuda_cores_have_no_layout() -> None:
    table = KernelTable.from_kernels([convolution(64, 28), convolution(64, 28, variant="channels_last")])
    first, last = ANCHORS["half_convolution"](table, P100)
    assert first == last


def test_without_regressors_the_same_model_answers() -> None:
    kernels = [convolution(64, 28), convolution(96, 14, kernel=1, variant="channels_last")]
    table = KernelTable.from_kernels(kernels)
    assert (analytical_duration_us(table, GPU) == microseconds(*kernels)).all()


def test_vectors_of_channels_make_depthwise_kernels_faster() -> None:
    table = KernelTable.from_kernels(
        [
            convolution(256, 28, kernel=5, groups=256),
            convolution(256, 28, kernel=5, groups=256, variant="channels_last"),
        ]
    )
    first, last = analytical_duration_us(table, GPU)
    assert last < 0.7 * first


def test_pooling_writes_its_indices_and_reads_whole_windows() -> None:
    def pool(window: int, workspace: int) -> Kernel:
        return Kernel(
            name="pooling.max_pool",
            family=Family.POOLING,
            variant="max_pool",
            precision=Precision.FP16,
            flops=0,
            read_bytes=1 << 28,
            write_bytes=1 << 28,
            rows=1 << 27,
            cols=window,
            workspace_bytes=workspace,
        )

    kernels = [pool(1, 0), pool(1, 1 << 30), pool(49, 0)]
    bare, indexed, wide = analytical_duration_us(KernelTable.from_kernels(kernels), GPU)
    assert indexed > 2 * bare
    assert wide > 2 * bare
