"""Calculate what a convolution would cost by each algorithm that libraries choose from, as features.

Direct, as an implicit matrix product, is what the roofline counts. Winograd's minimal filtering F(t x t, 3 x 3)
multiplies (t + 2)^2 times for t^2 outputs (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
CVPR 2016): cuDNN has a fused kernel for t = 2 and a three-step one (transform, batch of (t + 2)^2 matrix products,
transform back) for t = 4, which writes and reads the transformed tensors. Explicit GEMM writes the columns.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import FeatureColumns, fill
from gkestimator.kernel_models.launch import matrix_tiles
from gkestimator.kernel_models.roofline import Roofline
from gkestimator.kernel_models.tiles import pieces

TENSOR_CORE_CHANNELS = 8
"""Tensor cores take half-precision channels by eights (cuDNN developer guide); fewer are padded."""
_OUTPUT_TILES = (2, 4)
_PRODUCT_TILES = ((64, 64), (128, 128))
_TINY_US = 1e-6


def whole_channels(table: KernelTable) -> Array:
    """Return the arithmetic with both channel counts of a group rounded up to eights, over the arithmetic counted (at
    least 1)."""
    groups = table.size("conv_groups")
    result = np.ones(len(table))
    for name in ("conv_in_channels", "conv_out_channels"):
        channels = np.maximum(table.size(name) / groups, 1.0)
        result *= pieces(channels, TENSOR_CORE_CHANNELS) * TENSOR_CORE_CHANNELS / channels
    return result


def convolution_columns(table: KernelTable, gpu: GpuSpec, roof: Roofline) -> FeatureColumns:
    """Return features by name, (rows,) float64 each: logarithms of times over the roofline unless said otherwise.

    ``winograd<t>_compute``, ``_memory`` and ``_time``: multiplications, tensors with their transforms, and the sum
    of both (0 where Winograd does not apply) · ``winograd4_log_waves_<tile>``, ``_fill_`` and ``_useful_``: its
    matrix products on the GPU's SMs · ``columns``: writing the columns of an explicit GEMM · the rest: sizes.
    """
    size = table.size
    batch = size("conv_batch")
    channels = size("conv_in_channels")
    filters = size("conv_out_channels")
    in_pixels = size("conv_in_h") * size("conv_in_w")
    out_h = size("conv_out_h")
    out_w = size("conv_out_w")
    kernel_h = size("conv_kernel_h")
    kernel_w = size("conv_kernel_w")
    stride_w = size("conv_stride_w")
    steps = size("conv_stride_h") * stride_w * size("conv_dilation_h") * size("conv_dilation_w")
    fits = (kernel_h == 3) & (kernel_w == 3) & (steps * size("conv_groups") == 1)
    us_per_flop = roof.compute_us / np.maximum(table.columns["flops"], 1.0)
    element_bytes = table.columns["element_bytes"]
    us_per_byte = 1e6 / gpu.dram_bytes_per_s
    inout = batch * (channels * in_pixels + filters * out_h * out_w)

    def over(time_us: Array) -> Array:
        return np.asarray(np.log(np.maximum(time_us, _TINY_US) / roof.roofline_us))

    out = FeatureColumns()
    for tile in _OUTPUT_TILES:
        points = (tile + 2) ** 2
        tiles = batch * pieces(out_h, tile) * pieces(out_w, tile)
        compute = 2 * points * tiles * channels * filters * us_per_flop
        transformed = points * 2 * (tiles * (channels + filters) + channels * filters)
        memory = (inout + transformed) * element_bytes * us_per_byte
        out[f"winograd{tile}_compute"] = np.where(fits, over(compute), 0.0)
        out[f"winograd{tile}_memory"] = np.where(fits, over(memory), 0.0)
        out[f"winograd{tile}_time"] = np.where(fits, over(compute + memory), 0.0)
    # The last tile is the one whose products run apart; ``points`` and ``tiles`` are its.
    for rows, cols in _PRODUCT_TILES:
        blocks = pieces(tiles, rows) * pieces(filters, cols)
        waves = blocks * points / gpu.sms
        useful = tiles * filters / (blocks * rows * cols)
        name = f"{rows}x{cols}"
        out[f"winograd4_log_waves_{name}"] = np.where(fits, np.log(waves), 0.0)
        out[f"winograd4_fill_{name}"] = np.where(fits, fill(waves), 1.0)
        out[f"winograd4_useful_{name}"] = np.where(fits, useful, 1.0)
    out["winograd4_useful"] = out_h * out_w / (pieces(out_h, 4) * pieces(out_w, 4) * 16)
    columns = batch * out_h * out_w * channels * kernel_h * kernel_w
    out["columns"] = over(columns * element_bytes * us_per_byte)
    out.add_logs(in_over_out_pixels=in_pixels / (out_h * out_w), out_h=out_h)
    out.add_alignments(channels=channels)
    out["kernel_w"] = kernel_w
    out["stride_w"] = stride_w
    out["whole_channels"] = whole_channels(table)
    out.add_logs(tile_slowdown=matrix_tiles(table, gpu).slowdown)
    return out
