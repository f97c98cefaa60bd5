"""Group the rows of a kernel dataset to operator calls, beside the kernels that our rules make of the operator.

A call's time is then shared out among those kernels, where that can be said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from gkestimator.core.errors import GkestimatorError, TableError, UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.kernels import Array, Family, Kernel
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.hardware.runtimes.profiles import load_runtime, resolve_dtype
from gkestimator.lowering import lower
from gkestimator.operators.registry import LoweringOptions
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, read_table
from gkestimator.training.dataset_rows import dataset_files, kernel_of_row
from gkestimator.training.rows import Progress

DOMINATED = 0.95
"""Share of a call's time, by the base's prediction, from which one kernel stands for all of a call of several kernels:
it is then given that share of the measured time. A wrong share moves the label by 5 % at most."""


@frozen
class MeasuredCall:
    """Hold one operator call on one GPU under one runtime.

    ``kernels``: what the rules make of it (none that runs on the host); ``rows``: its launches in order, all of
    quality ok, each with a duration.
    """

    entry_id: str
    gpu: str
    runtime: str
    kernels: tuple[Kernel, ...]
    rows: tuple[KernelMeasurement, ...]

    @property
    def total_us(self) -> float:
        """Return the device time of all launches: copies and fills belong to the call as its kernels do."""
        return sum(row.duration_us or 0.0 for row in self.rows)


@frozen
class Label:
    """Hold a kernel of the rules with the time it took. ``rows``: its launches; ``whole``: they are its own."""

    kernel: Kernel
    call: MeasuredCall
    duration_us: float
    rows: tuple[KernelMeasurement, ...]
    whole: bool

    @property
    def main(self) -> KernelMeasurement:
        """Return its longest launch."""
        return max(self.rows, key=lambda row: row.duration_us or 0.0)


@frozen
class ReadCalls:
    """Hold the calls of datasets, and how many were left out, by GPU and reason.

    ``gpus``: specifications by canonical name.
    """

    calls: tuple[MeasuredCall, ...]
    skipped: Mapping[str, Mapping[str, int]]
    gpus: GpuSpecs
    rows: int


class _SkippedError(Exception):
    """Say why a call is left out; no error of the file."""


def read_calls(path: Path, catalogue: GpuCatalogue, progress: Progress | None = None) -> ReadCalls:
    """Return the calls in the kernel dataset or datasets at ``path``.

    Raises TableError, or UsageError for a GPU without specification.
    """
    specs: dict[str, GpuSpec] = {}
    calls: list[MeasuredCall] = []
    skipped: dict[str, Counter[str]] = {}
    count = 0
    for file in dataset_files(path):
        rows = read_table(file, KERNEL_DATASET)
        count += len(rows)
        grouped: dict[tuple[str, str, str], list[tuple[int, KernelMeasurement]]] = {}
        for number, row in enumerate(rows, start=1):
            if row.gpu not in specs:
                specs[row.gpu] = _spec_of(row.gpu, catalogue, file)
            key = (row.entry_id, specs[row.gpu].name, row.runtime)
            grouped.setdefault(key, []).append((number, row))
        for done, numbered in enumerate(grouped.values()):
            if progress is not None and done % 500 == 0:
                progress(f"{file.name}: lowering", done, len(grouped))
            gpu = specs[numbered[0][1].gpu]
            try:
                calls.append(_call(gpu, numbered, file))
            except _SkippedError as reason:
                skipped.setdefault(gpu.name, Counter())[str(reason)] += 1
    gpus = {spec.name: spec for spec in specs.values()}
    return ReadCalls(calls=tuple(calls), skipped=skipped, gpus=gpus, rows=count)


def _spec_of(gpu: str, catalogue: GpuCatalogue, file: Path) -> GpuSpec:
    try:
        return catalogue.resolve(gpu)[0]
    except UsageError as e:
        raise UsageError(
            f"{file}: {e}; {spelled('gpu_specs', '--gpu-spec')} takes a file that specifies it"
        ) from e


def _call(gpu: GpuSpec, numbered: Sequence[tuple[int, KernelMeasurement]], file: Path) -> MeasuredCall:
    """Return the call of rows with their numbers in the file. Raises _SkippedError where it is left out."""
    rows = tuple(sorted((row for _, row in numbered), key=lambda row: row.kernel_index))
    _refuse_unusable(rows, gpu)
    first = rows[0]
    where = f"{file}: row {numbered[0][0]}"
    if first.graph is None:
        # Without a fragment the shape does not say which of several kernels did what.
        if len(rows) > 1 or (first.kernels_in_op or 1) > 1:
            raise _SkippedError("several kernels and no fragment")
        kernel = kernel_of_row(first, where)
        if kernel is None:
            raise _SkippedError("sizes not known without a fragment")
        kernels: tuple[Kernel, ...] = (kernel,)
    else:
        if first.kernels_in_op not in (None, len(rows)):
            raise _SkippedError("launches missing")
        options = _options(first.runtime, first.dtype, gpu)
        if options is None:
            raise _SkippedError(f"no rules for {first.dtype} under {first.runtime} on {gpu.name}")
        try:
            outcome = _lowered(first.graph, options)
        except TableError as e:
            raise TableError(f"{where}, column {e}") from e
        if isinstance(outcome, str):
            raise _SkippedError(outcome)
        kernels = outcome
    return MeasuredCall(
        entry_id=first.entry_id, gpu=gpu.name, runtime=first.runtime, kernels=kernels, rows=rows
    )


def _refuse_unusable(rows: Sequence[KernelMeasurement], gpu: GpuSpec) -> None:
    """Raise _SkippedError for launches that do not add up to one good measurement of one call."""
    if any(row.quality != "ok" for row in rows):
        raise _SkippedError("a launch noisy or throttled")
    if any(not row.duration_us for row in rows):
        raise _SkippedError("a launch without a duration")
    if len({row.kernel_index for row in rows}) < len(rows):
        raise _SkippedError("measured twice in one dataset")  # the sum would be that of two calls
    if not gpu.stands_in and any(row.kind == "host" for row in rows):
        raise _SkippedError("ran on the host")  # the CPU's time says nothing of the GPU
    if len({(row.graph, row.dtype) for row in rows}) > 1:
        raise _SkippedError("launches of different operators")


@lru_cache(maxsize=256)
def _options(runtime: str, dtype: str, gpu: GpuSpec) -> LoweringOptions | None:
    """Return how the runtime ran the operator; None where it does not know the dtype on this GPU."""
    try:
        resolved = resolve_dtype(load_runtime(runtime), dtype, gpu)
    except UsageError:
        return None
    return LoweringOptions(
        runtime=runtime_traits(runtime).lowers_as,
        dtype=dtype,
        matmul_precision=resolved.matmul_precision,
        conv_precision=resolved.conv_precision,
        half=resolved.half,
        unfold_batchnorm=False,  # the fragment is run as it is
    )


# One fragment stands in the datasets of many GPUs and dtypes.
@lru_cache(maxsize=4096)
def _lowered(graph: str, options: LoweringOptions) -> tuple[Kernel, ...] | str:
    """Return the kernels of a fragment by our rules, or why there are none.

    Raises TableError for a bad fragment.
    """
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
    """Return the labels that need no base.

    They are of calls of one kernel, and of those of several whose launches match them one to one.
    """
    return [label for call in calls for label in _sure(call)]


def _sure(call: MeasuredCall) -> list[Label]:
    if len(call.kernels) == 1:
        return [_whole_label(call, call.kernels[0], call.rows)]
    families = [row.family for row in call.rows]
    expected = [kernel.family.value for kernel in call.kernels]
    if expected != families or any(row.kind != "kernel" for row in call.rows):
        return []
    pairs = zip(call.kernels, call.rows, strict=True)
    return [_whole_label(call, kernel, (row,)) for kernel, row in pairs]


def _whole_label(call: MeasuredCall, kernel: Kernel, rows: tuple[KernelMeasurement, ...]) -> Label:
    duration = sum(row.duration_us or 0.0 for row in rows)
    return Label(kernel=kernel, call=call, duration_us=duration, rows=rows, whole=True)


def base_labels(
    calls: Sequence[MeasuredCall], base_us: Callable[[Sequence[Kernel]], Array]
) -> tuple[list[Label], dict[str, int]]:
    """Return the labels of every call that gives any, and how many calls gave none, by reason.

    ``base_us``: what the base says of kernels; it shares out calls of several kernels of which one takes
    nearly all (:data:`DOMINATED`).
    """
    labels: list[Label] = []
    unsure: list[MeasuredCall] = []
    for call in calls:
        sure = _sure(call)
        labels += sure
        if not sure:
            unsure.append(call)
    if not unsure:
        return labels, {}
    # One prediction for all of them: the base takes whole tables, and is slow for single kernels.
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
        duration = call.total_us * share
        labels.append(Label(kernel=kernel, call=call, duration_us=duration, rows=call.rows, whole=False))
    if mixed:
        return labels, {"several kernels, other launches": mixed}
    return labels, {}
