"""Calculate features of recurrent layers.

Those named in ``SEEN_RISING`` and ``UNSEEN_RISING`` rise with the batch and the hidden size and do not know the
steps, so that a regressor which is bound to rise along them estimates no larger layer to be faster
(``ModelPlan.rising``).
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import LEAST_US, FeatureColumns, Features
from gkestimator.kernel_models.features.tensor_cores import has_tensor_cores
from gkestimator.kernel_models.recurrent import (
    step_compute_us,
    step_memory_us,
    step_product_us,
    step_weight_bytes,
)
from gkestimator.kernel_models.sustained import library_generation
from gkestimator.kernel_models.tiles import pieces

_TILE = 64
SEEN_RISING = ("log_rows", "log_dram", "log_compute", "log_padded", "log_weight_over_l2", "log_work")
UNSEEN_RISING = ("log_rows", "log_hidden", "log_memory", "log_product", "log_compute", "log_weight_over_l2")


def recurrent_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of layers on GPUs that were measured: the sides of a step, the cell, and which GPU it is."""
    _, m, _, _ = table.gemm_sizes()
    dram = step_weight_bytes(table) / gpu.dram_bytes_per_s * 1e6
    compute = step_compute_us(table, gpu)
    out = FeatureColumns()
    out.add_logs(
        rows=m,
        dram=dram,
        compute=np.maximum(compute, LEAST_US),
        padded=np.maximum(compute * pieces(m, _TILE) * _TILE / m, LEAST_US),
        weight_over_l2=step_weight_bytes(table) / gpu.l2_bytes,
        work=np.maximum(dram, compute),
    )
    _add_cell(out, table, gpu)
    major, minor = gpu.compute_capability
    out.add_logs(bandwidth=gpu.dram_bytes_per_s, sms=gpu.sms)
    out["compute_capability"] = major + minor / 10
    return out.matrix(len(table))


def recurrent_transfer(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of layers on GPUs that were not measured: the sides of a step by what the GPU sustains."""
    _, m, _, k = table.gemm_sizes()
    out = FeatureColumns()
    out.add_logs(
        rows=m,
        hidden=k,
        memory=step_memory_us(table, gpu) + 1,
        product=step_product_us(table, gpu) + 1,
        compute=step_compute_us(table, gpu) + 1,
        weight_over_l2=step_weight_bytes(table) / gpu.l2_bytes,
    )
    _add_cell(out, table, gpu)
    out["library_generation"] = library_generation(gpu)
    out["lanes_per_sm"] = gpu.cuda_cores_per_sm
    out.add_logs(sms=gpu.sms)
    return out.matrix(len(table))


def _add_cell(out: FeatureColumns, table: KernelTable, gpu: GpuSpec) -> None:
    """Add how many gates the cell has and in what the products are calculated."""
    _, _, n, k = table.gemm_sizes()
    out["gates"] = n / k
    out["half"] = _half(table, gpu)


def _half(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return 0 for single precision, 1 for less on tensor cores, -1 for less without them, which nobody measured."""
    kind = np.zeros(len(table))
    for precision, rows in table.by_precision():
        if precision not in ("fp32", "fp64"):
            kind[rows] = 1.0 if has_tensor_cores(gpu, precision) else -1.0
    return kind
