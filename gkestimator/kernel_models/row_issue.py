"""Calculate what layer normalisations of short rows wait for: instructions, not memory.

torch normalises a row with a block of four warps (aten/src/ATen/native/cuda/layer_norm_kernel.cu,
``vectorized_layer_norm_kernel``). A thread takes four elements at a time, so a row of up to 128 columns keeps one warp
at work, and only rows of more than 512 go round twice. Each warp with elements pays for the running mean and variance
of Welford, a division an element, and for combining those of its 32 threads, a division a step: hundreds of
instructions a row whether it has 40 columns or 120.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec

_WARPS = 4
_ELEMENTS_PER_WARP = 128
# Clocks of an SM. NeuSight's rows of 5,000 and more rows: A100 733 for three warps, 856 for four, 1,186 for four that
# go round twice; V100 506, 591 to 633; T4 686; P4 823 (benchmarks/layer_norms.py).
_CLOCKS_PER_WARP = 130.0
_CLOCKS_PER_ROUND = 70.0


def row_issue_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds (float64) that the SMs take to issue the rows of layer normalisations; 0 for others."""
    columns = table.columns
    rounds = np.ceil(np.maximum(columns["cols"], 1) / _ELEMENTS_PER_WARP)
    clocks = _CLOCKS_PER_WARP * np.minimum(rounds, _WARPS) + _CLOCKS_PER_ROUND * rounds
    seconds = columns["rows"] * clocks / (gpu.sms * gpu.boost_clock_mhz * 1e6)
    layer_norm = (table.family == Family.LAYERNORM) & (table.variant == "layer_norm")
    return np.where(layer_norm, seconds * 1e6, 0.0)
