"""Calculate the time that a kernel would take at what a GPU sustains: the anchor of regressors for GPUs never measured.

Arithmetic at the sustained clock, padded to tiles and whole waves; memory traffic at the sustained bandwidth,
with the second and third passes over rows that do not stay in L2, and without the traffic that L2 keeps. No
parameter is fitted to a GPU, so that what is left for a regressor to learn carries over between GPUs.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import memory_launch
from gkestimator.kernel_models.roofline import KERNEL_LATENCY_US, MATRIX_FAMILIES, row_rates
from gkestimator.kernel_models.row_issue import row_issue_us
from gkestimator.kernel_models.sustained import (
    l2_bytes_per_s,
    library_generation,
    sustained_bytes_per_s,
    sustained_flops_per_s,
)
from gkestimator.kernel_models.tiles import PROLOGUE_K, TILE_RATE, pieces

# Rows in work over L2 size from which re-reading a row starts to miss, and from which it always does. LayerNorm
# moves 2 passes' worth of bytes on an A100 up to 0.7 of its L2 and 3 beyond it, softmax of wide rows 2 to 4; on
# V100, T4, P4 and P100 the change lies between 0.3 and 1 too (NeuSight's rows).
_REUSE_FROM = 0.3
_REUSE_TO = 1.0
# RMS normalisation, a block a row in half precision, is bound by the SMs where DRAM is fast: Vidur's rows give 4.5
# bytes per SM and clock on an A100 and 4.2 on an H100, and DRAM's limit (3.9) on an A40.
_RMS_BYTES_PER_CLOCK_AND_SM = 4.35
_WARP_SOFTMAX_COLUMNS = 1024  # PyTorch keeps narrower rows in registers and reads them once
_MOST_PADDING = 256.0
_TILED = (Family.LINEAR, Family.BMM, Family.CONV, Family.CONV_TRANSPOSE)

# Tiles (rows, columns) of the single-precision kernels that each library generation picks, as NeuSight recorded
# their names: batched products run one fixed tile on Pascal (maxwell_sgemm_128x64) and on Ampere
# (ampere_sgemm_128x128) whatever their shape; `linear` chooses. Where nothing is recorded all are allowed.
_ALL_TILES = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32))
_TILES = {
    (Family.BMM, 1): ((128, 64),),
    (Family.BMM, 2): ((128, 64), (64, 64), (128, 32), (32, 128)),
    (Family.BMM, 3): ((128, 128),),
    (Family.LINEAR, 1): ((64, 64), (128, 32), (32, 128)),
}
_SPLIT_K = 256.0  # least depth of a part when a grid smaller than the GPU is split along k


def missed_in_l2(filled: Array) -> Array:
    """Return the share of what is touched again that comes from DRAM, in [0, 1]: ``filled`` is what else is touched
    between, over the L2 size."""
    return np.asarray(np.clip((filled - _REUSE_FROM) / (_REUSE_TO - _REUSE_FROM), 0, 1))


@frozen
class Footprint:
    """Hold how the blocks of row-wise and elementwise kernels occupy a GPU; float64, one entry per row.

    ``waves``: grid over the blocks resident at once. ``threads``: per block. ``rows_over_l2``: bytes of the
    rows in work at once over the L2 size. ``extra_passes``: additional reads of the input from DRAM.
    """

    waves: Array
    threads: Array
    rows_over_l2: Array
    extra_passes: Array


def footprint(table: KernelTable, gpu: GpuSpec) -> Footprint:
    """Return the footprint of every kernel of ``table`` on ``gpu`` (of matrix products too, where it means little).

    Softmax reads a row three times (maximum, sum, result) when it is wider than a warp holds, LayerNorm twice;
    the repeated reads go to DRAM by the share that the rows in work exceed the L2.
    """
    columns = table.columns
    cols = np.maximum(columns["cols"], 1)
    grid, threads = memory_launch(table)
    threads = np.maximum(threads, 1)
    fitting = np.floor(gpu.warps_per_sm * 32 / threads)
    resident = np.maximum(1, np.minimum(gpu.blocks_per_sm, fitting))
    per_sm = np.maximum(grid, 1) / gpu.sms
    at_work = np.minimum(resident, per_sm) * gpu.sms
    rows_over_l2 = at_work * cols * columns["element_bytes"] / gpu.l2_bytes
    missing = missed_in_l2(rows_over_l2)
    passes = np.zeros(len(table))
    passes[table.family == Family.LAYERNORM] = 1.0
    passes[(table.family == Family.SOFTMAX) & (cols > _WARP_SOFTMAX_COLUMNS)] = 2.0
    return Footprint(
        waves=per_sm / resident, threads=threads, rows_over_l2=rows_over_l2, extra_passes=passes * missing
    )


def memory_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the microseconds of the memory traffic: from DRAM what half of the L2 does not hold, all of it through L2.

    Operands that fit into half of the L2 (whose other half is the far partition's copy, or other data) stay
    there between kernels; above the whole L2 nothing does. RMS normalisations also pay for what an SM handles
    per clock, layer normalisations for the instructions of a row.
    """
    columns = table.columns
    total = table.total_bytes
    activations = np.maximum(columns["read_bytes"] - columns["weight_bytes"], 0)
    again = footprint(table, gpu).extra_passes * activations
    in_l2 = np.clip(2 - 2 * total / gpu.l2_bytes, 0, 1)
    dram = (total + again) * (1 - in_l2) / sustained_bytes_per_s(gpu)
    seconds = np.maximum(dram, total / l2_bytes_per_s(gpu))
    rms = np.array([v.startswith(("rms", "simplified")) for v in table.variant], dtype=bool)
    rms &= table.family == Family.LAYERNORM
    issued = total / (gpu.sms * _RMS_BYTES_PER_CLOCK_AND_SM * gpu.boost_clock_mhz * 1e6)
    waited = np.where(rms, np.maximum(seconds, issued), seconds) * 1e6
    return np.asarray(np.maximum(waited, row_issue_us(table, gpu)))


def compute_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the microseconds of the arithmetic at the sustained rate, spread evenly over the SMs."""
    rates = row_rates(table, partial(sustained_flops_per_s, gpu))
    return np.asarray(table.columns["flops"] / rates * 1e6)


def tile_slowdown(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the time of the tiles over that of the same arithmetic spread evenly over all SMs; at least 1.

    Of the tiles that the GPU's library generation has for the family, the one that finishes first: padding to
    whole tiles, idle SMs of the last wave, start and end of each tile. A grid smaller than the GPU is split
    along k (not for batched products). Rows without matrix dimensions have 1.
    """
    batch, m, n, k = table.gemm_sizes()
    generation = library_generation(gpu)
    most_parts = np.maximum(1, np.floor(k / _SPLIT_K))
    best = np.full(len(table), np.inf)
    for family, mask in table.by_family():
        for rows, cols in _TILES.get((family, generation), _ALL_TILES):
            tiles = pieces(m, rows) * pieces(n, cols) * batch
            parts = np.clip(np.floor(gpu.sms / tiles), 1, most_parts)
            if family == Family.BMM:
                parts = np.ones_like(parts)
            waves = pieces(tiles * parts, gpu.sms)
            steps = waves * (pieces(k, parts) + PROLOGUE_K)
            cost = steps * rows * cols / TILE_RATE[rows, cols]
            best[mask] = np.minimum(best, cost)[mask]
    slowdown = np.maximum(1.0, best * gpu.sms / (batch * m * n * k))
    return np.where(np.isnan(table.columns["gemm_m"]), 1.0, slowdown)


def attainable_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds per kernel (float64): the longer of memory traffic and arithmetic, and 1.5 us to start.

    Matrix products pay for padding and idle SMs (at most 256 times); the arithmetic of other families is a
    convention and does not count.
    """
    memory = memory_us(table, gpu)
    index = np.flatnonzero(table.is_of(MATRIX_FAMILIES))
    if len(index):
        part = table.take(index)
        padding = np.minimum(tile_slowdown(part, gpu), _MOST_PADDING)
        slowdown = np.where(part.is_of(_TILED), padding, 1.0)
        memory[index] = np.maximum(memory[index], compute_us(part, gpu) * slowdown)
    return memory + KERNEL_LATENCY_US
