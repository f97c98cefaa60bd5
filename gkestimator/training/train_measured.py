"""From kernel datasets of profiled GPUs to a bundle on disk that corrects a base bundle."""

from __future__ import annotations

import datetime
import hashlib
import importlib.resources
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.bundles.files import NAME, read_arrays, read_json, write_bundle
from gkestimator.bundles.measured_files import MEASURED_VERSION, ArrayFiles, Documents, measured_files
from gkestimator.core.errors import BundleError, OutputError, TableError, UsageError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue, load_gpu_file
from gkestimator.training.calls import MeasuredCall, read_calls
from gkestimator.training.importers.kernel_dataset import dataset_files, specification_files
from gkestimator.training.measured import GpuReport, Progress, fit_gpu
from gkestimator.training.train import library_versions


@frozen
class MeasuredReport:
    """Where the bundle was written, its name, the base's, and one report per GPU."""

    path: Path
    name: str
    base: str
    gpus: tuple[GpuReport, ...]

    def __str__(self) -> str:
        """Per GPU one line a family: rows, mean error out of fold of the base and of what is kept, which that is."""
        lines: list[str] = []
        for gpu in self.gpus:
            lines += [
                f"{gpu.gpu}: {gpu.calls:,} measured calls, {gpu.exact:,} distinct kernels known as measured",
                "family            dtype     rows   base %  trained %  kept         interval held %",
            ]
            for f in gpu.families:
                tried = [v for v in (f.correction_pct, f.alone_pct) if v is not None]
                best = f"{min(tried):.1f}" if tried else "–"
                held = "–" if f.coverage_pct is None else f"{f.coverage_pct:.0f}"
                kept = {"alone": "regressors", "base": self.base}.get(f.kept, f.kept)
                lines.append(
                    f"{f.family:17} {f.precision:6} {f.rows:>7,} {f.base_pct:>8.1f} {best:>10}  {kept:12} {held:>15}"
                )
            o = gpu.occupancy
            if o.rows:
                learned = "too few to learn from" if o.learned_points is None else f"{o.learned_points:.1f}"
                lines.append(
                    f"achieved occupancy: {o.rows:,} launches with counters; error {o.rule_points:.1f} points by rule, "
                    f"learned {learned}"
                )
            if gpu.shift is not None:
                lines.append(f"families without rows: {self.base} x {gpu.shift:.2f}")
            if gpu.skipped:
                left = ", ".join(f"{count:,} {reason}" for reason, count in gpu.skipped.items())
                lines.append(f"calls left out: {left}")
        return "\n".join(lines)


def train_measured(
    sources: Sequence[Path],
    out: Path,
    *,
    name: str,
    base: Path | None = None,
    gpu_specs: Sequence[Path] = (),
    seed: int = 0,
    progress: Progress | None = None,
) -> MeasuredReport:
    """Train bundle ``name`` on kernel datasets over the one in ``base`` (None: the package's) and write it to ``out``.

    GPUs are looked up in ``gpu_specs``, in files beside the datasets, then as everywhere. The same sources, base and
    seed give the same bundle. Raises TableError, UsageError, SpecError, BundleError, OutputError.
    """
    if not NAME.match(name):
        raise OutputError(
            f"{out}: names the bundle {name!r}; expected lower-case letters, digits and underscores, a letter first"
        )
    folder = base or Path(str(importlib.resources.files("gkestimator.models"))) / "default"
    bundle = load_bundle(folder)
    if bundle.measured:
        raise BundleError(
            f"{folder}: is a bundle of measured GPUs; expected one that is not (name all datasets to train together)"
        )
    if name == bundle.name:
        raise OutputError(
            f"{out}: names the bundle {name!r} as its base is; expected a name that tells them apart"
        )
    specs = [*gpu_specs, *(found for path in sources for found in specification_files(path))]
    catalogue = gpu_catalogue(_distinct_specs(specs))
    calls: dict[str, list[MeasuredCall]] = {}
    skipped: dict[str, Counter[str]] = {}
    gpus: dict[str, GpuSpec] = {}
    trained_on: list[dict[str, Any]] = []
    seen: set[tuple[str, str, str]] = set()
    for file in (file for path in sources for file in dataset_files(path)):
        read = read_calls(file, catalogue, progress)
        gpus |= read.gpus
        for gpu, reasons in read.skipped.items():
            skipped.setdefault(gpu, Counter()).update(reasons)
        used = 0
        for call in read.calls:
            key = (call.entry_id, call.gpu, call.runtime)
            if key in seen:
                skipped.setdefault(call.gpu, Counter())["measured in an earlier dataset too"] += 1
                continue
            seen.add(key)
            calls.setdefault(call.gpu, []).append(call)
            used += 1
        trained_on.append(
            {
                "format": "kernel dataset",
                "source": file.name,
                "sha256": _digest([file]),
                "rows": read.rows,
                "calls": used,
            }
        )
    if not calls:
        counts = sorted(sum(skipped.values(), Counter()).items())
        words = "; ".join(f"{count} left out: {reason}" for reason, count in counts)
        raise TableError(f"{sources[0]}: holds no measured call to train on{': ' if words else ''}{words}")
    fitted = [
        fit_gpu(mine, gpus[gpu], bundle, name=name, seed=seed, progress=progress)
        for gpu, mine in sorted(calls.items())
    ]
    reports = tuple(
        replace(r, skipped=dict(sorted({**skipped.get(r.gpu, {}), **r.skipped}.items()))) for _, r in fitted
    )
    documents, arrays = measured_files([gpu for gpu, _ in fitted])
    base_documents, base_arrays = _copy(folder, bundle)
    documents |= base_documents
    arrays |= base_arrays
    documents["card"] = _card(name, bundle, folder, trained_on, reports, seed)
    write_bundle(out, documents, arrays, _spec_texts(specs, set(gpus)))
    return MeasuredReport(path=out, name=name, base=bundle.name, gpus=reports)


def _distinct_specs(paths: Sequence[Path]) -> list[Path]:
    """The first file of each GPU: one that is named wins over one that lies beside a dataset."""
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(load_gpu_file(path).name, path)
    return list(found.values())


def _spec_texts(paths: Sequence[Path], names: set[str]) -> dict[str, bytes]:
    """Copies of the files of measured GPUs, for the bundle's ``gpus/``."""
    texts = {}
    for path in _distinct_specs(paths):
        name = load_gpu_file(path).name
        if name not in names:
            continue
        if not re.fullmatch(r"[A-Za-z0-9.+-]{1,64}", name):
            raise UsageError(f"{path}: name {name!r} cannot be a file's")
        try:
            texts[f"gpus/{name}.toml"] = path.read_bytes()
        except OSError as e:
            raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e
    return texts


def _copy(folder: Path, bundle: Bundle) -> tuple[Documents, ArrayFiles]:
    """The base's files, read with the checks of any bundle."""
    names = ["card", "stack", "ranges", "quantiles"]
    stems = [model.name for model in bundle.models]
    if bundle.geometry is not None:
        names.append("geometry")
        stems.append("geometry")
    return (
        {f"base/{name}": read_json(folder / f"{name}.json") for name in names},
        {f"base/{stem}": read_arrays(folder / f"{stem}.npz") for stem in stems},
    )


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _card(
    name: str,
    base: Bundle,
    folder: Path,
    trained_on: Sequence[Mapping[str, Any]],
    reports: Sequence[GpuReport],
    seed: int,
) -> dict[str, Any]:
    files = sorted(p for p in folder.iterdir() if p.suffix in (".json", ".npz"))
    return {
        "schema_version": MEASURED_VERSION,
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "licence": "that of the measurements it was trained on; the base: " + str(base.card.get("licence")),
        "versions": library_versions(),
        "seed": seed,
        "trained_on": list(trained_on),
        "base": {"name": base.name, "date": base.card.get("date"), "sha256": _digest(files)},
        "target": "log(measured / base prediction), or log(measured / anchor) where kept says alone",
        "errors": "mean absolute percentage of GPU time; correction and alone out of fold: rows predicted by members "
        "fitted without their shape; base: the base bundle's own, which never saw these rows",
        "answers": "kernels measured exactly: their measured time and launches; families with kept correction or "
        "alone: regressors; everything else, and every other GPU: the base",
        "gpus": [_plain(asdict(report)) for report in reports],
    }


def _plain(value: Any) -> Any:
    """JSON values: tuples as lists, NaN as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return None
    return value
