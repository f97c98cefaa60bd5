"""Calculate how long recurrent layers take: serial steps, each a thin matrix product that waits for the one before.

A kernel of family ``rnn`` is the recurrence of one direction: ``gemm`` has ``batch`` steps of (m = batch of the model,
k = hidden) x (k, n = gates x hidden). The products of the inputs, which wait for nothing, are one matrix product over
all steps (Appleyard, Kocisky and Blunsom, "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016, section
3) and so a kernel of their own. A step takes the longer of two times, and what it costs to begin:

- its weights, read again: not at all where they stay in the registers of the SMs (persistent kernels: Diamos et al.,
  "Persistent RNNs", ICML 2016), from the L2 where they fit there, else from DRAM;
- its arithmetic, in whole tiles and whole waves of them: a product so thin leaves most SMs idle.

Both rise with the model's batch and hidden size, and the layer's time with its steps; no parameter is fitted to a GPU.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.roofline import row_rates
from gkestimator.kernel_models.sustained import (
    l2_bytes_per_s,
    library_generation,
    sustained_bytes_per_s,
    sustained_flops_per_s,
)
from gkestimator.kernel_models.tiles import PROLOGUE_K, TILE_RATE, pieces

CALL_US = 60.0
"""What a call of the library costs before its first step: a GRU layer of one step (512 wide) takes 88 us on a V100, of
which a step is some 30 (DeepBench's rows)."""
STEP_US = 25.0
"""What a step costs beside its work: two or three launches or a barrier over all SMs. The shortest steps whose work is
next to nothing take 25 to 30 us on a V100 and a GTX 1080 Ti with cuDNN 7 (DeepBench's rows, 256 wide)."""
SHORTEST_STEP_US = 1.0
"""No step is shorter: a launch or a barrier over all SMs lies between two steps."""
_SPLIT_K = 256.0  # least depth of a part when a product with fewer tiles than SMs is split along k
_SPLITS_FROM = (
    2  # library generation: Volta's kernels are the first that split thin single-precision products
)
_REGISTER_BYTES = 4
_HELD_SHARE = 0.5  # of the registers: a thread keeps sums and operands beside its weights


def steps_of(table: KernelTable) -> Array:
    """Return how many steps each kernel makes one after the other."""
    return table.size("gemm_batch")


def step_weight_bytes(table: KernelTable) -> Array:
    """Return the bytes of the recurrent weights, which every step needs."""
    _, _, n, k = table.gemm_sizes()
    return np.asarray(n * k * table.columns["element_bytes"])


def step_traffic_bytes(table: KernelTable, gpu: GpuSpec) -> tuple[Array, Array]:
    """Return the bytes of weights that a step reads from DRAM, and those that it reads through the L2."""
    size = step_weight_bytes(table)
    registers = _HELD_SHARE * gpu.sms * gpu.registers_per_sm * _REGISTER_BYTES
    through_l2 = size * (1 - _staying(size, registers))
    return through_l2 * (1 - _staying(size, gpu.l2_bytes)), through_l2


def repeated_bytes(table: KernelTable, gpu: GpuSpec) -> tuple[Array, Array]:
    """Return the bytes that steps after the first read again, from DRAM and through the L2; 0 for other families."""
    later = np.where(table.family == Family.RNN, steps_of(table) - 1, 0.0)
    from_dram, through_l2 = step_traffic_bytes(table, gpu)
    return np.asarray(later * from_dram), np.asarray(later * through_l2)


def _staying(size: Array, room: float) -> Array:
    """Return the share of ``size`` bytes that stay in ``room``: all up to its half, none beyond the whole."""
    return np.asarray(np.clip(2 - 2 * size / room, 0, 1))


def step_memory_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the microseconds that a step's weights take to read."""
    from_dram, through_l2 = step_traffic_bytes(table, gpu)
    seconds = np.maximum(from_dram / sustained_bytes_per_s(gpu), through_l2 / l2_bytes_per_s(gpu))
    return np.asarray(seconds * 1e6)


def step_compute_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the microseconds of a step's product at the sustained rate, spread evenly over the SMs."""
    _, m, n, k = table.gemm_sizes()
    rates = row_rates(table, partial(sustained_flops_per_s, gpu))
    return np.asarray(2 * m * n * k / rates * 1e6)


def step_product_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the microseconds of a step's product in whole tiles and waves, by the tile that finishes first.

    Libraries from Volta on split k where there are fewer tiles than SMs. The split is taken as smooth, so that a
    larger layer never takes less.
    """
    _, m, n, k = table.gemm_sizes()
    best = np.full(len(table), np.inf)
    for (rows, cols), rate in TILE_RATE.items():
        tiles = pieces(n, rows) * pieces(m, cols)
        depth = k
        if library_generation(gpu) >= _SPLITS_FROM:
            shared = k * np.minimum(1.0, tiles / gpu.sms)
            depth = np.maximum(shared, np.minimum(k, _SPLIT_K))
        cost = pieces(tiles, gpu.sms) * (depth + PROLOGUE_K) * rows * cols / rate
        best = np.minimum(best, cost)
    slowdown = best * gpu.sms / (m * n * k)
    return np.asarray(step_compute_us(table, gpu) * slowdown)


def recurrent_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds per kernel of family ``rnn``: the call and, for every step, its start and the longer of its
    weights and its product."""
    work = np.maximum(step_memory_us(table, gpu), step_product_us(table, gpu))
    return np.asarray(recurrent_fixed_us(table) + steps_of(table) * work)


def recurrent_fixed_us(table: KernelTable) -> Array:
    """Return the microseconds that a call and the starts of its steps take, whatever work there is."""
    return np.asarray(CALL_US + steps_of(table) * STEP_US)


_SLOW_STEP_US = 60.0
_TILED_AWAY = 0.6


def slowly_rising_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return an anchor in microseconds that rises with the layer's sizes more slowly than measured times do.

    Regressors relative to it may be bound to rise as well (``ModelPlan.rising``), and then no larger layer is ever
    estimated to be faster. A step costs what it does on the slowest host, and the arithmetic counts in part: where
    it grows, tiles fill.
    """
    dram = step_weight_bytes(table) / gpu.dram_bytes_per_s * 1e6
    work = np.maximum(dram, _TILED_AWAY * step_compute_us(table, gpu))
    return np.asarray(CALL_US + steps_of(table) * (_SLOW_STEP_US + work))
