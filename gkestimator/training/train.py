"""``train``: from files of kernel measurements to a bundle on disk, with its errors out of fold."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundle_models import SCHEMA_VERSION
from gkestimator.errors import TableError
from gkestimator.gpus import GpuSpec, gpu_catalogue
from gkestimator.training.importers import load_source
from gkestimator.training.recipe import FittedBundle, ModelReport, Progress, fit_bundle
from gkestimator.training.rows import TrainingRows

__all__ = ["Loaded", "TrainReport", "card", "measured_rows", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """Where the bundle was written, its name, and one report per regressor."""

    path: Path
    name: str
    models: tuple[ModelReport, ...]

    def __str__(self) -> str:
        """One line per regressor: rows, mean error out of fold (of GPU time; least to largest source) and how
        often the 90 % interval held there."""
        lines = ["regressor             left out     rows    error %  interval held %"]
        for m in self.models:
            errors = sorted(m.gpu_time_pct.values()) or sorted(m.error_pct.values())
            span = "–".join(dict.fromkeys(f"{e:.1f}" for e in (errors[0], errors[-1]))) if errors else "–"
            left = "shapes" if m.scope == "seen" else "GPUs"
            lines.append(f"{m.name:22}{left:8} {m.rows:>8,}  {span:>9}  {m.coverage_pct:>15.0f}")
        return "\n".join(lines)


def train(
    sources: Sequence[Path],
    out: Path,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    name: str | None = None,
) -> TrainReport:
    """Train a bundle from ``sources`` (folders of public formats or kernel datasets) and write it to folder
    ``out``.

    Regressors are fitted for the families that the sources hold. The same sources and seed give the same
    bundle. Raises TableError for unreadable or unknown sources, UsageError for a GPU without specification,
    OutputError if ``out`` cannot be written.
    """
    if not sources:
        raise TableError("no sources given; expected kernel datasets or folders of a known format")
    loaded, rows, gpus = measured_rows(sources)
    fitted = fit_bundle(rows, gpus, seed=seed, progress=progress)
    title = name or "".join(c if c.isalnum() else "_" for c in out.name.lower()) or "bundle"
    fitted.write(out, card=card(title, loaded, fitted))
    return TrainReport(path=out, name=title, models=tuple(m.report for m in fitted.models))


Loaded = list[tuple[Path, str, list[TrainingRows]]]


def measured_rows(sources: Sequence[Path]) -> tuple[Loaded, list[TrainingRows], dict[str, GpuSpec]]:
    """What every source holds (path, format, rows), all rows that are not empty, and the GPUs they name."""
    loaded = [(Path(path), *load_source(Path(path))) for path in sources]
    rows = [part for _, _, parts in loaded for part in parts if len(part)]
    catalogue = gpu_catalogue()
    names = {g for part in rows for g in np.unique(part.gpu.astype(str)).tolist()}
    return loaded, rows, {name: catalogue.resolve(name)[0] for name in sorted(names)}


def card(
    name: str, loaded: Loaded, fitted: FittedBundle, *, nested: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The model card of ``fitted``; ``nested`` are the figures of runs of the same recipe with parts left out."""
    versions: dict[str, str | None] = {}
    for package in ("gkestimator", "numpy", "scikit-learn", "xgboost", "lightgbm"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "licence": "Apache-2.0",
        "versions": versions,
        "seed": fitted.seed,
        "trained_on": [
            {"format": kind, "source": path.name, "rows": sum(len(p) for p in parts)}
            for path, kind, parts in loaded
        ],
        "target": "log(GPU time / anchor)",
        "errors": "mean absolute percentage, out of fold: a row is predicted by members fitted without its shape "
        "(scope seen) or without any board of its chip (scope unseen); the members shipped are fitted on all rows. "
        "error_pct against the measurement with its launch gap, gpu_time_pct against GPU time alone",
        "models": [asdict(m.report) for m in fitted.models],
    }
    if nested is not None:
        result["nested"] = dict(nested)
    return result
