"""Features that mean the same on every GPU, for regressors that answer on GPUs never measured.

Ratios of the work to what the GPU has (waves and their fill, bytes over L2, arithmetic over memory time at
sustained rates), the shape itself, and of the GPU only what changes how a kernel runs: the generation of the
library's kernels, lanes per SM, DRAM bandwidth per SM and clock. Raw specification numbers are left out: with
five GPUs each of them is a name.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.attainable import (
    attainable_us,
    compute_us,
    footprint,
    memory_us,
    tile_slowdown,
)
from gkestimator.kernel_models.sustained import library_generation, sustained_bytes_per_s

Features = tuple[np.ndarray, tuple[str, ...]]
_TILES = ((32, 32), (64, 64), (128, 64), (128, 128))
_TINY_US = 1e-4
_CONV = ("batch", "in_channels", "groups", "out_w", "kernel_h", "kernel_w", "stride_h", "stride_w")


def _divisor(values: np.ndarray) -> np.ndarray:
    """log2 of the largest power of two, at most 64, that divides each whole number."""
    whole = values.astype(np.int64)
    lowest = np.where(whole > 0, whole & -whole, 64)
    return np.log2(np.minimum(lowest, 64).astype(np.float64))


def _matrix(columns: dict[str, np.ndarray]) -> Features:
    values = np.empty((len(next(iter(columns.values()))), len(columns)), dtype=np.float32)
    for j, column in enumerate(columns.values()):
        values[:, j] = column
    return values, tuple(columns)


def _products(table: KernelTable, gpu: GpuSpec) -> dict[str, np.ndarray]:
    given = table.columns
    batch, m, n, k = (
        np.maximum(np.nan_to_num(given[f"gemm_{name}"], nan=1.0), 1.0) for name in ("batch", "m", "n", "k")
    )
    compute = np.maximum(compute_us(table, gpu), _TINY_US)
    memory = np.maximum(memory_us(table, gpu), _TINY_US)
    slowdown = tile_slowdown(table, gpu)
    out = {
        "log_attainable": np.log(attainable_us(table, gpu)),
        "log_compute": np.log(compute),
        "log_memory": np.log(memory),
        "log_compute_over_memory": np.log(compute / memory),
        "log_padded_over_memory": np.log(compute * slowdown / memory),
        "log_slowdown": np.log(slowdown),
    }
    for name in ("read", "write", "weight"):
        out[f"log_{name}_over_l2"] = np.log((given[f"{name}_bytes"] + 1) / gpu.l2_bytes)
    for name, value in (("batch", batch), ("m", m), ("n", n), ("k", k)):
        out[f"log_{name}"] = np.log(value)
    for name, value in (("m", m), ("n", n), ("k", k)):
        out[f"align_{name}"] = _divisor(value)
    out["log_narrow"] = np.log(np.minimum(m, n))
    for rows, cols in _TILES:
        tiles_m = np.ceil(m / rows)
        tiles_n = np.ceil(n / cols)
        waves = tiles_m * tiles_n * batch / gpu.sms
        out[f"log_waves_{rows}x{cols}"] = np.log(waves)
        out[f"fill_{rows}x{cols}"] = waves / np.ceil(waves)
        out[f"useful_{rows}x{cols}"] = m * n / (tiles_m * rows * tiles_n * cols)
    out["log_k_per_wave"] = np.log(k) - out["log_waves_64x64"]
    out["lanes_per_sm"] = np.full(len(table), float(gpu.cuda_cores_per_sm))
    out["library_generation"] = np.full(len(table), float(library_generation(gpu)))
    return out


def transfer_matrix(table: KernelTable, gpu: GpuSpec) -> Features:
    """Features of matrix products, (rows, features) float32, and their names."""
    return _matrix(_products(table, gpu))


def transfer_conv(table: KernelTable, gpu: GpuSpec) -> Features:
    """Features of convolutions: those of their implicit product, and what decides the algorithm."""
    out = _products(table, gpu)
    conv = {name: np.maximum(np.nan_to_num(table.columns[f"conv_{name}"], nan=1.0), 1.0) for name in _CONV}
    square = conv["kernel_h"] == conv["kernel_w"]
    small = square & np.isin(conv["kernel_h"], (3, 5))
    out["kernel_area"] = conv["kernel_h"] * conv["kernel_w"]
    out["stride"] = conv["stride_h"] * conv["stride_w"]
    out["log_out_w"] = np.log(conv["out_w"])
    out["log_images"] = np.log(conv["batch"])
    out["log_in_channels"] = np.log(conv["in_channels"] / conv["groups"])
    out["winograd"] = (small & (out["stride"] == 1) & (conv["groups"] == 1)).astype(np.float64)
    return _matrix(out)


def transfer_memory(table: KernelTable, gpu: GpuSpec) -> Features:
    """Features of elementwise kernels, softmax and normalisations."""
    given = table.columns
    cols = np.maximum(given["cols"], 1)
    shape = footprint(table, gpu)
    total = given["read_bytes"] + given["write_bytes"]
    return _matrix(
        {
            "log_attainable": np.log(attainable_us(table, gpu)),
            "log_total_over_l2": np.log((total + 1) / gpu.l2_bytes),
            "log_rows": np.log(np.maximum(given["rows"], 1)),
            "log_cols": np.log(cols),
            "align_cols": _divisor(cols),
            "useful_cols": cols / np.exp2(np.ceil(np.log2(cols))),
            "element_bytes": given["element_bytes"],
            "inputs": given["inputs"],
            "log_waves": np.log(shape.waves),
            "fill": shape.waves / np.ceil(shape.waves),
            "log_threads": np.log(shape.threads),
            "log_rows_over_l2": np.log(shape.rows_over_l2),
            "log_cols_per_thread": np.log(cols / shape.threads),
            "log_bandwidth_per_sm_clock": np.full(
                len(table),
                np.log(sustained_bytes_per_s(gpu) / (gpu.sms * gpu.boost_clock_mhz * 1e6)),
            ),
            "library_generation": np.full(len(table), float(library_generation(gpu))),
        }
    )
