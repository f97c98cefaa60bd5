"""aiconfigurator's serving kernels (ai-dynamo/aiconfigurator; folder with ``gemm_bf16`` and
``attention_*_bf16``).

Milliseconds of single kernels without launch gaps (the shortest last 2 to 3 us), measured with several
frameworks; the median over frameworks of one shape on one GPU is taken, because nobody says beforehand whose
kernel will run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.training.importers.files import read_columns
from gkestimator.training.rows import TrainingRows, kernel_table

_GPUS = {"a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM", "rtx_pro_6000_server": "RTX-PRO-6000"}
_SIZE = 2.0


def matches(folder: Path) -> bool:
    """True for a folder that holds aiconfigurator's files."""
    return any((folder / name).is_file() for name in ("gemm_bf16.parquet", "attention_context_bf16.parquet"))


def load(folder: Path) -> list[TrainingRows]:
    """Rows of the files found."""
    result = []
    path = folder / "gemm_bf16.parquet"
    if path.is_file():
        gpu, (m, n, k), measured = _median(path, ("m", "n", "k"))
        table = kernel_table(
            family="linear",
            variant="linear",
            precision="bf16",
            columns={
                "flops": 2 * m * n * k,
                "read_bytes": (m * k + n * k) * _SIZE,
                "write_bytes": m * n * _SIZE,
                "weight_bytes": n * k * _SIZE,
                "rows": m * n,
                "element_bytes": _SIZE,
                "inputs": 2.0,
                "gemm_batch": np.ones_like(m),
                "gemm_m": m,
                "gemm_n": n,
                "gemm_k": k,
            },
        )
        result.append(TrainingRows.make(table, gpu=gpu, measured_us=measured, source="aiconfigurator"))
    path = folder / "attention_context_bf16.parquet"
    if path.is_file():
        names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "window_size", "step")
        gpu, (b, s, h, kv, d, window, step), measured = _median(path, names)
        # Sliding windows and chunks that continue a cache are other kernels' work.
        keep = (np.nan_to_num(window) == 0) & (step == 0)
        b, s, h, kv, d, gpu, measured = (x[keep] for x in (b, s, h, kv, d, gpu, measured))
        result.append(_attention(gpu, b, s, h, kv, d, measured, causal=True))
    path = folder / "attention_encoder_bf16.parquet"
    if path.is_file():
        gpu, (b, s, h, d), measured = _median(path, ("batch_size", "isl", "num_heads", "head_dim"))
        result.append(_attention(gpu, b, s, h, h, d, measured, causal=False))
    return result


def _attention(
    gpu: np.ndarray,
    b: np.ndarray,
    s: np.ndarray,
    h: np.ndarray,
    kv: np.ndarray,
    d: np.ndarray,
    measured: np.ndarray,
    *,
    causal: bool,
) -> TrainingRows:
    # Two products and, per score, a scale and the five operations of a softmax; causal kernels skip the upper
    # half.
    if causal:
        pairs = s * (s + 1) / 2
    else:
        pairs = s * s
    query = b * s * h * d * _SIZE
    table = kernel_table(
        family="attention",
        variant="causal" if causal else "full",
        precision="bf16",
        columns={
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
    return TrainingRows.make(table, gpu=gpu, measured_us=measured, source="aiconfigurator")


def _median(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """GPU names, sizes and the median microseconds of every distinct (GPU, sizes)."""
    data = read_columns(path, ("gpu", *names, "latency_ms"))
    unknown = sorted(set(data["gpu"]) - set(_GPUS))
    if unknown:
        raise TableError(f"{path}: gpu is {unknown[0]!r}; expected one of {', '.join(_GPUS)}")
    order = sorted(_GPUS)
    keys = np.stack(
        [
            np.searchsorted(order, data["gpu"].astype(str)),
            *(np.nan_to_num(data[n].astype(np.float64)) for n in names),
        ]
    )
    rank = np.lexsort((data["latency_ms"], *keys[::-1]))
    keys = keys[:, rank]
    latency = data["latency_ms"].astype(np.float64)[rank]
    first = np.flatnonzero(np.concatenate([[True], np.any(keys[:, 1:] != keys[:, :-1], axis=0)]))
    size = np.diff(np.append(first, len(latency)))
    median = (latency[first + (size - 1) // 2] + latency[first + size // 2]) / 2
    gpu = np.array([_GPUS[order[int(i)]] for i in keys[0, first]], dtype=object)
    return gpu, [keys[i + 1, first] for i in range(len(names))], median * 1e3
