"""Train: from files of kernel measurements to a bundle on disk, with its errors out of fold.

Public measurements make a bundle of their own. Kernel datasets, what profiling a GPU gives, correct a base bundle
(:mod:`gkestimator.training.train_measured`), unless that is turned off.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gkestimator.bundles.files import recover_bundle
from gkestimator.core.errors import TableError, UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.jobs.disk import held_beside
from gkestimator.tables.files import output_errors
from gkestimator.training.cards import Loaded, card
from gkestimator.training.importers import load_source, source_format
from gkestimator.training.recipe import ModelReport, fit_bundle
from gkestimator.training.rows import Progress, TrainingRows
from gkestimator.training.train_measured import MeasuredReport, train_measured

# Import names; all of them, for which member needs which is known only after minutes.
_LIBRARIES = ("scipy", "sklearn", "xgboost", "lightgbm")


@frozen
class TrainReport:
    """Say where the bundle was written, its name, and one report per regressor."""

    path: Path
    name: str
    models: tuple[ModelReport, ...]

    def __str__(self) -> str:
        """Return one line per regressor: rows, mean error out of fold, how often the 90 % interval held there.

        Errors are of GPU time, from the least to the largest source.
        """
        lines = ["regressor             left out     rows    error %  interval held %"]
        for m in self.models:
            errors = sorted(m.gpu_time_pct.values()) or sorted(m.error_pct.values())
            ends = dict.fromkeys(f"{e:.1f}" for e in (errors[:1] + errors[-1:]))
            span = "–".join(ends) or "–"
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
    base: Path | str | None = "default",
    gpu_specs: Sequence[Path] = (),
) -> TrainReport | MeasuredReport:
    """Train a bundle from ``sources`` (folders of public formats or kernel datasets) and write it to ``out``.

    Kernel datasets correct the bundle ``base``: a folder, or ``default``, the package's; None trains
    regressors on their rows alone, as for public formats. ``gpu_specs``: files of GPUs that are not known,
    besides those that lie beside the datasets. Regressors are fitted for the families that the sources hold.
    The same sources and seed give the same bundle. Raises TableError for unreadable or unknown sources,
    UsageError for a GPU without specification, a missing library or another command that trains into ``out``,
    BundleError for a bad base, OutputError if ``out`` cannot be written.
    """
    if not sources:
        raise TableError("no sources given; expected kernel datasets or folders of a known format")
    title = name or _title(out)
    kinds = {source_format(Path(path)) for path in sources}
    _require_libraries()
    if base not in (None, "default") and kinds != {"kernel dataset"}:
        raise UsageError(
            f"{base}: a base bundle is corrected by kernel datasets alone; found {', '.join(sorted(kinds))}"
        )
    with held_beside(out):
        with output_errors(out):
            recover_bundle(out)
        if base is not None and kinds == {"kernel dataset"}:
            corrected = None
            if str(base) != "default":
                corrected = Path(base)
            return train_measured(
                [Path(p) for p in sources],
                out,
                name=title,
                base=corrected,
                gpu_specs=gpu_specs,
                seed=seed,
                progress=progress,
            )
        loaded, rows, gpus = measured_rows(sources)
        fitted = fit_bundle(rows, gpus, seed=seed, progress=progress)
        fitted.write(out, card=card(title, loaded, fitted))
        return TrainReport(path=out, name=title, models=tuple(m.report for m in fitted.models))


def _require_libraries() -> None:
    """Raise UsageError for what is missing at once, not after minutes, whatever the rows will turn out to
    need.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"training needs {', '.join(missing)}: {install_extra('train')}")


def _title(out: Path) -> str:
    """Return a bundle's name from its folder's: lower-case letters, digits and underscores, a letter first."""
    word = "".join(c if c.isalnum() and c.isascii() else "_" for c in out.absolute().name.lower())
    if not word[:1].isalpha():
        word = f"bundle_{word}".rstrip("_")
    return word[:40]


def training_gpus() -> list[Path]:
    """Return the files of GPUs that were measured but that the package offers no estimates for."""
    return sorted((Path(__file__).parent / "gpus").glob("*.toml"))


def measured_rows(sources: Sequence[Path]) -> tuple[Loaded, list[TrainingRows], dict[str, GpuSpec]]:
    """Return what every source holds, all rows that are not empty, and the GPUs that they name."""
    loaded = [(Path(path), *load_source(Path(path))) for path in sources]
    rows = [part for _, _, parts in loaded for part in parts if len(part)]
    catalogue = gpu_catalogue(training_gpus())
    names = {g for part in rows for g in np.unique(part.gpu.astype(str)).tolist()}
    return loaded, rows, {name: catalogue.resolve(name)[0] for name in sorted(names)}
