"""Import Vidur's operator profiles of language models (microsoft/vidur; folder with ``mlp.parquet``).

GPU time of half-precision operators in milliseconds, rounded to whole microseconds: medians below 20 us are
left out, where rounding alone is more than 2.5 %. Linear layers and the residual addition are taken.
Embeddings and rotary embeddings are composites of several kernels there. Norms and gated activations are
vLLM's own kernels, which neither torch nor onnxruntime launches: its RMS norm draws a third of the bandwidth
on A100 and H100, half on A40, and as the only half-precision norm measured it would teach that torch's layer
norms do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.training.importers.files import equal_rows, read_columns, translated
from gkestimator.training.rows import TrainingRows, kernel_table, product_table

_GPUS = {"a100": "A100-SXM4-80GB", "a40": "A40", "h100": "H100-SXM"}
_SIZE = 2.0
_SHORTEST_MS = 0.020
_TIMES = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "add")


def matches(folder: Path) -> bool:
    """Return whether the folder holds Vidur's file."""
    return (folder / "mlp.parquet").is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of ``mlp.parquet``; of equal shapes on one GPU the median over models."""
    path = folder / "mlp.parquet"
    sizes = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")
    times = [f"time_stats.{name}.median" for name in _TIMES]
    data = read_columns(path, ("gpu", "use_gated_mlp", *sizes, *times))
    gpu = translated(path, "gpu", data["gpu"], _GPUS)
    heads, kv_heads, width, inner, tokens, workers = (data[s].astype(np.float64) for s in sizes)
    gated = np.where(data["use_gated_mlp"], 2.0, 1.0)
    head = width / heads
    kv = np.maximum(kv_heads / workers, 1)
    # Inputs and outputs of the linear layers, as each tensor-parallel worker holds them.
    shapes = {
        "attn_pre_proj": (width, (heads / workers + 2 * kv) * head),
        "attn_post_proj": (width / workers, width),
        "mlp_up_proj": (width, gated * inner / workers),
        "mlp_down_proj": (inner / workers, width),
    }
    parts = []
    for name, (k, n) in shapes.items():
        table = product_table("linear", "fp16", m=tokens, n=n, k=k, size=_SIZE)
        parts.append(_distinct(table, gpu, data[f"time_stats.{name}.median"]))
    elements = tokens * width
    add = kernel_table(
        family="elementwise",
        variant="add",
        precision="fp16",
        columns={
            "flops": elements,
            "read_bytes": 2 * elements * _SIZE,
            "write_bytes": elements * _SIZE,
            "rows": elements,
            "element_bytes": _SIZE,
            "inputs": 2.0,
        },
    )
    parts.append(_distinct(add, gpu, data["time_stats.add.median"]))
    return parts


def _distinct(table: KernelTable, gpu: Array, median_ms: Array) -> TrainingRows:
    """Return one row per GPU and shape, with the middle of its times (milliseconds)."""
    times = median_ms.astype(np.float64)
    index = np.flatnonzero(np.isfinite(times) & (times >= _SHORTEST_MS))
    _, number = np.unique(gpu.astype(str), return_inverse=True)
    keys = [number[index].astype(np.float64)]
    for name in ("flops", "read_bytes", "write_bytes"):
        keys.append(table.columns[name][index])
    order, first, size = equal_rows(keys, times[index])
    chosen = index[order[first + size // 2]]
    return TrainingRows.make(
        table.take(chosen), gpu=gpu[chosen], measured_us=times[chosen] * 1e3, source="vidur"
    )
