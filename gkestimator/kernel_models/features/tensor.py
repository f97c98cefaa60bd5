"""Features of half-precision matrix work that say nothing of which GPU it is: what a model for GPUs that were not
measured looks at, beside an anchor that holds the GPU's specification."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.tensor_attention import fused_attention_us
from gkestimator.kernel_models.features.tensor_cores import has_tensor_cores, tensor_core_us
from gkestimator.kernel_models.roofline import roofline

_TILES = ((64, 64), (128, 128), (256, 128))
Features = tuple[np.ndarray, tuple[str, ...]]


def _sizes(table: KernelTable) -> dict[str, np.ndarray]:
    return {
        name: np.maximum(np.nan_to_num(table.columns[f"gemm_{name}"], nan=1.0), 1.0)
        for name in ("batch", "m", "n", "k")
    }


def _alignment(values: np.ndarray) -> np.ndarray:
    """log2 of the largest power of two, at most 16 (a 32-byte sector of half floats), that divides each."""
    whole = values.astype(np.int64)
    return np.log2(np.minimum(np.where(whole > 0, whole & -whole, 16), 16).astype(np.float64))


def _shares(table: KernelTable, gpu: GpuSpec, anchor_us: np.ndarray) -> dict[str, np.ndarray]:
    """How the anchor divides: the roofline's sides over it, and its size."""
    roof = roofline(table, gpu)
    tiny = 1e-4  # us
    total = table.columns["read_bytes"] + table.columns["write_bytes"]
    precisions, inverse = np.unique(table.precision.astype(str), return_inverse=True)
    tensor = np.array([has_tensor_cores(gpu, str(p)) for p in precisions], dtype=np.float64)[inverse]
    return {
        "log_anchor": np.log(anchor_us),
        "log_compute_over_anchor": np.log(np.maximum(roof.compute_us, tiny) / anchor_us),
        "log_memory_over_anchor": np.log(np.maximum(roof.memory_us, tiny) / anchor_us),
        "log_total_over_l2": np.log((total + 1) / float(gpu.l2_bytes)),
        "tensor_cores": tensor,
    }


def _stacked(columns: dict[str, np.ndarray], count: int) -> Features:
    matrix = np.empty((count, len(columns)), dtype=np.float32)
    for j, value in enumerate(columns.values()):
        matrix[:, j] = value
    return matrix, tuple(columns)


def tensor_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Features of matrix products and, as implicit products, convolutions."""
    columns = _shares(table, gpu, tensor_core_us(table, gpu))
    sizes = _sizes(table)
    for name, value in sizes.items():
        columns[f"log_{name}"] = np.log(value)
    for name in ("n", "k"):
        columns[f"align_{name}"] = _alignment(sizes[name])
    for rows, cols in _TILES:
        tiles = np.ceil(sizes["m"] / rows) * np.ceil(sizes["n"] / cols)
        waves = tiles * sizes["batch"] / gpu.sms
        columns[f"log_waves_{rows}x{cols}"] = np.log(waves)
        columns[f"fill_{rows}x{cols}"] = waves / np.ceil(waves)
        columns[f"useful_{rows}x{cols}"] = sizes["m"] * sizes["n"] / (tiles * rows * cols)
    return _stacked(columns, len(table))


def fused_attention_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Features of fused attention."""
    columns = _shares(table, gpu, fused_attention_us(table, gpu))
    sizes = _sizes(table)
    for name, value in sizes.items():
        columns[f"log_{name}"] = np.log(value)
    columns["align_k"] = _alignment(sizes["k"])
    scores = sizes["batch"] * sizes["m"] * sizes["n"]
    columns["counted_work"] = np.minimum(table.columns["flops"] / (scores * (4 * sizes["k"] + 6)), 1.0)
    columns["read_over_write"] = table.columns["read_bytes"] / np.maximum(table.columns["write_bytes"], 1)
    waves = np.ceil(sizes["m"] / 128) * sizes["batch"] / gpu.sms
    columns["log_waves"] = np.log(waves)
    columns["fill"] = waves / np.ceil(waves)
    return _stacked(columns, len(table))
