"""Say how much power a board draws while it runs a kernel again and again.

Matrix products and fused attention were measured so on two GPUs (the public rows that
:mod:`gkestimator.training.power` reads): the board's mean power while one kernel repeats, NVIDIA's management library
asked, and the power limit. What is learned is power over limit, from how the kernel uses the chip: arithmetic and
traffic over the time that the tensor-core model gives it, its sizes, waves and their fill, and the watts that each
multiprocessor may draw. No other kernel has a figure, and no other chip: unknown is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import BYTE_CACHE, Array, KernelTable
from gkestimator.core.records import NamedValues, Names, frozen, map_fields
from gkestimator.core.stored import StoredArrays, StoredObject
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.columns import FeatureColumns, Features, fill
from gkestimator.kernel_models.features.tensor_attention import fused_attention_us
from gkestimator.kernel_models.features.tensor_cores import tensor_core_us
from gkestimator.kernel_models.regressors import Forest
from gkestimator.kernel_models.regressors.stack import read_trees
from gkestimator.kernel_models.roofline import roofline
from gkestimator.kernel_models.tiles import pieces

SCHEMA_VERSION = 1  # of power.json; a change of the features raises it
SHARE_EDGES = (0.6, 0.85)
"""Interval widths are calibrated apart for powers predicted below, between and above these shares of the limit."""
_FRAMEWORKS = {"is_vllm": ("vllm",), "is_tensorrt_llm": ("tensorrt_llm", "trtllm")}
# The same units calculate both.
_AS_MEASURED = {"fp16": "bf16"}
# Boards of one chip may have other memory and cooling; with another power limit they run other clocks.
_SAME_LIMIT = 0.1
# Rows of kernels shorter than 100 us were not published. Down to a fifth of that a kernel still runs for ten times
# as long as it takes to start.
_SHORTEST_US = 20.0
_LARGEST_TREES = 2000

ChipSize: TypeAlias = tuple[int, int, int]
"""Compute capability and SMs."""


def _common(table: KernelTable, gpu: GpuSpec, anchor_us: Array) -> FeatureColumns:
    """Return what products and attention share: how busy which part of the chip is, and on whose behalf."""
    roof = roofline(table, gpu)
    out = FeatureColumns()
    out.add_logs(
        anchor=anchor_us,
        flops=table.columns["flops"],
        total_over_l2=table.total_bytes / gpu.l2_bytes,
        intensity_over_balance=np.maximum(roof.compute_us, 1e-6) / np.maximum(roof.memory_us, 1e-6),
        watts_of_sm=gpu.power_limit_w / gpu.sms,
    )
    out["is_fp8"] = table.precision == "fp8"
    for name, spellings in _FRAMEWORKS.items():
        out[name] = np.any([table.has_word(word) for word in spellings], axis=0)
    return out


def _product_features(table: KernelTable, gpu: GpuSpec) -> Features:
    batch, m, n, k = table.gemm_sizes()
    out = _common(table, gpu, tensor_core_us(table, gpu))
    tiles = batch * pieces(m, 128) * pieces(n, 256)
    out.add_logs(m=m, n=n, k=k, result=m * n, weights=n * k)
    out["odd_rows"] = m % 2
    out["rest_rows"] = m % 128
    out["fill"] = fill(tiles / gpu.sms)
    return out.matrix(len(table))


def _attention_features(table: KernelTable, gpu: GpuSpec) -> Features:
    heads, queries, keys, size = table.gemm_sizes()
    columns = table.columns
    out = _common(table, gpu, fused_attention_us(table, gpu))
    narrow = table.has_word(BYTE_CACHE)
    element = np.where(narrow, 1.0, np.maximum(columns["element_bytes"], 1.0))
    cache_bytes = np.maximum(columns["read_bytes"] - columns["write_bytes"], 1.0)
    caches = np.clip(cache_bytes / (2 * keys * size * element), 1.0, heads)
    scores = heads * queries * keys
    seen = columns["flops"] / (scores * (4 * size + 6))
    out.add_logs(heads=heads, queries=queries, keys=keys, size=size, caches=caches, group=heads / caches)
    sequences = np.clip(columns["sequences"], 1.0, caches)
    out.add_logs(
        sequences=sequences, heads_of_sequence=heads / sequences, caches_of_sequence=caches / sequences
    )
    out.add_logs(seen_keys=keys * np.clip(seen, 1e-6, 1.0))
    out["seen"] = np.minimum(seen, 1.0)
    out["byte_cache"] = narrow
    tiles = heads * pieces(queries, 128)
    out["fill"] = fill(tiles / gpu.sms)
    return out.matrix(len(table))


FeatureFunction = Callable[[KernelTable, GpuSpec], Features]
POWER_FEATURES: Mapping[str, FeatureFunction] = {
    "linear": _product_features,
    "attention": _attention_features,
    "decode": _attention_features,
}
"""By family: those whose power was measured."""


@frozen
class KernelPower:
    """Hold watts of the board while each kernel repeats, with the 90 % interval; NaN where nothing near it was
    measured.

    ``least_w`` and ``most_w``: what any measured kernel drew on the chip, at this board's power limit.
    """

    watts: Array
    low_w: Array
    high_w: Array
    least_w: float
    most_w: float

    def take(self, rows: Array) -> KernelPower:
        """Return the entries that ``rows`` selects."""

        def taken(value: Array | float) -> Array | float:
            return value if isinstance(value, float) else np.asarray(value[rows])

        return map_fields(self, taken)


@frozen
class ChipPower:
    """Hold what is known of one chip: its boards' power ``limit_w``, the precisions measured, the least and the most
    power of any kernel over the limit, and the 90 % half-width of log(power) by predicted share (``SHARE_EDGES``)."""

    chip: ChipSize
    limit_w: float
    gpus: Names
    precisions: Names
    least: float
    most: float
    widths: tuple[float, ...]

    def is_near(self, gpu: GpuSpec) -> bool:
        """Return whether ``gpu`` is a board of this chip with about its power limit."""
        chip = (*gpu.compute_capability, gpu.sms)
        return chip == self.chip and abs(gpu.power_limit_w / self.limit_w - 1) <= _SAME_LIMIT


@frozen
class Shares:
    """Hold power over the board's limit of several kernels, with the 90 % interval."""

    share: Array
    low: Array
    high: Array


@frozen
class PowerRegressor:
    """Hold the forest of one family: power over limit from its features.

    ``low`` and ``high``: the range of every feature in training. ``beyond``: 90 % half-width of log(power) of kernels
    outside it; ``sibling``: on a board that was not measured, as found on the other chip while it was left out.
    """

    forest: Forest
    feature_names: Names
    low: Array
    high: Array
    beyond: float
    sibling: float
    chips: tuple[ChipPower, ...]

    def chip_near(self, gpu: GpuSpec) -> ChipPower | None:
        """Return what was measured on the chip of ``gpu``, None for nothing."""
        for chip in self.chips:
            if chip.is_near(gpu):
                return chip
        return None

    def shares(self, matrix: Array, chip: ChipPower, *, sibling: bool) -> Shares:
        """Return power over limit for rows of features."""
        trees = self.forest.predict(matrix)[:, 0]
        share = np.clip(trees, chip.least, chip.most)
        size = np.searchsorted(SHARE_EDGES, share)
        width = np.asarray(chip.widths)[size]
        width = np.where(self._within(matrix), width, np.maximum(width, self.beyond))
        if sibling:
            width = np.maximum(width, self.sibling)
        low = share * np.exp(-width)
        high = share * np.exp(width)
        return Shares(
            share=share,
            low=np.maximum(low, chip.least),
            high=np.minimum(high, chip.most),
        )

    def _within(self, matrix: Array) -> Array:
        """Return the rows inside the training range."""
        slack = 1e-4 + 1e-4 * np.abs(self.high)
        above = matrix >= self.low - slack
        below = matrix <= self.high + slack
        return np.asarray((above & below).all(axis=1))


@frozen
class PowerModel:
    """Hold regressors by family (a key of ``POWER_FEATURES``)."""

    regressors: Mapping[str, PowerRegressor]

    def predict(self, table: KernelTable, gpu: GpuSpec) -> KernelPower | None:
        """Return the power of every kernel of ``table``; None for a GPU that is not near any measured one."""
        limit_w = gpu.power_limit_w
        watts = np.full(len(table), np.nan)
        low_w = watts.copy()
        high_w = watts.copy()
        chips: list[ChipPower] = []
        for family, regressor in self.regressors.items():
            chip = regressor.chip_near(gpu)
            if chip is None:
                continue
            chips.append(chip)
            index, matrix = _measured_rows(table, family, regressor, chip, gpu)
            shares = regressor.shares(matrix, chip, sibling=gpu.name not in chip.gpus)
            watts[index] = limit_w * shares.share
            low_w[index] = limit_w * shares.low
            high_w[index] = limit_w * shares.high
        if not chips:
            return None
        least = min(chip.least for chip in chips)
        most = max(chip.most for chip in chips)
        return KernelPower(
            watts=watts,
            low_w=low_w,
            high_w=high_w,
            least_w=limit_w * least,
            most_w=limit_w * most,
        )

    def document(self) -> NamedValues:
        """Return everything but the forests as a JSON object (what :meth:`read` takes, with :meth:`arrays`)."""
        regressors: NamedValues = {}
        for family, regressor in self.regressors.items():
            regressors[family] = {
                "feature_names": list(regressor.feature_names),
                "low": regressor.low.tolist(),
                "high": regressor.high.tolist(),
                "beyond": regressor.beyond,
                "sibling": regressor.sibling,
                "chips": [_chip_document(chip) for chip in regressor.chips],
            }
        return {"schema_version": SCHEMA_VERSION, "regressors": regressors}

    def arrays(self) -> dict[str, Array]:
        """Return the forests as named arrays."""
        arrays: dict[str, Array] = {}
        for family, regressor in self.regressors.items():
            forest = regressor.forest
            arrays[f"{family}.feature"] = forest.feature.astype(np.uint8)
            arrays[f"{family}.threshold"] = forest.threshold.astype(np.float32)
            arrays[f"{family}.leaf"] = forest.leaf.astype(np.float32)
            arrays[f"{family}.base"] = forest.base.astype(np.float64)
        return arrays

    @classmethod
    def read(cls, document: StoredObject, arrays: StoredArrays) -> PowerModel:
        """Return what :meth:`document` and :meth:`arrays` gave; files from strangers are checked.

        Raises BundleError, naming file and field, for anything that does not fit.
        """
        document.version(SCHEMA_VERSION)
        listed = document.by_name("regressors", POWER_FEATURES)
        return cls(
            regressors={family: _read_regressor(family, entry, arrays) for family, entry in listed.items()}
        )


def _measured_rows(
    table: KernelTable, family: str, regressor: PowerRegressor, chip: ChipPower, gpu: GpuSpec
) -> tuple[Array, Array]:
    """Return the places of the kernels that are near those measured on the chip, and their features."""
    precision = [_AS_MEASURED.get(word, word) for word in table.precision.tolist()]
    known = np.isin(precision, chip.precisions)
    shaped = np.isfinite(table.columns["gemm_m"])
    index = np.flatnonzero((table.family == family) & known & shaped)
    if not index.size:
        return index, np.empty((0, len(regressor.feature_names)), dtype=np.float32)
    matrix, names = POWER_FEATURES[family](table.take(index), gpu)
    if names != regressor.feature_names:
        raise BundleError(f"power of {family}: features differ from this version's; train it again")
    anchor = matrix[:, names.index("log_anchor")]
    long_enough = anchor >= np.log(_SHORTEST_US)
    return index[long_enough], matrix[long_enough]


def _chip_document(chip: ChipPower) -> NamedValues:
    return {
        "chip": list(chip.chip),
        "limit_w": chip.limit_w,
        "gpus": list(chip.gpus),
        "precisions": list(chip.precisions),
        "least": chip.least,
        "most": chip.most,
        "widths": list(chip.widths),
    }


def _read_regressor(family: str, entry: StoredObject, arrays: StoredArrays) -> PowerRegressor:
    names = entry.texts("feature_names", least=1, most=256)
    feature, threshold, leaf = read_trees(arrays, family, features=len(names), most=_LARGEST_TREES)
    base = arrays(f"{family}.base", (1,))
    forest = Forest(feature=feature, threshold=threshold, leaf=leaf, starts=np.array([0]), base=base)
    return PowerRegressor(
        forest=forest,
        feature_names=names,
        low=np.array(entry.numbers("low", len(names))),
        high=np.array(entry.numbers("high", len(names))),
        beyond=entry.number("beyond", 0.0, 5.0),
        sibling=entry.number("sibling", 0.0, 5.0),
        chips=tuple(map(_read_chip, entry.objects("chips", least=1, most=64))),
    )


def _read_chip(entry: StoredObject) -> ChipPower:
    major, minor, sms = entry.wholes("chip", 3, 10_000)
    least = entry.number("least", 0.01, 1.2)
    return ChipPower(
        chip=(major, minor, sms),
        limit_w=entry.number("limit_w", 1.0, 1e5),
        gpus=entry.texts("gpus", least=1, most=64),
        precisions=entry.texts("precisions", least=1, most=64),
        least=least,
        most=entry.number("most", least, 1.2),
        widths=entry.numbers("widths", len(SHARE_EDGES) + 1, 0.0, 5.0),
    )
