"""Estimator bundles: trained regressors, where they may be trusted, and the analytical model for everything
else."""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.analytical import ANALYTICAL_FACTOR, analytical_duration_us
from gkestimator.bundle_files import LARGEST_BUNDLE_BYTES, NAME, read_arrays, read_json
from gkestimator.errors import BundleError
from gkestimator.features import FEATURE_SETS, elementwise_variant, feature_matrix
from gkestimator.geometry import Geometry
from gkestimator.gpus import GpuSpec
from gkestimator.kernels import Family, KernelTable
from gkestimator.launch import Launch, is_streaming, launch_geometry, occupancy, sm_utilisation_pct
from gkestimator.prediction import KernelPredictions
from gkestimator.regressors import Stack
from gkestimator.roofline import Roofline, confined, roofline

__all__ = ["Bundle", "BundleModel", "load_bundle", "stack_bundles"]

SCHEMA_VERSION = 1
SHORTEST_KERNEL_US = 1.0
"""No kernel is shorter: the least that Vidur's GPU traces show on A100, A40 and H100."""
GROUPED_CONV_US = 150.0
"""What a grouped (not depthwise) FP32 convolution takes beyond its arithmetic, in microseconds a call: fitted
on whole ResNeXt networks on a V100. No kernel measurements of grouped convolutions are public, so they count
as out of range."""
SIZE_EDGES_US = (20.0, 200.0)
"""Interval widths are calibrated apart for kernels predicted below, between and above these durations."""

# A chip is known by its generation and its size; memory clocks and form factors of one chip differ little.
_SAME_CHIP_SMS = 0.10
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
    }
)
_L2_BYTES_PER_CLOCK_AND_SM = (
    64  # width of an SM's port to L2 since Volta (Jia et al., Dissecting Volta, 2018)
)


@dataclass(slots=True, kw_only=True)
class BundleModel:
    """One regressor of a bundle; its arrays are read when it is first asked.

    ``covers``: (family, precision) pairs it answers; ``trains``: those it was trained on. ``low`` and
    ``high``: the range of every feature in training. ``chips``: (compute capability, SMs) of the training
    GPUs. ``quantiles``: 90 % quantiles of |log error| per size class, inside and outside of the training
    range.
    """

    name: str
    features: str
    feature_names: tuple[str, ...]
    trains: frozenset[tuple[str, str]]
    covers: frozenset[tuple[str, str]]
    low: np.ndarray
    high: np.ndarray
    chips: tuple[tuple[int, int, int], ...]
    quantiles: Mapping[str, tuple[float, ...]]
    path: Path
    _stack: Stack | None = field(default=None, repr=False)

    @property
    def stack(self) -> Stack:
        """The fitted members. Raises BundleError if the file does not hold what the bundle promises."""
        if self._stack is None:
            arrays = read_arrays(self.path)
            self._stack = Stack.from_arrays(arrays, features=len(self.feature_names), where=str(self.path))
        return self._stack

    def knows_chip(self, gpu: GpuSpec) -> bool:
        """True if a GPU of the same compute capability and, within 10 %, as many SMs was trained on."""
        return any(
            (major, minor) == tuple(gpu.compute_capability) and abs(sms / gpu.sms - 1) <= _SAME_CHIP_SMS
            for major, minor, sms in self.chips
        )

    def in_range(self, table: KernelTable, matrix: np.ndarray, gpu: GpuSpec) -> np.ndarray:
        """Rows inside the training range: known chip, trained (family, precision), every feature between its
        extremes."""
        if not self.knows_chip(gpu):
            return np.zeros(len(table), dtype=bool)
        checked = np.array([name not in _SPECIFICATION for name in self.feature_names])
        slack = 1e-4 + 1e-4 * np.abs(self.high[checked])
        within = (matrix[:, checked] >= self.low[checked] - slack) & (
            matrix[:, checked] <= self.high[checked] + slack
        )
        trained = np.fromiter((pair in self.trains for pair in _pairs(table)), bool, len(table))
        result = within.all(axis=1) & trained
        if self.features == "elementwise":
            result &= np.fromiter(
                (elementwise_variant(v) is not None for v in table.variant), bool, len(table)
            )
        return np.asarray(result)

    def duration_us(self, table: KernelTable, matrix: np.ndarray, roof: Roofline) -> np.ndarray:
        """Predicted microseconds, held to what physics allows."""
        ratio = np.exp(self.stack.predict(matrix))
        result = np.maximum(roof.roofline_us * ratio, SHORTEST_KERNEL_US)
        if self.features in ("matrix", "attention"):
            result = np.maximum(result, roof.compute_us * _least_of_peak(table))
        elif self.features == "conv":
            winograd = matrix[:, self.feature_names.index("winograd")] > 0
            result = np.where(winograd, result, np.maximum(result, roof.compute_us / 0.9))
            grouped = table.columns["conv_groups"] > 1
            result = np.where(grouped, result + GROUPED_CONV_US, result)
        return np.asarray(result)

    def width(self, duration_us: np.ndarray, in_range: np.ndarray) -> np.ndarray:
        """90 % half-width of log(time) for predicted durations."""
        size = np.searchsorted(SIZE_EDGES_US, duration_us)
        inside, outside = (np.asarray(self.quantiles[key]) for key in ("inside", "outside"))
        return np.where(in_range, inside[size], np.maximum(inside[size], outside[size]))


def _stretch(table: KernelTable, part: GpuSpec, whole_us: np.ndarray) -> np.ndarray:
    """How many times longer each kernel takes on ``part`` than ``whole_us`` on its GPU, by the analytical
    model."""
    part_us = analytical_duration_us(table, part)
    ratio = np.divide(part_us, whole_us, out=np.ones(len(table)), where=whole_us > 0)
    return np.asarray(np.maximum(ratio, 1.0))


def _least_of_peak(table: KernelTable) -> np.ndarray:
    """Least time over FLOPs / peak: 1, but a convolution in half precision may save arithmetic by Winograd
    too."""
    return np.where(table.family == Family.CONV, 0.45, 1.0)


def _pairs(table: KernelTable) -> list[tuple[str, str]]:
    return list(zip(table.family.tolist(), table.precision.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Trained models in order of preference; a kernel that none covers is answered analytically.

    ``geometry``: the learned choice of library kernels; None leaves grids and blocks to the rules of ``launch``.
    """

    name: str
    models: tuple[BundleModel, ...]
    card: Mapping[str, Any] = field(default_factory=dict)
    geometry: Geometry | None = None

    def covering(self, family: str, precision: str, gpu: GpuSpec) -> BundleModel | None:
        """The model that answers: the first covering one that knows the chip, else the first covering one."""
        candidates = [m for m in self.models if (family, precision) in m.covers]
        return next((m for m in candidates if m.knows_chip(gpu)), candidates[0] if candidates else None)

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """Predict every kernel of ``table`` on ``gpu`` confined to ``sm_share_pct`` percent of its SMs.

        Nothing was measured on a part of a GPU, so below 100 % no kernel counts as inside the training range:
        what the regressors say of the whole GPU is stretched by what the analytical model says of the part, and
        no part is faster than the whole.
        """
        part = confined(gpu, sm_share_pct)
        count = len(table)
        roof = roofline(table, gpu)
        duration = analytical_duration_us(table, gpu)
        stretch = _stretch(table, part, duration) if part is not gpu else None
        width = np.full(count, math.log(ANALYTICAL_FACTOR))
        trained, inside = np.zeros(count, dtype=bool), np.zeros(count, dtype=bool)
        pairs = _pairs(table)
        answers = {pair: self.covering(*pair, gpu) for pair in dict.fromkeys(pairs)}
        for model in self.models:
            chosen = {pair for pair, answer in answers.items() if answer is model}
            if not chosen:
                continue
            index = np.fromiter((i for i, pair in enumerate(pairs) if pair in chosen), np.int64)
            rows = table.take(index)
            matrix, names = feature_matrix(model.features, rows, gpu)
            if names != model.feature_names:
                raise BundleError(
                    f"{model.path}: features differ from this version's; train the bundle again"
                )
            sides = Roofline(
                compute_us=roof.compute_us[index],
                memory_us=roof.memory_us[index],
                roofline_us=roof.roofline_us[index],
            )
            duration[index] = model.duration_us(rows, matrix, sides)
            known = model.in_range(rows, matrix, gpu) & (part is gpu)
            inside[index], trained[index] = known, True
            width[index] = model.width(duration[index], known)
        host = table.family == Family.HOST
        width[host] = 0.0
        if stretch is not None:
            duration = duration * stretch
            roof = roofline(table, part)
        launch = launch_geometry(table, part)
        if self.geometry is not None:
            launch = self.geometry.apply(launch, table, part)
        return _complete(table, launch, gpu, part, roof, duration, width, trained, inside)


def _complete(
    table: KernelTable,
    launch: Launch,
    gpu: GpuSpec,
    part: GpuSpec,
    roof: Roofline,
    duration: np.ndarray,
    width: np.ndarray,
    trained: np.ndarray,
    inside: np.ndarray,
) -> KernelPredictions:
    _, achieved = occupancy(launch, part, streaming=is_streaming(table))
    columns = table.columns
    total = columns["read_bytes"] + columns["write_bytes"]
    seconds = np.maximum(duration, 1e-3) * 1e-6
    # Tiles of a matrix product read their operands through L2 again and again: k x (tile rows + columns)
    # each, with square tiles of block threads x 64 outputs.
    k = np.nan_to_num(columns["gemm_k"], nan=0.0)
    tiles = (
        launch.grid_blocks
        * k
        * 2
        * np.sqrt(np.nan_to_num(launch.block_threads, nan=0.0) * 64)
        * columns["element_bytes"]
    )
    through_l2 = np.maximum(total, np.nan_to_num(tiles, nan=0.0))
    l2_peak = gpu.sms * _L2_BYTES_PER_CLOCK_AND_SM * gpu.boost_clock_mhz * 1e6
    return KernelPredictions(
        duration_us=duration,
        low_us=duration * np.exp(-width),
        high_us=duration * np.exp(width),
        trained=trained,
        in_range=inside,
        grid_blocks=launch.grid_blocks,
        block_threads=launch.block_threads,
        registers_per_thread=launch.registers_per_thread,
        shared_bytes=launch.shared_bytes,
        occupancy_pct=achieved,
        sm_util_pct=sm_utilisation_pct(launch, part, of_sms=gpu.sms),
        dram_util_pct=np.minimum(100.0, 100 * total / seconds / gpu.dram_bytes_per_s),
        l2_util_pct=np.minimum(100.0, 100 * through_l2 / seconds / l2_peak),
        roofline_us=roof.roofline_us,
        compute_us=roof.compute_us,
        memory_us=roof.memory_us,
    )


_DEFAULT: list[Bundle] = []


def load_bundle(path: Path | str | None = None) -> Bundle:
    """The bundle in folder ``path``; None is the one that comes with the package.

    Raises BundleError, in one line that names the file, for a folder that is missing, incomplete, malformed
    or too large.
    """
    if path is not None:
        return _load(Path(path))
    if not _DEFAULT:
        _DEFAULT.append(_load(Path(str(importlib.resources.files("gkestimator.models") / "default"))))
    return _DEFAULT[0]


def stack_bundles(bundles: Sequence[Bundle]) -> Bundle:
    """One estimator of several bundles: the first that covers a family and precision and knows the chip
    answers.

    Raises BundleError for no bundles.
    """
    if not bundles:
        raise BundleError("no bundles given; expected at least one")
    if len(bundles) == 1:
        return bundles[0]
    return Bundle(
        name="+".join(dict.fromkeys(b.name for b in bundles)),
        models=tuple(m for b in bundles for m in b.models),
        geometry=next((b.geometry for b in bundles if b.geometry is not None), None),
    )


def _load(folder: Path) -> Bundle:
    if not folder.is_dir():
        raise BundleError(
            f"{folder}: no such bundle folder; expected card, stack, ranges and quantiles (.json) in it"
        )
    stack, ranges, quantiles, card = (
        read_json(folder / f"{n}.json") for n in ("stack", "ranges", "quantiles", "card")
    )
    version = stack.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BundleError(
            f"{folder / 'stack.json'}: schema_version is {version!r}; expected {SCHEMA_VERSION}"
        )
    listed = stack.get("models")
    if not isinstance(listed, list) or not 1 <= len(listed) <= 64:
        raise BundleError(f"{folder / 'stack.json'}: models is no list of 1 to 64 entries")
    models = tuple(_model(folder, entry, ranges, quantiles) for entry in listed)
    if len({m.name for m in models}) != len(models):
        raise BundleError(f"{folder / 'stack.json'}: two models share a name")
    size = sum(p.stat().st_size for p in [m.path for m in models] if p.is_file())
    if size > LARGEST_BUNDLE_BYTES:
        raise BundleError(f"{folder}: holds {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}")
    name = card.get("name")
    if not isinstance(name, str) or not NAME.match(name):
        raise BundleError(
            f"{folder / 'card.json'}: name is {name!r}; expected lower-case letters, digits and underscores"
        )
    geometry = None
    if (folder / "geometry.json").is_file():
        geometry = Geometry.read(
            read_json(folder / "geometry.json"),
            read_arrays(folder / "geometry.npz"),
            where=str(folder / "geometry.json"),
        )
    return Bundle(name=name, models=models, card=card, geometry=geometry)


def _model(folder: Path, entry: Any, ranges: Mapping[str, Any], quantiles: Mapping[str, Any]) -> BundleModel:
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
    range_ = ranges.get(name)
    low, high, chips = (range_.get(k) if isinstance(range_, dict) else None for k in ("low", "high", "chips"))
    at = folder / "ranges.json"
    if not isinstance(chips, list) or not all(
        isinstance(c, list) and len(c) == 3 and all(isinstance(v, int) for v in c) for c in chips
    ):
        raise BundleError(f"{at}: model {name}: chips is no list of [major, minor, SMs]")
    widths = quantiles.get(name)
    classes = len(SIZE_EDGES_US) + 1
    return BundleModel(
        name=name,
        features=str(features),
        feature_names=tuple(names),
        trains=_pair_set(where, name, entry.get("trains")),
        covers=_pair_set(where, name, entry.get("covers")),
        low=_numbers(at, f"{name}.low", low, len(names)),
        high=_numbers(at, f"{name}.high", high, len(names)),
        chips=tuple((int(a), int(b), int(c)) for a, b, c in chips),
        quantiles={
            key: tuple(
                _numbers(
                    folder / "quantiles.json",
                    f"{name}.{key}",
                    (widths or {}).get(key) if isinstance(widths, dict) else None,
                    classes,
                    least=0.0,
                    most=5.0,
                ).tolist()
            )
            for key in ("inside", "outside")
        },
        path=folder / f"{name}.npz",
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
