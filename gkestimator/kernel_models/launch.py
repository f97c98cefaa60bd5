"""Derive the launch geometry of kernels, and what follows from it: blocks per SM, SM utilisation and occupancy.

The grid and block of elementwise, softmax and normalisation kernels follow PyTorch's launch rules exactly
(checked against the grids that NeuSight recorded). The kernel that a matrix library picks is not public:
:func:`matrix_tiles` takes the tile that finishes first, which looks at no measurement; a bundle's learned
choice (:mod:`gkestimator.kernel_models.geometry`) replaces it for the families and precisions it knows.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TypeAlias

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import frozen, map_fields
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.decode import decode_blocks
from gkestimator.kernel_models.recurrent import repeated_bytes
from gkestimator.kernel_models.tiles import pieces

ArrayPair: TypeAlias = "tuple[Array, Array]"

# Width of an SM's port to L2 since Volta (Jia et al., Dissecting Volta, 2018).
_L2_BYTES_PER_CLOCK_AND_SM = 64
STEADY = 0.94
"""Share of the theoretical occupancy that a stream of short blocks keeps up."""
LONG_BLOCKS = (
    Family.LINEAR,
    Family.BMM,
    Family.CONV,
    Family.CONV_TRANSPOSE,
    Family.ATTENTION,
    Family.DECODE,
    Family.RNN,
    Family.FFT,
    Family.SORT,
)
"""Families whose blocks each last a large part of the kernel."""
_TILED = (Family.LINEAR, Family.BMM, Family.CONV, Family.CONV_TRANSPOSE, Family.RNN)
SCATTERED = "index_select_scattered"
"""Variant of torch's index_select where a thread walks a slice alone."""

# Registers per thread of the compiled kernels, by family: what ptxas allots for sm_70..sm_90 builds of these
# kernels (cuBLAS and cuDNN tiles keep their accumulators in registers: 128x64 outputs on 128 threads are 64
# accumulators and as much again for operands and addresses). 32 or fewer never limit occupancy on any GPU
# since Maxwell.
_REGISTERS = {
    Family.LINEAR: 122,
    Family.BMM: 122,
    Family.CONV: 122,
    Family.CONV_TRANSPOSE: 122,
    Family.ATTENTION: 168,
    Family.DECODE: 168,
    Family.RNN: 122,
    Family.DEPTHWISE: 32,
    Family.SOFTMAX: 32,
    Family.LAYERNORM: 32,
    Family.POOLING: 32,
    Family.REDUCTION: 32,
    Family.RESAMPLE: 40,
    Family.SORT: 40,
    Family.FFT: 40,
}


@frozen
class Launch:
    """Hold one entry per kernel, float64: blocks in the grid, threads in a block, registers per thread, shared
    bytes per block.

    Kernels that run on the host have 0 blocks and NaN elsewhere.
    """

    grid_blocks: Array
    block_threads: Array
    registers_per_thread: Array
    shared_bytes: Array

    def copy(self) -> Launch:
        """Return the same launches in arrays of their own."""
        return map_fields(self, np.copy)


LAUNCH_FIELDS = tuple(member.name for member in fields(Launch))


def power_of_two(sizes: Array) -> Array:
    """Return the least power of two that is no smaller, of each of ``sizes``."""
    exponents = np.ceil(np.log2(sizes))
    return np.asarray(np.exp2(exponents))


def _softmax(rows: Array, cols: Array) -> ArrayPair:
    """Follow PyTorch's softmax: a warp a row (two rows a warp up to 128 columns) to 1,024 columns, else a block."""
    width = power_of_two(cols)
    lanes = np.minimum(32, width)
    rows_of_warp = np.where(width <= 128, 2, 1)
    per_block = 128 / lanes * rows_of_warp
    # SoftMax_getBlockSize: the power of two from 1 up while below half of min(cols / 4, 1024), at least one
    # warp.
    vectors = np.minimum(np.floor(cols / 4), 1024)
    half = np.maximum(np.floor(vectors / 2), 1)
    threads = np.maximum(32, power_of_two(half))
    small = cols <= 1024
    return np.where(small, pieces(rows, per_block), rows), np.where(small, 128.0, threads)


def _layernorm(rows: Array, cols: Array) -> ArrayPair:
    """Follow PyTorch's layer norm: a block a row; 32 x 4 threads where rows are whole 16-byte vectors, else 512."""
    return rows, np.where(cols % 4 == 0, 128.0, 512.0)


def _reduction(rows: Array, cols: Array) -> ArrayPair:
    """Let a block reduce up to 512 x 16 inputs of one row; short rows share a block."""
    rows_of_block = np.maximum(1, 512 / np.minimum(cols, 512))
    blocks = pieces(rows, rows_of_block)
    return np.maximum(blocks, 1), np.full(len(rows), 512.0)


_ROWWISE = {Family.SOFTMAX: _softmax, Family.LAYERNORM: _layernorm, Family.REDUCTION: _reduction}
# Elements of a block and its threads. Depthwise convolutions: an output per thread, 1,024 threads
# (CUDA_NUM_THREADS of ATen's KernelUtils.h).
_STREAMED = {
    Family.BATCHNORM: (4096, 512.0),
    Family.DEPTHWISE: (1024, 1024.0),
    Family.POOLING: (256, 256.0),
    Family.RESAMPLE: (256, 256.0),
    Family.GATHER: (256, 256.0),
    Family.SCATTER: (256, 256.0),
}


def memory_launch(table: KernelTable) -> ArrayPair:
    """Return grid blocks and threads per block of kernels that are not matrix products (float64, one per row).

    Elementwise kernels: 128 threads of 4 elements. Batch normalisation: 4,096 elements a block of 512 threads.
    """
    rows = np.maximum(table.columns["rows"], 1)
    cols = np.maximum(table.columns["cols"], 1)
    elements = np.maximum(table.outputs, 1)
    grid = pieces(elements, 512)
    threads = np.full(len(table), 128.0)
    for family, mask in table.by_family():
        if family in _ROWWISE:
            grid[mask], threads[mask] = _ROWWISE[family](rows[mask], cols[mask])
        elif family in _STREAMED:
            per_block, block_threads = _STREAMED[family]
            grid[mask] = pieces(elements[mask], per_block)
            threads[mask] = block_threads
    return grid, threads


@frozen
class _TileChoice:
    """Hold the outputs that a block calculates, its threads, and its rate per output relative to the largest tile's."""

    rows: int
    cols: int
    threads: int
    rate: float


# From large to small; the library takes a smaller tile when the large ones leave SMs idle. A smaller tile runs at a
# lower rate because it re-reads its operands more often.
_TILE_CHOICES = (
    _TileChoice(rows=128, cols=128, threads=256, rate=1.0),
    _TileChoice(rows=64, cols=128, threads=128, rate=0.95),
    _TileChoice(rows=128, cols=64, threads=128, rate=0.95),
    _TileChoice(rows=64, cols=64, threads=64, rate=0.8),
    _TileChoice(rows=32, cols=32, threads=128, rate=0.5),
)


@frozen
class Tiling:
    """Hold how a matrix product is cut up; float64, one entry per row.

    Blocks of the grid, threads per block, outputs per block, and ``slowdown``: time of the tiles over that of
    the same arithmetic spread evenly over all SMs (padding, idle SMs of the last wave, small tiles); at least
    1.
    """

    grid_blocks: Array
    block_threads: Array
    outputs: Array
    slowdown: Array


def matrix_tiles(table: KernelTable, gpu: GpuSpec) -> Tiling:
    """Estimate the tiling of matrix products.

    Of the tiles the one is taken that finishes first if all tiles of a wave run at the same rate per output, small
    tiles at a lower rate (a 32 x 32 tile does a quarter of the arithmetic per operand byte of a 128 x 128 tile). A
    grid smaller than the GPU is split along k, as the libraries do, while every part keeps at least 256 of k.
    """
    batch, m, n, k = table.gemm_sizes()
    batch = np.where(table.family == Family.RNN, 1.0, batch)  # its steps run one after the other
    count = len(table)
    best = np.full(count, np.inf)
    grid = np.ones(count)
    threads = np.full(count, 256.0)
    area = np.ones(count)
    most_parts = np.maximum(1, np.floor(k / 256))
    for choice in _TILE_CHOICES:
        tiles = pieces(m, choice.rows) * pieces(n, choice.cols) * batch
        parts = np.clip(np.floor(gpu.sms / tiles), 1, most_parts)
        blocks = tiles * parts
        waves = pieces(blocks, gpu.sms)
        cost = waves * choice.rows * choice.cols * pieces(k, parts) / choice.rate
        better = cost < best
        best[better] = cost[better]
        grid[better] = blocks[better]
        threads[better] = choice.threads
        area[better] = choice.rows * choice.cols
    slowdown = np.maximum(1.0, best * gpu.sms / (batch * m * n * k))
    # Without matrix dimensions (a recurrent layer, say) nothing is known of tiles: one per 128 x 64 outputs.
    shapeless = np.isnan(table.columns["gemm_m"])
    grid = np.where(shapeless, np.maximum(1.0, pieces(table.outputs, 8192)), grid)
    slowdown = np.where(shapeless, 1.0, slowdown)
    return Tiling(grid_blocks=grid, block_threads=threads, outputs=area, slowdown=slowdown)


def _attention(part: KernelTable, gpu: GpuSpec) -> ArrayPair:
    """Return blocks and shared bytes of fused attention.

    FlashAttention (half precision): a block takes 128 queries (64 for heads above 128) and keeps them and a 64-key
    slice. torch's memory-efficient kernel (FP32, CUTLASS): 64 queries and 64 keys, for heads above 64 before Ampere 32
    and 128; it keeps the scores of its keys beside slices of 32.
    """
    k = np.maximum(np.nan_to_num(part.columns["gemm_k"], nan=64.0), 1)
    full = part.precision == "fp32"
    wide = (k > 64) & (gpu.compute_capability[0] < 8)
    flash = np.where(k > 128, 64.0, 128.0)
    queries = np.where(full, np.where(wide, 32.0, 64.0), flash)
    blocks = pieces(part.size("gemm_m"), queries) * part.size("gemm_batch")
    scores = (64 * 64 + 2 * 128 * 32 / 4) * 4.0
    shared = np.where(full, scores, (queries + 128) * k * 2)
    return blocks, np.minimum(shared, gpu.shared_bytes_per_block_max)


def launch_geometry(table: KernelTable, gpu: GpuSpec) -> Launch:
    """Return the launch of every kernel of ``table`` on ``gpu``."""
    count = len(table)
    grid, threads = memory_launch(table)
    registers = np.full(count, 32.0)
    shared = np.zeros(count)
    for family, mask in table.by_family():
        registers[mask] = _REGISTERS.get(family, 32)
        if family in _TILED:
            tiling = matrix_tiles(table.take(mask), gpu)
            grid[mask] = tiling.grid_blocks
            threads[mask] = tiling.block_threads
            # Two stages of 8-deep FP32 operand slices: (rows + cols) x 8 x 4 bytes x 2, with rows = cols =
            # sqrt(area).
            shared[mask] = 2 * np.sqrt(tiling.outputs) * 8 * 4 * 2
        elif family == Family.ATTENTION:
            grid[mask], shared[mask] = _attention(table.take(mask), gpu)
            threads[mask] = 128.0
        elif family == Family.DECODE:
            grid[mask] = decode_blocks(table.take(mask), gpu)
            threads[mask] = 128.0
        elif family == Family.SOFTMAX:
            blockwise = table.columns["cols"][mask] > 1024
            shared[mask] = np.where(blockwise, threads[mask] * 4, 0)
        elif family == Family.LAYERNORM:
            shared[mask] = 24.0
        elif family == Family.GATHER:
            # torch's index_select strides over the result with 128 threads and at most 8 blocks an SM.
            selects = mask & (table.variant == SCATTERED)
            outputs = table.columns["write_bytes"][selects] / table.columns["element_bytes"][selects]
            grid[selects] = np.minimum(pieces(outputs, 128), 8 * gpu.sms)
            threads[selects] = 128.0
        elif family == Family.HOST:
            grid[mask] = 0
            for figure in (threads, registers, shared):
                figure[mask] = np.nan
    return Launch(
        grid_blocks=grid, block_threads=threads, registers_per_thread=registers, shared_bytes=shared
    )


def blocks_per_sm(launch: Launch, gpu: GpuSpec) -> Array:
    """Return how many blocks of each kernel fit on one SM at once: the least of what blocks, warps, registers and
    shared memory allow.

    Registers are allotted per warp in units of 256, from the file of the warp's partition of the SM (a quarter
    of the SM's registers; a half on compute capability 6.0), over which warps are spread evenly. Shared memory
    has 1 KiB reserved per block since Ampere (CUDA C++ programming guide, compute capabilities). At least 1,
    because the kernel runs; NaN for host kernels.
    """
    warps = pieces(launch.block_threads, 32)
    by_warps = np.floor(gpu.warps_per_sm / warps)
    per_warp = pieces(launch.registers_per_thread * 32, 256) * 256
    partitions = 4
    if gpu.compute_capability == (6, 0):
        partitions = 2
    warps_of_partition = np.floor(gpu.registers_per_sm / partitions / per_warp)
    by_registers = np.floor(partitions * warps_of_partition / warps)
    reserved = 0
    if gpu.compute_capability[0] >= 8:
        reserved = 1024
    shared = np.maximum(launch.shared_bytes + reserved, 1)
    by_shared = np.floor(gpu.shared_bytes_per_sm / shared)
    fit = np.minimum(by_warps, by_registers)
    fit = np.minimum(fit, by_shared)
    fit = np.minimum(fit, gpu.blocks_per_sm)
    return np.asarray(np.maximum(fit, 1))


def sm_utilisation_pct(launch: Launch, gpu: GpuSpec, *, of_sms: int | None = None) -> Array:
    """Return min(100, 100 x ceil(blocks / blocks that fit on an SM) / SMs), percent of ``of_sms`` SMs.

    By default those are all of ``gpu``'s.

    0 for host kernels, which use no SM.
    """
    total = gpu.sms
    if of_sms is not None:
        total = of_sms
    needed = pieces(launch.grid_blocks, blocks_per_sm(launch, gpu))
    used = np.minimum(needed, gpu.sms)
    return np.where(launch.grid_blocks > 0, np.minimum(100.0, 100.0 * used / total), 0.0)


def is_streaming(table: KernelTable) -> Array:
    """Return the mask of short blocks, which replace one another all the time: all rows but matrix products,
    convolutions, attention and recurrent layers, whose blocks each last a large part of the kernel, and kernels
    whose few blocks stride over all of the work."""
    long = table.is_of(LONG_BLOCKS) | (table.variant == SCATTERED)
    return np.asarray(~long)


def kept_up(launch: Launch, table: KernelTable) -> Array:
    """Return the share of the theoretical occupancy that each kernel's stream of blocks keeps up; 1 for long blocks.

    Between a block and its successor a slot is empty for a while that does not depend on the block's work, so
    the loss shrinks as blocks last longer. :data:`STEADY` is that of threads with four elements each
    (elementwise kernels); a reduction's threads walk along their row.
    """
    reduces = (table.family == Family.REDUCTION) & (launch.grid_blocks > 0)
    rows = np.maximum(table.columns["rows"], 1)
    inputs = rows * np.maximum(table.columns["cols"], 1)
    threads = np.where(reduces, launch.grid_blocks * launch.block_threads, 1.0)
    each = np.where(reduces, np.maximum(inputs / threads, 4.0), 4.0)
    return np.where(is_streaming(table), 1 - (1 - STEADY) * 4.0 / each, 1.0)


def occupancy(
    launch: Launch, gpu: GpuSpec, *, streaming: Array | bool = False, kept: Array | float = STEADY
) -> ArrayPair:
    """Return the theoretical and achieved occupancy of each kernel, percent of an SM's warps; host kernels 0.

    Achieved counts active SMs only, as Nsight Compute does. Kernels of long blocks run in waves: full waves at
    the theoretical occupancy, the last one with its blocks spread evenly over the SMs it uses (the hardware
    places blocks breadth first), and waves count alike in time. ``streaming`` kernels do not keep step: a slot
    is empty for a moment between a block and its successor, which leaves ``kept`` of the theoretical occupancy
    (:func:`kept_up`), and the SMs empty gradually over the last wave, half a wave's work (``w / (w + 1/2)`` for w
    waves). Less than one wave is one wave of fewer warps. Nothing public has achieved occupancies of single
    kernels; :data:`STEADY` is fitted to the largest one of five whole models on a V100 at 23 batch sizes, which
    the rule meets within 1 point (the half wave is derived, and fits best there too).
    """
    warps = pieces(launch.block_threads, 32)
    fit = blocks_per_sm(launch, gpu)
    theoretical = np.minimum(100.0, 100.0 * fit * warps / gpu.warps_per_sm)
    slots = fit * gpu.sms
    full = np.floor(launch.grid_blocks / slots)
    rest = launch.grid_blocks - full * slots
    used_sms = np.minimum(rest, gpu.sms)
    per_sm = rest / np.maximum(used_sms, 1)
    tail = np.where(rest > 0, per_sm * warps / gpu.warps_per_sm * 100.0, 0.0)
    waves = full + (rest > 0)
    in_waves = (full * theoretical + tail) / np.maximum(waves, 1)
    rounds = np.maximum(launch.grid_blocks / slots, 1.0)
    resident = np.where(full >= 1, theoretical, tail)
    flowing = resident * kept * rounds / (rounds + 0.5)
    achieved = np.where(streaming, flowing, in_waves)
    runs = launch.grid_blocks > 0
    return np.where(runs, theoretical, 0.0), np.where(runs, np.minimum(achieved, theoretical), 0.0)


def bandwidth_pct(table: KernelTable, launch: Launch, duration_us: Array, gpu: GpuSpec) -> ArrayPair:
    """Return percent of the peak DRAM and L2 bandwidth, one entry per kernel, at most 100: compulsory traffic, and
    weights that recurrent steps read again, over time."""
    columns = table.columns
    total = table.total_bytes
    again_from_dram, again_through_l2 = repeated_bytes(table, gpu)
    seconds = np.maximum(duration_us, 1e-3) * 1e-6
    # Tiles of a matrix product read their operands through L2 again and again: k x (tile rows + columns)
    # each, with square tiles of block threads x 64 outputs.
    k = np.nan_to_num(columns["gemm_k"], nan=0.0)
    side = np.sqrt(np.nan_to_num(launch.block_threads, nan=0.0) * 64)
    tiles = launch.grid_blocks * k * 2 * side * columns["element_bytes"]
    through_l2 = np.maximum(total + again_through_l2, np.nan_to_num(tiles, nan=0.0))
    l2_peak = gpu.sms * _L2_BYTES_PER_CLOCK_AND_SM * gpu.boost_clock_mhz * 1e6
    dram = np.minimum(100.0, 100 * (total + again_from_dram) / seconds / gpu.dram_bytes_per_s)
    return dram, np.minimum(100.0, 100 * through_l2 / seconds / l2_peak)
