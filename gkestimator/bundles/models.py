"""Read one regressor of a bundle, checked: what it covers, where it may be trusted, and how it predicts."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gkestimator.bundles.files import stored_arrays
from gkestimator.core.kernels import ENDING, TENSORRT, Array, Family, KernelTable
from gkestimator.core.stored import StoredObject
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import ANALYTICAL_FACTOR
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.attainable import attainable_us
from gkestimator.kernel_models.features.vector import FEATURE_SETS, elementwise_variant
from gkestimator.kernel_models.recurrent import SHORTEST_STEP_US, steps_of
from gkestimator.kernel_models.regressors import Stack, Uncertainty, uncertainty_columns
from gkestimator.kernel_models.roofline import MATRIX_FAMILIES, Roofline, peak_rate
from gkestimator.kernel_models.traffic import least_traffic_us

SCHEMA_VERSION = 2
SHORTEST_KERNEL_US = 1.0
"""No kernel is shorter: the least that Vidur's GPU traces show on A100, A40 and H100."""
GROUPED_CONV_US = 150.0
"""What a grouped (not depthwise) FP32 convolution takes beyond its arithmetic, in microseconds a call: fitted
on whole ResNeXt networks on a V100, and so counted up to Turing alone. No kernel measurements of grouped
convolutions are public, so they count as out of range."""
_GROUPED_CONV_BEFORE = (8, 0)
WIDEST = 5.0
"""The widest half-width of log(time) that an interval has."""
SIZE_EDGES_US = (20.0, 200.0)
"""Interval widths are calibrated apart for kernels predicted below, between and above these durations."""

# A chip is known by its generation and its size; memory clocks and form factors of one chip differ little.
_SAME_CHIP = 0.10
_MOST_OF_A_CHIP = 1_000_000  # SMs, or FLOPs per clock and SM: no chip has nearly as many
_HALF = ("fp16", "bf16")
_SPECIFICATION = frozenset(
    [
        "log_bandwidth",
        "log_sms",
        "log_cores_per_sm",
        "log_clock",
        "log_peak",
        "log_peak_over_vector",
        "log_l2",
        "compute_capability",
        "lanes_per_sm",
        "library_generation",
        "log_bandwidth_per_sm_clock",
    ]
)
"""Features that describe the GPU, not the kernel."""
SCOPES = ("seen", "unseen")
"""A model answers on GPUs whose chip it was trained on, or on all others."""


Pair: TypeAlias = tuple[str, str]
"""Family and precision."""
Chip = tuple[int, int, int, int]
"""Compute capability, SMs, and what an SM's matrix units calculate in half precision, FLOPs per clock."""


def chip_of(gpu: GpuSpec) -> Chip:
    """Return the chip of ``gpu``. Boards of one chip differ in memory clock and form factor; GeForce boards
    also halve the matrix rate with fp32 accumulation. A rate that is unknown counts as 0, which no trained chip has."""
    if "peak_flops_per_s.fp16" in gpu.unknown:
        return (*gpu.compute_capability, gpu.sms, 0)
    rate = peak_rate(gpu, "fp16", matrix=True) / (gpu.sms * gpu.boost_clock_mhz * 1e6)
    return (*gpu.compute_capability, gpu.sms, round(rate))


def same_chip(known: Chip, other: Chip, *, matrix: bool) -> bool:
    """Return whether two boards have one chip: the capability, and within 10 % the SMs and, of ``matrix`` work, its
    rate."""
    if known[:2] != other[:2] or abs(known[2] / other[2] - 1) > _SAME_CHIP:
        return False
    return not matrix or abs(known[3] / max(other[3], 1) - 1) <= _SAME_CHIP


@dataclass(slots=True, kw_only=True)
class BundleModel:
    """Hold one regressor of a bundle; its arrays are read when it is first asked.

    ``scope``: one of ``SCOPES``. ``anchor``: the time its predictions are relative to (``ANCHORS``).
    ``covers``: (family, precision) pairs it answers; ``trains``: those it was trained on. ``low`` and
    ``high``: the range of every feature in training. ``chips``: those of the training GPUs. ``factors``: per
    size class of the prediction, the 90 % quantile of |log error| over the scale that the model's
    :class:`Uncertainty` gives, for rows inside the training range; ``beyond``: the 90 % quantile of |log error|
    of kernels larger than any trained on. ``bandwidths``: DRAM bytes/s of the boards of each of ``chips``; empty in
    bundles that do not tell. ``variants``: those that it answers before other models do
    (:func:`~gkestimator.core.kernels.is_listed`); none are all. ``widest``: the most that a half-width of log(time) is.
    """

    name: str
    features: str
    feature_names: tuple[str, ...]
    trains: frozenset[Pair]
    covers: frozenset[Pair]
    low: Array
    high: Array
    chips: tuple[Chip, ...]
    factors: tuple[float, ...]
    beyond: float
    path: Path
    scope: str = "seen"
    anchor: str = "roofline"
    bandwidths: tuple[tuple[float, ...], ...] = ()
    widest: float = WIDEST
    variants: frozenset[str] = frozenset()
    _fitted: tuple[Stack, Uncertainty] | None = field(default=None, repr=False)

    @property
    def fitted(self) -> tuple[Stack, Uncertainty]:
        """Return the members and the scale of their errors. Raises BundleError if the file does not hold what the
        bundle promises."""
        if self._fitted is None:
            arrays = stored_arrays(self.path)
            width = len(self.feature_names)
            stack = Stack.from_arrays(arrays, features=width)
            uncertainty = Uncertainty.from_arrays(arrays, features=width)
            self._fitted = (stack, uncertainty)
        return self._fitted

    @property
    def of_library(self) -> bool:
        """Return whether it was trained on the kernels of one library alone, told by the ending of their variants."""
        return any(variant.startswith(ENDING) for variant in self.variants)

    def knows_chip(self, gpu: GpuSpec) -> bool:
        """Return whether a GPU of the same compute capability and, within 10 %, as many SMs was trained on; of models
        of half-precision matrix work, within 10 % of the same matrix rate too."""
        matrix = self._of_half_matrices()
        return any(same_chip(chip, chip_of(gpu), matrix=matrix) for chip in self.chips)

    def other_bandwidth(self, gpu: GpuSpec) -> float:
        """Return how far the DRAM bandwidth of ``gpu`` lies from the nearest measured board of its chip, as
        |log ratio|.

        0 where such a board was measured, and for chips that were not measured at all: those have intervals of
        their own.
        """
        matrix = self._of_half_matrices()
        known: list[float] = []
        for chip, bandwidths in zip(self.chips, self.bandwidths, strict=False):
            if same_chip(chip, chip_of(gpu), matrix=matrix):
                known += bandwidths
        if not known:
            return 0.0
        return min(abs(float(np.log(gpu.dram_bytes_per_s / bandwidth))) for bandwidth in known)

    def _of_half_matrices(self) -> bool:
        return any(family in MATRIX_FAMILIES and precision in _HALF for family, precision in self.trains)

    def within(self, table: KernelTable, matrix: Array) -> Array:
        """Return the rows inside the training range, whatever the GPU: trained (family, precision), every feature
        between its extremes."""
        checked = np.array([name not in _SPECIFICATION for name in self.feature_names])
        low = self.low[checked]
        high = self.high[checked]
        slack = 1e-4 + 1e-4 * np.abs(high)
        values = matrix[:, checked]
        inside = (values >= low - slack) & (values <= high + slack)
        result = inside.all(axis=1) & is_pair_of(table, self.trains)
        known = np.array([elementwise_variant(v) is not None for v in table.variant], dtype=bool)
        return np.asarray(result & (known | (table.family != Family.ELEMENTWISE)))

    def predict(
        self, table: KernelTable, matrix: Array, gpu: GpuSpec, roof: Roofline, within: Array
    ) -> tuple[Array, Array]:
        """Return microseconds, held to what physics allows, and the 90 % half-widths of their logarithms.

        ``matrix`` are the features, ``roof`` the roofline of ``table`` on ``gpu``, ``within`` the rows inside
        the training range.
        """
        stack, uncertainty = self.fitted
        ratio, disagreement = stack.predict_with_disagreement(matrix)
        anchor = ANCHORS[self.anchor](table, gpu)
        result = np.maximum(anchor * np.exp(ratio), SHORTEST_KERNEL_US)
        scale = uncertainty.scale(uncertainty_columns(matrix, ratio, disagreement, anchor))
        width = np.asarray(self.factors)[np.searchsorted(SIZE_EDGES_US, result)] * scale
        width = np.where(within, width, np.maximum(width, self.beyond))
        # A sibling board has other memory. Estimates give its kernels the whole difference; caches and rows that are
        # too small to fill the memory may leave them as they are on the board that was measured.
        of_memory = roof.memory_us / np.maximum(roof.memory_us + roof.compute_us, 1e-9)
        width = np.hypot(width, of_memory * self.other_bandwidth(gpu))
        trained = is_pair_of(table, self.trains)
        width = np.where(trained, width, np.maximum(width, BORROWED))
        untried = self._untried_layers(table, gpu, within)
        width = np.where(untried, np.maximum(width, UNTRIED_LAYER), width)
        result = np.maximum(result, roof.compute_us * _least_of_peak(table))
        result = np.maximum(result, least_traffic_us(table, gpu))
        result = np.maximum(result, _least_of_convolution_us(table, gpu))
        result = np.maximum(result, _least_of_steps_us(table))
        if gpu.compute_capability < _GROUPED_CONV_BEFORE:
            grouped = _single_convolutions(table) & (table.columns["conv_groups"] > 1)
            result = np.where(grouped, result + GROUPED_CONV_US, result)
        return result, np.minimum(width, self.widest)

    def _untried_layers(self, table: KernelTable, gpu: GpuSpec, within: Array) -> Array:
        """Return the recurrent layers outside the training range, and all of them on GPUs later than any trained on."""
        later = all(gpu.compute_capability > chip[:2] for chip in self.chips)
        return np.asarray((table.family == Family.RNN) & (later | ~within))


BORROWED = float(np.log(1.35))
"""Least 90 % half-width of log(time) where a regressor answers for a family or precision that it was not trained on
(convolutions in half precision by matrix products, say). Judged, and known to be too narrow for such convolutions on
a GPU left out: docs/accuracy.md gives the share inside."""
UNTRIED_LAYER = float(np.log(ANALYTICAL_FACTOR))
"""Least 90 % half-width of log(time) of recurrent layers unlike any measured: the analytical model's. The measured ones
are of cuDNN 7, whose successors have other kernels for later GPUs."""
_NO_FLOOR = frozenset({Family.ELEMENTWISE, Family.SOFTMAX, Family.LAYERNORM})


def _single_convolutions(table: KernelTable) -> Array:
    """Return the mask of cuDNN's convolutions in FP32. TensorRT's have no limits of their own: a quarter of a million
    were measured, also short ones, and reach 0.99 of the peak without Winograd's algorithm."""
    single = (table.family == Family.CONV) & (table.precision == "fp32")
    return np.asarray(single & ~table.has_word(TENSORRT))


def _least_of_peak(table: KernelTable) -> Array:
    """Return the least time over FLOPs / peak, per row: 1 for matrix products; dense convolutions of 3x3 and 5x5 may
    save arithmetic by Winograd (2.25x for 4x4 outputs in practice), other FP32 convolutions reach 0.9 of the peak
    at most, half-precision ones twice the peak (DeepBench's fastest run at 1.9 times); 0 where the arithmetic
    counted is a convention (elementwise, softmax, LayerNorm)."""
    height = table.size("conv_kernel_h")
    small = (height == table.size("conv_kernel_w")) & np.isin(height, (3, 5))
    steps = table.size("conv_groups")
    for name in ("stride_h", "stride_w", "dilation_h", "dilation_w"):
        steps = steps * table.size(f"conv_{name}")
    winograd = small & (steps == 1)
    result = np.ones(len(table))
    result[table.is_of(_NO_FLOOR)] = 0.0
    result[table.family == Family.CONV] = 0.5
    single = _single_convolutions(table)
    result[single] = np.where(winograd, 0.0, 1 / 0.9)[single]
    return result


_SHORT_CONVOLUTION_US = 50.0
_SHORT_CONVOLUTION_SHARE = 0.9
"""Judged: tiles so short neither split k nor gain by Winograd, so they take about what they attain. Times below
NeuSight's launch gap, of 50 to 780 us for convolutions (docs/appendix/data-defects.md), cannot say."""


def _least_of_convolution_us(table: KernelTable, gpu: GpuSpec) -> Array:
    """Return the least microseconds of FP32 convolutions that are too short to have been measured well; 0 for all
    else."""
    result = np.zeros(len(table))
    index = np.flatnonzero(_single_convolutions(table))
    if len(index):
        attainable = attainable_us(table.take(index), gpu)
        short = attainable < _SHORT_CONVOLUTION_US
        result[index] = np.where(short, attainable * _SHORT_CONVOLUTION_SHARE, 0.0)
    return result


def _least_of_steps_us(table: KernelTable) -> Array:
    """Return the least microseconds of recurrent layers, whose steps wait for one another; 0 for all else."""
    return np.where(table.family == Family.RNN, SHORTEST_STEP_US * steps_of(table), 0.0)


def pairs(table: KernelTable) -> list[Pair]:
    """Return (family, precision) of every row."""
    return list(zip(table.family.tolist(), table.precision.tolist(), strict=True))


def is_pair_of(table: KernelTable, chosen: Container[Pair]) -> Array:
    """Return the mask of the rows whose (family, precision) is among ``chosen``."""
    return np.array([pair in chosen for pair in pairs(table)], dtype=bool)


def model_of(folder: Path, entry: StoredObject, ranges: StoredObject, quantiles: StoredObject) -> BundleModel:
    """Return the model that ``entry`` of stack.json describes. Raises BundleError, naming file and field, for anything
    malformed."""
    name = entry.name("name")
    limits = ranges.object(name)
    widths = quantiles.object(name)
    names = entry.texts("feature_names", least=1, most=256)
    chips = limits.whole_rows("chips", 4, _MOST_OF_A_CHIP, least=0)
    variants: tuple[str, ...] = ()
    if "variants" in entry:
        variants = entry.texts("variants", most=64)
    widest = WIDEST
    if "widest" in widths:
        widest = widths.number("widest", 0.0, WIDEST)
    return BundleModel(
        name=name,
        features=entry.word("features", FEATURE_SETS),
        feature_names=names,
        trains=entry.pairs("trains"),
        covers=entry.pairs("covers"),
        low=np.array(limits.numbers("low", len(names))),
        high=np.array(limits.numbers("high", len(names))),
        chips=tuple((major, minor, sms, rate) for major, minor, sms, rate in chips),
        factors=widths.numbers("factors", len(SIZE_EDGES_US) + 1, 0.0, 1e5),
        beyond=widths.number("beyond", 0.0, 5.0),
        widest=widest,
        path=folder / f"{name}.npz",
        scope=entry.word("scope", SCOPES),
        anchor=entry.word("anchor", ANCHORS),
        bandwidths=limits.rates("dram_bytes_per_s", len(chips), 1e6, 1e15),
        variants=frozenset(variants),
    )
