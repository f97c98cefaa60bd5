"""Write the card of a bundle: what it was trained on, by what, and how well it predicts what it had not seen."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.measured_files import MEASURED_VERSION
from gkestimator.bundles.models import SCHEMA_VERSION
from gkestimator.core.records import NamedValues
from gkestimator.training.measured import GpuReport
from gkestimator.training.recipe import FittedBundle
from gkestimator.training.rows import TrainingRows

Loaded = list[tuple[Path, str, list[TrainingRows]]]
"""Every source with its format and its rows."""


def card(
    name: str, loaded: Loaded, fitted: FittedBundle, *, nested: Mapping[str, Any] | None = None
) -> NamedValues:
    """Return the model card of ``fitted``; ``nested``: figures of runs of the same recipe with parts left out."""
    trained_on = []
    for path, kind, parts in loaded:
        trained_on.append({"format": kind, "source": path.name, "rows": sum(len(p) for p in parts)})
    result: NamedValues = {
        **_head(SCHEMA_VERSION, name, "Apache-2.0", fitted.seed),
        "trained_on": trained_on,
        "target": "log(GPU time / anchor)",
        "errors": "mean absolute percentage, out of fold: a row is predicted by members fitted without its shape "
        "(scope seen) or without any board of its chip (scope unseen); the members shipped are fitted on all rows. "
        "error_pct against the measurement with its launch gap, gpu_time_pct against GPU time alone",
        "models": [asdict(m.report) for m in fitted.models],
    }
    if nested is not None:
        result["nested"] = dict(nested)
    return result


def measured_card(
    name: str,
    base: Bundle,
    folder: Path,
    trained_on: Sequence[Mapping[str, Any]],
    reports: Sequence[GpuReport],
    seed: int,
) -> NamedValues:
    """Return the card of a bundle of measured GPUs over ``base``, which lies in ``folder``."""
    files = sorted(p for p in folder.iterdir() if p.suffix in (".json", ".npz"))
    licence = f"that of the measurements it was trained on; the base: {base.card.get('licence')}"
    return {
        **_head(MEASURED_VERSION, name, licence, seed),
        "trained_on": list(trained_on),
        "base": {"name": base.name, "date": base.card.get("date"), "sha256": digest(files)},
        "target": "log(measured / base prediction), or log(measured / anchor) where kept says alone",
        "errors": "mean absolute percentage of GPU time; correction and alone out of fold: rows predicted by members "
        "fitted without their shape; base: the base bundle's own, which never saw these rows",
        "answers": "kernels measured exactly: their measured time and launches; families with kept correction or "
        "alone: regressors; everything else, and every other GPU: the base",
        "gpus": [_plain(asdict(report)) for report in reports],
    }


def _head(version: int, name: str, licence: str, seed: int) -> NamedValues:
    return {
        "schema_version": version,
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "licence": licence,
        "versions": library_versions(),
        "seed": seed,
    }


def library_versions() -> dict[str, str | None]:
    """Return the versions of what trains; None for what is not installed."""
    versions = {
        name: _installed(name) for name in ("gkestimator", "numpy", "scikit-learn", "xgboost", "lightgbm")
    }
    if versions["xgboost"] is None:
        # One module under two names: extra train-cpu installs it without NVIDIA's libraries.
        versions["xgboost"] = _installed("xgboost-cpu")
    return versions


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of the files' bytes, one after the other."""
    sha256 = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):  # a dataset may be larger than memory
                sha256.update(block)
    return sha256.hexdigest()


def _plain(value: Any) -> Any:
    """Return JSON values: tuples as lists, NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value
