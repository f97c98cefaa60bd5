"""Train: from kernel datasets of profiled GPUs to a bundle on disk that corrects a base bundle."""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.bundles.files import read_arrays, read_json, write_bundle
from gkestimator.bundles.measured_files import ArrayFiles, Documents, measured_files
from gkestimator.core.errors import BundleError, OutputError, TableError, UsageError
from gkestimator.core.records import NamedValues, frozen
from gkestimator.core.stored import NAME
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec, gpu_catalogue, load_gpu_file
from gkestimator.training.calls import MeasuredCall, read_calls
from gkestimator.training.cards import digest, measured_card
from gkestimator.training.dataset_rows import dataset_files, specification_files
from gkestimator.training.measured import GpuReport, fit_gpu
from gkestimator.training.rows import Progress


@frozen
class MeasuredReport:
    """Say where the bundle was written, its name, the base's, and one report per GPU."""

    path: Path
    name: str
    base: str
    gpus: tuple[GpuReport, ...]

    def __str__(self) -> str:
        """Return per GPU one line a family: rows, mean error out of fold of the base and of what is kept."""
        return "\n".join(line for gpu in self.gpus for line in self._lines(gpu))

    def _lines(self, gpu: GpuReport) -> Iterator[str]:
        yield f"{gpu.gpu}: {gpu.calls:,} measured calls, {gpu.exact:,} distinct kernels known as measured"
        yield "family            dtype     rows   base %  trained %  kept         interval held %"
        for f in gpu.families:
            tried = [v for v in (f.correction_pct, f.alone_pct) if v is not None]
            best = f"{min(tried):.1f}" if tried else "–"
            held = "–" if f.coverage_pct is None else f"{f.coverage_pct:.0f}"
            answers = {"alone": "regressors", "base": self.base}.get(f.kept, f.kept)
            sizes = f"{f.family:17} {f.precision:6} {f.rows:>7,} {f.base_pct:>8.1f}"
            yield f"{sizes} {best:>10}  {answers:12} {held:>15}"
        counters = gpu.occupancy
        if counters.rows:
            learned = "too few to learn from"
            if counters.learned_points is not None:
                learned = f"{counters.learned_points:.1f}"
            yield (
                f"achieved occupancy: {counters.rows:,} launches with counters; error "
                f"{counters.rule_points:.1f} points by rule, learned {learned}"
            )
        if gpu.shift is not None:
            yield f"families without rows: {self.base} x {gpu.shift:.2f}"
        if gpu.skipped:
            left = ", ".join(f"{count:,} {reason}" for reason, count in gpu.skipped.items())
            yield f"calls left out: {left}"


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
    """Train bundle ``name`` on kernel datasets over the one in ``base`` (None: the package's) and write it to
    ``out``.

    GPUs are looked up in ``gpu_specs``, in files beside the datasets, then as everywhere. The same sources,
    base and seed give the same bundle. Raises TableError, UsageError, SpecError, BundleError, OutputError.
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
    # Rows name the bundle they are from; two of one name could not be told apart.
    if name == bundle.name:
        raise OutputError(
            f"{out}: names the bundle {name!r} as its base is; expected a name that tells them apart"
        )
    specs = list(gpu_specs)
    for path in sources:
        specs += specification_files(path)
    taken = _read_datasets(sources, gpu_catalogue(_distinct_specs(specs)), progress)
    fitted = []
    reports = []
    for gpu, calls in sorted(taken.calls.items()):
        contents, report = fit_gpu(calls, taken.gpus[gpu], bundle, name=name, seed=seed, progress=progress)
        skipped = {**taken.skipped.get(gpu, {}), **report.skipped}
        fitted.append(contents)
        reports.append(replace(report, skipped=dict(sorted(skipped.items()))))
    documents, arrays = measured_files(fitted)
    base_documents, base_arrays = _copy(folder, bundle)
    documents |= base_documents
    arrays |= base_arrays
    documents["card"] = measured_card(name, bundle, folder, taken.trained_on, reports, seed)
    write_bundle(out, documents, arrays, _spec_texts(specs, set(taken.gpus)))
    return MeasuredReport(path=out, name=name, base=bundle.name, gpus=tuple(reports))


@frozen
class _Taken:
    """Hold the calls of several datasets by GPU, each call once, and what the card says of the datasets."""

    calls: dict[str, list[MeasuredCall]] = field(default_factory=dict)
    skipped: dict[str, Counter[str]] = field(default_factory=dict)
    gpus: dict[str, GpuSpec] = field(default_factory=dict)
    trained_on: list[NamedValues] = field(default_factory=list)


def _read_datasets(sources: Sequence[Path], catalogue: GpuCatalogue, progress: Progress | None) -> _Taken:
    """Return the calls of all datasets at ``sources``. Raises TableError where there is none to train on."""
    taken = _Taken()
    seen: set[tuple[str, str, str]] = set()
    for file in (file for path in sources for file in dataset_files(path)):
        read = read_calls(file, catalogue, progress)
        taken.gpus.update(read.gpus)
        for gpu, reasons in read.skipped.items():
            taken.skipped.setdefault(gpu, Counter()).update(reasons)
        used = 0
        for call in read.calls:
            key = (call.entry_id, call.gpu, call.runtime)
            if key in seen:
                taken.skipped.setdefault(call.gpu, Counter())["measured in an earlier dataset too"] += 1
                continue
            seen.add(key)
            taken.calls.setdefault(call.gpu, []).append(call)
            used += 1
        entry = {"format": "kernel dataset", "source": file.name, "sha256": digest([file])}
        taken.trained_on.append({**entry, "rows": read.rows, "calls": used})
    if not taken.calls:
        counts = sorted(sum(taken.skipped.values(), Counter()).items())
        words = "; ".join(f"{count} left out: {reason}" for reason, count in counts)
        raise TableError(f"{sources[0]}: holds no measured call to train on{': ' if words else ''}{words}")
    return taken


def _distinct_specs(paths: Sequence[Path]) -> list[Path]:
    """Return the first file of each GPU: one that is named wins over one that lies beside a dataset."""
    by_name: dict[str, Path] = {}
    for path in paths:
        by_name.setdefault(load_gpu_file(path).name, path)
    return list(by_name.values())


def _spec_texts(paths: Sequence[Path], names: set[str]) -> dict[str, bytes]:
    """Return copies of the files of measured GPUs, for the bundle's ``gpus/``."""
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
    """Return the base's files, read with the checks of any bundle."""
    names = ["card", "stack", "ranges", "quantiles"]
    stems = [model.name for model in bundle.models]
    for part, known in (("geometry", bundle.geometry), ("power", bundle.power)):
        if known is not None:
            names.append(part)
            stems.append(part)
    return (
        {f"base/{name}": read_json(folder / f"{name}.json") for name in names},
        {f"base/{stem}": read_arrays(folder / f"{stem}.npz") for stem in stems},
    )
