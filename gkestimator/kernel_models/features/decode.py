"""Calculate the time of fused attention with few queries on a cache of keys and values: a decoder's next token.

Such a kernel reads the cache once and calculates little, so blocks are cut along the keys: one for each sequence,
key-value head and part of the keys (split-KV: T. Dao et al., Flash-Decoding for long-context inference, 2023). Query
heads that share a key-value head are rows of one tile. A second kernel combines the parts. The constants were fitted by
least squares of log(time) on aiconfigurator's bf16 decode attention, every framework's, and rounded;
``benchmarks/half_precision.py --constants`` fits them again with each GPU left out.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import numpy as np

from gkestimator.core.kernels import BYTE_CACHE, UNCUT, WARM_CACHE, WINDOW, Array, KernelTable
from gkestimator.core.records import frozen, map_fields
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import FeatureColumns
from gkestimator.kernel_models.features.tensor_attention import fused_attention_us
from gkestimator.kernel_models.features.tensor_cores import joined_us, tensor_clock_mhz, tensor_peak
from gkestimator.kernel_models.sustained import l2_bytes_per_s, sustained_bytes_per_s
from gkestimator.kernel_models.tiles import pieces

FRAMEWORKS = ("trtllm", "vllm", "sglang")
LIBRARIES = ("fa2", "fa3", "fa4", "flashinfer", "triton")
KERNEL_WORDS = (*FRAMEWORKS, *LIBRARIES)
"""Words of a variant that name whose kernel it is; without one, it is the typical kernel."""

_SLICE = 64  # keys a step
_FAR_BEYOND_L2 = 8.0  # a larger cache comes from DRAM all the same
_ROWS = 16  # of a tile: the least that tensor cores take
_TILE = 64  # rows of a tile
# FlashAttention-2 makes the heads of a group rows of one tile, and only then cuts the keys, where there is a group and
# no window (mha_varlen_fwd in csrc/flash_attn/flash_api.cpp); TensorRT-LLM's kernel for grouped heads (XQA) takes
# groups of up to 32; SGLang's Triton kernel cuts keys into at most 8 parts (--triton-attention-num-kv-splits).
_TRTLLM_GROUP = 32
_TRITON_PARTS = 8.0
_HOPPER = (9, 0)  # the only one where XQA cuts the keys of a byte cache, as the times show


@frozen
class DecodeConstants:
    """Hold what no specification says. Cycles are SM clock cycles.

    ``launch_us`` and ``launch_cycles``: start and end of the call, preparation included. ``block_cycles``: what a
    block costs beside its steps; ``step_cycles``: least time of a step of 64 keys; ``row_cycles``: what the scores of
    one query row add to a step. ``combine_cycles``: the kernel that joins the parts. ``keys_of_part``: fewest keys that
    a part of a split takes. ``blocks_per_sm``: blocks that share an SM. ``dram``: share of the streaming bandwidth;
    ``l2``: share of the bandwidth that L2 is built for; ``l2_share``: of L2 that the cache of keys and values may fill
    and stay there. ``overlap``: exponent of the norm that joins a block's steps and its traffic. ``block_trtllm``: what
    a block of TensorRT-LLM's kernels costs beside its steps, over the others'.
    """

    launch_us: float = 3.8
    launch_cycles: float = 9_100.0
    block_cycles: float = 4_800.0
    step_cycles: float = 220.0
    row_cycles: float = 49.0
    combine_cycles: float = 2_800.0
    keys_of_part: float = 450.0
    blocks_per_sm: float = 0.9
    dram: float = 1.0
    l2: float = 0.43
    l2_share: float = 1.1
    overlap: float = 1.2
    block_trtllm: float = 0.56


DECODE_CONSTANTS = DecodeConstants()


@frozen
class DecodeCalls:
    """Hold calls of decode attention, one per entry.

    ``heads``: query heads times sequences; ``caches``: key-value heads times sequences. ``rows``: query rows that
    share a cache (heads of a group times queries). ``keys``: those that are read; ``size`` and ``value_size``: elements
    of a key and of a value, ``element`` their bytes. ``cache_bytes``: read of keys and values; ``traffic``: all bytes.
    ``warm``: whether the cache may lie in L2. ``tiles``: of query rows, each a block before the keys are cut;
    ``parts``: into how many they are cut at most; ``block``: cycles of a block beside its steps, over the typical
    kernel's.
    """

    heads: Array
    caches: Array
    rows: Array
    keys: Array
    size: Array
    value_size: Array
    element: Array
    cache_bytes: Array
    traffic: Array
    warm: Array
    tiles: Array
    parts: Array
    block: Array


def decode_calls(table: KernelTable, gpu: GpuSpec, c: DecodeConstants = DECODE_CONSTANTS) -> DecodeCalls:
    """Return the sizes of decode attention kernels, whose dimensions are those of the first product.

    What no column says follows from the bytes: read are the queries, then keys and values.
    """
    heads, queries, keys, size = table.gemm_sizes()
    columns = table.columns
    wide = np.maximum(columns["element_bytes"], 1.0)
    element = np.where(table.has_word(BYTE_CACHE), 1.0, wide)
    value_size = np.maximum(columns["write_bytes"] / (heads * queries * wide), 1.0)
    cache_bytes = np.maximum(columns["read_bytes"] - heads * queries * size * wide, 1.0)
    caches = np.clip(cache_bytes / (keys * (size + value_size) * element), 1.0, heads)
    rows = queries * heads / caches
    alone = _alone(table, rows)
    tiles = np.where(alone, heads * pieces(queries, _TILE), caches * pieces(rows, _TILE))
    return DecodeCalls(
        heads=heads,
        caches=caches,
        rows=rows,
        keys=keys,
        size=size,
        value_size=value_size,
        element=element,
        cache_bytes=cache_bytes,
        traffic=table.total_bytes,
        warm=table.has_word(WARM_CACHE),
        tiles=tiles,
        parts=_most_parts(table, rows, gpu),
        block=np.where(table.has_word("trtllm"), c.block_trtllm, 1.0),
    )


def _alone(table: KernelTable, rows: Array) -> Array:
    """Return where each query head has a block of its own, although heads share keys and values."""
    ungrouped = table.has_word("fa2") & table.has_word(WINDOW)
    too_many = table.has_word("trtllm") & (rows > _TRTLLM_GROUP)
    return np.asarray(ungrouped | too_many | table.has_word(UNCUT))


def _most_parts(table: KernelTable, rows: Array, gpu: GpuSpec) -> Array:
    """Return into how many parts a kernel cuts the keys at most."""
    parts = np.full(len(table), np.inf)
    parts[table.has_word("triton")] = _TRITON_PARTS
    whole = table.has_word("fa2") & (table.has_word(WINDOW) | (rows < 1.5))
    if gpu.compute_capability != _HOPPER:
        whole |= table.has_word("trtllm") & table.has_word(BYTE_CACHE) & (rows > 1.5)
    parts[whole | table.has_word(UNCUT)] = 1.0
    return parts


def decode_us(table: KernelTable, gpu: GpuSpec, constants: DecodeConstants = DECODE_CONSTANTS) -> Array:
    """Return microseconds (float64, one per row) of decode attention kernels on ``gpu``.

    Those whose keys stay uncut are the kernels of prompts: their tiles calculate in full, however few rows are filled.
    """
    result = _cut_us(table, gpu, decode_calls(table, gpu, constants), constants)
    uncut = np.flatnonzero(table.has_word(UNCUT))
    if len(uncut):
        result[uncut] = fused_attention_us(table.take(uncut), gpu)
    return result


def _cut_us(table: KernelTable, gpu: GpuSpec, calls: DecodeCalls, constants: DecodeConstants) -> Array:
    result = np.empty(len(table))
    for precision, index in table.by_precision():
        part = map_fields(calls, itemgetter(index))
        result[index] = _calls_us(part, gpu, tensor_peak(gpu, precision), constants)
    return result


def cache_us(calls: DecodeCalls, gpu: GpuSpec, constants: DecodeConstants = DECODE_CONSTANTS) -> Array:
    """Return microseconds that the traffic takes: from DRAM, or L2 where a warm cache fits into it."""
    from_dram = calls.traffic / (sustained_bytes_per_s(gpu) * constants.dram) * 1e6
    from_l2 = calls.traffic / (l2_bytes_per_s(gpu) * constants.l2) * 1e6
    filled = calls.cache_bytes / (constants.l2_share * gpu.l2_bytes)
    kept = calls.warm / (1 + filled**4)
    return np.asarray(from_dram * (1 - kept) + np.minimum(from_l2, from_dram) * kept)


def decode_blocks(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return how many blocks each kernel has."""
    calls = decode_calls(table, gpu)
    return np.asarray(calls.tiles * _parts(calls, gpu, DECODE_CONSTANTS))


def _parts(calls: DecodeCalls, gpu: GpuSpec, c: DecodeConstants) -> Array:
    """Return into how many parts the keys are cut: as many as fill the GPU, if each is long enough."""
    most = np.maximum(np.floor(calls.keys / c.keys_of_part), 1.0)
    wanted = np.floor(gpu.sms * c.blocks_per_sm / calls.tiles)
    return np.asarray(np.clip(wanted, 1.0, np.minimum(most, calls.parts)))


def _calls_us(calls: DecodeCalls, gpu: GpuSpec, peak: float, c: DecodeConstants) -> Array:
    clock = tensor_clock_mhz(gpu)
    per_cycle = peak / gpu.sms / (clock * 1e6)
    places = gpu.sms * c.blocks_per_sm
    tiles = calls.tiles
    rows = np.minimum(pieces(calls.rows * calls.caches / tiles, _ROWS) * _ROWS, float(_TILE))
    parts = _parts(calls, gpu, c)
    steps = pieces(calls.keys / parts, _SLICE)
    products = 2 * rows * _SLICE * (calls.size + calls.value_size) / per_cycle
    # Blocks of one SM share its units, but not the time that they wait.
    step = np.maximum(c.step_cycles, c.blocks_per_sm * (products + rows * c.row_cycles))
    waves = np.maximum(tiles * parts / places, 1.0)
    blocks_us = waves * (c.block_cycles * calls.block + steps * step) / clock
    together = joined_us(blocks_us, cache_us(calls, gpu, c), c.overlap)
    combining = np.where(parts > 1, c.combine_cycles, 0.0)
    return np.asarray(c.launch_us + (c.launch_cycles + combining) / clock + together)


def decode_columns(table: KernelTable, gpu: GpuSpec) -> FeatureColumns:
    """Return the features of decode attention that say nothing of which GPU it is.

    All are those of a warm cache, which alone was measured: a cold one moves the anchor, not what is learned beside it.
    """
    calls = replace(decode_calls(table, gpu), warm=np.ones(len(table), dtype=bool))
    anchor = _cut_us(table, gpu, calls, DECODE_CONSTANTS)
    out = FeatureColumns()
    out.add_logs(
        anchor=anchor,
        cache_over_anchor=cache_us(calls, gpu) / anchor,
        cache_over_l2=np.minimum(calls.cache_bytes / gpu.l2_bytes, _FAR_BEYOND_L2),
        heads=calls.heads,
        caches=calls.caches,
        rows=calls.rows,
        keys=calls.keys,
        held_keys=np.maximum(table.columns["cols"], 1.0),
        size=calls.size,
        value_size=calls.value_size,
    )
    # Where the heads of a group are no rows of a tile, each has a block of its own; packing wants powers of two.
    out.add_waves(calls.caches / gpu.sms, "_caches")
    out.add_waves(calls.heads / gpu.sms, "_heads")
    out.add_alignments(rows=np.round(calls.rows))
    out["element"] = calls.element
    out["windowed"] = table.has_word(WINDOW)
    out["uncut"] = table.has_word(UNCUT)
    for word in KERNEL_WORDS:
        out[f"is_{word}"] = table.has_word(word)
    return out
