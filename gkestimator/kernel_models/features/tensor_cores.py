"""Calculate the time of half-precision matrix products on tensor cores, from a model of how libraries run them.

A product is cut into output tiles, one block each; a block steps through k in slices of 32. A step takes as long as
the tensor cores need for it, or as a slice takes to arrive where the tile is small; every tile pays for its prologue
and epilogue; a grid smaller than the GPU may be split along k, whose parts are then summed. The library takes the
tile and split that finish first. Traffic goes to L2 where everything fits, else to DRAM, and overlaps with the
calculation in part. Times inside an SM are clock cycles, so they shrink with the clock.

The twelve constants were fitted by least squares of log(time) on the bf16 and fp16 products of aiconfigurator and
Vidur on A100, A40 and RTX PRO 6000 and rounded. H100 took no part, so its error is that of a GPU not trained on.
``benchmarks/half_precision.py`` fits them again with each GPU left out and prints the errors.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.roofline import WEIGHT_ONLY, peak_rate
from gkestimator.kernel_models.sustained import sustained_bytes_per_s, sustained_clock_mhz
from gkestimator.kernel_models.tiles import pieces

Tiles: TypeAlias = "tuple[tuple[int, int], ...]"
_TILES = ((32, 32), (64, 32), (32, 64), (64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256))
# Every scaled 8-bit product of H20 is explained by one tile within 2 %, few rows padded to it. H800's fit smaller tiles
# as well (3.7 % against 6 %): there a step waits for its loads, whatever its tile calculates.
_HOPPER_FP8_TILES = ((128, 128),)
_SPLITS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
_SLICE_BYTES = 64  # of k, per step
_OPERAND_BYTES = {"int8": 1.0, "fp8": 1.0}
_L2_SMS_X_MHZ = 190e3  # of the GPU that ``l2_bytes_per_us`` is stated for
# aiconfigurator's and Vidur's operators take turns with others; RTX PRO 6000's products fit best with six.
_WEIGHTS_BETWEEN = 6
_STEPS_PER_SPLIT = 4  # a part of a split keeps at least so many steps


@frozen
class TensorConstants:
    """Hold what no specification says. Cycles are SM clock cycles.

    ``launch_us`` and ``launch_cycles``: start and end of a kernel. ``prologue_cycles``: filling the pipeline, once a
    kernel; ``tile_cycles``: between one tile and the next. ``step_cycles``: least time of a step (latency of its
    loads). ``efficiency``: share of the tensor peak that large products reach. ``dram``: share of the streaming
    bandwidth. ``l2_bytes_per_us``: of a GPU whose SMs x MHz is 190,000. ``split_cycles``: a second kernel that
    sums the parts.
    ``whole_waves``: 1 where a last wave costs as much as a full one, 0 where tiles are spread evenly. ``overlap``:
    exponent of the norm that joins calculation and traffic (1: one after the other, infinite: perfect overlap).
    ``l2_share``: share of L2 up to which operands and result stay there from the last use.
    """

    launch_us: float = 0.9
    launch_cycles: float = 1000.0
    prologue_cycles: float = 1000.0
    tile_cycles: float = 2200.0
    step_cycles: float = 185.0
    efficiency: float = 0.82
    dram: float = 0.97
    l2_bytes_per_us: float = 1.25e6
    split_cycles: float = 3000.0
    whole_waves: float = 0.55
    overlap: float = 1.8
    l2_share: float = 1.0


CONSTANTS = TensorConstants()
FP8_CONSTANTS = TensorConstants(
    launch_us=2.6,
    launch_cycles=660.0,
    prologue_cycles=560.0,
    tile_cycles=7000.0,
    step_cycles=310.0,
    efficiency=0.74,
    split_cycles=1e6,
    whole_waves=1.0,
    overlap=2.7,
)
"""Those of products of scaled 8-bit floats, whose kernels do not split k. Fitted as the others on PipeWeave's products
on H100 and H800 (``benchmarks/half_precision.py --fp8``); other GPUs took no part."""

# Tiles of Hopper and data-centre Blackwell overlap: warp-specialised kernels load the next one (through the tensor
# memory accelerator) while the last is multiplied and stored.
_OVERLAPPED_TILES = 0.3
# GeForce boards halve the tensor rate with fp32 accumulation. What feeds the tensor cores was built for twice that, so
# they run nearly without a gap; and the advertised boost clock is what every board reaches, not what it runs at:
# with the power that halved tensor cores leave, GeForce boards run 7 to 12 % above it.
_HALF_RATE_EFFICIENCY = 0.95
_HOPPER_RATE = 4096.0  # 16-bit FLOPs an SM and clock (NVIDIA H100 white paper V1.04)
_GEFORCE_CLOCK = 1.10
# Picojoule per FLOP of 16-bit tensor work with the memory traffic it needs, where the power limit binds: V100
# 104 TFLOP/s at 300 W and T4 35 at 70 W (12 nm; DeepBench), A40 123 at 300 W (Samsung 8 nm; Vidur). A100 runs at
# its full clock at 300 W (7 nm), published largest products reach about 800 TFLOP/s on H100 at 700 W and 1,750 on
# B200 at 1,000 W. Ada and Blackwell RTX boards (4 nm) lie between Hopper and Ampere; RTX PRO 6000 holds 400 TFLOP/s
# at 600 W. A fifth of the limit goes elsewhere.
_PICOJOULE = {
    (7, 0): 2.3,
    (7, 2): 2.3,
    (7, 5): 1.6,
    (8, 0): 0.95,
    (8, 6): 1.9,
    (8, 7): 1.9,
    (8, 9): 0.85,
    (9, 0): 0.6,
    (10, 0): 0.43,
    (10, 3): 0.43,
}
_PICOJOULE_OTHERS = 0.85
_POWER_SHARE = 0.8
# Turing's process is Volta's (TSMC 12FFN), and so is what a FLOP costs once the board has spent its slack.
_STEADY_PICOJOULE = {(7, 5): 2.3}
# Ada and Blackwell boards of the RTX kind run into their power limit by lowering clock and voltage together
# (``sustained``). Power of tensor work per lane and clock over that of FP32 products, so that an RTX PRO 6000 holds
# 2,270 MHz at its 600 W: its largest products reach 393 TFLOP/s, 0.9 of the peak at that clock.
_CLOCKED_DOWN = frozenset({(8, 9), (12, 0)})
_TENSOR_ACTIVITY = 1.09
_CLOCKED_DOWN_EFFICIENCY = 0.9


@frozen
class _Products:
    """Hold matrix products, one per entry: their sizes, and the bytes that they read and write."""

    batch: Array
    m: Array
    n: Array
    k: Array
    traffic: Array
    weights: Array
    slice: float
    tiles: Tiles


def has_tensor_cores(gpu: GpuSpec, precision: str = "fp16") -> bool:
    """Return whether matrix work in ``precision`` runs on units of its own, faster than the CUDA cores."""
    if precision in WEIGHT_ONLY:
        precision = "fp16"
    peak = gpu.peak_flops_per_s.get(precision)
    if peak is None or gpu.compute_capability < (7, 0):
        return False
    return peak > 1.5 * gpu.vector(precision)


def half_rate(gpu: GpuSpec) -> bool:
    """Return whether fp32 accumulation halves the fp16 rate: int8, which never is halved, is then four times
    as fast."""
    int8 = gpu.peak_flops_per_s.get("int8")
    fp16 = gpu.peak_flops_per_s.get("fp16")
    if int8 is None or fp16 is None or not has_tensor_cores(gpu):
        return False
    return int8 > 3 * fp16


def _quarter_rate(gpu: GpuSpec) -> bool:
    """Return whether export rules hold a Hopper chip's matrix rate far below what its SMs can feed (H20)."""
    if gpu.compute_capability != (9, 0):
        return False
    return peak_rate(gpu, "fp16", matrix=True) < 0.5 * _HOPPER_RATE * gpu.sms * gpu.boost_clock_mhz * 1e6


def tensor_clock_mhz(gpu: GpuSpec) -> float:
    """Return MHz under matrix work as far as power allows: the boost clock, on GeForce boards a tenth more."""
    if half_rate(gpu):
        return gpu.boost_clock_mhz * _GEFORCE_CLOCK
    return gpu.boost_clock_mhz


def overlapped_tiles(gpu: GpuSpec) -> bool:
    """Return whether libraries run warp-specialised kernels, which load the next tile while one is multiplied and
    stored."""
    return gpu.compute_capability[0] in (9, 10)


def tensor_peak(gpu: GpuSpec, precision: str) -> float:
    """Return FLOP/s of matrix work in ``precision`` with fp32 accumulation at the sustained clock.

    Without tensor cores libraries accumulate half precision in fp32 on the CUDA cores, and dp4a calculates int8.
    """
    clock = tensor_clock_mhz(gpu) / gpu.boost_clock_mhz
    if has_tensor_cores(gpu, precision):
        return peak_rate(gpu, precision, matrix=True) * clock
    if precision == "int8" and "int8" in gpu.peak_flops_per_s:
        return gpu.peak_flops_per_s["int8"] * clock
    return gpu.vector("fp32") * clock


def sustained_tensor_rate(gpu: GpuSpec, precision: str, constants: TensorConstants = CONSTANTS) -> float:
    """Return FLOP/s that large products of ``precision`` reach on ``gpu``: efficiency x peak, at most what
    power allows."""
    peak = tensor_peak(gpu, precision)
    if not has_tensor_cores(gpu, precision):
        return peak * constants.efficiency
    if gpu.compute_capability in _CLOCKED_DOWN and not half_rate(gpu):
        clock = sustained_clock_mhz(gpu, activity=_TENSOR_ACTIVITY)
        return peak * _CLOCKED_DOWN_EFFICIENCY * clock / gpu.boost_clock_mhz
    efficiency = constants.efficiency
    if (half_rate(gpu) and precision != "int8") or _quarter_rate(gpu):
        efficiency = _HALF_RATE_EFFICIENCY
    return min(peak * efficiency, power_limited_rate(gpu, precision))


def power_limited_rate(gpu: GpuSpec, precision: str, *, steady: bool = False) -> float:
    """Return FLOP/s of ``precision`` on tensor cores at which ``gpu`` draws its power limit.

    ``steady``: for as long as one likes; else for as long as a benchmark of one product takes.
    """
    # 8-bit operations switch half the bits of 16-bit ones, TF32 ones twice as many.
    bits = {"int8": 0.5, "fp8": 0.5, "tf32": 2.0}.get(precision, 1.0)
    energy = _PICOJOULE.get(gpu.compute_capability, _PICOJOULE_OTHERS)
    if steady:
        energy = _STEADY_PICOJOULE.get(gpu.compute_capability, energy)
    return _POWER_SHARE * gpu.power_limit_w / (energy * 1e-12 * bits)


def constants_of(precision: str) -> TensorConstants:
    """Return the constants of the kernels that libraries run in ``precision``."""
    if precision == "fp8":
        return FP8_CONSTANTS
    return CONSTANTS


def tensor_core_us(table: KernelTable, gpu: GpuSpec, constants: TensorConstants | None = None) -> Array:
    """Return microseconds (float64, one per row) of the matrix products in ``table`` on the tensor cores of ``gpu``.

    ``constants``: by default those of each precision.

    Convolutions count as their implicit products, channels padded to what tensor cores take. A row without matrix
    dimensions counts as one product of its outputs with k = 1.
    """
    result = np.empty(len(table))
    for precision, rows in table.by_precision():
        chosen = constants or constants_of(precision)
        rate = sustained_tensor_rate(gpu, precision, chosen)
        result[rows] = implicit_products_us(table.take(rows), gpu, precision, rate, chosen)
    return result


def implicit_products_us(
    table: KernelTable, gpu: GpuSpec, precision: str, rate: float, constants: TensorConstants
) -> Array:
    """Return microseconds of the matrix products in ``table``, all in ``precision``, where tensor cores reach ``rate``
    FLOP/s."""
    columns = table.columns
    m = columns["gemm_m"]
    products = _Products(
        batch=np.fmax(columns["gemm_batch"], 1.0),
        m=np.maximum(np.where(np.isnan(m), table.outputs, m), 1.0),
        n=np.fmax(columns["gemm_n"], 1.0),
        k=np.fmax(columns["gemm_k"], 1.0) * _padded_channels(table),
        traffic=table.total_bytes,
        weights=columns["weight_bytes"],
        slice=_SLICE_BYTES / _OPERAND_BYTES.get(precision, 2.0),
        tiles=_tiles(gpu, precision),
    )
    return _product_us(products, gpu, rate, constants)


def _tiles(gpu: GpuSpec, precision: str) -> Tiles:
    if precision == "fp8" and gpu.compute_capability == (9, 0):
        return _HOPPER_FP8_TILES
    return _TILES


def _padded_channels(table: KernelTable) -> Array:
    """Return the channels that a convolution calculates over those it has: tensor cores take up to 4 as 4, more in
    eights (NVIDIA, Optimizing Convolutional Layers User's Guide, section on channels in and out)."""
    inputs = table.columns["conv_in_channels"]
    groups = np.fmax(table.columns["conv_groups"], 1.0)
    channels = np.fmax(inputs / groups, 1.0)
    padded = np.where(channels <= 4, 4.0, pieces(channels, 8) * 8)
    return np.where(np.isnan(inputs), 1.0, padded / channels)


class TrafficConstants(Protocol):
    """Say what a memory system does with repeated traffic (the fields of :class:`TensorConstants`)."""

    @property
    def dram(self) -> float: ...
    @property
    def l2_bytes_per_us(self) -> float: ...
    @property
    def l2_share(self) -> float: ...


def memory_us(
    traffic: Array, gpu: GpuSpec, constants: TrafficConstants, weights: Array | float = 0.0
) -> Array:
    """Return microseconds that ``traffic`` (bytes) takes: through L2 where it stays there from the last use,
    else DRAM.

    ``weights``: the part of ``traffic`` that is weights. Until a product's weights are read again those of others have
    been, so they stay only where several times as much fits.
    """
    limit = constants.l2_share * gpu.l2_bytes
    weights_in_l2 = _kept(traffic + (_WEIGHTS_BETWEEN - 1) * weights, limit)
    in_l2 = weights * weights_in_l2 + (traffic - weights) * _kept(traffic, limit)
    dram_rate = sustained_bytes_per_s(gpu) * constants.dram / 1e6
    scale = gpu.sms * tensor_clock_mhz(gpu) / _L2_SMS_X_MHZ
    l2_rate = max(constants.l2_bytes_per_us * scale, dram_rate)
    return np.asarray((traffic - in_l2) / dram_rate + in_l2 / l2_rate)


def _kept(footprint: Array, limit: float) -> Array:
    """Return the share of its bytes that an L2 keeps of a ``footprint`` (bytes) that is used over and over."""
    return np.asarray(1 / (1 + (footprint / limit) ** 4))


def counted_waves(waves: Array, whole: float) -> Array:
    """Return ``waves`` between their number as it is (``whole`` 0) and rounded up (``whole`` 1); at least 1."""
    rounded = np.ceil(waves) ** whole
    return np.asarray(np.maximum(1.0, rounded * waves ** (1 - whole)))


def joined_us(compute_us: Array, memory_us: Array, overlap: float) -> Array:
    """Return how long calculation and traffic take together; ``overlap`` is the exponent of the norm that
    joins them."""
    return np.asarray((compute_us**overlap + memory_us**overlap) ** (1 / overlap))


def _product_us(products: _Products, gpu: GpuSpec, rate: float, c: TensorConstants) -> Array:
    clock = tensor_clock_mhz(gpu)
    per_cycle = rate / gpu.sms / (clock * 1e6)  # FLOPs of one SM
    scale = gpu.sms * clock / _L2_SMS_X_MHZ
    between = c.tile_cycles
    if overlapped_tiles(gpu):
        between *= _OVERLAPPED_TILES
    batch = products.batch
    m = products.m
    n = products.n
    steps = pieces(products.k, products.slice)
    parts = _SPLITS[:, None]
    share = pieces(steps, parts)
    allowed = parts <= np.maximum(1.0, steps / _STEPS_PER_SPLIT)
    partial_bytes = parts * batch * m * n * 4
    summing = c.split_cycles / clock + partial_bytes / (c.l2_bytes_per_us * scale)
    summing = np.where(parts > 1, summing, 0.0)
    best = np.full(len(m), np.inf)
    for rows, cols in products.tiles:
        tiles = batch * pieces(m, rows) * pieces(n, cols)
        step = max(c.step_cycles, rows * cols * 2 * products.slice / per_cycle)
        waves = counted_waves(tiles * parts / gpu.sms, c.whole_waves)
        cycles = c.prologue_cycles + waves * (between + share * step)
        cost = cycles / clock + summing
        best = np.minimum(best, np.where(allowed, cost, np.inf).min(axis=0))
    together = joined_us(best, memory_us(products.traffic, gpu, c, products.weights), c.overlap)
    return np.asarray(c.launch_us + c.launch_cycles / clock + together)
