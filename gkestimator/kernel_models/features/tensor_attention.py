"""Calculate the time of fused attention in half precision on tensor cores, from a model of how
FlashAttention-like kernels run.

A block holds a tile of queries and walks over the keys in slices of 64: two products on the tensor cores and a
softmax on the other units, per slice. Causal kernels skip what lies above the diagonal. The constants were fitted by
least squares of log(time) on aiconfigurator's bf16 context and encoder attention (A100, H100, RTX PRO 6000) and
rounded; ``benchmarks/half_precision.py`` fits them again with each GPU left out and prints the errors.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.tensor_cores import (
    counted_waves,
    half_rate,
    has_tensor_cores,
    joined_us,
    memory_us,
    overlapped_tiles,
    tensor_clock_mhz,
    tensor_peak,
)
from gkestimator.kernel_models.tiles import pieces

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
    """Hold what no specification says. Cycles are SM clock cycles.

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


@frozen
class _Calls:
    """Hold calls of fused attention, one per entry: ``heads`` times the batch, queries, keys and head size.

    ``share``: of the scores that a mask leaves. ``traffic``: bytes. ``slowdown``: of the products, over
    FlashAttention's. ``group``: heads that share their keys and values.
    """

    heads: Array
    queries: Array
    keys: Array
    size: Array
    share: Array
    traffic: Array
    group: Array
    slowdown: Array


def fused_attention_us(
    table: KernelTable, gpu: GpuSpec, constants: AttentionConstants = ATTENTION_CONSTANTS
) -> Array:
    """Return microseconds (float64, one per row) of fused attention kernels.

    The dimensions are those of the first product: batch x heads, queries, keys, head size.
    """
    result = np.empty(len(table))
    for precision, rows in table.by_precision():
        part = table.take(rows)
        heads, queries, keys, size = part.gemm_sizes()
        # Four FLOPs per score and head element, six per score for scale and softmax: what is missing is masked.
        share = part.columns["flops"] / (heads * queries * keys * (4 * size + 6))
        calls = _Calls(
            heads=heads,
            queries=queries,
            keys=keys,
            size=size,
            share=np.clip(share, 1e-3, 1.0),
            traffic=part.total_bytes,
            group=_group(part),
            slowdown=_slowdown(part.variant, gpu, precision),
        )
        result[rows] = _attention_us(calls, gpu, precision, constants)
    return result


def _slowdown(variant: Array, gpu: GpuSpec, precision: str) -> Array:
    """Return how much longer than FlashAttention's the products take."""
    if precision not in ("fp16", "bf16"):
        return np.ones(len(variant))
    if gpu.compute_capability < _FLASH_FROM:
        return np.full(len(variant), _WITHOUT_FLASH)
    return np.where(variant == MASKED, _WITHOUT_FLASH, 1.0)


def _group(table: KernelTable) -> Array:
    """Return how many heads share their keys and values, from the bytes that are read beside the queries."""
    heads, _, keys, size = table.gemm_sizes()
    columns = table.columns
    unshared = 2 * heads * keys * size * columns["element_bytes"]
    shared = np.maximum(columns["read_bytes"] - columns["write_bytes"], 1.0)
    return np.asarray(np.clip(np.round(unshared / shared), 1, heads))


def _tiles(calls: _Calls, rows: float) -> Array:
    """Return how many tiles of ``rows`` queries there are: between those of kernels that fill a tile with the queries
    of all heads of a group (FlashInfer, FlashAttention-3) and of those that give each head tiles of its own."""
    packed = calls.heads / calls.group * pieces(calls.queries * calls.group, rows)
    apart = calls.heads * pieces(calls.queries, rows)
    return np.asarray(np.sqrt(packed * apart))


def _padded_heads(size: Array) -> Array:
    """Return head sizes padded to 64, then to steps of 32, above 128 to steps of 128."""
    middle = pieces(size, 32) * 32
    large = pieces(size, 128) * 128
    return np.where(size <= 64, 64.0, np.where(size <= 128, middle, large))


def _attention_us(calls: _Calls, gpu: GpuSpec, precision: str, c: AttentionConstants) -> Array:
    clock = tensor_clock_mhz(gpu)
    per_cycle = tensor_peak(gpu, precision) / gpu.sms / (clock * 1e6)
    efficiency = c.efficiency
    overlap = c.overlap
    if overlapped_tiles(gpu):
        efficiency *= _OVERLAPPED_EFFICIENCY
    elif half_rate(gpu) and has_tensor_cores(gpu, precision):
        efficiency = _HALF_RATE_EFFICIENCY
        overlap = _HALF_RATE_OVERLAP
    products = 4 * _padded_heads(calls.size) / (per_cycle * efficiency)
    steps = pieces(calls.keys, _SLICE)
    best = np.full(len(steps), np.inf)
    for tile, softmax in _QUERIES:
        diagonal = np.where(calls.share < 0.75, tile / (2 * _SLICE), 0.0)
        mean_steps = np.minimum(steps, steps * calls.share + diagonal)
        score = products + c.score_cycles * softmax
        step = np.maximum(c.step_cycles, tile * _SLICE * score * calls.slowdown)
        tiles = _tiles(calls, tile)
        waves = counted_waves(tiles / gpu.sms, c.whole_waves)
        cycles = c.prologue_cycles + waves * (c.tile_cycles + mean_steps * step)
        best = np.minimum(best, cycles / clock)
    together = joined_us(best, memory_us(calls.traffic, gpu, c), overlap)
    return np.asarray(c.launch_us + c.launch_cycles / clock + together)
