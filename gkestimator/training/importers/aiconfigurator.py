"""Import aiconfigurator's serving kernels (ai-dynamo/aiconfigurator; folder with ``gemm_bf16`` and
``attention_*_bf16``).

Milliseconds of single kernels without launch gaps (the shortest last 2 to 3 us), measured with several
frameworks; the median over frameworks of one shape on one GPU is taken, because nobody says beforehand whose
kernel will run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import Names
from gkestimator.training.importers import generation
from gkestimator.training.importers.eighth import load_eighth
from gkestimator.training.importers.files import equal_rows, read_columns, translated
from gkestimator.training.rows import TrainingRows, kernel_table, product_table

_GPUS = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM",
    "rtx_pro_6000_server": "RTX-PRO-6000",
    "L40S": "L40S",
}
# Newer GPUs come in files of their own, with the same columns.
_ENDINGS = ("", "_l40s")
_SIZE = 2.0
_FILES = ("gemm_bf16.parquet", "attention_context_bf16.parquet", generation.FILE)


def matches(folder: Path) -> bool:
    """Return whether the folder holds aiconfigurator's files."""
    return any((folder / name).is_file() for name in _FILES)


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of the files that the folder holds."""
    parts = []
    for path in _present(folder, "gemm_bf16"):
        gpu, (m, n, k), measured = _median(path, ("m", "n", "k"))
        table = product_table("linear", "bf16", m=m, n=n, k=k, size=_SIZE)
        parts.append(TrainingRows.make(table, gpu=gpu, measured_us=measured, source="aiconfigurator"))
    for path in _present(folder, "attention_context_bf16"):
        names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size", "step")
        gpu, (*sizes, window, step), measured = _median(path, names)
        # Sliding windows and chunks that continue a cache are other kernels' work.
        keep = (window == 0) & (step == 0)
        causal = _attention_table(*(size[keep] for size in sizes), causal=True)
        rows = TrainingRows.make(causal, gpu=gpu[keep], measured_us=measured[keep], source="aiconfigurator")
        parts.append(rows)
    path = folder / "attention_encoder_bf16.parquet"
    if path.is_file():
        gpu, (b, s, h, d), measured = _median(path, ("batch_size", "isl", "num_heads", "head_dim"))
        full = _attention_table(b, s, h, h, d, causal=False)
        parts.append(TrainingRows.make(full, gpu=gpu, measured_us=measured, source="aiconfigurator"))
    return [*parts, *generation.load_generation(folder), *load_eighth(folder)]


def _present(folder: Path, name: str) -> list[Path]:
    paths = [folder / f"{name}{ending}.parquet" for ending in _ENDINGS]
    return [path for path in paths if path.is_file()]


def _attention_table(b: Array, s: Array, h: Array, kv: Array, d: Array, *, causal: bool) -> KernelTable:
    """Return fused attentions of ``b`` sequences of ``s`` tokens: ``h`` heads of width ``d``, ``kv`` of keys."""
    variant = "full"
    pairs = s * s
    if causal:  # the upper half is skipped
        variant = "causal"
        pairs = s * (s + 1) / 2
    query = b * s * h * d * _SIZE
    return kernel_table(
        family="attention",
        variant=variant,
        precision="bf16",
        columns={
            # Two products and, per score, a scale and the five operations of a softmax.
            "flops": b * h * pairs * (4 * d + 6),
            "read_bytes": query + 2 * b * s * kv * d * _SIZE,
            "write_bytes": query,
            "rows": b * h * s,
            "cols": s,
            "element_bytes": _SIZE,
            "inputs": 3.0,
            "gemm_batch": b * h,
            "gemm_m": s,
            "gemm_n": s,
            "gemm_k": d,
        },
    )


def _median(path: Path, names: Names) -> tuple[Array, list[Array], Array]:
    """Return GPU names, sizes (NaN as 0) and the median microseconds of every distinct (GPU, sizes)."""
    data = read_columns(path, ("gpu", *names, "latency_ms"))
    gpu = translated(path, "gpu", data["gpu"], _GPUS)
    _, number = np.unique(gpu.astype(str), return_inverse=True)
    keys = [number.astype(np.float64)]
    for name in names:
        keys.append(np.nan_to_num(data[name].astype(np.float64)))
    latency = data["latency_ms"].astype(np.float64)
    order, first, size = equal_rows(keys, latency)
    lower = latency[order[first + (size - 1) // 2]]
    upper = latency[order[first + size // 2]]
    chosen = order[first]
    return gpu[chosen], [key[chosen] for key in keys[1:]], (lower + upper) / 2 * 1e3
