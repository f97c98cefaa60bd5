"""Launch geometry of kernels, and what follows from it: blocks per SM, SM utilisation and occupancy.

The grid and block of elementwise, softmax and normalisation kernels follow PyTorch's launch rules exactly
(checked against the grids that NeuSight recorded). The kernel that a matrix library picks is not public:
:func:`matrix_tiles` takes the tile that finishes first, which looks at no measurement; a bundle's learned
choice (:mod:`gkestimator.kernel_models.geometry`) replaces it for the families and precisions it knows.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec

STEADY = 0.94
"""Share of the theoretical occupancy that a stream of short blocks keeps up."""
LONG_BLOCKS = (
    Family.LINEAR,
    Family.BMM,
    Family.CONV,
    Family.CONV_TRANSPOSE,
    Family.ATTENTION,
    Family.RNN,
    Family.FFT,
    Family.SORT,
)
"""Families whose blocks each last a large part of the kernel."""
_ROW_FAMILIES = frozenset({Family.SOFTMAX, Family.LAYERNORM})

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
    """One entry per kernel, float64: blocks in the grid, threads in a block, registers per thread, shared
    bytes per block.

    Kernels that run on the host have 0 blocks and NaN elsewhere.
    """

    grid_blocks: np.ndarray
    block_threads: np.ndarray
    registers_per_thread: np.ndarray
    shared_bytes: np.ndarray


def _softmax(rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's softmax: a warp a row (two rows a warp up to 128 columns) to 1,024 columns, else a block a
    row."""
    width = np.exp2(np.ceil(np.log2(np.maximum(cols, 1))))
    warp = np.minimum(32, width)
    per_block = 128 / warp * np.where(width <= 128, 2, 1)
    # SoftMax_getBlockSize: the power of two from 1 up while below half of min(cols / 4, 1024), at least one
    # warp.
    half = np.maximum(np.floor(np.minimum(np.floor(cols / 4), 1024) / 2), 1)
    threads = np.maximum(32, np.exp2(np.ceil(np.log2(half))))
    small = cols <= 1024
    return np.where(small, np.ceil(rows / per_block), rows), np.where(small, 128.0, threads)


def _layernorm(rows: np.ndarray, cols: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PyTorch's layer norm: a block a row; 32 x 4 threads where rows are whole 16-byte vectors, else 512."""
    return rows, np.where(cols % 4 == 0, 128.0, 512.0)


def memory_launch(table: KernelTable) -> tuple[np.ndarray, np.ndarray]:
    """Grid blocks and threads per block of kernels that are not matrix products (float64, one per row).

    Elementwise kernels: 128 threads of 4 elements. Batch normalisation: 4,096 elements a block of 512
    threads.
    """
    columns = table.columns
    rows = np.maximum(columns["rows"], 1)
    cols = np.maximum(columns["cols"], 1)
    elements = np.maximum(columns["write_bytes"] / np.maximum(columns["element_bytes"], 1e-3), 1)
    grid = np.ceil(elements / 512)
    threads = np.full(len(table), 128.0)
    for family in np.unique(table.family.astype(str)):
        mask = table.family == family
        if family == Family.SOFTMAX:
            grid[mask], threads[mask] = _softmax(rows[mask], cols[mask])
        elif family == Family.LAYERNORM:
            grid[mask], threads[mask] = _layernorm(rows[mask], cols[mask])
        elif family == Family.BATCHNORM:
            grid[mask], threads[mask] = np.ceil(elements[mask] / 4096), 512.0
        elif family == Family.DEPTHWISE:
            # An output per thread, 1,024 threads (CUDA_NUM_THREADS of ATen's KernelUtils.h).
            grid[mask], threads[mask] = np.ceil(elements[mask] / 1024), 1024.0
        elif family in (Family.POOLING, Family.RESAMPLE, Family.GATHER, Family.SCATTER):
            grid[mask], threads[mask] = np.ceil(elements[mask] / 256), 256.0
        elif family == Family.REDUCTION:
            # A block reduces up to 512 x 16 inputs of one row; short rows share a block.
            wide = np.maximum(np.ceil(rows[mask] / np.maximum(1, 512 / np.minimum(cols[mask], 512))), 1)
            grid[mask], threads[mask] = wide, 512.0
    return grid, threads


# (tile rows x columns, threads): outputs a block calculates. From large to small; the library takes a smaller
# tile when the large ones leave SMs idle.
_TILE_CHOICES = ((128, 128, 256), (128, 64, 128), (64, 64, 64), (32, 32, 128))


@frozen
class Tiling:
    """How a matrix product is cut up; float64, one entry per row.

    Blocks of the grid, threads per block, outputs per block, and ``slowdown``: time of the tiles over that of
    the same arithmetic spread evenly over all SMs (padding, idle SMs of the last wave, small tiles); at least
    1.
    """

    grid_blocks: np.ndarray
    block_threads: np.ndarray
    outputs: np.ndarray
    slowdown: np.ndarray


def matrix_tiles(table: KernelTable, gpu: GpuSpec) -> Tiling:
    """Estimated tiling of matrix products.

    Of the four tiles the one is taken that finishes first if all tiles of a wave run at the same rate per
    output, small tiles at a lower rate because they re-read their operands more often (a 32 x 32 tile does a
    quarter of the arithmetic per operand byte of a 128 x 128 tile). A grid smaller than the GPU is split
    along k, as the libraries do, while every part keeps at least 256 of k.
    """
    columns = table.columns
    batch, m, n, k = (
        np.maximum(np.nan_to_num(columns[f"gemm_{c}"], nan=1.0), 1.0) for c in ("batch", "m", "n", "k")
    )
    count = len(table)
    best = np.full(count, np.inf)
    grid = np.ones(count)
    threads = np.full(count, 256.0)
    area = np.ones(count)
    for (a, b, block), rate in zip(_TILE_CHOICES, (1.0, 0.95, 0.8, 0.5), strict=True):
        for rows, cols in {(a, b), (b, a)}:
            tiles = np.ceil(m / rows) * np.ceil(n / cols) * batch
            parts = np.clip(np.floor(gpu.sms / tiles), 1, np.maximum(1, np.floor(k / 256)))
            blocks = tiles * parts
            cost = np.ceil(blocks / gpu.sms) * rows * cols * np.ceil(k / parts) / rate
            better = cost < best
            best = np.where(better, cost, best)
            grid = np.where(better, blocks, grid)
            threads = np.where(better, float(block), threads)
            area = np.where(better, float(rows * cols), area)
    slowdown = np.maximum(1.0, best * gpu.sms / (batch * m * n * k))
    # Without matrix dimensions (a recurrent layer, say) nothing is known of tiles: one per 128 x 64 outputs.
    shapeless = np.isnan(columns["gemm_m"])
    outputs = columns["write_bytes"] / np.maximum(columns["element_bytes"], 1e-3)
    grid = np.where(shapeless, np.maximum(1.0, np.ceil(outputs / 8192)), grid)
    slowdown = np.where(shapeless, 1.0, slowdown)
    return Tiling(grid_blocks=grid, block_threads=threads, outputs=area, slowdown=slowdown)


def launch_geometry(table: KernelTable, gpu: GpuSpec) -> Launch:
    """Launch of every kernel of ``table`` on ``gpu``."""
    count = len(table)
    grid, threads = memory_launch(table)
    registers = np.full(count, 32.0)
    shared = np.zeros(count)
    for family in np.unique(table.family.astype(str)):
        mask = table.family == family
        registers[mask] = _REGISTERS.get(Family(family), 32)
        if family in (Family.LINEAR, Family.BMM, Family.CONV, Family.CONV_TRANSPOSE, Family.RNN):
            tiling = matrix_tiles(table.take(mask), gpu)
            grid[mask], threads[mask] = tiling.grid_blocks, tiling.block_threads
            # Two stages of 8-deep FP32 operand slices: (rows + cols) x 8 x 4 bytes x 2, with rows = cols =
            # sqrt(area).
            shared[mask] = 2 * np.sqrt(tiling.outputs) * 8 * 4 * 2
        elif family == Family.ATTENTION:
            part = table.take(mask)
            batch = np.maximum(np.nan_to_num(part.columns["gemm_batch"], nan=1.0), 1)
            m = np.maximum(np.nan_to_num(part.columns["gemm_m"], nan=1.0), 1)
            k = np.maximum(np.nan_to_num(part.columns["gemm_k"], nan=64.0), 1)
            # FlashAttention (half precision): a block takes 128 queries (64 for heads above 128) and keeps them
            # and a 64-key slice. torch's memory-efficient kernel (FP32, CUTLASS): 64 queries and 64 keys, for
            # heads above 64 before Ampere 32 and 128; it keeps the scores of its keys beside slices of 32.
            full = part.precision == "fp32"
            wide = (k > 64) & (gpu.compute_capability[0] < 8)
            queries = np.where(full, np.where(wide, 32.0, 64.0), np.where(k > 128, 64.0, 128.0))
            grid[mask], threads[mask] = np.ceil(m / queries) * batch, 128.0
            slices = np.where(full, (64 * 64 + 2 * 128 * 32 / 4) * 4.0, (queries + 128) * k * 2)
            shared[mask] = np.minimum(slices, gpu.shared_bytes_per_block_max)
        elif family in _ROW_FAMILIES:
            cols = np.maximum(table.columns["cols"][mask], 1)
            shared[mask] = np.where(cols > 1024, threads[mask] * 4, 0) if family == Family.SOFTMAX else 24.0
        elif family == Family.GATHER:
            # torch's index_select strides over the result with 128 threads and at most 8 blocks an SM.
            selects = mask & (table.variant == "index_select_scattered")
            outputs = table.columns["write_bytes"][selects] / table.columns["element_bytes"][selects]
            grid[selects] = np.minimum(np.ceil(outputs / 128), 8 * gpu.sms)
            threads[selects] = 128.0
        elif family == Family.HOST:
            grid[mask] = 0
            threads[mask] = registers[mask] = shared[mask] = np.nan
    return Launch(
        grid_blocks=grid, block_threads=threads, registers_per_thread=registers, shared_bytes=shared
    )


def blocks_per_sm(launch: Launch, gpu: GpuSpec) -> np.ndarray:
    """Blocks of each kernel that fit on one SM at once: the least of what blocks, warps, registers and shared
    memory allow.

    Registers are allotted per warp in units of 256, from the file of the warp's partition of the SM (a quarter
    of the SM's registers; a half on compute capability 6.0), over which warps are spread evenly. Shared memory
    has 1 KiB reserved per block since Ampere (CUDA C++ programming guide, compute capabilities). At least 1,
    because the kernel runs; NaN for host kernels.
    """
    warps = np.ceil(launch.block_threads / 32)
    by_warps = np.floor(gpu.warps_per_sm / warps)
    per_warp = np.ceil(launch.registers_per_thread * 32 / 256) * 256
    partitions = 2 if gpu.compute_capability == (6, 0) else 4
    by_registers = np.floor(partitions * np.floor(gpu.registers_per_sm / partitions / per_warp) / warps)
    reserved = 1024 if gpu.compute_capability[0] >= 8 else 0
    shared = launch.shared_bytes + reserved
    by_shared = np.floor(gpu.shared_bytes_per_sm / np.maximum(shared, 1))
    fit = np.minimum(np.minimum(by_warps, by_registers), np.minimum(by_shared, gpu.blocks_per_sm))
    return np.asarray(np.maximum(fit, 1))


def sm_utilisation_pct(launch: Launch, gpu: GpuSpec, *, of_sms: int | None = None) -> np.ndarray:
    """min(100, 100 x ceil(blocks / blocks that fit on an SM) / SMs), percent of ``of_sms`` SMs (default: all
    of ``gpu``).

    0 for host kernels, which use no SM.
    """
    total = gpu.sms if of_sms is None else of_sms
    needed = np.minimum(np.ceil(launch.grid_blocks / blocks_per_sm(launch, gpu)), gpu.sms)
    return np.where(launch.grid_blocks > 0, np.minimum(100.0, 100.0 * needed / total), 0.0)


def is_streaming(table: KernelTable) -> np.ndarray:
    """Rows whose blocks are short and replace one another all the time: everything but matrix products,
    convolutions, attention and recurrent layers, whose blocks each last a large part of the kernel, and kernels
    whose few blocks stride over all of the work."""
    long = np.isin(table.family.astype(str), [f.value for f in LONG_BLOCKS])
    return np.asarray(~(long | (table.variant == "index_select_scattered")))


def kept_up(launch: Launch, table: KernelTable) -> np.ndarray:
    """Share of the theoretical occupancy that each kernel's stream of blocks keeps up; 1 for long blocks.

    Between a block and its successor a slot is empty for a while that does not depend on the block's work, so
    the loss shrinks as blocks last longer. :data:`STEADY` is that of threads with four elements each
    (elementwise kernels); a reduction's threads walk along their row.
    """
    reduces = (table.family == Family.REDUCTION) & (launch.grid_blocks > 0)
    inputs = np.maximum(table.columns["rows"], 1) * np.maximum(table.columns["cols"], 1)
    threads = np.where(reduces, launch.grid_blocks * launch.block_threads, 1.0)
    each = np.where(reduces, np.maximum(inputs / threads, 4.0), 4.0)
    return np.where(is_streaming(table), 1 - (1 - STEADY) * 4.0 / each, 1.0)


def occupancy(
    launch: Launch, gpu: GpuSpec, *, streaming: np.ndarray | bool = False, kept: np.ndarray | float = STEADY
) -> tuple[np.ndarray, np.ndarray]:
    """Theoretical and achieved occupancy of each kernel, percent of an SM's warps; host kernels 0.

    Achieved counts active SMs only, as Nsight Compute does. Kernels of long blocks run in waves: full waves at
    the theoretical occupancy, the last one with its blocks spread evenly over the SMs it uses (the hardware
    places blocks breadth first), and waves count alike in time. ``streaming`` kernels do not keep step: a slot
    is empty for a moment between a block and its successor, which leaves ``kept`` of the theoretical occupancy
    (:func:`kept_up`), and the SMs empty gradually over the last wave, half a wave's work (``w / (w + 1/2)`` for w
    waves). Less than one wave is one wave of fewer warps. Nothing public has achieved occupancies of single
    kernels; :data:`STEADY` is fitted to the largest one of five whole models on a V100 at 23 batch sizes, which
    the rule meets within 1 point (the half wave is derived, and fits best there too).
    """
    warps = np.ceil(launch.block_threads / 32)
    fit = blocks_per_sm(launch, gpu)
    theoretical = np.minimum(100.0, 100.0 * fit * warps / gpu.warps_per_sm)
    slots = fit * gpu.sms
    full = np.floor(launch.grid_blocks / slots)
    rest = launch.grid_blocks - full * slots
    per_sm = rest / np.maximum(np.minimum(rest, gpu.sms), 1)
    tail = np.where(rest > 0, per_sm * warps / gpu.warps_per_sm * 100.0, 0.0)
    waves = full + (rest > 0)
    in_waves = (full * theoretical + tail) / np.maximum(waves, 1)
    rounds = np.maximum(launch.grid_blocks / slots, 1.0)
    resident = np.where(full >= 1, theoretical, tail)
    flowing = resident * kept * rounds / (rounds + 0.5)
    achieved = np.where(streaming, flowing, in_waves)
    runs = launch.grid_blocks > 0
    return np.where(runs, theoretical, 0.0), np.where(runs, np.minimum(achieved, theoretical), 0.0)
