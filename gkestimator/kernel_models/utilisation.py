"""Say how much of the DRAM's and the L2's bandwidth a kernel of a given duration uses."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import Launch

# Width of an SM's port to L2 since Volta (Jia et al., Dissecting Volta, 2018).
_L2_BYTES_PER_CLOCK_AND_SM = 64


def bandwidth_pct(
    table: KernelTable, launch: Launch, duration_us: Array, gpu: GpuSpec
) -> tuple[Array, Array]:
    """Return percent of the peak DRAM and L2 bandwidth, one entry per kernel, at most 100: compulsory traffic
    over time."""
    columns = table.columns
    total = table.total_bytes
    seconds = np.maximum(duration_us, 1e-3) * 1e-6
    # Tiles of a matrix product read their operands through L2 again and again: k x (tile rows + columns)
    # each, with square tiles of block threads x 64 outputs.
    k = np.nan_to_num(columns["gemm_k"], nan=0.0)
    side = np.sqrt(np.nan_to_num(launch.block_threads, nan=0.0) * 64)
    tiles = launch.grid_blocks * k * 2 * side * columns["element_bytes"]
    through_l2 = np.maximum(total, np.nan_to_num(tiles, nan=0.0))
    l2_peak = gpu.sms * _L2_BYTES_PER_CLOCK_AND_SM * gpu.boost_clock_mhz * 1e6
    dram = np.minimum(100.0, 100 * total / seconds / gpu.dram_bytes_per_s)
    return dram, np.minimum(100.0, 100 * through_l2 / seconds / l2_peak)
