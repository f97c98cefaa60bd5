"""Calculate durations without measurements: the roofline, derated by what kernels of each family are known to reach."""

from __future__ import annotations

import numpy as np

from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import SCATTERED, matrix_tiles
from gkestimator.kernel_models.roofline import roofline

KERNEL_LATENCY_US = 1.5
"""What a kernel costs on the GPU beyond its traffic: launch by the front end, block scheduling, draining.
Whole convolution networks on a V100 fit with bytes / (0.87 bandwidth) + 1.5 us per memory-bound kernel, and
the shortest kernels of serving traces last 1 to 2.5 us on A100 and H100."""

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
# rows) and about 75 % on GDDR; `streaming_fraction` says which. Below it, relative to streaming: pooling
# reads overlapping windows through the caches at about 0.3 of it (fitted on whole convolution networks);
# transposing copies, gathers and reductions lose to strides, sectors and tails; scatter reads, modifies and
# writes; a radix sort passes keys eight times. Compute: direct depthwise kernels reach 8 % of the FP32 peak,
# matrix libraries 90 % of a full wave.
_CHANNELS_LAST_DEPTHWISE = 2.0
"""How much faster cuDNN's depthwise kernels for NHWC are than direct ones for NCHW: their loads are vectors of
channels. Fitted on convnext_tiny (RTX 3090, development group)."""
_DEFAULT = _Efficiency(memory=1.0, compute=0.5)
_EFFICIENCY = {
    Family.LINEAR: _Efficiency(memory=0.9, compute=0.9),
    Family.BMM: _Efficiency(memory=0.9, compute=0.9),
    Family.CONV: _Efficiency(memory=0.9, compute=0.8),
    Family.CONV_TRANSPOSE: _Efficiency(memory=0.9, compute=0.5),
    Family.ATTENTION: _Efficiency(memory=0.9, compute=0.55),
    Family.DECODE: _Efficiency(memory=0.9, compute=0.55),
    Family.RNN: _Efficiency(memory=0.7, compute=0.3),
    Family.DEPTHWISE: _Efficiency(memory=1.0, compute=0.08),
    Family.SOFTMAX: _Efficiency(memory=0.9, compute=0.5),
    Family.LAYERNORM: _Efficiency(memory=0.9, compute=0.5),
    Family.POOLING: _Efficiency(memory=0.3, compute=0.5),
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
# all slices have open fit into the L2. Each of the three opens a DRAM row of its own: rows open 3 clocks of 850 MHz
# apart on each of 32 channels (GPGPU-Sim's timings of the V100's HBM2, `SM7_QV100`: RRD=3), so 32 bytes come in the
# time of 99 at the nominal rate.
_SECTOR_BYTES = 32
_LINE_BYTES = 128
_SECTORS_PER_ELEMENT = 3
_SECTOR_EFFICIENCY = 32 / 99
_TILED = (Family.LINEAR, Family.BMM, Family.CONV, Family.CONV_TRANSPOSE)


def streaming_fraction(gpu: GpuSpec) -> float:
    """Return the share of the nominal DRAM bandwidth that streaming kernels reach.

    Measured on NeuSight's elementwise rows: V100 0.87-0.90, A100 0.84, P100 0.74, T4 and P4 0.75. HBM2 since
    Volta is taken as 0.87 up to compute capability 7.0 and 0.85 above; Pascal and GDDR parts without a large
    L2 0.75; Ada and Blackwell GDDR parts, whose L2 holds 32 MiB or more, 0.85.
    """
    major, minor = gpu.compute_capability
    if major < 7 or (major, minor) == (7, 5):
        return 0.75
    if (major, minor) == (7, 0):
        return 0.87
    return 0.85


def analytical_duration_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds per kernel (float64): max(bytes / reached bandwidth, FLOPs / reached rate) + 1.5 us; host
    kernels 0.

    Matrix products also pay for idle SMs in the last wave of their tiles.
    """
    roof = roofline(table, gpu)
    streaming = streaming_fraction(gpu)
    result = np.empty(len(table))
    for family, mask in table.by_family():
        if family == Family.HOST:
            result[mask] = 0.0
            continue
        part = table.take(mask)
        efficiency = _EFFICIENCY.get(family, _DEFAULT)
        compute = roof.compute_us[mask] / efficiency.compute
        reached = np.full(len(part), efficiency.memory)
        if family in _TILED:
            compute = compute * matrix_tiles(part, gpu).slowdown
            # Matrix-vector kernels read the matrix once, in order; the CUDA cores keep up with any memory.
            vectors = part.unmeasured_vectors()
            compute[vectors] = 0.0
            reached[vectors] = 1.0
        elif family == Family.COPY:
            reached[part.variant == "cast"] = 1.0  # an elementwise kernel: nothing is rearranged
        elif family == Family.DEPTHWISE:
            # Bound by loads, which are as many in half precision, so its vector rate does not matter.
            wide = part.columns["flops"] / gpu.vector("fp32") * 1e6 / efficiency.compute
            compute = np.where(part.variant == "channels_last", wide / _CHANNELS_LAST_DEPTHWISE, wide)
        memory = roof.memory_us[mask] * efficiency.passes / (reached * streaming)
        if family == Family.GATHER:
            memory = np.maximum(memory, _scattered_us(part, gpu))
        result[mask] = np.maximum(compute, memory) + KERNEL_LATENCY_US
    return result


def analytical_half_width(table: KernelTable) -> Array:
    """Return the (rows,) 90 % half-width of log(time) of :func:`analytical_duration_us`."""
    wide = float(np.log(ANALYTICAL_FACTOR))
    narrow = float(np.log(STREAMING_FACTOR))
    return np.where(table.is_of(_STREAMING), narrow, wide)


def _scattered_us(gathers: KernelTable, gpu: GpuSpec) -> Array:
    """Return microseconds of DRAM time of scattered selections; 0 for other gathers and where the L2 holds
    the lines."""
    columns = gathers.columns
    elements = columns["write_bytes"] / columns["element_bytes"]
    thrashes = columns["cols"] * 2 * _LINE_BYTES >= gpu.l2_bytes  # indices are read beside them
    moved = elements * _SECTORS_PER_ELEMENT * _SECTOR_BYTES
    taken = moved / (gpu.dram_bytes_per_s * _SECTOR_EFFICIENCY) * 1e6
    return np.where((gathers.variant == SCATTERED) & thrashes, taken, 0.0)
