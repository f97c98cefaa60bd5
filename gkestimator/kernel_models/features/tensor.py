"""Calculate features of half-precision matrix work that say nothing of which GPU it is: what a model for GPUs that were
not measured looks at, beside an anchor that holds the GPU's specification."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import LEAST_US, FeatureColumns, Features
from gkestimator.kernel_models.features.tensor_attention import fused_attention_us
from gkestimator.kernel_models.features.tensor_cores import has_tensor_cores, tensor_core_us
from gkestimator.kernel_models.roofline import roofline
from gkestimator.kernel_models.tiles import pieces

_TILES = ((64, 64), (128, 128), (256, 128))
_SECTOR = 16  # half floats in a sector of 32 bytes


def _shares(table: KernelTable, gpu: GpuSpec, anchor_us: Array) -> FeatureColumns:
    """Return the anchor, how the roofline's sides divide it, and the sizes of the product."""
    roof = roofline(table, gpu)
    tensor = np.empty(len(table))
    for precision, rows in table.by_precision():
        tensor[rows] = has_tensor_cores(gpu, precision)
    out = FeatureColumns()
    out.add_logs(
        anchor=anchor_us,
        compute_over_anchor=np.maximum(roof.compute_us, LEAST_US) / anchor_us,
        memory_over_anchor=np.maximum(roof.memory_us, LEAST_US) / anchor_us,
        total_over_l2=(table.total_bytes + 1) / gpu.l2_bytes,
    )
    out["tensor_cores"] = tensor
    batch, m, n, k = table.gemm_sizes()
    out.add_logs(batch=batch, m=m, n=n, k=k)
    return out


def tensor_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of matrix products and, as implicit products, convolutions."""
    out = _shares(table, gpu, tensor_core_us(table, gpu))
    out.add_alignments(_SECTOR, n=table.size("gemm_n"), k=table.size("gemm_k"))
    out.add_tiles(table, gpu, _TILES)
    return out.matrix(len(table))


def fused_attention_features(table: KernelTable, gpu: GpuSpec) -> Features:
    """Return the features of fused attention."""
    out = _shares(table, gpu, fused_attention_us(table, gpu))
    columns = table.columns
    batch, m, n, k = table.gemm_sizes()
    out.add_alignments(_SECTOR, k=k)
    scores = batch * m * n
    out["counted_work"] = np.minimum(columns["flops"] / (scores * (4 * k + 6)), 1.0)
    out["read_over_write"] = columns["read_bytes"] / np.maximum(columns["write_bytes"], 1)
    out.add_waves(pieces(m, 128) * batch / gpu.sms)
    return out.matrix(len(table))
