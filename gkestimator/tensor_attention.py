"""Time of fused attention in half precision on tensor cores, from a model of how FlashAttention-like kernels run.

A block holds a tile of queries and walks over the keys in slices of 64: two products on the tensor cores and a
softmax on the other units, per slice. Causal kernels skip what lies above the diagonal. The constants were fitted by
least squares of log(time) on aiconfigurator's bf16 context and encoder attention (A100, H100, RTX PRO 6000) and
rounded; ``benchmarks/half_precision.py`` fits them again with each GPU left out and prints the errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gkestimator.gpus import GpuSpec
from gkestimator.kernels import KernelTable
from gkestimator.tensor_cores import (
    half_rate,
    has_tensor_cores,
    overlapped_tiles,
    sustained_clock_mhz,
    tensor_peak,
)

__all__ = ["ATTENTION_CONSTANTS", "AttentionConstants", "fused_attention_us"]

_SLICE = 64  # keys a step
_QUERIES = ((64.0, 1.15), (128.0, 1.0))  # tile of queries, and the softmax's cost per score in it


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """What no specification says. Cycles are SM clock cycles.

    ``launch_us`` and ``launch_cycles``: start and end of the call, the kernels that prepare and combine included.
    ``prologue_cycles``: start and end of a block. ``step_cycles``: least time of a step. ``efficiency``: share of the
    tensor peak inside the products. ``score_cycles``: what the softmax of one score adds. ``dram``: share of the DRAM
    peak. ``overlap`` and ``whole_waves``: as in :class:`gkestimator.tensor_cores.TensorConstants`.
    """

    launch_us: float = 1.9
    launch_cycles: float = 16_000.0
    prologue_cycles: float = 2_000.0
    step_cycles: float = 500.0
    efficiency: float = 0.65
    score_cycles: float = 0.04
    dram: float = 0.87
    overlap: float = 0.9
    whole_waves: float = 0.7


ATTENTION_CONSTANTS = AttentionConstants()

# FlashAttention-3 and its kin on Hopper run softmax and products of two tiles at once.
_OVERLAPPED_EFFICIENCY = 1.2
# Where the tensor rate is halved, the rest of a step weighs half as much: 0.65 of the full rate is a step 1 / 0.65 as
# long as its products, so with products twice as long (and 5 % idle) 2 / (2 / 0.95 + 1 / 0.65 - 1).
_HALF_RATE_EFFICIENCY = 0.75


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
        )
    return result


def _attention_us(
    sizes: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    share: np.ndarray,
    traffic: np.ndarray,
    gpu: GpuSpec,
    precision: str,
    c: AttentionConstants,
) -> np.ndarray:
    heads, queries, keys, size = sizes
    clock = sustained_clock_mhz(gpu)
    per_cycle = tensor_peak(gpu, precision) / gpu.sms / (clock * 1e6)
    efficiency = c.efficiency
    if overlapped_tiles(gpu):
        efficiency *= _OVERLAPPED_EFFICIENCY
    elif half_rate(gpu) and has_tensor_cores(gpu, precision):
        efficiency = _HALF_RATE_EFFICIENCY
    # Heads are padded to 64, then to steps of 32, above 128 to steps of 64.
    padded = np.where(
        size <= 64, 64.0, np.where(size <= 128, np.ceil(size / 32) * 32, np.ceil(size / 64) * 64)
    )
    steps = np.ceil(keys / _SLICE)
    best = np.full(len(heads), np.inf)
    for tile, softmax in _QUERIES:
        mean_steps = np.minimum(steps, steps * share + np.where(share < 0.75, tile / (2 * _SLICE), 0.0))
        score = 4 * padded / (per_cycle * efficiency) + c.score_cycles * softmax
        step = np.maximum(c.step_cycles, tile * _SLICE * score)
        waves = heads * np.ceil(queries / tile) / gpu.sms
        waves = np.maximum(1.0, np.ceil(waves) ** c.whole_waves * waves ** (1 - c.whole_waves))
        best = np.minimum(best, waves * (c.prologue_cycles + mean_steps * step) / clock)
    memory = traffic / (gpu.dram_bytes_per_s * c.dram) * 1e6
    joined = (best**c.overlap + memory**c.overlap) ** (1 / c.overlap)
    return np.asarray(c.launch_us + c.launch_cycles / clock + joined)
