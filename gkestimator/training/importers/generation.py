"""Import aiconfigurator's decode attention (``attention_generation_bf16``): one query token a sequence.

The serving framework and its kernel are words of the variant. Beside the rows of each stands the median of two or more
for one shape on one GPU, without a word: what is estimated where nobody says whose kernel will run. The publisher
replays a call on one cache, so all rows say ``warm_cache``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.kernels import BYTE_CACHE, DECODE, WARM_CACHE, WINDOW, Array, KernelTable
from gkestimator.training.importers.files import equal_rows, read_columns, translated
from gkestimator.training.rows import TrainingRows, kernel_table

FILE = "attention_generation_bf16.parquet"
SOURCE = "aiconfigurator"
_GPUS = {name: name for name in ("A100-SXM4-80GB", "H100-SXM", "RTX-PRO-6000", "L40S")}
_KERNELS = {
    "torch_flow": "trtllm",
    "vllm_flash_attn": "vllm.fa2",
    "vllm_flash_attn_fa2": "vllm.fa2",
    "vllm_flash_attn_fa3": "vllm.fa3",
    "vllm_flash_attn_fa4": "vllm.fa4",
    "vllm_flashinfer_fidecode": "vllm.flashinfer",
    "vllm_triton_attn": "vllm.triton",
    "flash_attention": "sglang.fa2",
    "fa3": "sglang.fa3",
    "flashinfer": "sglang.flashinfer",
    "triton": "sglang.triton",
}
_SIZES = ("batch_size", "kv_len", "num_heads", "num_key_value_heads", "head_dim", "v_head_dim", "window_size")
_ELEMENT = 2.0  # bytes of queries and results


def load_generation(folder: Path) -> list[TrainingRows]:
    """Return the rows of the file in ``folder``, none where it is not there."""
    path = folder / FILE
    if not path.is_file():
        return []
    data = read_columns(path, ("gpu", "kernel_source", "kv_cache_dtype", *_SIZES, "latency_ms"))
    gpu = translated(path, "gpu", data["gpu"], _GPUS)
    kernel = translated(path, "kernel_source", data["kernel_source"], _KERNELS)
    narrow = translated(path, "kv_cache_dtype", data["kv_cache_dtype"], {"bfloat16": "", "fp8": BYTE_CACHE})
    sizes = [np.nan_to_num(data[name].astype(np.float64)) for name in _SIZES]
    measured_us = data["latency_ms"].astype(np.float64) * 1e3
    cache = np.char.add(gpu.astype(str), narrow.astype(str))
    _, shared = np.unique(cache, return_inverse=True)
    _, own = np.unique(np.char.add(cache, kernel.astype(str)), return_inverse=True)
    typical = np.full(len(gpu), "", dtype=object)
    parts = []
    # One framework alone is not typical.
    for group, names, least in ((own, kernel, 1), (shared, typical, 2)):
        index, middle_us, count = _medians(group, sizes, measured_us)
        index = index[count >= least]
        chosen = [size[index] for size in sizes]
        window = np.where(chosen[-1] > 0, WINDOW, "")
        rows = len(index)
        words = [np.full(rows, DECODE), window, narrow[index], np.full(rows, WARM_CACHE), names[index]]
        table = generation_table(_joined(words), *chosen)
        middle_us = middle_us[count >= least]
        parts.append(TrainingRows.make(table, gpu=gpu[index], measured_us=middle_us, source=SOURCE))
    return parts


def _medians(group: Array, sizes: list[Array], times: Array) -> tuple[Array, Array, Array]:
    """Return a row of every distinct (group, sizes), the median of their times, and how many they are."""
    keys = [group.astype(np.float64), *sizes]
    order, first, size = equal_rows(keys, times)
    lower = times[order[first + (size - 1) // 2]]
    upper = times[order[first + size // 2]]
    # Of two that differ tenfold, the mean of logarithms is the one in the middle.
    return order[first], np.sqrt(lower * upper), size


def _joined(words: list[Array]) -> Array:
    """Return the words of each row that are not empty, joined by dots."""
    variants = [".".join(filter(None, row)) for row in zip(*(word.tolist() for word in words), strict=True)]
    return np.array(variants, dtype=object)


def generation_table(
    variant: Array, batch: Array, held: Array, heads: Array, caches: Array, size: Array, value_size: Array,
    window: Array,
) -> KernelTable:  # fmt: skip
    """Return attention of one query a sequence on ``held`` keys, of which a ``window`` (0: none) is seen."""
    seen = np.where(window > 0, np.minimum(window, held), held)
    rows = batch * heads
    narrow = np.array([BYTE_CACHE in word.split(".") for word in variant.tolist()], dtype=bool)
    element = np.where(narrow, 1.0, _ELEMENT)
    return kernel_table(
        family="decode",
        variant=variant,
        precision="bf16",
        columns={
            # Two products and, per score, a scale and the five operations of a softmax.
            "flops": rows * seen * (2 * (size + value_size) + 6),
            "read_bytes": rows * size * _ELEMENT + batch * caches * seen * (size + value_size) * element,
            "write_bytes": rows * value_size * _ELEMENT,
            "rows": rows,
            "cols": held,
            "element_bytes": _ELEMENT,
            "inputs": 3.0,
            "gemm_batch": rows,
            "gemm_m": 1.0,
            "gemm_n": seen,
            "gemm_k": size,
        },
    )
