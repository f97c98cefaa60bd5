"""Go from files to one merged file and its report: the steps of a merge, in order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, OutputError, UsageError
from gkestimator.core.leftovers import scratch_folder
from gkestimator.core.options import spelled, taking
from gkestimator.core.outputs import by_suffix, refuse_overwriting
from gkestimator.core.records import frozen
from gkestimator.estimation.collection import rare_collection
from gkestimator.merging.apart import check_apart
from gkestimator.merging.assembling import Assembler
from gkestimator.merging.checking import OutputCheck
from gkestimator.merging.editing import (
    BatchSizes,
    EditableModel,
    Shapes,
    ValueShape,
    align_opsets,
    alive,
    check_editable,
    fix_dims,
    read_editable,
    symbolic_dims,
    value_shapes,
    write_editable,
)
from gkestimator.merging.editing.cut_short import expect_whole
from gkestimator.merging.grouping import Grouping, group_models
from gkestimator.merging.matching import Matching, candidates, match_all
from gkestimator.merging.operators import WeightOperator
from gkestimator.merging.options import MergeOptions, MergeRequest
from gkestimator.merging.pricing import Pricer, decide
from gkestimator.merging.report import MergeReport, MergeSteps, report_of
from gkestimator.merging.sources import MergeSource, sources_of
from gkestimator.merging.super_operators import can_emit

_Progress = Callable[[str, int, int], None]
_STEPS = ("reading", "grouping", "matching", "pricing", "checking outputs", "writing")


@frozen
class MergeResult:
    """Hold ``report``: what was merged and what it should save.

    ``files``: what was written (the ONNX file, and the file of its weights where they are beyond 2 GB).
    """

    report: MergeReport
    files: tuple[Path, ...]


@taking(MergeRequest)
def merge(request: MergeRequest) -> MergeResult:
    """Merge the operator graphs of ONNX files that share a GPU and weights into one file (USHER, section
    3.4).

    Inputs and outputs keep their names behind the model's (``bert/input_ids``); models that have nothing in
    common stand side by side. Raises UsageError (options, too few models, SciPy missing), ModelError (a file
    that is no model, lacks its weights, ...), OutputError.

        >>> result = gkestimator.merge(["a.onnx", "b.onnx"], "merged.onnx", gpu="V100", omega=0.4)
        >>> result.report.saved_bytes, result.report.after.latency_ms
    """
    sources = sources_of(request.models, request)
    refuse_overwriting({"output": request.output}, [*(source.path for source in sources), *request.gpu_specs])
    return merge_sources(
        sources, request, request.output, samples=request.samples or 0, progress=request.progress
    )


def merge_sources(
    sources: Sequence[MergeSource],
    options: MergeOptions,
    output: Path | None,
    *,
    samples: int = 0,
    keep_unmerged: bool = True,
    progress: _Progress | None = None,
) -> MergeResult:
    """Merge ``sources``; see :func:`merge`. Their batch sizes and dims count, not those of ``options``.

    ``keep_unmerged`` False: no file is written where nothing is merged. ``output`` must not be one of the
    sources.
    """
    if output is not None:
        by_suffix(spelled("output", "-o"), output, {".onnx": "onnx"})
    step = _steps(progress)
    with rare_collection():
        step("reading")
        pricer = Pricer(options)
        models, sources = _read(sources)
        step("grouping")
        batches = [source.batch_size for source in sources]
        graphs = [pricer.graph(model, batch) for model, batch in zip(models, batches, strict=True)]
        grouping = group_models(graphs, epsilon=options.group_distance)
        step("matching")
        shapes: dict[str, ValueShape] = {}
        for model in models:
            shapes |= value_shapes(model)
        matching = _match(models, batches, grouping, shapes, pricer)
        step("pricing")
        build = Assembler(models, shapes, tolerance=options.tolerance)
        decision = decide(models, matching.supers, build, pricer, batch_sizes=batches)
        merged = decision.built.model
        # before anything is written: a file that ONNX's checker refuses is no result
        check_editable(merged)
        steps = MergeSteps(
            sources=sources,
            models=models,
            graphs=graphs,
            grouping=grouping,
            matching=matching,
            decision=decision,
            merged=merged,
            pricer=pricer,
        )
        if not (keep_unmerged or decision.kept):
            output = None
        expect_whole()  # what was decided on zeros, in place of weights that are gone, is no result
        check: OutputCheck | str = "not asked for (option samples)"
        if samples:
            step("checking outputs")
            # before it is written: a merged file that does not run is no result, and leaves what was there
            check = _check(merged, output, sources, samples)
        step("writing")
        files: tuple[Path, ...] = ()
        if output is not None:
            files = write_editable(merged, output, keep=models)
    return MergeResult(report=report_of(steps, files, check), files=files)


def _steps(progress: _Progress | None) -> Callable[[str], None]:
    def step(name: str) -> None:
        if progress is not None:
            progress(name, _STEPS.index(name), len(_STEPS))

    return step


def _read(sources: Sequence[MergeSource]) -> tuple[list[EditableModel], list[MergeSource]]:
    """Return the models under their prefixes, at one opset, with the dims that were asked for, and their
    sources.

    The sources have the dims that their models have. Raises UsageError for a dim that no model has.
    """
    aligned = align_opsets([_editable(source) for source in sources])
    models: list[EditableModel] = []
    bound: list[MergeSource] = []
    known: set[str] = set()
    for model, source in zip(aligned, sources, strict=True):
        own = {name.removeprefix(f"{model.name}/") for name in symbolic_dims(model)}
        known |= own
        dims = {name: size for name, size in source.dims.items() if name in own}
        fixed = fix_dims(model, dims)
        models.append(dataclasses.replace(fixed, nodes=alive(fixed)))  # what no output needs is not run
        bound.append(dataclasses.replace(source, dims=dims))
    for source in sources:
        for name in source.dims:
            if name not in known:
                there = ", ".join(sorted(known)) or "none"
                raise UsageError(f"dimension {name!r} is in none of the models; known: {there}")
    return models, bound


def _editable(source: MergeSource) -> EditableModel:
    """Read a model; errors name the file by its path as it was given: two may have one name in two folders."""
    try:
        return read_editable(source.path, prefix=f"{source.name}/", name=source.name)
    except GkestimatorError as e:
        if not str(e).startswith(f"{source.path.name}: "):
            raise
        raise type(e)(f"{source.path}{str(e).removeprefix(source.path.name)}") from e


def _match(
    models: Sequence[EditableModel],
    batches: BatchSizes,
    grouping: Grouping,
    shapes: Shapes,
    pricer: Pricer,
) -> Matching:
    """Match the models of each group.

    Starts are compared at one batch size for all: the least of those that are priced.
    """
    reference = min(batch or 1 for batch in batches)
    operators: list[list[WeightOperator]] = [[] for _ in models]
    for group in grouping.groups:
        if len(group) > 1:
            for i in group:
                starts = pricer.starts(models[i], batch_size=reference)
                operators[i] = candidates(models[i], i, shapes, starts)
    return match_all(
        models,
        operators,
        grouping.groups,
        pricer.options,
        can_emit=functools.partial(can_emit, shapes=shapes),
    )


def _check(
    merged: EditableModel, output: Path | None, sources: Sequence[MergeSource], samples: int
) -> OutputCheck | str:
    """Run the originals and the merged model, written for this beside ``output``: there is room for it, if anywhere.

    Text: why they could not be compared, which is no fault of the merge. Raises ModelError where the merged
    file alone does not run.
    """
    name = "gkest-merge"
    place = None
    if output is not None and output.parent.is_dir():
        name = ".gkest-merge"
        place = output.parent
    try:
        with scratch_folder(name, place) as folder:
            written = folder / "merged.onnx"
            write_editable(merged, written)
            return check_apart(written, sources, samples, folder)
    except OutputError as e:
        return str(e)
    except OSError as e:
        return f"nothing can be written aside: {e.strerror or e}"
