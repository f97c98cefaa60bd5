"""One regressor of a bundle: what it covers, where it may be trusted, and how it predicts; and its checked
reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundles.files import NAME, read_arrays
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Family, KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.attainable import attainable_us
from gkestimator.kernel_models.features.vector import FEATURE_SETS, elementwise_variant
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
SIZE_EDGES_US = (20.0, 200.0)
"""Interval widths are calibrated apart for kernels predicted below, between and above these durations."""

# A chip is known by its generation and its size; memory clocks and form factors of one chip differ little.
_SAME_CHIP = 0.10
_HALF = ("fp16", "bf16")
_SPECIFICATION = frozenset(
    {
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
    }
)
SCOPES = ("seen", "unseen")
"""A model answers on GPUs whose chip it was trained on, or on all others."""


Chip = tuple[int, int, int, int]
"""Compute capability, SMs, and what an SM's matrix units calculate in half precision, FLOPs per clock."""


def chip_of(gpu: GpuSpec) -> Chip:
    """The chip of ``gpu``. Boards of one chip differ in memory clock and form factor; GeForce boards also halve the
    matrix rate with fp32 accumulation."""
    rate = peak_rate(gpu, "fp16", matrix=True) / (gpu.sms * gpu.boost_clock_mhz * 1e6)
    return (*gpu.compute_capability, gpu.sms, round(rate))


@dataclass(slots=True, kw_only=True)
class BundleModel:
    """One regressor of a bundle; its arrays are read when it is first asked.

    ``scope``: one of ``SCOPES``. ``anchor``: the time its predictions are relative to (``ANCHORS``).
    ``covers``: (family, precision) pairs it answers; ``trains``: those it was trained on. ``low`` and
    ``high``: the range of every feature in training. ``chips``: those of the training GPUs. ``factors``: per
    size class of the prediction, the 90 % quantile of |log error| over the scale that the model's
    :class:`Uncertainty` gives, for rows inside the training range; ``beyond``: the 90 % quantile of |log error|
    of kernels larger than any trained on.
    """

    name: str
    features: str
    feature_names: tuple[str, ...]
    trains: frozenset[tuple[str, str]]
    covers: frozenset[tuple[str, str]]
    low: np.ndarray
    high: np.ndarray
    chips: tuple[Chip, ...]
    factors: tuple[float, ...]
    beyond: float
    path: Path
    scope: str = "seen"
    anchor: str = "roofline"
    _fitted: tuple[Stack, Uncertainty] | None = field(default=None, repr=False)

    @property
    def fitted(self) -> tuple[Stack, Uncertainty]:
        """The members and the scale of their errors. Raises BundleError if the file does not hold what the
        bundle promises."""
        if self._fitted is None:
            arrays = read_arrays(self.path)
            where = str(self.path)
            width = len(self.feature_names)
            self._fitted = (
                Stack.from_arrays(arrays, features=width, where=where),
                Uncertainty.from_arrays(arrays, features=width, where=where),
            )
        return self._fitted

    def knows_chip(self, gpu: GpuSpec) -> bool:
        """True if a GPU of the same compute capability and, within 10 %, as many SMs was trained on; of models of
        half-precision matrix work, within 10 % of the same matrix rate too."""
        matrix = any(f in MATRIX_FAMILIES and p in _HALF for f, p in self.trains)
        chip = chip_of(gpu)
        return any(
            (major, minor) == chip[:2]
            and abs(sms / gpu.sms - 1) <= _SAME_CHIP
            and (not matrix or abs(rate / chip[3] - 1) <= _SAME_CHIP)
            for major, minor, sms, rate in self.chips
        )

    def within(self, table: KernelTable, matrix: np.ndarray) -> np.ndarray:
        """Rows inside the training range, whatever the GPU: trained (family, precision), every feature between
        its extremes."""
        checked = np.array([name not in _SPECIFICATION for name in self.feature_names])
        slack = 1e-4 + 1e-4 * np.abs(self.high[checked])
        inside = (matrix[:, checked] >= self.low[checked] - slack) & (
            matrix[:, checked] <= self.high[checked] + slack
        )
        trained = np.fromiter((pair in self.trains for pair in pairs(table)), bool, len(table))
        result = inside.all(axis=1) & trained
        elementwise = table.family == Family.ELEMENTWISE
        if elementwise.any():
            known = np.fromiter((elementwise_variant(v) is not None for v in table.variant), bool, len(table))
            result &= known | ~elementwise
        return np.asarray(result)

    def predict(
        self, table: KernelTable, matrix: np.ndarray, gpu: GpuSpec, roof: Roofline, within: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Microseconds, held to what physics allows, and the 90 % half-widths of their logarithms.

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
        borrowed = np.fromiter((pair not in self.trains for pair in pairs(table)), bool, len(table))
        width = np.where(borrowed, np.maximum(width, _BORROWED), width)
        result = np.maximum(result, roof.compute_us * _least_of_peak(table))
        result = np.maximum(result, least_traffic_us(table, gpu))
        result = np.maximum(result, _least_of_convolution_us(table, gpu))
        grouped = (
            (table.family == Family.CONV) & (table.precision == "fp32") & (table.columns["conv_groups"] > 1)
        )
        grouped &= gpu.compute_capability < _GROUPED_CONV_BEFORE
        return np.where(grouped, result + GROUPED_CONV_US, result), np.minimum(width, _WIDEST)


_WIDEST = 5.0
_BORROWED = float(np.log(1.35))
"""Least 90 % half-width of log(time) where a regressor answers for a family or precision that it was not trained on
(convolutions in half precision by matrix products, say). Judged, and known to be too narrow for such convolutions on
a GPU left out: docs/accuracy.md gives the share inside."""
_NO_FLOOR = frozenset({Family.ELEMENTWISE, Family.SOFTMAX, Family.LAYERNORM})


def _least_of_peak(table: KernelTable) -> np.ndarray:
    """Least time over FLOPs / peak, per row: 1 for matrix products; dense convolutions of 3x3 and 5x5 may save
    arithmetic by Winograd (2.25x for 4x4 outputs in practice), other FP32 convolutions reach 0.9 of the peak
    at most, half-precision ones twice the peak (DeepBench's fastest run at 1.9 times); 0 where the arithmetic
    counted is a convention (elementwise, softmax, LayerNorm)."""
    result = np.ones(len(table))
    result[np.isin(table.family.astype(str), [str(f) for f in _NO_FLOOR])] = 0.0
    conv = table.family == Family.CONV
    if conv.any():
        columns = {name: np.nan_to_num(table.columns[f"conv_{name}"], nan=1.0) for name in _WINOGRAD_COLUMNS}
        square = columns["kernel_h"] == columns["kernel_w"]
        small = square & np.isin(columns["kernel_h"], (3, 5))
        dense = np.prod([columns[n] for n in _WINOGRAD_COLUMNS[2:]], axis=0) == 1
        single = table.precision == "fp32"
        result = np.where(conv & single, np.where(small & dense, 0.0, 1 / 0.9), result)
        result = np.where(conv & ~single, 0.5, result)
    return np.asarray(result)


_SHORT_CONVOLUTION_US = 50.0
_SHORT_CONVOLUTION_SHARE = 0.9
"""Judged: tiles so short neither split k nor gain by Winograd, so they take about what they attain. Times below
NeuSight's launch gap, of 50 to 780 us for convolutions (docs/data-defects.md), cannot say."""


def _least_of_convolution_us(table: KernelTable, gpu: GpuSpec) -> np.ndarray:
    """Least microseconds of FP32 convolutions that are too short to have been measured well; 0 for all else."""
    result = np.zeros(len(table))
    index = np.flatnonzero((table.family == Family.CONV) & (table.precision == "fp32"))
    if len(index):
        attainable = attainable_us(table.take(index), gpu)
        short = attainable < _SHORT_CONVOLUTION_US
        result[index] = np.where(short, attainable * _SHORT_CONVOLUTION_SHARE, 0.0)
    return result


_WINOGRAD_COLUMNS = ("kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")


def pairs(table: KernelTable) -> list[tuple[str, str]]:
    """(family, precision) of every row."""
    return list(zip(table.family.tolist(), table.precision.tolist(), strict=True))


def model_of(
    folder: Path, entry: Any, ranges: Mapping[str, Any], quantiles: Mapping[str, Any]
) -> BundleModel:
    """The model that ``entry`` of stack.json describes. Raises BundleError, naming file and field, for anything
    malformed."""
    where = folder / "stack.json"
    if not isinstance(entry, dict):
        raise BundleError(f"{where}: a model is a {type(entry).__name__}; expected an object")
    name = entry.get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise BundleError(
            f"{where}: model name {name!r}; expected lower-case letters, digits and underscores"
        )
    features = entry.get("features")
    if features not in FEATURE_SETS:
        raise BundleError(
            f"{where}: model {name}: features is {features!r}; expected one of {', '.join(FEATURE_SETS)}"
        )
    names = entry.get("feature_names")
    if (
        not isinstance(names, list)
        or not 1 <= len(names) <= 256
        or not all(isinstance(n, str) for n in names)
    ):
        raise BundleError(f"{where}: model {name}: feature_names is no list of 1 to 256 texts")
    scope = entry.get("scope")
    anchor = entry.get("anchor")
    if scope not in SCOPES:
        raise BundleError(f"{where}: model {name}: scope is {scope!r}; expected one of {', '.join(SCOPES)}")
    if anchor not in ANCHORS:
        raise BundleError(
            f"{where}: model {name}: anchor is {anchor!r}; expected one of {', '.join(ANCHORS)}"
        )
    range_ = ranges.get(name)
    low, high, chips = (range_.get(k) if isinstance(range_, dict) else None for k in ("low", "high", "chips"))
    at = folder / "ranges.json"
    if not isinstance(chips, list) or not all(
        isinstance(c, list) and len(c) == 4 and all(isinstance(v, int) for v in c) for c in chips
    ):
        raise BundleError(
            f"{at}: model {name}: chips is no list of [major, minor, SMs, FLOPs per clock and SM]"
        )
    widths = quantiles.get(name)
    widths = widths if isinstance(widths, dict) else {}
    at_widths = folder / "quantiles.json"
    return BundleModel(
        name=name,
        features=str(features),
        feature_names=tuple(names),
        trains=_pair_set(where, name, entry.get("trains")),
        covers=_pair_set(where, name, entry.get("covers")),
        low=_numbers(at, f"{name}.low", low, len(names)),
        high=_numbers(at, f"{name}.high", high, len(names)),
        chips=tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in chips),
        factors=tuple(
            _numbers(
                at_widths,
                f"{name}.factors",
                widths.get("factors"),
                len(SIZE_EDGES_US) + 1,
                least=0.0,
                most=1e5,
            ).tolist()
        ),
        beyond=float(
            _numbers(at_widths, f"{name}.beyond", [widths.get("beyond")], 1, least=0.0, most=5.0)[0]
        ),
        path=folder / f"{name}.npz",
        scope=str(scope),
        anchor=str(anchor),
    )


def _numbers(
    path: Path, name: str, value: Any, length: int, *, least: float = -1e12, most: float = 1e12
) -> np.ndarray:
    if (
        not isinstance(value, list)
        or len(value) != length
        or not all(
            isinstance(v, int | float) and not isinstance(v, bool) and least <= v <= most for v in value
        )
    ):
        raise BundleError(f"{path}: {name} is no list of {length} numbers from {least:g} to {most:g}")
    return np.array(value, dtype=np.float64)


def _pair_set(path: Path, name: str, value: Any) -> frozenset[tuple[str, str]]:
    if not isinstance(value, list) or not all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(w, str) for w in p) for p in value
    ):
        raise BundleError(f"{path}: model {name}: trains or covers is no list of [family, precision] pairs")
    return frozenset((p[0], p[1]) for p in value)
