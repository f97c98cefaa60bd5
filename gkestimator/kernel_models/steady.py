"""Bound kernels from below by what the GPU sustains in a model that runs without pause.

Two limits that measurements of single kernels do not show. *Power*: benchmarks of one product last milliseconds, so a
board whose power limit is small for its tensor cores runs them at a clock that it cannot hold through a model (T4:
DeepBench's products reach 35 to 45 TFLOP/s; in TensorRT's and Triton's tables of whole BERTs all products together
reach 23 to 25). *Instructions*: an element-wise kernel that divides its index by every dimension, to find its place in
an operand that broadcasts, issues more instructions an element than memory needs time in half precision.
"""

from __future__ import annotations

import re

import numpy as np

from gkestimator.core.kernels import INDEXED, Array, Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.tensor_cores import has_tensor_cores, power_limited_rate
from gkestimator.kernel_models.prediction import KernelPredictions, at_least
from gkestimator.kernel_models.roofline import confined

_RANK = re.compile(rf"{re.escape(INDEXED)}(\d+)$")
# Counted in onnxruntime/core/providers/cuda/cu_inc/binary_elementwise_impl.cuh: addresses, two loads, conversion,
# arithmetic and the store; and for each dimension a multiplication's high half (four slots), an addition, a shift, a
# remainder, a sum with the stride, and the loop's own test.
_INSTRUCTIONS, _INSTRUCTIONS_PER_DIMENSION = 12, 12
# CUDA C++ Programming Guide, arithmetic throughput: 32-bit integer operations a clock and SM, compute capability 7.0 to
# 9.0.
_INTEGER_LANES = 64


def sustained(
    predictions: KernelPredictions, table: KernelTable, gpu: GpuSpec, sm_share_pct: float
) -> KernelPredictions:
    """Return ``predictions`` of ``table`` as its kernels run in a model on that share of ``gpu``."""
    return at_least(predictions, steady_floor_us(table, confined(gpu, sm_share_pct)))


def steady_floor_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the least microseconds of each kernel; 0 where neither limit says anything."""
    return np.asarray(np.maximum(_issue_us(table, gpu), _power_us(table, gpu)))


def _issue_us(table: KernelTable, gpu: GpuSpec) -> Array:
    ranks = np.zeros(len(table))
    for row in np.flatnonzero(table.family == Family.ELEMENTWISE):
        indexed = _RANK.search(table.variant[row])
        if indexed is not None:
            ranks[row] = int(indexed[1])
    instructions = _INSTRUCTIONS + _INSTRUCTIONS_PER_DIMENSION * ranks
    per_us = gpu.sms * _INTEGER_LANES * gpu.boost_clock_mhz
    return np.where(ranks > 0, table.columns["rows"] * instructions / per_us, 0.0)


def _power_us(table: KernelTable, gpu: GpuSpec) -> Array:
    floor = np.zeros(len(table))
    products = ~np.isnan(table.columns["gemm_m"])
    for precision, rows in table.by_precision():
        if not has_tensor_cores(gpu, precision):
            continue
        chosen = rows[products[rows]]
        rate = power_limited_rate(gpu, precision, steady=True)
        floor[chosen] = table.columns["flops"][chosen] / rate * 1e6
    return floor
