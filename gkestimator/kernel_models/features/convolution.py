"""What a convolution would cost by each algorithm that libraries choose from, as features.

Direct, as an implicit matrix product, is what the roofline counts. Winograd's minimal filtering F(t x t, 3 x 3)
multiplies (t + 2)^2 times for t^2 outputs (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
CVPR 2016): cuDNN has a fused kernel for t = 2 and a three-step one (transform, batch of (t + 2)^2 matrix products,
transform back) for t = 4, which writes and reads the transformed tensors. Explicit GEMM writes the columns.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import matrix_tiles
from gkestimator.kernel_models.roofline import Roofline

TENSOR_CORE_CHANNELS = 8
"""Tensor cores take half-precision channels by eights (cuDNN developer guide); fewer are padded."""
_OUTPUT_TILES = (2, 4)
_PRODUCT_TILES = ((64, 64), (128, 128))


def whole_channels(table: KernelTable) -> np.ndarray:
    """Arithmetic with both channel counts of a group rounded up to eights, over the arithmetic counted (at
    least 1)."""
    groups = _sizes(table, "groups")
    result = np.ones(len(table))
    for name in ("in_channels", "out_channels"):
        channels = np.maximum(_sizes(table, name) / groups, 1.0)
        result *= np.ceil(channels / TENSOR_CORE_CHANNELS) * TENSOR_CORE_CHANNELS / channels
    return result


def _sizes(table: KernelTable, name: str) -> np.ndarray:
    return np.asarray(np.maximum(np.nan_to_num(table.columns[f"conv_{name}"], nan=1.0), 1.0))


def _power_of_two(values: np.ndarray) -> np.ndarray:
    whole = values.astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, 64).astype(np.float64)))


def convolution_columns(table: KernelTable, gpu: GpuSpec, roof: Roofline) -> dict[str, np.ndarray]:
    """Features by name, (rows,) float64 each: logarithms of times over the roofline unless said otherwise.

    ``winograd<t>_compute``, ``_memory`` and ``_time``: multiplications, tensors with their transforms, and the sum
    of both (0 where Winograd does not apply) · ``winograd4_log_waves_<tile>``, ``_fill_`` and ``_useful_``: its
    matrix products on the GPU's SMs · ``columns``: writing the columns of an explicit GEMM · the rest: sizes.
    """
    batch, c, k, groups = (_sizes(table, n) for n in ("batch", "in_channels", "out_channels", "groups"))
    in_h, in_w, out_h, out_w = (_sizes(table, n) for n in ("in_h", "in_w", "out_h", "out_w"))
    kernel_h, kernel_w, stride_h, stride_w = (
        _sizes(table, n) for n in ("kernel_h", "kernel_w", "stride_h", "stride_w")
    )
    dilation = _sizes(table, "dilation_h") * _sizes(table, "dilation_w")
    fits = (kernel_h == 3) & (kernel_w == 3) & (stride_h * stride_w * dilation * groups == 1)
    size = table.columns["element_bytes"]
    flops = np.maximum(table.columns["flops"], 1.0)
    us_per_flop = roof.compute_us / flops
    us_per_byte = 1e6 / gpu.dram_bytes_per_s
    inout = batch * (c * in_h * in_w + k * out_h * out_w)

    def over(time_us: np.ndarray) -> np.ndarray:
        return np.where(fits, np.log(np.maximum(time_us, 1e-6) / roof.roofline_us), 0.0)

    result: dict[str, np.ndarray] = {}
    for tile in _OUTPUT_TILES:
        points = (tile + 2) ** 2
        tiles = batch * np.ceil(out_h / tile) * np.ceil(out_w / tile)
        compute = 2 * points * tiles * c * k * us_per_flop
        memory = (inout + points * 2 * (tiles * (c + k) + c * k)) * size * us_per_byte
        result[f"winograd{tile}_compute"] = over(compute)
        result[f"winograd{tile}_memory"] = over(memory)
        result[f"winograd{tile}_time"] = over(compute + memory)
        if tile == _OUTPUT_TILES[-1]:
            for a, b in _PRODUCT_TILES:
                waves = np.ceil(tiles / a) * np.ceil(k / b) * points / gpu.sms
                useful = tiles * k / (np.ceil(tiles / a) * a * np.ceil(k / b) * b)
                name = f"{a}x{b}"
                result[f"winograd4_log_waves_{name}"] = np.where(fits, np.log(waves), 0.0)
                result[f"winograd4_fill_{name}"] = np.where(fits, waves / np.ceil(waves), 1.0)
                result[f"winograd4_useful_{name}"] = np.where(fits, useful, 1.0)
    result["winograd4_useful"] = out_h * out_w / (np.ceil(out_h / 4) * np.ceil(out_w / 4) * 16)
    columns = batch * out_h * out_w * c * kernel_h * kernel_w * size * us_per_byte
    result["columns"] = np.log(np.maximum(columns, 1e-6) / roof.roofline_us)
    result["log_in_over_out_pixels"] = np.log(in_h * in_w / (out_h * out_w))
    result["log_out_h"] = np.log(out_h)
    result["align_channels"] = _power_of_two(c)
    result["kernel_w"] = kernel_w
    result["stride_w"] = stride_w
    result["whole_channels"] = whole_channels(table)
    result["log_tile_slowdown"] = np.log(matrix_tiles(table, gpu).slowdown)
    return result
