"""Time of fused attention in half precision on tensor cores, from a model of how FlashAttention-like kernels run.

A block holds a tile of queries and walks over the keys in slices of 64: two products on the tensor cores and a
softmax on the other units, per slice. Causal kernels skip what lies above the diagonal. The constants were fitted by
least squares of log(time) on aiconfigurator's bf16 context and encoder attention (A100, H100, RTX PRO 6000) and
rounded; ``benchmarks/half_precision.py`` fits them again with each GPU left out and prints the errors.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.tensor_cores import (
    half_rate,
    has_tensor_cores,
    memory_us,
    overlapped_tiles,
    tensor_clock_mhz,
    tensor_peak,
)

_SLICE = 64  # keys a step
_QUERIES = ((64.0, 1.15), (128.0, 1.0))  # tile of queries, and the softmax's cost per score in it

MASKED = "masked"
"""Variant of kernels with a mask tensor."""
# FlashAttention needs compute capability 8.0 and no mask; what runs otherwise (xformers' memory-efficient kernel) takes
# about twice as long: T. Dao, FlashAttention-2 (2023), section 4.1.
_FLASH_FROM = (8, 0)
_WITHOUT_FLASH = 2.0


@frozen
class AttentionConstants:
    """What no specification says. Cycles are SM clock cycles.

    ``launch_us`` and ``launch_cycles``: start and end of the call, the kernels that prepare and combine included.
    ``prologue_cycles``: filling the pipeline, once a kernel; ``tile_cycles``: between one tile of queries and the
    next. ``step_cycles``: least time of a step. ``efficiency``: share of the tensor peak inside the products.
    ``score_cycles``: what the softmax of one score adds. ``dram``, ``l2_bytes_per_us``, ``l2_share``, ``overlap`` and
    ``whole_waves``: as in :class:`gkestimator.kernel_models.features.tensor_cores.TensorConstants`.
    """

    launch_us: float = 4.0
    launch_cycles: float = 9_300.0
    prologue_cycles: float = 3_000.0
    tile_cycles: float = 2_000.0
    step_cycles: float = 300.0
    efficiency: float = 0.64
    score_cycles: float = 0.037
    dram: float = 0.97
    l2_bytes_per_us: float = 2.0e6
    l2_share: float = 0.3
    overlap: float = 0.9
    whole_waves: float = 1.0


ATTENTION_CONSTANTS = AttentionConstants()

# FlashAttention-3 and its kin on Hopper run softmax and products of two tiles at once.
_OVERLAPPED_EFFICIENCY = 1.2
# Where the tensor rate is halved, the rest of a step weighs half as much: 0.64 of the full rate is a step 1 / 0.64
# as long as its products, so with products twice as long (and 5 % idle) 2 / (2 / 0.95 + 1 / 0.64 - 1). Traffic hides
# behind the longer products.
_HALF_RATE_EFFICIENCY = 0.75
_HALF_RATE_OVERLAP = 2.0


def fused_attention_us(
    table: KernelTable, gpu: GpuSpec, constants: AttentionConstants = ATTENTION_CONSTANTS
) -> np.ndarray:
    """Microseconds (float64, one per row) of fused attention kernels.

    The dimensions are those of the first product: batch x heads, queries, keys, head size.
    """
    columns = table.columns
    result = np.empty(len(table))
    for precision in np.unique(table.precision.astype(str)):
        mask = np.flatnonzero(table.precision == precision)
        heads, queries, keys, size = (
            np.fmax(columns[f"gemm_{c}"][mask], 1.0) for c in ("batch", "m", "n", "k")
        )
        # Four FLOPs per score and head element, six per score for scale and softmax: what is missing is masked.
        share = columns["flops"][mask] / (heads * queries * keys * (4 * size + 6))
        result[mask] = _attention_us(
            (heads, queries, keys, size),
            np.clip(share, 1e-3, 1.0),
            columns["read_bytes"][mask] + columns["write_bytes"][mask],
            gpu,
            str(precision),
            constants,
            _slowdown(table.variant[mask], gpu, str(precision)),
        )
    return result


def _slowdown(variant: np.ndarray, gpu: GpuSpec, precision: str) -> np.ndarray:
    """How much longer than FlashAttention's the products take."""
    if precision not in ("fp16", "bf16"):
        return np.ones(len(variant))
    if gpu.compute_capability < _FLASH_FROM:
        return np.full(len(variant), _WITHOUT_FLASH)
    return np.where(variant == MASKED, _WITHOUT_FLASH, 1.0)


def _attention_us(
    sizes: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    share: np.ndarray,
    traffic: np.ndarray,
    gpu: GpuSpec,
    precision: str,
    c: AttentionConstants,
    slowdown: np.ndarray,
) -> np.ndarray:
    heads, queries, keys, size = sizes
    clock = tensor_clock_mhz(gpu)
    per_cycle = tensor_peak(gpu, precision) / gpu.sms / (clock * 1e6)
    efficiency = c.efficiency
    overlap = c.overlap
    if overlapped_tiles(gpu):
        efficiency *= _OVERLAPPED_EFFICIENCY
    elif half_rate(gpu) and has_tensor_cores(gpu, precision):
        efficiency = _HALF_RATE_EFFICIENCY
        overlap = _HALF_RATE_OVERLAP
    # Heads are padded to 64, then to steps of 32, above 128 to steps of 64.
    padded = np.where(
        size <= 64, 64.0, np.where(size <= 128, np.ceil(size / 32) * 32, np.ceil(size / 64) * 64)
    )
    steps = np.ceil(keys / _SLICE)
    best = np.full(len(heads), np.inf)
    for tile, softmax in _QUERIES:
        mean_steps = np.minimum(steps, steps * share + np.where(share < 0.75, tile / (2 * _SLICE), 0.0))
        score = 4 * padded / (per_cycle * efficiency) + c.score_cycles * softmax
        step = np.maximum(c.step_cycles, tile * _SLICE * score * slowdown)
        waves = heads * np.ceil(queries / tile) / gpu.sms
        waves = np.maximum(1.0, np.ceil(waves) ** c.whole_waves * waves ** (1 - c.whole_waves))
        best = np.minimum(best, (c.prologue_cycles + waves * (c.tile_cycles + mean_steps * step)) / clock)
    memory = memory_us(traffic, gpu, dram=c.dram, l2_bytes_per_us=c.l2_bytes_per_us, l2_share=c.l2_share)
    joined = (best**overlap + memory**overlap) ** (1 / overlap)
    return np.asarray(c.launch_us + c.launch_cycles / clock + joined)
