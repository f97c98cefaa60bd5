"""Collect what the page about models shows: rows, kernels, timelines, memory and layers of every answer.

Equal kernels are told once a model, launches as columns of numbers, so that the page of a decoder with thousands of
launches stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.kernels import Array, Kernel
from gkestimator.core.records import NamedValues
from gkestimator.estimation.engine import Engine, Estimated, Lowering
from gkestimator.estimation.rows import bound_by, requirement_row
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.lowering.wiring import UNFOLDED_NORM, UNFOLDED_RESULT
from gkestimator.memory.trace import LiveBytes, live_bytes
from gkestimator.onnx_io.reading.modules import module_paths
from gkestimator.reporting.html import html_page
from gkestimator.tables import REQUIREMENTS, Requirement

_MOST_LAUNCHES = 60_000
"""Launches that a page holds; combinations beyond are shown as rows alone."""
_ALIVE_SHOWN = 12
_TRUSTED, _LEARNED, _CALCULATED = 0, 1, 2


class ModelsPage:
    """Gather answers one by one, and write their page."""

    def __init__(self) -> None:
        self._rows: list[NamedValues] = []
        self._details: NamedValues = {}
        self._programs: NamedValues = {}
        # Equal ids mean one program only as long as the program lives.
        self._seen: dict[int, Lowering] = {}
        self._paths: dict[Path, Mapping[str, str]] = {}
        self._copy_counts = False
        self._launches = 0
        self._models: list[str] = []

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in one answer, with its launches as long as the page has room for them."""
        row = requirement_row(engine, answer)
        self._copy_counts = engine.request.include_copy
        number = str(len(self._rows))
        self._rows.append(_shown_row(row, answer, number))
        if row.model not in self._models:
            self._models.append(row.model)
        launches = len(answer.lowering.program.kernel)
        if launches == 0 or self._launches + launches > _MOST_LAUNCHES:
            return
        self._launches += launches
        lowering = answer.lowering
        name = f"{id(lowering)}"
        if name not in self._programs:
            self._seen[id(lowering)] = lowering
            self._programs[name] = _program(engine, lowering, self._modules(lowering.path))
        self._details[number] = {"program": name, **_details(engine, answer)}

    def _modules(self, path: Path | None) -> Mapping[str, str]:
        """Return the modules of a file's nodes by name; each file is asked once."""
        if path is None:
            return {}
        if path not in self._paths:
            self._paths[path] = module_paths(path)
        return self._paths[path]

    def page(self, messages: Sequence[str]) -> bytes:
        """Return the HTML page of all answers; ``messages`` close it."""
        title = ", ".join(self._models[:3])
        if len(self._models) > 3:
            title = f"{title} and {len(self._models) - 3} more"
        gpus = list(dict.fromkeys(str(row["gpu"]) for row in self._rows))
        runtimes = list(dict.fromkeys(str(row["runtime"]) for row in self._rows))
        document = {
            "kind": "models",
            "title": f"{title}: what it needs on {len(gpus)} GPU{'s' * (len(gpus) > 1)}",
            "subtitle": f"Estimated by gkestimator {version('gkestimator')} for {', '.join(runtimes)}, not run.",
            "closing": list(messages),
            "rows": self._rows,
            "details": self._details,
            "programs": self._programs,
            "copy_counts": self._copy_counts,
        }
        return html_page(document)


def _shown_row(row: Requirement, answer: Estimated, number: str) -> NamedValues:
    """Return the row's columns, with what cards and the roofline need of the GPU."""
    gpu = answer.target.gpu
    return {
        **REQUIREMENTS.record(row),
        "id": number,
        "usd_per_million": gpu.usd_per_million(row.throughput_rps),
        "price_date": gpu.price_date,
        "dram_bytes_per_s": gpu.dram_bytes_per_s,
        "roofs": _roofs(gpu, answer),
    }


def _roofs(gpu: GpuSpec, answer: Estimated) -> list[NamedValues]:
    """Return the peaks of the precisions that the model calculates in, the highest first."""
    roofs: list[NamedValues] = []
    used = {kernel.precision.value for step in answer.lowering.graph.steps for kernel in step.kernels}
    for precision in sorted(used):
        peak = gpu.peak_flops_per_s.get(precision)
        if peak:
            roofs.append({"name": precision, "flops_per_s": peak})
    return sorted(roofs, key=lambda roof: -float(roof["flops_per_s"]))


def _program(engine: Engine, lowering: Lowering, modules: Mapping[str, str]) -> NamedValues:
    """Return what all answers of one lowering share, as columns: kernels, launches, operators, and live memory."""
    kernels = [engine.pool.kernels[int(row)] for row in lowering.rows]
    program = lowering.program
    steps = program.steps
    memory = live_bytes(lowering.graph)
    paths = [modules.get(step.name.removesuffix(UNFOLDED_NORM), "") for step in steps]
    return {
        "kernels": {
            "id": list(range(len(kernels))),
            "name": [kernel.name for kernel in kernels],
            "family": [kernel.family.value for kernel in kernels],
            "shape": [kernel_shape(kernel) for kernel in kernels],
            "flops": [kernel.flops for kernel in kernels],
            "bytes": [kernel.read_bytes + kernel.write_bytes for kernel in kernels],
            "weights": [kernel.weight_bytes for kernel in kernels],
        },
        "kernel": program.kernel.tolist(),
        "step": program.step.tolist(),
        "repeat": [int(count) for count in program.repeat],
        "operators": [step.name for step in steps],
        "paths": paths if any(paths) else [],
        "types": [step.op_type for step in steps],
        "calls": _numbers(program.calls),
        "live": list(memory.live),
        "peak": _peak(memory, steps[memory.peak].name if steps else ""),
    }


def _peak(memory: LiveBytes, step: str) -> NamedValues:
    """Return what is alive at the peak, during ``step``: the largest storages, and how many others there are."""
    others = memory.alive[_ALIVE_SHOWN:]
    return {
        "step": step,
        "alive": [[_tensor(name), nbytes] for name, nbytes in memory.alive[:_ALIVE_SHOWN]],
        "others": len(others),
        "others_bytes": sum(nbytes for _, nbytes in others),
    }


def _tensor(storage: str) -> str:
    """Return a storage's name, in words where it stands for what a convolution hands to its normalisation."""
    if storage.endswith(UNFOLDED_RESULT):
        return f"{storage.removesuffix(UNFOLDED_RESULT)} (before its normalisation)"
    return storage


def kernel_shape(kernel: Kernel) -> str:
    """Return a kernel's sizes as people write them."""
    conv = kernel.conv
    if conv is not None:
        read = f"{conv.batch}x{conv.in_channels}x{conv.in_h}x{conv.in_w}"
        sizes = f"{read} -> {conv.out_channels}x{conv.out_h}x{conv.out_w}"
        groups = ""
        if conv.groups > 1:
            groups = f", {conv.groups} groups"
        return f"{sizes}, {conv.kernel_h}x{conv.kernel_w}{groups}, {kernel.precision.value}"
    gemm = kernel.gemm
    if gemm is not None:
        batch = ""
        if gemm.batch > 1:
            batch = f"{gemm.batch} x "
        return f"{batch}({gemm.m}x{gemm.k})({gemm.k}x{gemm.n}), {kernel.precision.value}"
    if kernel.cols > 1:
        return f"{kernel.rows} rows of {kernel.cols}, {kernel.precision.value}"
    return f"{kernel.rows} elements, {kernel.precision.value}"


def _details(engine: Engine, answer: Estimated) -> NamedValues:
    """Return what one answer alone says of its lowering's kernels and launches, as columns."""
    predictions = answer.predictions
    timeline = answer.measures.timeline
    streams: list[int] = []
    if engine.streams > 1:
        streams = timeline.stream.tolist()
    return {
        "us": _numbers(predictions.duration_us),
        "low": _numbers(predictions.low_us),
        "high": _numbers(predictions.high_us),
        "trust": _trust(predictions.trained, predictions.in_range),
        "start": _numbers(timeline.start_us),
        "stream": streams,
        "bound": [bound_by(engine, answer, launch) for launch in range(len(timeline.start_us))],
        "host_us": engine.host_overhead_us,
    }


def _numbers(values: Array) -> list[Any]:
    return [round(float(value), 2) for value in values]


def _trust(trained: Array, in_range: Array) -> list[int]:
    """Return 0 for kernels inside the trained range, 1 for learned ones outside it, 2 for calculated ones."""
    words = np.where(trained & in_range, _TRUSTED, np.where(trained, _LEARNED, _CALCULATED))
    return [int(word) for word in words]
