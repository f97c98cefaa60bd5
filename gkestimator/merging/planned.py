"""What a placement put together on one GPU, merged: one file for each distinct set of models."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import DocumentError, GkestimatorError, OutputError, UsageError, one_line
from gkestimator.core.naming import distinct_names
from gkestimator.core.outputs import refuse_overwriting
from gkestimator.core.records import frozen
from gkestimator.documents import PlacedGpu, PlacementPlan, Replica, read_plan
from gkestimator.export.names import dns_labels
from gkestimator.hardware.gpus import GpuCatalogue, gpu_catalogue
from gkestimator.merging.editing import Names
from gkestimator.merging.merge import MergeResult, merge_sources
from gkestimator.merging.naming import distinct_prefixes
from gkestimator.merging.options import MOST_MODELS, MergeOptions
from gkestimator.merging.sources import MergeSource
from gkestimator.tables import write_bytes
from gkestimator.tables.files import json_bytes

INDEX = "index.json"
INDEX_VERSION = 1
_LONGEST_DIM = 2**31 - 1


@frozen
class PlannedModel:
    """A model as it stands on a GPU: its replicas there count once. ``batch_size``: the largest of theirs."""

    model: str
    dims: tuple[tuple[str, int], ...]
    batch_size: int


@frozen
class PlannedSet:
    """Models that one file is made of, and the GPUs (ids of the plan) on which just these stand."""

    gpu_type: str
    runtime: str
    dtype: str
    models: tuple[PlannedModel, ...]
    gpus: Names


@frozen
class PlannedMerge:
    """``index``: which GPU gets which file, with every set's report. ``results`` by set, ``failures`` of those that
    could not be merged. ``files``: what was written."""

    index: Mapping[str, Any]
    results: tuple[tuple[PlannedSet, MergeResult], ...]
    failures: tuple[tuple[PlannedSet, GkestimatorError], ...]
    files: tuple[Path, ...]


def planned_sets(
    plan: PlacementPlan, catalogue: GpuCatalogue, *, where: str = "plan"
) -> tuple[PlannedSet, ...]:
    """Two models or more that stand on one GPU under one runtime and dtype (a file runs in one process), each
    distinct set once, in the order of the plan's GPUs. Models at other SM shares or taking turns count alike: merged
    they run together. Raises UsageError for an unknown GPU, DocumentError for dims that are no numbers."""
    found: dict[tuple[str, str, str, tuple[PlannedModel, ...]], list[str]] = {}
    for gpu in plan.gpus:
        try:
            spec = catalogue.spec(gpu.type)
        except UsageError as e:
            raise UsageError(f"{where}: {gpu.id}: {e}") from e
        for (runtime, dtype), replicas in _by_process(gpu).items():
            models = _models(replicas, f"{where}: {gpu.id}")
            if len(models) > MOST_MODELS:
                raise UsageError(
                    f"{where}: {gpu.id}: found {len(models):,} models, expected at most {MOST_MODELS} in one file"
                )
            if len(models) > 1:
                found.setdefault((spec.name, runtime, dtype, models), []).append(gpu.id)
    return tuple(
        PlannedSet(gpu_type=kind, runtime=runtime, dtype=dtype, models=models, gpus=tuple(ids))
        for (kind, runtime, dtype, models), ids in found.items()
    )


def _by_process(gpu: PlacedGpu) -> dict[tuple[str, str], list[Replica]]:
    found: dict[tuple[str, str], list[Replica]] = {}
    for replica in gpu.replicas:
        found.setdefault((replica.runtime, replica.dtype), []).append(replica)
    return found


def _models(replicas: Sequence[Replica], where: str) -> tuple[PlannedModel, ...]:
    largest: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
    for replica in replicas:
        key = (replica.model, _dims(replica.dims, f"{where}: {replica.id}"))
        largest[key] = max(largest.get(key, 0), replica.batch_size)
    return tuple(
        PlannedModel(model=model, dims=dims, batch_size=batch)
        for (model, dims), batch in sorted(largest.items())
    )


def _dims(text: str, where: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = pair.rpartition("=")
        good = (
            equals and name and value.isascii() and value.isdigit() and len(value) <= len(str(_LONGEST_DIM))
        )
        if not good or not 1 <= int(value) <= _LONGEST_DIM or name in found:
            raise DocumentError(
                f"{where}: dims: found {one_line(pair, limit=60)!r}, expected name=number, each once"
            )
        found[name] = int(value)
    return tuple(sorted(found.items()))


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

    ``models`` are files whose names (stems, or the shortest tails that tell equal stems apart) are the plan's; those
    that it does not need are left alone. GPU types, runtimes, dtypes, batch sizes and dims are the plan's, the rest of
    ``options`` holds for all. ``output``: a folder (made where it is missing; None: reports alone) for one file a set
    and ``index.json``, written last; a set of which nothing pays to be merged gets no file. Raises UsageError and
    DocumentError; what goes wrong with one set is in ``failures``, and where all do, nothing is written.
    """
    placed = read_plan(plan)
    sets = planned_sets(placed, gpu_catalogue(options.gpu_specs), where=str(plan))
    paths = _paths(plan, sets, models)
    names = _file_names(sets)
    if output is not None:
        for name in (*names.values(), INDEX):
            refuse_overwriting({f"-o {output}": output / name}, [plan, *models, *options.gpu_specs])
    if output is None:
        made = ()
    else:
        made = _make(output)
    results: list[tuple[PlannedSet, MergeResult]] = []
    failures: list[tuple[PlannedSet, GkestimatorError]] = []
    for chosen in sets:
        prefixes = distinct_prefixes([model.model for model in chosen.models])
        sources = [
            MergeSource(path=paths[m.model], name=prefix, batch_size=m.batch_size, dims=dict(m.dims))
            for m, prefix in zip(chosen.models, prefixes, strict=True)
        ]
        settings = dataclasses.replace(
            options,
            gpu=chosen.gpu_type,
            runtime=chosen.runtime,
            dtype=chosen.dtype,
            batch_sizes=None,
            dims={},
        )
        try:
            result = merge_sources(
                sources,
                settings,
                None if output is None else output / names[chosen],
                samples=samples,
                keep_unmerged=False,
                progress=progress,
            )
        except OutputError:
            raise
        except GkestimatorError as e:
            failures.append((chosen, e))
        else:
            results.append((chosen, result))
    index = _index(plan, placed, sets, results, failures)
    written = [file for _, result in results for file in result.files]
    if failures and not results:
        with contextlib.suppress(OSError):  # another program's files may lie there now
            for folder in made:
                folder.rmdir()
    elif output is not None:
        write_bytes(output / INDEX, json_bytes(index))
        written.append(output / INDEX)
    return PlannedMerge(index=index, results=tuple(results), failures=tuple(failures), files=tuple(written))


def _paths(plan: Path, sets: Sequence[PlannedSet], models: Sequence[Path]) -> dict[str, Path]:
    known = dict(zip(distinct_names(models), models, strict=True))
    by_stem: dict[str, list[Path]] = {}
    for path in models:
        by_stem.setdefault(path.stem, []).append(path)
    found: dict[str, Path] = {}
    for chosen in sets:
        for model in chosen.models:
            alike = by_stem.get(model.model, [])
            file = known.get(model.model) or (alike[0] if len(alike) == 1 else None)
            if file is None:
                raise UsageError(
                    f"{plan}: {chosen.gpus[0]}: model {model.model}: found no such name among {len(models):,} "
                    f"files, expected a file {one_line(model.model, limit=80)}.onnx"
                )
            found[model.model] = file
    return found


def _file_names(sets: Sequence[PlannedSet]) -> dict[PlannedSet, str]:
    def text(chosen: PlannedSet) -> str:
        models = [[model.model, model.batch_size, model.dims] for model in chosen.models]
        return json.dumps([chosen.gpu_type, chosen.runtime, chosen.dtype, models])

    labels = dns_labels(text(chosen) for chosen in sets)
    return {chosen: f"{labels[text(chosen)]}.onnx" for chosen in sets}


def _make(folder: Path) -> tuple[Path, ...]:
    """Make ``folder``; the folders that were missing, the innermost first."""
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
    results: Sequence[tuple[PlannedSet, MergeResult]],
    failures: Sequence[tuple[PlannedSet, GkestimatorError]],
) -> dict[str, Any]:
    made = dict(results)
    wrong = dict(failures)
    entries: list[dict[str, Any]] = []
    files: dict[str, list[str]] = {gpu.id: [] for gpu in placed.gpus}
    for chosen in sets:
        result = made.get(chosen)
        if result:
            file = next((file.name for file in result.files if file.suffix == ".onnx"), None)
        else:
            file = None
        prefixes = distinct_prefixes([model.model for model in chosen.models])
        entries.append(
            {
                "file": file,
                "gpu_type": chosen.gpu_type,
                "runtime": chosen.runtime,
                "dtype": chosen.dtype,
                "models": [
                    {"model": m.model, "prefix": prefix, "batch_size": m.batch_size, "dims": dict(m.dims)}
                    for m, prefix in zip(chosen.models, prefixes, strict=True)
                ],
                "gpus": list(chosen.gpus),
                "error": str(wrong[chosen]) if chosen in wrong else None,
                "report": result.report.document() if result else None,
            }
        )
        for gpu in chosen.gpus:
            if file:
                files[gpu] += [file]
            else:
                files[gpu] += []
    return {
        "schema_version": INDEX_VERSION,
        "plan": plan.name,
        "files": entries,
        "gpus": [{"id": g.id, "type": g.type, "files": files[g.id]} for g in placed.gpus],
    }
