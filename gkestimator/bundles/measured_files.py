"""Read the files of a bundle of measured GPUs from a stranger's folder, and say what to write.

::

    BUNDLE/card.json          for people
    BUNDLE/measured.json      which GPUs, and what each one's files are
    BUNDLE/g0_<name>.npz      a regressor of the first GPU; g0_occupancy.npz, g0_lowering.npz, g0_lowering.json
    BUNDLE/base/              the bundle that is corrected, whole: an upgrade of the package does not change it
    BUNDLE/gpus/<name>.toml   specifications of GPUs that the package does not know
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundles.corrections import BASE, Correction
from gkestimator.bundles.files import LARGEST_BUNDLE_BYTES, NAME, read_arrays, read_json
from gkestimator.bundles.measured import MeasuredContents, MeasuredGpu, Shift
from gkestimator.bundles.measured_lowering import MeasuredLowering
from gkestimator.bundles.models import SIZE_EDGES_US, Pair, is_pair
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Array, Arrays
from gkestimator.core.values import Document, is_list, is_number, is_row, is_whole
from gkestimator.kernel_models.achieved import OCCUPANCY_FEATURES, OccupancyModel
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.vector import FEATURE_SETS
from gkestimator.kernel_models.prediction import KernelEstimator
from gkestimator.kernel_models.regressors import Stack

MEASURED_VERSION = 1
_MOST_GPUS = 32
_MOST_CORRECTIONS = 128
_MOST_NAMES = 512

Documents = dict[str, dict[str, Any]]
ArrayFiles = dict[str, dict[str, Array]]


def measured_files(gpus: Sequence[MeasuredGpu]) -> tuple[Documents, ArrayFiles]:
    """Return JSON documents and arrays by file name without suffix, ``measured`` among them."""
    documents: Documents = {}
    arrays: ArrayFiles = {}
    listed = []
    for i, gpu in enumerate(gpus):
        contents = gpu.read()
        for correction in contents.corrections:
            arrays[f"g{i}_{correction.name}"] = _compact(correction)
        if contents.occupancy is not None:
            arrays[f"g{i}_occupancy"] = _compact(contents.occupancy)
        if contents.lowering is not None:
            documents[f"g{i}_lowering"] = contents.lowering.document()
            arrays[f"g{i}_lowering"] = contents.lowering.arrays()
        shift = None
        if contents.shift is not None:
            shift = {"value": contents.shift.value, "half_width": contents.shift.half_width}
        listed.append(
            {
                "gpus": list(gpu.gpus),
                "chip": list(gpu.chip),
                "corrections": [_entry(c) for c in contents.corrections],
                "occupancy": contents.occupancy is not None,
                "lowering": contents.lowering is not None,
                "shift": shift,
            }
        )
    documents["measured"] = {"schema_version": MEASURED_VERSION, "gpus": listed}
    return documents, arrays


def _compact(model: Correction | OccupancyModel) -> dict[str, Array]:
    """Return a regressor's arrays, trees' features in a byte; nothing else shrinks without moving predictions."""
    arrays = model.stack.arrays()
    if "forest.feature" in arrays:
        arrays["forest.feature"] = arrays["forest.feature"].astype(np.uint8)
    return {**arrays, "low": model.low, "high": model.high}


def _entry(correction: Correction) -> dict[str, Any]:
    return {
        "name": correction.name,
        "features": correction.features,
        "feature_names": list(correction.feature_names),
        "reference": correction.reference,
        "trains": list(correction.trains),
        "covers": sorted(list(pair) for pair in correction.covers),
        "variants": list(correction.variants),
        "known_variants": sorted(correction.known_variants),
        "runtimes": sorted(correction.runtimes),
        "factors": list(correction.factors),
    }


def read_measured(folder: Path, bundle: str, base: KernelEstimator) -> tuple[MeasuredGpu, ...]:
    """Return the measured GPUs of the bundle in ``folder``; arrays are read when first asked. Raises BundleError."""
    where = folder / "measured.json"
    document = read_json(where)
    if document.get("schema_version") != MEASURED_VERSION:
        raise BundleError(
            f"{where}: schema_version is {document.get('schema_version')!r}; expected {MEASURED_VERSION}"
        )
    listed = document.get("gpus")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_GPUS:
        raise BundleError(f"{where}: gpus is no list of 1 to {_MOST_GPUS} entries")
    size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    if size > LARGEST_BUNDLE_BYTES:
        raise BundleError(f"{folder}: holds {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}")
    return tuple(_gpu(folder, i, entry, bundle, base) for i, entry in enumerate(listed))


def _gpu(folder: Path, number: int, entry: Any, bundle: str, base: KernelEstimator) -> MeasuredGpu:
    take = _Entry(entry, f"{folder / 'measured.json'}: gpus[{number}]")
    major, minor, sms, rate = take.whole_numbers("chip", 4)
    parts = []
    for j, correction in enumerate(take.list("corrections", _MOST_CORRECTIONS)):
        parts.append(_described(_Entry(correction, f"{take.where}: corrections[{j}]")))
    names = {part["name"] for part in parts}
    if len(names) < len(parts) or names & {"occupancy", "lowering"}:
        raise BundleError(f"{take.where}: corrections: a name stands twice or is a reserved one")
    has_occupancy = take.truth("occupancy")
    has_lowering = take.truth("lowering")
    shift = _shift(take)

    @cache
    def read() -> MeasuredContents:
        occupancy = lowering = None
        if has_occupancy:
            occupancy = _occupancy(folder / f"g{number}_occupancy.npz")
        if has_lowering:
            lowering = _lowering(folder, number)
        corrections = tuple(_correction(folder, number, part) for part in parts)
        return MeasuredContents(corrections=corrections, occupancy=occupancy, lowering=lowering, shift=shift)

    return MeasuredGpu(
        bundle=bundle,
        base=base,
        gpus=take.texts("gpus", 64),
        chip=(major, minor, sms, rate),
        read=read,
    )


def _shift(take: _Entry) -> Shift | None:
    entry = take.get("shift")
    if entry is None:
        return None
    inner = _Entry(entry, f"{take.where}: shift")
    return Shift(value=inner.number("value", -5.0, 5.0), half_width=inner.number("half_width", 0.0, 5.0))


def _described(take: _Entry) -> dict[str, Any]:
    """Return everything of a correction but its arrays."""
    features = take.get("features")
    reference = take.get("reference")
    if features not in FEATURE_SETS:
        raise take.fail("features", features, f"one of {', '.join(FEATURE_SETS)}")
    if reference != BASE and reference not in ANCHORS:
        raise take.fail("reference", reference, f"{BASE} or one of {', '.join(ANCHORS)}")
    classes = len(SIZE_EDGES_US) + 1
    factors = take.list("factors", 16)
    if not is_row(factors, classes, lambda v: is_number(v, 0, 5)):
        raise take.fail("factors", factors, f"{classes} numbers from 0 to 5")
    covers = take.list("covers", 16)
    return {
        "name": take.name(),
        "features": features,
        "feature_names": take.texts("feature_names", _MOST_NAMES),
        "reference": reference,
        "trains": take.pair(take.get("trains"), "trains"),
        "covers": frozenset(take.pair(pair, "covers") for pair in covers),
        "variants": take.texts("variants", _MOST_NAMES, least=0),
        "known_variants": frozenset(take.texts("known_variants", _MOST_NAMES)),
        "runtimes": frozenset(take.texts("runtimes", 8)),
        "factors": tuple(map(float, factors)),
    }


def _correction(folder: Path, number: int, part: Document) -> Correction:
    path = folder / f"g{number}_{part['name']}.npz"
    stack, low, high = _stack(path, len(part["feature_names"]))
    return Correction(**part, low=low, high=high, stack=stack)


def _occupancy(path: Path) -> OccupancyModel:
    stack, low, high = _stack(path, len(OCCUPANCY_FEATURES))
    return OccupancyModel(stack=stack, low=low, high=high)


def _stack(path: Path, width: int) -> tuple[Stack, Array, Array]:
    arrays = read_arrays(path)
    low = _finite(path, arrays, "low", width)
    high = _finite(path, arrays, "high", width)
    if np.any(low > high):
        raise BundleError(f"{path}: array 'low' exceeds 'high'")
    return Stack.from_arrays(arrays, features=width, where=str(path)), low, high


def _finite(path: Path, arrays: Arrays, name: str, width: int) -> Array:
    column = arrays.get(name)
    fits = column is not None and column.shape == (width,) and column.dtype.kind == "f"
    if column is None or not fits or not np.isfinite(column).all():
        raise BundleError(f"{path}: array {name!r} is no list of {width} finite numbers")
    return column.astype(np.float64)


def _lowering(folder: Path, number: int) -> MeasuredLowering:
    path = folder / f"g{number}_lowering.json"
    return MeasuredLowering.read(read_json(path), read_arrays(path.with_suffix(".npz")), where=str(path))


class _Entry:
    """Take one object of a stranger's JSON apart."""

    def __init__(self, entry: Any, where: str) -> None:
        if not isinstance(entry, dict):
            raise BundleError(f"{where}: found {type(entry).__name__}, expected an object")
        self.get = entry.get
        self.where = where

    def fail(self, field: str, value: object, expected: str) -> BundleError:
        return BundleError(f"{self.where}: {field}: found {str(value)[:60]!r}, expected {expected}")

    def name(self) -> str:
        name = self.get("name")
        if not isinstance(name, str) or not NAME.match(name):
            raise self.fail("name", name, "lower-case letters, digits and underscores")
        return name

    def list(self, field: str, most: int) -> Sequence[Any]:
        items = self.get(field)
        if not isinstance(items, list) or len(items) > most:
            raise self.fail(field, items, f"a list of at most {most}")
        return items

    def texts(self, field: str, most: int, *, least: int = 1) -> tuple[str, ...]:
        texts = self.list(field, most)
        if not is_list(texts, _is_short, least=least):
            raise self.fail(field, texts, f"{least} to {most} short texts")
        return tuple(texts)

    def pair(self, pair: Any, field: str) -> Pair:
        if not is_pair(pair):
            raise self.fail(field, pair, "[family, precision]")
        return pair[0], pair[1]

    def whole_numbers(self, field: str, length: int) -> tuple[int, ...]:
        numbers = self.list(field, length)
        if not is_row(numbers, length, lambda v: is_whole(v, 0, 2**31 - 1)):
            raise self.fail(field, numbers, f"{length} whole numbers")
        return tuple(numbers)

    def truth(self, field: str) -> bool:
        value = self.get(field)
        if not isinstance(value, bool):
            raise self.fail(field, value, "true or false")
        return value

    def number(self, field: str, low: float, high: float) -> float:
        value = self.get(field)
        if not is_number(value, low, high):
            raise self.fail(field, value, f"a number from {low:g} to {high:g}")
        return float(value)


def _is_short(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 100 and value.isprintable()
