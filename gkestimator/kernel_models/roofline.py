"""Calculate the roofline of a kernel on a GPU, and the GPU that a share of the SMs amounts to."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import frozen, map_fields
from gkestimator.hardware.gpus import GpuSpec

KERNEL_LATENCY_US = 1.5
"""What a kernel costs on the GPU beyond its traffic: launch by the front end, block scheduling, draining.
Whole convolution networks on a V100 fit with bytes / (0.87 bandwidth) + 1.5 us per memory-bound kernel, and
the shortest kernels of serving traces last 1 to 2.5 us on A100 and H100."""

MATRIX_FAMILIES = frozenset(
    {
        Family.LINEAR,
        Family.BMM,
        Family.CONV,
        Family.CONV_TRANSPOSE,
        Family.ATTENTION,
        Family.DECODE,
        Family.RNN,
    }
)
"""Families whose inner loop is a matrix product, so that tensor cores bound them where the precision has
any."""

WEIGHT_ONLY = (Precision.W8A16, Precision.W4A16)
"""Precisions in which only the weights have few bits: the arithmetic is that of half precision."""

# A precision that the hardware lacks is calculated in another one: half and 8-bit floats and integers are
# widened to FP32, TF32 is an Ampere format and runs as FP32 before it.
_FALLBACK = {"tf32": "fp32", "fp16": "fp32", "bf16": "fp32", "fp8": "fp16", "int8": "fp32"}
_FALLBACK |= dict.fromkeys(WEIGHT_ONLY, "fp16")
# GeForce and inference chips: one FP64 unit per 32 FP32 lanes (CUDA C programming guide).
_FP64_OF_FP32 = 1 / 32

DRAWN_BYTES_PER_S = 8 / 600e-9
"""Bandwidth that one resident thread draws, by Little's law: the bytes that it keeps in flight over the loaded DRAM
latency. 8 bytes lie between a scalar and a vectorised FP32 load; 600 ns is what a Volta to Hopper DRAM read takes under
load. On a V100 about two fifths of the SMs then saturate the memory, as thread-block-limited streaming kernels show."""


@frozen
class Roofline:
    """Hold microseconds per kernel (float64, one per row): the compute side, the memory side and the larger of both.

    Both sides are 0 only for kernels that do no work on that side. ``roofline_us`` is at least 1e-3 (so that
    its logarithm exists for empty kernels).
    """

    compute_us: Array
    memory_us: Array
    roofline_us: Array

    def take(self, index: Array) -> Roofline:
        """Return the rows that ``index`` selects."""
        return map_fields(self, lambda column: column[index])


def peak_rate(gpu: GpuSpec, precision: str, *, matrix: bool) -> float:
    """Return the peak FLOP/s of ``precision`` on ``gpu``: its matrix units if ``matrix``, else the CUDA cores.

    A precision that the GPU lacks takes the rate of the wider one it is calculated in. Raises UsageError for one that
    it has at an unknown rate.
    """
    rates = gpu.vector_flops_per_s
    if matrix:
        rates = gpu.peak_flops_per_s
    name: str | None = precision
    while name is not None:
        if name in rates:
            return float(rates[name])
        if matrix:
            gpu.refuse_unknown_peak(name)
        if name == Precision.FP64 and "fp32" in rates:
            return float(rates["fp32"]) * _FP64_OF_FP32
        name = _FALLBACK.get(name)
    raise UsageError(f"GPU {gpu.name}: no peak rate for {precision!r} (known: {', '.join(sorted(rates))})")


class RateFunction(Protocol):
    """Return FLOP/s of a precision, on the matrix units or the CUDA cores."""

    def __call__(self, precision: str, *, matrix: bool) -> float: ...


def row_rates(table: KernelTable, rate_of: RateFunction) -> Array:
    """Return the rate of every row: on the matrix units where its family is a matrix product."""
    rates = np.empty(len(table))
    matrix = table.is_of(MATRIX_FAMILIES)
    for precision, rows in table.by_precision():
        for units in (True, False):
            chosen = rows[matrix[rows] == units]
            if len(chosen):
                rates[chosen] = rate_of(precision, matrix=units)
    return rates


def roofline(table: KernelTable, gpu: GpuSpec) -> Roofline:
    """Return the roofline of every kernel of ``table`` on ``gpu``: FLOPs / peak rate and compulsory bytes / DRAM
    bandwidth."""
    rates = row_rates(table, partial(peak_rate, gpu))
    compute = table.columns["flops"] / rates * 1e6
    memory = table.total_bytes / gpu.dram_bytes_per_s * 1e6
    longer = np.maximum(compute, memory)
    return Roofline(compute_us=compute, memory_us=memory, roofline_us=np.maximum(longer, 1e-3))


def confined(gpu: GpuSpec, sm_share_pct: float) -> GpuSpec:
    """Return ``gpu`` as a kernel sees it that may use ``sm_share_pct`` percent of its SMs (as CUDA MPS limits it).

    SMs round down to whole ones (at least one), peak rates follow the SMs. DRAM bandwidth is what those SMs
    can draw, by Little's law: resident threads x 8 bytes in flight / 600 ns, at most the GPU's. L2 and memory
    stay whole, as MPS does not divide them. Raises UsageError for a share outside (0, 100].
    """
    if not (math.isfinite(sm_share_pct) and 0 < sm_share_pct <= 100):
        raise UsageError(f"SM share {sm_share_pct!r}: expected a percentage above 0 and at most 100")
    if sm_share_pct == 100:
        return gpu
    sms = max(1, math.floor(gpu.sms * sm_share_pct / 100 + 1e-9))
    fraction = sms / gpu.sms
    drawn = sms * gpu.warps_per_sm * 32 * DRAWN_BYTES_PER_S
    return replace(
        gpu,
        sms=sms,
        peak_flops_per_s={k: v * fraction for k, v in gpu.peak_flops_per_s.items()},
        vector_flops_per_s={k: v * fraction for k, v in gpu.vector_flops_per_s.items()},
        dram_bytes_per_s=min(gpu.dram_bytes_per_s, drawn),
    )
