"""Bound the time of a kernel from below by physics: its arithmetic at the highest clock, its bytes beyond the L2 cache.

Unlike the roofline, which is what estimates are relative to, this is meant to hold for every measurement: boards clock
above their published boost, libraries save arithmetic, and what fits into the L2 need not come from DRAM.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.roofline import Roofline

HIGHEST_CLOCK = 1.15
"""Boards run above the clock of their published rates: an RTX 3090 reaches 1.07 of its peak (LLMServingSim), a GTX 1080
Ti 1.06 (DeepBench), and the H100's rates are at a clock 8 % below its boost."""
_WINOGRAD = 4.0
"""F(4x4, 3x3) needs a quarter of the multiplications (Lavin and Gray 2016); 1.98 of the peak was measured (alibaba)."""
_MULTIPLICATIONS = {Family.LINEAR: 1.0, Family.BMM: 1.0, Family.ATTENTION: 1.0}
_CONVOLUTION = 0.5
"""Half-precision convolutions of any size reach 1.9 times the peak by DeepBench's count of FLOPs."""
_STREAMED = frozenset(
    {Family.LINEAR, Family.BMM, Family.CONV, Family.ELEMENTWISE, Family.SOFTMAX, Family.LAYERNORM}
)
"""Families whose bytes are read and written whole. Attention keeps tiles, and gathers touch what indices name."""


def least_us(table: KernelTable, gpu: GpuSpec, roof: Roofline) -> Array:
    """Return microseconds below which no kernel of ``table`` runs on ``gpu``, whose roofline is ``roof``; 0 where
    nothing is known of a family.

    Bytes: the L2 may hold as much of the inputs at the start as fits, and keep as much of the outputs at the end.
    """
    needed = np.zeros(len(table))
    for family, share in _MULTIPLICATIONS.items():
        needed[table.family == family] = share
    convolution = table.family == Family.CONV
    needed[convolution] = _CONVOLUTION
    needed[convolution & _may_save(table)] = 1 / _WINOGRAD
    compute = roof.compute_us * needed / HIGHEST_CLOCK
    columns = table.columns
    read = columns["read_bytes"] * _touched(table)
    moved = np.maximum(read - gpu.l2_bytes, 0) + np.maximum(columns["write_bytes"] - gpu.l2_bytes, 0)
    memory = moved / gpu.dram_bytes_per_s * 1e6
    return np.maximum(compute, np.where(table.is_of(_STREAMED), memory, 0.0))


def _touched(table: KernelTable) -> Array:
    """Return the share of what a convolution reads that its filters touch: those whose steps are longer than themselves
    jump over pixels (1x1 filters in steps of 2 take 0.4 of the roofline; alibaba, FP16)."""
    share = np.ones(len(table))
    for side in ("h", "w"):
        share *= np.minimum(table.size(f"conv_kernel_{side}") / table.size(f"conv_stride_{side}"), 1.0)
    return share


def _may_save(table: KernelTable) -> Array:
    """Return the mask of convolutions whose kernels are large enough for Winograd's or Fourier's algorithm."""
    return np.asarray((table.size("conv_kernel_h") > 1) & (table.size("conv_kernel_w") > 1))
