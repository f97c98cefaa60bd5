"""Vidur's operator profiles of language models (microsoft/vidur; folder with ``mlp.parquet``).

GPU time of half-precision operators in milliseconds, rounded to whole microseconds: medians below 20 us are
left out, where rounding alone is more than 2.5 %. Linear layers and the residual addition are taken. Embeddings
and rotary embeddings are composites of several kernels there. Norms and gated activations are vLLM's own kernels,
which neither torch nor onnxruntime launches: its RMS norm draws a third of the bandwidth on A100 and H100, half on
A40, and as the only half-precision norm measured it would teach that torch's layer norms do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import KernelTable
from gkestimator.training.importers.files import read_columns
from gkestimator.training.rows import TrainingRows, kernel_table

_GPUS = {"a100": "A100-SXM4-80GB", "a40": "A40", "h100": "H100-SXM"}
_SIZE = 2.0
_SHORTEST_MS = 0.020
_TIMES = (
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_down_proj",
    "add",
)


def matches(folder: Path) -> bool:
    """True for a folder that holds Vidur's file."""
    return (folder / "mlp.parquet").is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Rows of ``mlp.parquet``; equal shapes on one GPU are averaged by their median over models."""
    path = folder / "mlp.parquet"
    sizes = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")
    data = read_columns(path, ("gpu", "use_gated_mlp", *sizes, *(f"time_stats.{t}.median" for t in _TIMES)))
    unknown = sorted(set(data["gpu"]) - set(_GPUS))
    if unknown:
        raise TableError(f"{path}: gpu is {unknown[0]!r}; expected one of {', '.join(_GPUS)}")
    heads, kv_heads, width, inner, tokens, workers = (data[s].astype(np.float64) for s in sizes)
    gated = np.where(data["use_gated_mlp"], 2.0, 1.0)
    head = width / heads
    kv = np.maximum(kv_heads / workers, 1)
    shapes = {
        "attn_pre_proj": (width, (heads / workers + 2 * kv) * head),
        "attn_post_proj": (width / workers, width),
        "mlp_up_proj": (width, gated * inner / workers),
        "mlp_down_proj": (inner / workers, width),
    }
    result = []
    for name, (k, n) in shapes.items():
        table = kernel_table(
            family="linear",
            variant="linear",
            precision="fp16",
            columns={
                "flops": 2 * tokens * n * k,
                "read_bytes": (tokens * k + n * k) * _SIZE,
                "write_bytes": tokens * n * _SIZE,
                "weight_bytes": n * k * _SIZE,
                "rows": tokens * n,
                "element_bytes": _SIZE,
                "inputs": 2.0,
                "gemm_batch": np.ones_like(n),
                "gemm_m": tokens,
                "gemm_n": n,
                "gemm_k": k,
            },
        )
        result.append(_distinct(table, data, name))
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
    result.append(_distinct(add, data, "add"))
    return result


def _distinct(table: KernelTable, data: dict[str, np.ndarray], name: str) -> TrainingRows:
    times = data[f"time_stats.{name}.median"].astype(np.float64)
    index = np.flatnonzero(np.isfinite(times) & (times >= _SHORTEST_MS))
    columns = table.columns
    key = np.stack(
        [
            np.searchsorted(sorted(_GPUS), data["gpu"].astype(str)),
            columns["flops"],
            columns["read_bytes"],
            columns["write_bytes"],
        ]
    )[:, index]
    _, which = np.unique(key, axis=1, return_inverse=True)
    which = which.reshape(-1)
    order = np.lexsort((times[index], which))
    if len(order):
        first = np.flatnonzero(np.concatenate([[True], np.diff(which[order]) > 0]))
    else:
        first = order
    size = np.diff(np.append(first, len(order)))
    if len(order):
        chosen = index[order[first + size // 2]]
    else:
        chosen = index
    gpu = np.array([_GPUS[g] for g in data["gpu"][chosen]], dtype=object)
    return TrainingRows.make(table.take(chosen), gpu=gpu, measured_us=times[chosen] * 1e3, source="vidur")
