"""Files of a bundle of measured GPUs: reading them from a stranger's folder, and what to write.

::

    BUNDLE/card.json          for people
    BUNDLE/measured.json      which GPUs, and what each one's files are
    BUNDLE/g0_<name>.npz      a regressor of the first GPU; g0_occupancy.npz, g0_lowering.npz, g0_lowering.json
    BUNDLE/base/              the bundle that is corrected, whole: an upgrade of the package does not change it
    BUNDLE/gpus/<name>.toml   specifications of GPUs that the package does not know
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundles.corrections import BASE, Correction
from gkestimator.bundles.files import LARGEST_BUNDLE_BYTES, NAME, read_arrays, read_json
from gkestimator.bundles.measured import MeasuredContents, MeasuredGpu, Shift
from gkestimator.bundles.measured_lowering import MeasuredLowering
from gkestimator.bundles.models import SIZE_EDGES_US
from gkestimator.core.errors import BundleError
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
Arrays = dict[str, dict[str, np.ndarray]]


def measured_files(gpus: Sequence[MeasuredGpu]) -> tuple[Documents, Arrays]:
    """JSON documents and arrays by file name without suffix, ``measured`` among them."""
    documents: Documents = {}
    arrays: Arrays = {}
    listed = []
    for i, gpu in enumerate(gpus):
        found = gpu.read()
        for correction in found.corrections:
            arrays[f"g{i}_{correction.name}"] = {
                **_compact(correction.stack.arrays()),
                "low": correction.low,
                "high": correction.high,
            }
        if found.occupancy is not None:
            model = found.occupancy
            arrays[f"g{i}_occupancy"] = {
                **_compact(model.stack.arrays()),
                "low": model.low,
                "high": model.high,
            }
        if found.lowering is not None:
            documents[f"g{i}_lowering"] = found.lowering.document()
            arrays[f"g{i}_lowering"] = found.lowering.arrays()
        shift = found.shift
        listed.append(
            {
                "gpus": list(gpu.gpus),
                "chip": list(gpu.chip),
                "corrections": [_entry(c) for c in found.corrections],
                "occupancy": found.occupancy is not None,
                "lowering": found.lowering is not None,
                "shift": None if shift is None else {"value": shift.value, "half_width": shift.half_width},
            }
        )
    documents["measured"] = {"schema_version": MEASURED_VERSION, "gpus": listed}
    return documents, arrays


def _compact(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Trees' features in a byte; nothing else shrinks without moving predictions."""
    return {name: a.astype(np.uint8) if name == "forest.feature" else a for name, a in arrays.items()}


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
    """The measured GPUs of the bundle in ``folder``; arrays are read when first asked. Raises BundleError."""
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
    chip = take.whole_numbers("chip", 4)
    corrections = take.list("corrections", _MOST_CORRECTIONS)
    checked = [_Entry(c, f"{take.where}: corrections[{j}]") for j, c in enumerate(corrections)]
    names = [c.name() for c in checked]
    if len(set(names)) != len(names) or {"occupancy", "lowering"} & set(names):
        raise BundleError(f"{take.where}: corrections: a name stands twice or is a reserved one")
    parts = [_described(c) for c in checked]
    has = {word: take.truth(word) for word in ("occupancy", "lowering")}
    shift = _shift(take)

    @cache
    def read() -> MeasuredContents:
        return MeasuredContents(
            corrections=tuple(_correction(folder, number, part) for part in parts),
            occupancy=_occupancy(folder / f"g{number}_occupancy.npz") if has["occupancy"] else None,
            lowering=_lowering(folder, number) if has["lowering"] else None,
            shift=shift,
        )

    return MeasuredGpu(
        bundle=bundle,
        base=base,
        gpus=take.texts("gpus", 64),
        chip=(chip[0], chip[1], chip[2], chip[3]),
        read=read,
    )


def _shift(take: _Entry) -> Shift | None:
    found = take.get("shift")
    if found is None:
        return None
    inner = _Entry(found, f"{take.where}: shift")
    return Shift(value=inner.number("value", -5.0, 5.0), half_width=inner.number("half_width", 0.0, 5.0))


def _described(take: _Entry) -> dict[str, Any]:
    """Everything of a correction but its arrays."""
    features = take.get("features")
    reference = take.get("reference")
    if features not in FEATURE_SETS:
        raise take.fail("features", features, f"one of {', '.join(FEATURE_SETS)}")
    if reference != BASE and reference not in ANCHORS:
        raise take.fail("reference", reference, f"{BASE} or one of {', '.join(ANCHORS)}")
    factors = take.list("factors", 16)
    if len(factors) != len(SIZE_EDGES_US) + 1 or not all(
        isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 5 for v in factors
    ):
        raise take.fail("factors", factors, f"{len(SIZE_EDGES_US) + 1} numbers from 0 to 5")
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
        "factors": tuple(float(v) for v in factors),
    }


def _correction(folder: Path, number: int, part: Mapping[str, Any]) -> Correction:
    path = folder / f"g{number}_{part['name']}.npz"
    stack, low, high = _stack(path, len(part["feature_names"]))
    return Correction(**part, low=low, high=high, stack=stack)


def _occupancy(path: Path) -> OccupancyModel:
    stack, low, high = _stack(path, len(OCCUPANCY_FEATURES))
    return OccupancyModel(stack=stack, low=low, high=high)


def _stack(path: Path, width: int) -> tuple[Stack, np.ndarray, np.ndarray]:
    arrays = read_arrays(path)
    ends = []
    for name in ("low", "high"):
        found = arrays.get(name)
        if (
            found is None
            or found.shape != (width,)
            or found.dtype.kind != "f"
            or not np.isfinite(found).all()
        ):
            raise BundleError(f"{path}: array {name!r} is no list of {width} finite numbers")
        ends.append(found.astype(np.float64))
    if np.any(ends[0] > ends[1]):
        raise BundleError(f"{path}: array 'low' exceeds 'high'")
    return Stack.from_arrays(arrays, features=width, where=str(path)), ends[0], ends[1]


def _lowering(folder: Path, number: int) -> MeasuredLowering:
    path = folder / f"g{number}_lowering.json"
    return MeasuredLowering.read(read_json(path), read_arrays(path.with_suffix(".npz")), where=str(path))


class _Entry:
    """Takes one object of a stranger's JSON apart."""

    def __init__(self, found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise BundleError(f"{where}: found {type(found).__name__}, expected an object")
        self.found = found
        self.where = where

    def fail(self, field: str, found: object, expected: str) -> BundleError:
        return BundleError(f"{self.where}: {field}: found {str(found)[:60]!r}, expected {expected}")

    def get(self, field: str) -> Any:
        return self.found.get(field)

    def name(self) -> str:
        found = self.get("name")
        if not isinstance(found, str) or not NAME.match(found):
            raise self.fail("name", found, "lower-case letters, digits and underscores")
        return found

    def list(self, field: str, most: int) -> Sequence[Any]:
        found = self.get(field)
        if not isinstance(found, list) or len(found) > most:
            raise self.fail(field, found, f"a list of at most {most}")
        return found

    def texts(self, field: str, most: int, *, least: int = 1) -> tuple[str, ...]:
        found = self.list(field, most)
        if len(found) < least or not all(
            isinstance(v, str) and 1 <= len(v) <= 100 and v.isprintable() for v in found
        ):
            raise self.fail(field, found, f"{least} to {most} short texts")
        return tuple(found)

    def pair(self, found: Any, field: str) -> tuple[str, str]:
        if not isinstance(found, list) or len(found) != 2 or not all(isinstance(v, str) for v in found):
            raise self.fail(field, found, "[family, precision]")
        return found[0], found[1]

    def whole_numbers(self, field: str, length: int) -> tuple[int, ...]:
        found = self.list(field, length)
        if len(found) != length or not all(
            isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**31 for v in found
        ):
            raise self.fail(field, found, f"{length} whole numbers")
        return tuple(found)

    def truth(self, field: str) -> bool:
        found = self.get(field)
        if not isinstance(found, bool):
            raise self.fail(field, found, "true or false")
        return found

    def number(self, field: str, low: float, high: float) -> float:
        found = self.get(field)
        if not isinstance(found, int | float) or isinstance(found, bool) or not low <= found <= high:
            raise self.fail(field, found, f"a number from {low:g} to {high:g}")
        return float(found)
