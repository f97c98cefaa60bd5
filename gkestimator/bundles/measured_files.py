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
from gkestimator.bundles.files import LARGEST_BUNDLE_BYTES, stored_arrays, stored_object
from gkestimator.bundles.measured import MeasuredContents, MeasuredGpu, Shift
from gkestimator.bundles.measured_lowering import MeasuredLowering
from gkestimator.bundles.models import SIZE_EDGES_US
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import Array
from gkestimator.core.stored import StoredObject
from gkestimator.core.values import Document
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
    document = stored_object(folder / "measured.json")
    document.version(MEASURED_VERSION)
    listed = document.objects("gpus", least=1, most=_MOST_GPUS)
    size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
    if size > LARGEST_BUNDLE_BYTES:
        raise BundleError(f"{folder}: holds {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}")
    return tuple(_gpu(folder, i, entry, bundle, base) for i, entry in enumerate(listed))


def _gpu(folder: Path, number: int, entry: StoredObject, bundle: str, base: KernelEstimator) -> MeasuredGpu:
    major, minor, sms, rate = entry.wholes("chip", 4, 1_000_000)
    parts = [_described(correction) for correction in entry.objects("corrections", most=_MOST_CORRECTIONS)]
    names = {part["name"] for part in parts}
    if len(names) < len(parts) or names & {"occupancy", "lowering"}:
        raise entry.unfit("corrections", "a name of its own for each, none of them occupancy or lowering")
    has_occupancy = entry.truth("occupancy")
    has_lowering = entry.truth("lowering")
    shift = None
    if not entry.is_null("shift"):
        moved = entry.object("shift")
        shift = Shift(value=moved.number("value", -5.0, 5.0), half_width=moved.number("half_width", 0.0, 5.0))

    @cache
    def read() -> MeasuredContents:
        occupancy = lowering = None
        if has_occupancy:
            occupancy = _occupancy(folder / f"g{number}_occupancy.npz")
        if has_lowering:
            path = folder / f"g{number}_lowering.json"
            lowering = MeasuredLowering.read(stored_object(path), stored_arrays(path.with_suffix(".npz")))
        corrections = tuple(_correction(folder, number, part) for part in parts)
        return MeasuredContents(corrections=corrections, occupancy=occupancy, lowering=lowering, shift=shift)

    return MeasuredGpu(
        bundle=bundle,
        base=base,
        gpus=entry.texts("gpus", least=1, most=64),
        chip=(major, minor, sms, rate),
        read=read,
    )


def _described(entry: StoredObject) -> dict[str, Any]:
    """Return everything of a correction but its arrays."""
    family, precision = entry.texts("trains", least=2, most=2)
    return {
        "name": entry.name("name"),
        "features": entry.word("features", FEATURE_SETS),
        "feature_names": entry.texts("feature_names", least=1, most=_MOST_NAMES),
        "reference": entry.word("reference", (BASE, *ANCHORS)),
        "trains": (family, precision),
        "covers": entry.pairs("covers", 16),
        "variants": entry.texts("variants", most=_MOST_NAMES),
        "known_variants": frozenset(entry.texts("known_variants", least=1, most=_MOST_NAMES)),
        "runtimes": frozenset(entry.texts("runtimes", least=1, most=8)),
        "factors": entry.numbers("factors", len(SIZE_EDGES_US) + 1, 0.0, 5.0),
    }


def _correction(folder: Path, number: int, part: Document) -> Correction:
    path = folder / f"g{number}_{part['name']}.npz"
    stack, low, high = _stack(path, len(part["feature_names"]))
    return Correction(**part, low=low, high=high, stack=stack)


def _occupancy(path: Path) -> OccupancyModel:
    stack, low, high = _stack(path, len(OCCUPANCY_FEATURES))
    return OccupancyModel(stack=stack, low=low, high=high)


def _stack(path: Path, width: int) -> tuple[Stack, Array, Array]:
    arrays = stored_arrays(path)
    low = arrays("low", (width,))
    high = arrays("high", (width,))
    if np.any(low > high):
        raise arrays.unfit("low", "exceeds 'high'")
    return Stack.from_arrays(arrays, features=width), low, high
