"""Calculate the features and the anchor of TensorRT's convolutions.

TensorRT times every kernel that it has for a layer and keeps the fastest, so what decides is which kernels a shape
allows: by alignment of channels and pixels, by padding to tiles, by Winograd's algorithm, and by what copies between
layouts cost where a small engine's input and output lie in rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.attainable import attainable_us
from gkestimator.kernel_models.features.columns import FeatureColumns
from gkestimator.kernel_models.features.tensor_convolutions import (
    CONVOLUTION_CONSTANTS,
    tensor_convolution_us,
)
from gkestimator.kernel_models.features.tensor_cores import TensorConstants, half_rate, has_tensor_cores
from gkestimator.kernel_models.tiles import pieces

_VECTORS = (8, 32, 64)
"""Channels that formats and tiles of tensor cores take at a time (TensorRT developer guide, data formats)."""
_TILES = ((64, 128), (128, 256), (256, 64))
_WHOLE_ELEMENT = 4.0
_ASYNCHRONOUS_COPIES = (8, 0)
_START_US = 2.5
_CUDA_CORES_START_US = 4.0
_CYCLES_OF_DEPTH = 28.0
_WAITING_CONSTANTS = replace(CONVOLUTION_CONSTANTS, launch_us=_START_US, step_cycles=400.0, split_cycles=1e6)
"""Before Ampere a tile's next slice cannot be fetched beside the calculation (no asynchronous copies into shared
memory; the engines' kernels say ``stage1``), so that a step lasts as long as its loads, and TensorRT's kernels do not
split k: half precision on a V100 takes 0.34 us for each 32 channels of a 1x1 filter, however many there are. On the
CUDA cores a step of one (:data:`_CYCLES_OF_DEPTH`) is the least for the same reason. Start, step and depth were fitted
to half of the small layers on a V100 (``benchmarks/tensorrt_kernels.py --constants``); other GPUs took no part."""


def shape_columns(table: KernelTable, gpu: GpuSpec) -> FeatureColumns:
    """Return what a convolution's shape says beyond the features that other libraries' convolutions have."""
    size = table.size
    inputs = size("conv_in_channels")
    outputs = size("conv_out_channels")
    in_w = size("conv_in_w")
    out_w = size("conv_out_w")
    images = size("conv_batch") * (inputs * size("conv_in_h") * in_w + outputs * size("conv_out_h") * out_w)
    out = FeatureColumns()
    out["residuals"] = np.maximum(table.columns["inputs"] - 2.0, 0.0)
    out.add_logs(
        out_channels=outputs,
        in_w=in_w,
        filters=inputs * outputs,
        image=images * _WHOLE_ELEMENT / gpu.l2_bytes,
    )
    out.add_alignments(out_channels=outputs, in_w=in_w, out_w=out_w, in_pixels=size("conv_in_h") * in_w)
    for vector in _VECTORS:
        out[f"padded_in_{vector}"] = pieces(inputs, vector) * vector / inputs
        out[f"padded_out_{vector}"] = pieces(outputs, vector) * vector / outputs
    out.add_tiles(table, gpu, _TILES)
    return out


def tensorrt_convolution_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds (float64, one per row) of convolutions on tensor cores where the GPU has them for a row's
    precision, else on the CUDA cores.

    Images lie in the layout that the kernels want. Half precision is summed in half precision (the engines' kernels say
    ``f16f16_f16f16_f16``), which GeForce boards do at twice the rate of sums in FP32.
    """
    deep = table.size("gemm_k") * _CYCLES_OF_DEPTH / gpu.boost_clock_mhz
    result = np.maximum(attainable_us(table, gpu), _CUDA_CORES_START_US + deep)
    for precision, rows in table.by_precision():
        if has_tensor_cores(gpu, precision):
            part = table.take(rows)
            board = gpu
            if precision == "fp16":
                board = with_half_sums(gpu)
            result[rows] = tensor_convolution_us(part, board, _constants(gpu))
    return np.asarray(result)


def _constants(gpu: GpuSpec) -> TensorConstants:
    if gpu.compute_capability >= _ASYNCHRONOUS_COPIES:
        return CONVOLUTION_CONSTANTS
    return _WAITING_CONSTANTS


def with_half_sums(gpu: GpuSpec) -> GpuSpec:
    """Return ``gpu`` with the half-precision rate of sums in half precision: half of its integer rate."""
    if not half_rate(gpu):
        return gpu
    rates = dict(gpu.peak_flops_per_s)
    rates["fp16"] = rates["int8"] / 2
    return replace(gpu, peak_flops_per_s=rates)
