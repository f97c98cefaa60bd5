"""Count traffic that a kernel cannot avoid on a GPU beyond reading and writing each operand once."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import streaming_fraction
from gkestimator.kernel_models.launch import memory_launch
from gkestimator.kernel_models.tiles import pieces

_WIDEST_WARP_ROW = 1024  # PyTorch's softmax keeps rows up to here in registers
_CACHED_BY_SM = (7, 0)  # from Volta on, an SM's L1 keeps what its blocks read from global memory
_FROM_SM = 0.6
_OVER_SM = 0.8
_FROM_L2 = 0.4
_OVER_L2 = 0.8
_LEAST = 0.9


def softmax_misses(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the share of a wide softmax's second and third reads that go to DRAM, in [0, 1] per row of ``table``.

    PyTorch's block softmax reads a row three times (maximum, sum, result). The rows that an SM works on at a
    time stay in its L1 (the unified memory of Volta and later; before, in the L2) while they fill less than 0.6
    of it (0.4 of the L2), and are gone beyond 1.4 (1.2) of it. The ends are read off NeuSight's larger rows of
    4,096 to 16,384 columns (V100, T4, A100; P4 and P100 for the L2), on which time over roofline climbs from
    1.2 to 2.5.
    """
    columns = table.columns
    cols = np.nan_to_num(columns["cols"], nan=1.0)
    wide = (table.family == Family.SOFTMAX) & (cols > _WIDEST_WARP_ROW)
    _, threads = memory_launch(table)
    fitting = np.floor(gpu.warps_per_sm * 32 / np.maximum(threads, 1))
    rows_of_sm = pieces(table.size("rows"), gpu.sms)
    resident = np.minimum(np.clip(fitting, 1, gpu.blocks_per_sm), rows_of_sm)
    row_bytes = cols * columns["element_bytes"]
    if tuple(gpu.compute_capability) >= _CACHED_BY_SM:
        filled = resident * row_bytes / gpu.shared_bytes_per_sm
        missed = (filled - _FROM_SM) / _OVER_SM
    else:
        filled = resident * gpu.sms * row_bytes / gpu.l2_bytes
        missed = (filled - _FROM_L2) / _OVER_L2
    return np.where(wide, np.clip(missed, 0.0, 1.0), 0.0)


def broadcast_misses(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the share of the repeated reads of broadcast operands that go to DRAM, in [0, 1] per row of ``table``:
    none while what is touched between two of them fills less than 0.4 of the L2, all beyond 1.2 of it."""
    filled = table.columns["again_window"] / gpu.l2_bytes
    return np.asarray(np.clip((filled - _FROM_L2) / _OVER_L2, 0.0, 1.0))


def least_traffic_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the least microseconds per kernel that its traffic takes, repeated reads included: 0.9 of what streaming
    kernels would need for it; 0 for kernels that read their operands once."""
    again = 2 * softmax_misses(table, gpu) * table.columns["read_bytes"]
    again = again + broadcast_misses(table, gpu) * table.columns["again_bytes"]
    size = table.total_bytes + again
    reached = streaming_fraction(gpu) * gpu.dram_bytes_per_s
    return np.where(again > 0, _LEAST * size / reached * 1e6, 0.0)
