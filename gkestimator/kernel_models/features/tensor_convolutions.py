"""Calculate what a convolution in half precision takes on tensor cores: the anchor of its regressors.

A convolution is an implicit matrix product (:mod:`gkestimator.kernel_models.features.tensor_cores`) with constants of
its own: several blocks share an SM, so that one tile's start and end hide behind another's work. What differs from
plain products is derived from how cuDNN stores images and groups:

- The kernels calculate in NHWC. An image in NCHW is transposed before and after, or gathered with strides by a slower
  kernel; the autotuner (``cudnn.benchmark``) takes what is faster. A 1x1 kernel whose images have a multiple of eight
  pixels is a plain product in NCHW too, with shorter rows.
- Groups of a power of two or of a multiple of 64 channels have kernels of their own (narrow ones packed to 16
  channels); all others run one product of 128 columns a group (64 for narrow groups in NCHW), whatever they need of
  it.

Constants were fitted to the development models of ``benchmarks/accuracy/timm3090.py`` in both layouts (RTX 3090, torch
2.4) and, for groups, to the RegNets and ResNeXts of the same table: ``benchmarks/layouts.py`` fits them again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import TENSORRT, Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.tensor_cores import (
    TensorConstants,
    implicit_products_us,
    sustained_tensor_rate,
)
from gkestimator.kernel_models.sustained import sustained_bytes_per_s
from gkestimator.kernel_models.tiles import pieces

CONVOLUTION_CONSTANTS = TensorConstants(tile_cycles=570.0, dram=1.0, overlap=1.7)
CHANNELS_LAST = "channels_last"
"""The variant of a convolution whose image lies in NHWC."""
_OVER_PRODUCTS = 1.025  # rate of a convolution's main loop over that of a plain product's
# What a byte of image or result in NCHW costs beyond its one pass, in passes at the sustained bandwidth. Transposing
# both would be 2; the autotuner's choices come to less.
_TRANSPOSED_PASSES = 1.35
_GROUPED_PASSES = 2.2
_DIRECT_PASSES = 0.48
_PIXELS_OF_A_ROW = 8  # 16-byte loads of half floats need rows of a multiple of eight
_PACKED_CHANNELS = 16.0
_OWN_KERNEL_CHANNELS = 64.0
_GENERIC_COLUMNS = 128.0
_GENERIC_COLUMNS_NARROW = 64.0  # of images in NCHW, for groups of at most half as many channels
_GENERIC_SLOWDOWN = 1.55


def tensor_convolution_us(
    table: KernelTable, gpu: GpuSpec, constants: TensorConstants = CONVOLUTION_CONSTANTS
) -> Array:
    """Return microseconds (float64, one per row) of the convolutions in ``table`` on the tensor cores of ``gpu``."""
    result = np.empty(len(table))
    for precision, rows in table.by_precision():
        part = table.take(rows)
        rate = _OVER_PRODUCTS * sustained_tensor_rate(gpu, precision, constants)
        run_us = implicit_products_us(_as_run(part), gpu, precision, rate, constants)
        result[rows] = run_us + _layout_us(part, gpu)
    return result


def generic_groups(table: KernelTable) -> Array:
    """Return the mask of the grouped convolutions that no kernel was written for."""
    groups = table.size("conv_groups")
    width = np.maximum(table.size("conv_in_channels") / groups, 1.0)
    power_of_two = np.log2(width) % 1 == 0
    return np.asarray((groups > 1) & ~power_of_two & (width % _OWN_KERNEL_CHANNELS != 0))


def _in_channels_last(table: KernelTable) -> Array:
    """Return the mask of the convolutions whose images lie as tensor cores want them; TensorRT's all do, and copies
    between layouts are kernels of their own."""
    return np.asarray((table.variant == CHANNELS_LAST) | table.has_word(TENSORRT))


def _as_run(table: KernelTable) -> KernelTable:
    """Return ``table`` with the products that the library runs: narrow groups packed, others padded."""
    columns = dict(table.columns)
    groups = table.size("conv_groups")
    width = np.maximum(table.size("conv_in_channels") / groups, 1.0)
    packed = np.where(groups > 1, np.clip(_PACKED_CHANNELS / width, 1.0, groups), 1.0)
    generic = generic_groups(table)
    batch, _, n, k = table.gemm_sizes()
    narrow = ~_in_channels_last(table) & (n <= _GENERIC_COLUMNS_NARROW / 2)
    tile = np.where(narrow, _GENERIC_COLUMNS_NARROW, _GENERIC_COLUMNS)
    padded = pieces(n, tile) * tile
    columns["gemm_batch"] = batch / packed
    columns["gemm_n"] = np.where(generic, padded, n * packed)
    columns["gemm_k"] = np.where(generic, k * _GENERIC_SLOWDOWN, k * packed)
    columns["conv_groups"] = groups / packed
    return replace(table, columns=columns)


def _layout_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the microseconds that images in NCHW cost beyond those in NHWC."""
    columns = table.columns
    images = columns["read_bytes"] - columns["weight_bytes"] + columns["write_bytes"]
    pixels = table.size("conv_out_h") * table.size("conv_out_w")
    area = table.size("conv_kernel_h") * table.size("conv_kernel_w")
    grouped = table.size("conv_groups") > 1
    direct = (area == 1) & (pixels % _PIXELS_OF_A_ROW == 0) & ~grouped
    passes = np.where(grouped, _GROUPED_PASSES, _TRANSPOSED_PASSES)
    passes = np.where(direct | generic_groups(table), _DIRECT_PASSES, passes)
    passes = np.where(_in_channels_last(table), 0.0, passes)
    return np.asarray(passes * images / sustained_bytes_per_s(gpu) * 1e6)
