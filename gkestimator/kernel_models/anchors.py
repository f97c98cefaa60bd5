"""Name the anchors: the physical time that a regressor's target is relative to, log(time / anchor)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.attainable import attainable_us
from gkestimator.kernel_models.features.convolution import whole_channels
from gkestimator.kernel_models.features.decode import decode_us
from gkestimator.kernel_models.features.tensor_attention import fused_attention_us
from gkestimator.kernel_models.features.tensor_convolutions import tensor_convolution_us
from gkestimator.kernel_models.features.tensor_cores import has_tensor_cores, tensor_core_us
from gkestimator.kernel_models.features.tensorrt import tensorrt_convolution_us
from gkestimator.kernel_models.launch import matrix_tiles
from gkestimator.kernel_models.recurrent import recurrent_us, slowly_rising_us
from gkestimator.kernel_models.roofline import peak_rate, roofline

Anchor = Callable[[KernelTable, GpuSpec], Array]
"""(kernels, GPU) -> (rows,) positive microseconds, float64."""


def _roofline_us(table: KernelTable, gpu: GpuSpec) -> Array:
    return roofline(table, gpu).roofline_us


# Share of the peak rate and of the bandwidth that a convolution's main loop reaches, and what it costs to start.
_CONV_COMPUTE = 0.7
_CONV_MEMORY = 0.8
_CONV_START_US = 4.0
_TENSOR_CORES_OVER_CUDA_CORES = 3.0  # a half-precision peak beyond twice FP32 is that of tensor cores


def _convolution_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Add arithmetic of whole tiles (on tensor cores, of channels rounded up to eights) and traffic, one after the
    other."""
    roof = roofline(table, gpu)
    compute = roof.compute_us * matrix_tiles(table, gpu).slowdown
    vector = peak_rate(gpu, "fp32", matrix=False)
    padding = whole_channels(table)
    for precision, rows in table.by_precision():
        if peak_rate(gpu, precision, matrix=True) >= _TENSOR_CORES_OVER_CUDA_CORES * vector:
            compute[rows] *= padding[rows]
    return np.asarray(compute / _CONV_COMPUTE + roof.memory_us / _CONV_MEMORY + _CONV_START_US)


def _half_convolution_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Take tensor cores where the GPU has them, else the CUDA cores."""
    if has_tensor_cores(gpu):
        return tensor_convolution_us(table, gpu)
    return _convolution_us(table, gpu)


ANCHORS: Mapping[str, Anchor] = MappingProxyType(
    {
        "roofline": _roofline_us,
        "analytical": analytical_duration_us,
        "convolution": _convolution_us,
        "half_convolution": _half_convolution_us,
        "attainable": attainable_us,
        "tensor": tensor_core_us,
        "fused_attention": fused_attention_us,
        "recurrent": recurrent_us,
        "recurrent_rising": slowly_rising_us,
        "decode": decode_us,
        "tensorrt_convolution": tensorrt_convolution_us,
    }
)
"""By the name that a bundle's model states. A new anchor is a function and a line here."""
