"""Merge what a placement put together on one GPU: one file for each distinct set of models."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gkestimator.core.errors import DocumentError, GkestimatorError, OutputError, UsageError, one_line
from gkestimator.core.naming import distinct_names
from gkestimator.core.outputs import refuse_overwriting
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, Replica, read_plan
from gkestimator.exporting.names import dns_labels
from gkestimator.hardware.gpus import GpuCatalogue, gpu_catalogue
from gkestimator.merging.editing import Names
from gkestimator.merging.merge import MergeResult, merge_sources
from gkestimator.merging.naming import distinct_prefixes
from gkestimator.merging.options import MOST_MODELS, MergeOptions
from gkestimator.merging.sources import MergeSource
from gkestimator.tables import write_bytes
from gkestimator.tables.files import json_bytes

Paths: TypeAlias = "tuple[Path, ...]"
JsonObject: TypeAlias = "dict[str, Any]"

INDEX = "index.json"
INDEX_VERSION = 1
_LONGEST_DIM = 2**31 - 1

ModelDims: TypeAlias = "tuple[tuple[str, int], ...]"


@frozen
class PlannedModel:
    """Hold a model as it stands on a GPU: its replicas there count once.

    ``batch_size``: the largest of theirs.
    """

    model: str
    dims: ModelDims
    batch_size: int


@frozen
class PlannedSet:
    """Hold models that one file is made of, and the GPUs (ids of the plan) on which just these stand."""

    gpu_type: str
    runtime: str
    dtype: str
    models: tuple[PlannedModel, ...]
    gpus: Names

    def prefixes(self) -> Names:
        """Return what the models' inputs and outputs begin with in the file."""
        return distinct_prefixes([model.model for model in self.models])


@frozen
class PlannedMerge:
    """Hold ``index``: which GPU gets which file, with every set's report.

    ``results`` by set, ``failures`` of those that could not be merged. ``files``: what was written.
    """

    index: Mapping[str, Any]
    results: tuple[tuple[PlannedSet, MergeResult], ...]
    failures: tuple[tuple[PlannedSet, GkestimatorError], ...]
    files: Paths


def planned_sets(
    plan: PlacementPlan, catalogue: GpuCatalogue, *, where: str = "plan"
) -> tuple[PlannedSet, ...]:
    """Return two models or more that stand on one GPU under one runtime and dtype (a file runs in one
    process).

    Each distinct set once, in the order of the plan's GPUs. Models at other SM shares or taking turns count
    alike: merged they run together. Raises UsageError for an unknown GPU, DocumentError for dims that are no
    numbers.
    """
    sets: dict[PlannedSet, list[str]] = defaultdict(list)
    for gpu in plan.gpus:
        place = f"{where}: {gpu.id}"
        try:
            spec = catalogue.spec(gpu.type)
        except UsageError as e:
            raise UsageError(f"{place}: {e}") from e
        processes: dict[tuple[str, str], list[Replica]] = defaultdict(list)
        for replica in gpu.replicas:
            processes[replica.runtime, replica.dtype].append(replica)
        for (runtime, dtype), replicas in processes.items():
            models = _models(replicas, place)
            if len(models) > MOST_MODELS:
                raise UsageError(
                    f"{place}: found {len(models):,} models, expected at most {MOST_MODELS} in one file"
                )
            if len(models) > 1:
                some = PlannedSet(gpu_type=spec.name, runtime=runtime, dtype=dtype, models=models, gpus=())
                sets[some].append(gpu.id)
    return tuple(dataclasses.replace(some, gpus=tuple(ids)) for some, ids in sets.items())


def _models(replicas: Sequence[Replica], where: str) -> tuple[PlannedModel, ...]:
    largest: dict[tuple[str, ModelDims], int] = defaultdict(int)
    for replica in replicas:
        key = (replica.model, _dims(replica.dims, f"{where}: {replica.id}"))
        largest[key] = max(largest[key], replica.batch_size)
    models = []
    for (model, dims), batch in sorted(largest.items()):
        models.append(PlannedModel(model=model, dims=dims, batch_size=batch))
    return tuple(models)


def _dims(text: str, where: str) -> ModelDims:
    dims: dict[str, int] = {}
    for pair in filter(None, text.split(",")):
        name, _, value = pair.rpartition("=")
        size = 0
        if value.isascii() and value.isdigit() and len(value) <= len(str(_LONGEST_DIM)):
            size = int(value)
        if not name or name in dims or not 1 <= size <= _LONGEST_DIM:
            raise DocumentError(
                f"{where}: dims: found {one_line(pair, limit=60)!r}, expected name=number, each once"
            )
        dims[name] = size
    return tuple(sorted(dims.items()))


def merge_plan(
    plan: Path,
    models: Sequence[Path],
    output: Path | None,
    options: MergeOptions,
    *,
    samples: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> PlannedMerge:
    """Merge, for each GPU of the placement in ``plan`` (JSON), the models that it put there together.

    ``models`` are files whose names (stems, or the shortest tails that tell equal stems apart) are the
    plan's; those that it does not need are left alone. GPU types, runtimes, dtypes, batch sizes and dims are
    the plan's, the rest of ``options`` holds for all. ``output``: a folder (made where it is missing; None:
    reports alone) for one file a set and ``index.json``, written last; a set of which nothing pays to be
    merged gets no file. Raises UsageError and DocumentError; what goes wrong with one set is in ``failures``,
    and where all do, nothing is written.
    """
    placed = read_plan(plan)
    sets = planned_sets(placed, gpu_catalogue(options.gpu_specs), where=str(plan))
    paths = _paths(plan, sets, models)
    names = _file_names(sets)
    made: Paths = ()
    if output is not None:
        for name in (*names.values(), INDEX):
            refuse_overwriting({f"-o {output}": output / name}, [plan, *models, *options.gpu_specs])
        made = _make(output)
    results: dict[PlannedSet, MergeResult] = {}
    failures: dict[PlannedSet, GkestimatorError] = {}
    for chosen in sets:
        file: Path | None = None
        if output is not None:
            file = output / names[chosen]
        try:
            results[chosen] = merge_sources(
                _sources(chosen, paths),
                _options(chosen, options),
                file,
                samples=samples,
                keep_unmerged=False,
                progress=progress,
            )
        # a full disk is no fault of this set, and would hit the next one too
        except OutputError:
            raise
        except GkestimatorError as e:
            failures[chosen] = e
    index = _index(plan, placed, sets, results, failures)
    written: list[Path] = []
    for result in results.values():
        written += result.files
    if failures and not results:
        with contextlib.suppress(OSError):  # another program's files may lie there now
            for folder in made:
                folder.rmdir()
    elif output is not None:
        write_bytes(output / INDEX, json_bytes(index))
        written.append(output / INDEX)
    return PlannedMerge(
        index=index,
        results=tuple(results.items()),
        failures=tuple(failures.items()),
        files=tuple(written),
    )


def _sources(chosen: PlannedSet, paths: Mapping[str, Path]) -> list[MergeSource]:
    """Return the files of a set, named by prefixes and at the batch sizes and dims of the plan."""
    sources = []
    for model, prefix in zip(chosen.models, chosen.prefixes(), strict=True):
        path = paths[model.model]
        source = MergeSource(path=path, name=prefix, batch_size=model.batch_size, dims=dict(model.dims))
        sources.append(source)
    return sources


def _options(chosen: PlannedSet, options: MergeOptions) -> MergeOptions:
    """Return ``options`` with what the plan says in their place."""
    return dataclasses.replace(
        options,
        gpu=chosen.gpu_type,
        runtime=chosen.runtime,
        dtype=chosen.dtype,
        batch_sizes=None,
        dims={},
    )


def _paths(plan: Path, sets: Sequence[PlannedSet], models: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each model of the plan. Raises UsageError where no name tells it."""
    known = dict(zip(distinct_names(models), models, strict=True))
    by_stem: dict[str, list[Path]] = defaultdict(list)
    for path in models:
        by_stem[path.stem].append(path)
    # a stem that names one file alone is enough, whatever tail tells it from others
    for stem, alike in by_stem.items():
        if len(alike) == 1:
            known.setdefault(stem, alike[0])
    for chosen in sets:
        for model in chosen.models:
            if model.model not in known:
                raise UsageError(
                    f"{plan}: {chosen.gpus[0]}: model {model.model}: found no such name among {len(models):,} "
                    f"files, expected a file {one_line(model.model, limit=80)}.onnx"
                )
    return known


def _file_names(sets: Sequence[PlannedSet]) -> dict[PlannedSet, str]:
    def text(chosen: PlannedSet) -> str:
        models = [[model.model, model.batch_size, model.dims] for model in chosen.models]
        return json.dumps([chosen.gpu_type, chosen.runtime, chosen.dtype, models])

    labels = dns_labels(text(chosen) for chosen in sets)
    return {chosen: f"{labels[text(chosen)]}.onnx" for chosen in sets}


def _make(folder: Path) -> Paths:
    """Make ``folder`` and return the folders that were missing, the innermost first."""
    try:
        missing = tuple(p for p in (folder, *folder.parents) if not p.exists())
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(
            f"{folder}: cannot be made as a folder for the merged files: {e.strerror or e}"
        ) from e
    return missing


def _index(
    plan: Path,
    placed: PlacementPlan,
    sets: Sequence[PlannedSet],
    results: Mapping[PlannedSet, MergeResult],
    failures: Mapping[PlannedSet, GkestimatorError],
) -> JsonObject:
    entries: list[JsonObject] = []
    files: dict[str, list[str]] = {gpu.id: [] for gpu in placed.gpus}
    for chosen in sets:
        file: str | None = None
        report: JsonObject | None = None
        error: str | None = None
        if chosen in results:
            result = results[chosen]
            report = result.report.document()
            file = next((path.name for path in result.files if path.suffix == ".onnx"), None)
        if chosen in failures:
            error = str(failures[chosen])
        models = []
        for model, prefix in zip(chosen.models, chosen.prefixes(), strict=True):
            entry = {"model": model.model, "prefix": prefix, "batch_size": model.batch_size}
            models.append(entry | {"dims": dict(model.dims)})
        entries.append(
            {
                "file": file,
                "gpu_type": chosen.gpu_type,
                "runtime": chosen.runtime,
                "dtype": chosen.dtype,
                "models": models,
                "gpus": list(chosen.gpus),
                "error": error,
                "report": report,
            }
        )
        if file is not None:
            for gpu in chosen.gpus:
                files[gpu].append(file)
    gpus = [{"id": gpu.id, "type": gpu.type, "files": files[gpu.id]} for gpu in placed.gpus]
    return {"schema_version": INDEX_VERSION, "plan": plan.name, "files": entries, "gpus": gpus}
