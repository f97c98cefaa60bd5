"""Measured operator calls: rows of a kernel dataset grouped by entry, beside the kernels that our rules make of the
operator, and how a call's time is shared out among those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from gkestimator.core.errors import GkestimatorError, TableError, UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.kernels import Family, Kernel
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec
from gkestimator.hardware.runtimes.profiles import load_runtime, resolve_dtype
from gkestimator.lowering import lower
from gkestimator.operators.registry import LoweringOptions
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, read_table
from gkestimator.training.importers.kernel_dataset import dataset_files, kernel_of_row

DOMINATED = 0.95
"""Share of a call's time, by the base's prediction, from which one kernel stands for all of a call of several kernels:
it is then given that share of the measured time. A wrong share moves the label by 5 % at most."""


@frozen
class MeasuredCall:
    """One operator call on one GPU under one runtime. ``kernels``: what the rules make of it (none that runs on the
    host); ``rows``: its launches in order, all of quality ok, each with a duration."""

    entry_id: str
    gpu: str
    runtime: str
    kernels: tuple[Kernel, ...]
    rows: tuple[KernelMeasurement, ...]

    @property
    def total_us(self) -> float:
        """Device time of all launches: copies and fills belong to the call as its kernels do."""
        return sum(row.duration_us or 0.0 for row in self.rows)


@frozen
class Label:
    """A kernel of the rules with the time it took. ``rows``: its launches; ``whole``: they are its own."""

    kernel: Kernel
    call: MeasuredCall
    duration_us: float
    rows: tuple[KernelMeasurement, ...]
    whole: bool

    @property
    def main(self) -> KernelMeasurement:
        """Its longest launch."""
        return max(self.rows, key=lambda row: row.duration_us or 0.0)


@frozen
class ReadCalls:
    """The calls of datasets, and how many were left out, by GPU and reason. ``gpus``: specifications by canonical
    name."""

    calls: tuple[MeasuredCall, ...]
    skipped: Mapping[str, Mapping[str, int]]
    gpus: Mapping[str, GpuSpec]
    rows: int


def read_calls(
    path: Path, catalogue: GpuCatalogue, progress: Callable[[str, int, int], None] | None = None
) -> ReadCalls:
    """The calls in the kernel dataset or datasets at ``path``. Raises TableError, UsageError for a GPU without
    specification."""
    tell = progress or (lambda text, done, total: None)
    gpus: dict[str, GpuSpec] = {}
    names: dict[str, str] = {}
    calls: list[MeasuredCall] = []
    skipped: dict[str, Counter[str]] = {}
    count = 0
    for file in dataset_files(path):
        rows = read_table(file, KERNEL_DATASET)
        count += len(rows)
        for gpu in dict.fromkeys(row.gpu for row in rows):
            if gpu not in names:
                try:
                    spec = catalogue.resolve(gpu)[0]
                except UsageError as e:
                    raise UsageError(f"{file}: {e}; --gpu-spec FILE.toml gives a specification") from e
                names[gpu] = spec.name
                gpus[spec.name] = spec
        grouped: dict[tuple[str, str, str], list[tuple[int, KernelMeasurement]]] = {}
        for number, row in enumerate(rows, start=1):
            grouped.setdefault((row.entry_id, names[row.gpu], row.runtime), []).append((number, row))
        for done, ((entry, gpu, runtime), numbered) in enumerate(grouped.items()):
            if done % 500 == 0:
                tell(f"{file.name}: lowering", done, len(grouped))
            found = _call(entry, gpus[gpu], runtime, numbered, file)
            if isinstance(found, str):
                skipped.setdefault(gpu, Counter())[found] += 1
            else:
                calls.append(found)
    return ReadCalls(calls=tuple(calls), skipped=skipped, gpus=gpus, rows=count)


def _call(
    entry: str, gpu: GpuSpec, runtime: str, numbered: Sequence[tuple[int, KernelMeasurement]], file: Path
) -> MeasuredCall | str:
    """The call, or why it is left out."""
    rows = tuple(row for _, row in sorted(numbered, key=lambda one: one[1].kernel_index))
    if any(row.quality != "ok" for row in rows):
        return "a launch noisy or throttled"
    if any(not row.duration_us for row in rows):
        return "a launch without a duration"
    if len({row.kernel_index for row in rows}) < len(rows):
        return "measured twice in one dataset"  # the sum would be that of two calls
    if not gpu.stands_in and any(row.kind == "host" for row in rows):
        return "ran on the host"  # the CPU's time says nothing of the GPU
    first = rows[0]
    where = f"{file}: row {numbered[0][0]}"
    if any((row.graph, row.dtype) != (first.graph, first.dtype) for row in rows):
        return "launches of different operators"
    if first.graph is None:
        if len(rows) > 1 or (first.kernels_in_op or 1) > 1:
            return "several kernels and no fragment"
        kernel = kernel_of_row(first, where)
        if kernel is None:
            return "sizes not known without a fragment"
        return MeasuredCall(entry_id=entry, gpu=gpu.name, runtime=runtime, kernels=(kernel,), rows=rows)
    if first.kernels_in_op is not None and first.kernels_in_op != len(rows):
        return "launches missing"
    options = _options(runtime, first.dtype, gpu)
    if isinstance(options, str):
        return options
    try:
        kernels = _lowered(first.graph, options)
    except TableError as e:
        raise TableError(f"{where}, column {e}") from e
    if isinstance(kernels, str):
        return kernels
    return MeasuredCall(entry_id=entry, gpu=gpu.name, runtime=runtime, kernels=kernels, rows=rows)


@lru_cache(maxsize=256)
def _options(runtime: str, dtype: str, gpu: GpuSpec) -> LoweringOptions | str:
    try:
        resolved = resolve_dtype(load_runtime(runtime), dtype, gpu)
    except UsageError:
        return f"no rules for {dtype} under {runtime} on {gpu.name}"
    return LoweringOptions(
        runtime=runtime,
        dtype=dtype,
        matmul_precision=resolved.matmul_precision,
        conv_precision=resolved.conv_precision,
        half=resolved.half,
        unfold_batchnorm=False,  # the fragment is run as it is
    )


@lru_cache(maxsize=4096)
def _lowered(graph: str, options: LoweringOptions) -> tuple[Kernel, ...] | str:
    from gkestimator.onnx_io.fragment_models import fragment_graph

    try:
        fragment = Fragment.parse(graph, where="graph")
    except GkestimatorError as e:
        raise TableError(str(e)) from e
    try:
        lowered = lower(fragment_graph(fragment), options)
    except GkestimatorError:
        return f"no lowering rule for {fragment.op_type}"
    if any(step.repeat != 1 for step in lowered.steps):
        return "a loop"
    kernels = tuple(k for step in lowered.steps for k in step.kernels)
    if any(k.family is Family.HOST for k in kernels):
        return "runs on the host by the rules"
    return kernels or "launches nothing by the rules"


def sure_labels(calls: Iterable[MeasuredCall]) -> list[Label]:
    """Labels that need no base: calls of one kernel, and those of several whose launches match them one to one."""
    return [label for call in calls for label in _sure(call)]


def _sure(call: MeasuredCall) -> list[Label]:
    if len(call.kernels) == 1:
        return [
            Label(kernel=call.kernels[0], call=call, duration_us=call.total_us, rows=call.rows, whole=True)
        ]
    families = [row.family for row in call.rows]
    if [k.family.value for k in call.kernels] != families or any(row.kind != "kernel" for row in call.rows):
        return []
    return [
        Label(kernel=kernel, call=call, duration_us=row.duration_us or 0.0, rows=(row,), whole=True)
        for kernel, row in zip(call.kernels, call.rows, strict=True)
    ]


def base_labels(
    calls: Sequence[MeasuredCall], base_us: Callable[[Sequence[Kernel]], np.ndarray]
) -> tuple[list[Label], dict[str, int]]:
    """Labels of every call that gives any, and how many calls gave none, by reason. ``base_us``: what the base says of
    kernels; it shares out calls of several kernels of which one takes nearly all (:data:`DOMINATED`)."""
    labels: list[Label] = []
    unsure: list[MeasuredCall] = []
    for call in calls:
        found = _sure(call)
        labels += found
        if not found:
            unsure.append(call)
    if not unsure:
        return labels, {}
    times = base_us([kernel for call in unsure for kernel in call.kernels])
    at = 0
    mixed = 0
    for call in unsure:
        each = times[at : at + len(call.kernels)]
        at += len(call.kernels)
        share = float(each.max() / max(each.sum(), 1e-12))
        if share < DOMINATED:
            mixed += 1
            continue
        kernel = call.kernels[int(np.argmax(each))]
        labels.append(
            Label(kernel=kernel, call=call, duration_us=call.total_us * share, rows=call.rows, whole=False)
        )
    return labels, {"several kernels, other launches": mixed} if mixed else {}
