"""Calculate durations without measurements: the roofline, derated by what kernels of each family are known to reach."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import TENSORRT, Array, Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.attainable import memory_us, missed_in_l2
from gkestimator.kernel_models.features.tensor_convolutions import tensor_convolution_us
from gkestimator.kernel_models.features.tensor_cores import has_tensor_cores
from gkestimator.kernel_models.launch import SCATTERED, matrix_tiles
from gkestimator.kernel_models.recurrent import recurrent_fixed_us, step_memory_us, step_product_us, steps_of
from gkestimator.kernel_models.roofline import KERNEL_LATENCY_US, roofline
from gkestimator.kernel_models.row_issue import row_issue_us
from gkestimator.kernel_models.sustained import HBM_CHIPS, l2_bytes_per_s, sustained_bytes_per_s

ANALYTICAL_FACTOR = 2.0
"""Half-width of the interval where nothing was measured, as a factor up and down: on families with
measurements, roofline residuals of kernels beyond the launch floor spread about this much."""

STREAMING_FACTOR = 1.1
"""The same for families whose kernels read and write every element once, in order, as the measured elementwise
kernels do. Fitted with the figures of ``gkestimator.estimation.intervals``."""
_STREAMING = frozenset({Family.BATCHNORM, Family.COPY, Family.DEPTHWISE, Family.ELEMENTWISE})


@frozen
class _Efficiency:
    """Hold the fraction of DRAM bandwidth and of the peak rate that a family's kernels reach, and how often they pass
    the data."""

    memory: float
    compute: float
    passes: float = 1.0


# Memory: streaming kernels reach 84-90 % of nominal bandwidth on HBM2 GPUs (0.87 is the V100's, NeuSight
# rows) and about 75 % on GDDR; `streaming_fraction` says which. Below it, relative to streaming: transposing
# copies, gathers and reductions lose to strides, sectors and tails; scatter reads, modifies and writes; a radix
# sort passes keys eight times. Compute: direct depthwise kernels reach 8 % of the FP32 peak, matrix libraries
# 90 % of a full wave. What is said of layouts below was fitted on timm's development networks
# (benchmarks/layouts.py).
_CHANNELS_LAST_DEPTHWISE = 3.5
"""How much faster cuDNN's depthwise kernels for NHWC are than direct ones for NCHW: they load vectors of channels."""
_HALF_DEPTHWISE_MEMORY = {True: 0.70, False: 0.55}
"""Share of streaming that half-precision depthwise kernels reach, in NHWC and NCHW: in NCHW a thread loads 2 bytes."""
_HALF_DEPTHWISE_SPEED = 1.3
"""Speed of half-precision depthwise kernels bound by their loads, relative to FP32."""
_HALF_COPY = 0.58
_BY_ELEMENT = ("contiguous", "concat")
"""Copies whose threads move one element at a time: of half floats a warp's access is 64 bytes."""
_POOL_LOADS_PER_CLOCK = {True: 3.5, False: 2.0}
"""Window elements that an SM reads through its caches per clock, for a maximum and for a mean."""
_DEFAULT = _Efficiency(memory=1.0, compute=0.5)
_EFFICIENCY = {
    Family.LINEAR: _Efficiency(memory=0.9, compute=0.9),
    Family.BMM: _Efficiency(memory=0.9, compute=0.9),
    Family.CONV: _Efficiency(memory=0.9, compute=0.8),
    Family.CONV_TRANSPOSE: _Efficiency(memory=0.9, compute=0.5),
    Family.ATTENTION: _Efficiency(memory=0.9, compute=0.55),
    Family.DECODE: _Efficiency(memory=0.9, compute=0.55),
    Family.DEPTHWISE: _Efficiency(memory=1.0, compute=0.08),
    Family.SOFTMAX: _Efficiency(memory=0.9, compute=0.5),
    Family.LAYERNORM: _Efficiency(memory=0.9, compute=0.5),
    Family.POOLING: _Efficiency(memory=0.9, compute=0.5),
    Family.REDUCTION: _Efficiency(memory=0.8, compute=0.5),
    Family.COPY: _Efficiency(memory=0.8, compute=0.5),
    Family.GATHER: _Efficiency(memory=0.7, compute=0.5),
    Family.SCATTER: _Efficiency(memory=0.5, compute=0.5),
    Family.SCAN: _Efficiency(memory=0.6, compute=0.25),
    Family.SORT: _Efficiency(memory=0.6, compute=0.25, passes=8.0),
    Family.RESAMPLE: _Efficiency(memory=0.6, compute=0.25),
    Family.FFT: _Efficiency(memory=0.7, compute=0.3, passes=2.0),
}
# index_select where a thread walks a slice alone (lowering.runtime_torch says when): nothing coalesces. For each
# element a sector is read, and one of the result is filled, changed and written back, unless the lines of both that
# all slices have open are still in the L2, as rows that are read again are (`missed_in_l2`). Each of the three opens a
# DRAM row of its own: rows open 3 clocks of 850 MHz apart on each of 32 channels (GPGPU-Sim's timings of the V100's
# HBM2, `SM7_QV100`: RRD=3), so 32 bytes come in the time of 99 at the nominal rate.
_SECTOR_BYTES = 32
_LINE_BYTES = 128
_SECTORS_PER_ELEMENT = 3
_SECTOR_EFFICIENCY = 32 / 99
_CONVOLVED = ("tf32", "fp16", "bf16")
TILED = (Family.LINEAR, Family.BMM, Family.CONV, Family.CONV_TRANSPOSE)
"""Families whose arithmetic is counted in whole tiles."""


def streaming_fraction(gpu: GpuSpec) -> float:
    """Return the share of the nominal DRAM bandwidth that streaming kernels reach.

    Measured on NeuSight's elementwise rows: V100 0.87-0.90, A100 0.84, P100 0.74, T4 and P4 0.75. HBM2 since
    Volta is taken as 0.87 up to compute capability 7.0 and 0.85 above; Pascal and GDDR parts up to Turing 0.75;
    GDDR of later ones as :func:`sustained_bytes_per_s` says.
    """
    capability = tuple(gpu.compute_capability)
    if capability[0] < 7 or capability == (7, 5):
        return 0.75
    if capability == (7, 0):
        return 0.87
    if capability in HBM_CHIPS:
        return 0.85
    return sustained_bytes_per_s(gpu) / gpu.dram_bytes_per_s


@frozen
class Sides:
    """Hold what bounds each kernel, microseconds: its arithmetic and its memory traffic, which overlap, and a ``fixed``
    part that no faster unit shortens. Kernels on the host have 0 of each."""

    compute_us: Array
    memory_us: Array
    fixed_us: Array

    @property
    def duration_us(self) -> Array:
        """Return the longer side and the fixed part."""
        return np.asarray(np.maximum(self.compute_us, self.memory_us) + self.fixed_us)


def analytical_duration_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds per kernel (float64): max(bytes / reached bandwidth, FLOPs / reached rate) + 1.5 us; host
    kernels 0.

    Matrix products also pay for idle SMs in the last wave of their tiles, recurrent layers go step by step, and what
    quantises is as fast as the L2 where its tensors fit.
    """
    return analytical_sides(table, gpu).duration_us


def analytical_sides(table: KernelTable, gpu: GpuSpec) -> Sides:
    """Return what :func:`analytical_duration_us` is made of."""
    roof = roofline(table, gpu)
    sides = Sides(
        compute_us=np.zeros(len(table)), memory_us=np.zeros(len(table)), fixed_us=np.zeros(len(table))
    )
    for family, mask in table.by_family():
        if family == Family.HOST:
            continue
        part = table.take(mask)
        if family == Family.RNN:
            steps = steps_of(part)
            sides.compute_us[mask] = steps * step_product_us(part, gpu)
            sides.memory_us[mask] = steps * step_memory_us(part, gpu)
            sides.fixed_us[mask] = recurrent_fixed_us(part)
            continue
        sides.compute_us[mask] = _compute_us(family, part, roof.compute_us[mask], gpu)
        sides.memory_us[mask] = _memory_us(family, part, roof.memory_us[mask], gpu)
        sides.fixed_us[mask] = KERNEL_LATENCY_US
    index = np.flatnonzero(_on_tensor_cores(table, gpu))
    if len(index):
        sides.compute_us[index] = tensor_convolution_us(table.take(index), gpu)
        sides.memory_us[index] = 0.0  # it is in the other
        sides.fixed_us[index] = 0.0
    return sides


def _compute_us(family: Family, part: KernelTable, roof_us: Array, gpu: GpuSpec) -> Array:
    efficiency = _EFFICIENCY.get(family, _DEFAULT).compute
    compute = roof_us / efficiency
    if family in TILED:
        compute = compute * matrix_tiles(part, gpu).slowdown
        # Matrix-vector kernels read the matrix once, in order; the CUDA cores keep up with any memory.
        compute[part.unmeasured_vectors()] = 0.0
    elif family == Family.DEPTHWISE:
        compute = _depthwise_loads_us(part, gpu, efficiency)
    elif family == Family.POOLING:
        compute = _window_loads_us(part, gpu)
    return compute


def _memory_us(family: Family, part: KernelTable, roof_us: Array, gpu: GpuSpec) -> Array:
    efficiency = _EFFICIENCY.get(family, _DEFAULT)
    reached = np.full(len(part), efficiency.memory)
    if family in TILED:
        reached[part.unmeasured_vectors()] = 1.0
    elif family == Family.COPY:
        reached = _copying(part, efficiency)
    elif family == Family.DEPTHWISE:
        reached = _depthwise_streaming(part, efficiency)
    elif family == Family.POOLING:
        roof_us = roof_us + part.columns["workspace_bytes"] / gpu.dram_bytes_per_s * 1e6  # indices
    memory = roof_us * efficiency.passes / (reached * streaming_fraction(gpu))
    if family == Family.GATHER:
        memory = np.maximum(memory, _scattered_us(part, gpu))
    elif family == Family.LAYERNORM:
        memory = np.maximum(memory, row_issue_us(part, gpu))
    elif family == Family.COPY:
        fetched = part.columns["read_bytes"] * part.columns["cols"]
        memory = np.maximum(memory, fetched / l2_bytes_per_s(gpu) * 1e6)
    elif family == Family.QUANTIZE:
        # What it converts was just written, or is read next: the L2 holds it where it is small enough.
        memory = memory_us(part, gpu)
    return memory


def _on_tensor_cores(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the mask of the convolutions that run on tensor cores."""
    known = [name for name in _CONVOLVED if has_tensor_cores(gpu, name)]
    return np.asarray((table.family == Family.CONV) & np.isin(table.precision.astype(str), known))


def _copying(part: KernelTable, efficiency: _Efficiency) -> Array:
    """Return the share of streaming that copies reach; a conversion is an elementwise kernel and rearranges nothing."""
    narrow = (part.columns["element_bytes"] < 4) & np.isin(part.variant.astype(str), _BY_ELEMENT)
    reached = np.where(narrow, _HALF_COPY, efficiency.memory)
    return np.where(part.variant == "cast", 1.0, reached)


def _depthwise_streaming(part: KernelTable, efficiency: _Efficiency) -> Array:
    """Return the share of streaming that depthwise convolutions reach."""
    last = part.variant == "channels_last"
    half = np.where(last, _HALF_DEPTHWISE_MEMORY[True], _HALF_DEPTHWISE_MEMORY[False])
    return np.where(part.columns["element_bytes"] < 4, half, efficiency.memory)


def _depthwise_loads_us(part: KernelTable, gpu: GpuSpec, efficiency: float) -> Array:
    """Return microseconds of the loads of depthwise convolutions."""
    # Bound by loads, which are as many in half precision, so its vector rate does not matter.
    wide = part.columns["flops"] / gpu.vector("fp32") * 1e6 / efficiency
    last = part.variant == "channels_last"
    narrow = part.columns["element_bytes"] < 4
    direct = np.where(narrow, wide / _HALF_DEPTHWISE_SPEED, wide)
    return np.where(last, wide / _CHANNELS_LAST_DEPTHWISE, direct)


def _window_loads_us(pools: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds of reading every window of a pooling through the caches."""
    loads = pools.size("rows") * pools.size("cols")
    maximum = np.char.startswith(pools.variant.astype(str), "max")
    per_clock = np.where(maximum, _POOL_LOADS_PER_CLOCK[True], _POOL_LOADS_PER_CLOCK[False])
    return np.asarray(loads / (per_clock * gpu.sms * gpu.boost_clock_mhz))


def analytical_half_width(table: KernelTable) -> Array:
    """Return the (rows,) 90 % half-width of log(time) of :func:`analytical_duration_us`; how fast TensorRT's depthwise
    convolutions stream was not fitted to anything."""
    wide = float(np.log(ANALYTICAL_FACTOR))
    narrow = float(np.log(STREAMING_FACTOR))
    streaming = table.is_of(_STREAMING) & ~table.has_word(TENSORRT)
    return np.where(streaming, narrow, wide)


def _scattered_us(gathers: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds of DRAM time of scattered selections, by the share of their lines that the L2 lost; 0 for
    other gathers."""
    columns = gathers.columns
    elements = columns["write_bytes"] / columns["element_bytes"]
    open_lines = columns["cols"] * 2 * _LINE_BYTES / gpu.l2_bytes
    moved = elements * _SECTORS_PER_ELEMENT * _SECTOR_BYTES
    taken = moved / (gpu.dram_bytes_per_s * _SECTOR_EFFICIENCY) * 1e6
    return np.where(gathers.variant == SCATTERED, taken * missed_in_l2(open_lines), 0.0)
