"""Calculate features that mean the same on every GPU, for regressors that answer on GPUs never measured.

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
from gkestimator.kernel_models.features.columns import LEAST_US, FeatureColumns, Features
from gkestimator.kernel_models.launch import power_of_two
from gkestimator.kernel_models.sustained import library_generation, sustained_bytes_per_s

_TILES = ((32, 32), (64, 64), (128, 64), (128, 128))


def _products(table: KernelTable, gpu: GpuSpec) -> FeatureColumns:
    columns = table.columns
    batch, m, n, k = table.gemm_sizes()
    compute = np.maximum(compute_us(table, gpu), LEAST_US)
    memory = np.maximum(memory_us(table, gpu), LEAST_US)
    slowdown = tile_slowdown(table, gpu)
    out = FeatureColumns()
    out.add_logs(
        attainable=attainable_us(table, gpu),
        compute=compute,
        memory=memory,
        compute_over_memory=compute / memory,
        padded_over_memory=compute * slowdown / memory,
        slowdown=slowdown,
        read_over_l2=(columns["read_bytes"] + 1) / gpu.l2_bytes,
        write_over_l2=(columns["write_bytes"] + 1) / gpu.l2_bytes,
        weight_over_l2=(columns["weight_bytes"] + 1) / gpu.l2_bytes,
        batch=batch,
        m=m,
        n=n,
        k=k,
    )
    out.add_alignments(m=m, n=n, k=k)
    out.add_logs(narrow=np.minimum(m, n))
    out.add_tiles(table, gpu, _TILES)
    out["log_k_per_wave"] = np.log(k) - out["log_waves_64x64"]
    out["lanes_per_sm"] = gpu.cuda_cores_per_sm
    out["library_generation"] = library_generation(gpu)
    return out


def transfer_matrix(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of matrix products."""
    return _products(table, gpu).matrix(len(table))


def transfer_conv(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of convolutions: those of their implicit product, and what decides the algorithm."""
    out = _products(table, gpu)
    out["winograd"] = out.add_window(table)
    return out.matrix(len(table))


def transfer_memory(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of elementwise kernels, softmax and normalisations."""
    columns = table.columns
    cols = np.maximum(columns["cols"], 1)
    shape = footprint(table, gpu)
    clocks_per_s = gpu.sms * gpu.boost_clock_mhz * 1e6
    out = FeatureColumns()
    out.add_logs(
        attainable=attainable_us(table, gpu),
        total_over_l2=(table.total_bytes + 1) / gpu.l2_bytes,
        rows=np.maximum(columns["rows"], 1),
        cols=cols,
    )
    out.add_alignments(cols=cols)
    out["useful_cols"] = cols / power_of_two(cols)
    out["element_bytes"] = columns["element_bytes"]
    out["inputs"] = columns["inputs"]
    out.add_waves(shape.waves)
    out.add_logs(
        threads=shape.threads,
        rows_over_l2=shape.rows_over_l2,
        cols_per_thread=cols / shape.threads,
        bandwidth_per_sm_clock=sustained_bytes_per_s(gpu) / clocks_per_s,
    )
    out["library_generation"] = library_generation(gpu)
    return out.matrix(len(table))
