"""Hold matrix products on GPUs that were not measured to what more rows of the same product take.

A product of few rows takes no longer than one of more: the missing rows could be calculated for nothing. Libraries
break this by some percent (they choose kernels by shape), and on a measured chip the regressor has seen by how much; on
another chip it only errs. On GPUs left out the bound moves the mean error by at most 0.2 points either way. Intervals
keep their width: it was calibrated without the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.bundles.models import BundleModel
from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.roofline import roofline

_STEPS = (1, 2, 3)
"""Powers of two above a product's rows that bound it: more than the next, so that the bounds rise too."""
VECTOR_STEPS = (*_STEPS, 4)
"""The same for a single row, which is then never above two: those are held to the powers up to 16."""
_MOST_ROWS = 2.0**20


def no_slower_than_more_rows(
    model: BundleModel, table: KernelTable, gpu: GpuSpec, duration_us: Array, steps: Sequence[int] = _STEPS
) -> Array:
    """Return ``duration_us``, what ``model`` says of ``table`` on ``gpu``, held to the same products of more rows."""
    rows = table.columns["gemm_m"]
    index = np.flatnonzero((table.family == Family.LINEAR) & (rows > 0) & (rows < _MOST_ROWS))
    if not len(index):
        return duration_us
    every = np.tile(index, len(steps))
    exponent = np.floor(np.log2(rows[every])) + np.repeat(steps, len(index))
    larger = _with_rows(table.take(every), 2.0**exponent)
    matrix, _ = feature_matrix(model.features, larger, gpu)
    bound, _ = model.predict(larger, matrix, gpu, roofline(larger, gpu), model.within(larger, matrix))
    held = duration_us.copy()
    held[index] = np.minimum(duration_us[index], bound.reshape(len(steps), -1).min(axis=0))
    return held


def _with_rows(table: KernelTable, rows: Array) -> KernelTable:
    """Return the same products of ``rows`` rows: the second operand stays, all else grows with them."""
    columns = dict(table.columns)
    growth = rows / columns["gemm_m"]
    # An operand that is no weight is one of the products all the same: what else is read grows.
    columns_of_product = columns["gemm_n"] * columns["gemm_k"] * columns["element_bytes"]
    operand = np.minimum(columns_of_product, columns["read_bytes"])
    weights = np.where(columns["weight_bytes"] > 0, columns["weight_bytes"], operand)
    columns["gemm_m"] = rows
    columns["flops"] = columns["flops"] * growth
    columns["rows"] = columns["rows"] * growth
    columns["write_bytes"] = columns["write_bytes"] * growth
    columns["read_bytes"] = weights + (columns["read_bytes"] - weights) * growth
    return replace(table, columns=columns)
