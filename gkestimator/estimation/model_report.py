"""Collect what the page about models shows: rows, kernels, timelines, memory and layers of every answer.

Equal kernels are told once a model, launches as columns of numbers, so that the page of a decoder with thousands of
launches stays small.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from gkestimator.core.kernels import Array, Kernel
from gkestimator.core.records import NamedValues
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.rows import bound_by, requirement_row
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.lowering.wiring import UNFOLDED_NORM
from gkestimator.memory.trace import live_bytes
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
        self._kernels: NamedValues = {}
        self._launches = 0
        self._models: list[str] = []

    def add(self, engine: Engine, answer: Estimated) -> None:
        """Take in one answer, with its launches as long as the page has room for them."""
        row = requirement_row(engine, answer)
        number = str(len(self._rows))
        self._rows.append(_shown_row(row, answer, number))
        if row.model not in self._models:
            self._models.append(row.model)
        launches = len(answer.lowering.program.kernel)
        if launches == 0 or self._launches + launches > _MOST_LAUNCHES:
            return
        self._launches += launches
        name = f"{id(answer.lowering.graph)}"
        if name not in self._kernels:
            self._kernels[name] = _kernel_columns(engine, answer)
        self._details[number] = {"kernels": name, **_details(engine, answer)}

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
            "closing": " · ".join(messages),
            "rows": self._rows,
            "details": self._details,
            "kernels": self._kernels,
        }
        return html_page(document)


def _shown_row(row: Requirement, answer: Estimated, number: str) -> NamedValues:
    """Return the row's columns, with what cards and the roofline need of the GPU."""
    gpu = answer.target.gpu
    return {
        **REQUIREMENTS.record(row),
        "id": number,
        "usd_per_million": gpu.usd_per_million(row.throughput_rps),
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


def _kernel_columns(engine: Engine, answer: Estimated) -> NamedValues:
    """Return the distinct kernels of a lowering as columns."""
    kernels = [engine.pool.kernels[int(row)] for row in answer.lowering.rows]
    return {
        "id": list(range(len(kernels))),
        "name": [kernel.name for kernel in kernels],
        "family": [kernel.family.value for kernel in kernels],
        "shape": [kernel_shape(kernel) for kernel in kernels],
        "flops": [kernel.flops for kernel in kernels],
        "bytes": [kernel.read_bytes + kernel.write_bytes for kernel in kernels],
        "weights": [kernel.weight_bytes for kernel in kernels],
        "written": [kernel.write_bytes for kernel in kernels],
    }


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
    """Return launches, calls and memory of one answer as columns."""
    program = answer.lowering.program
    predictions = answer.predictions
    timeline = answer.measures.timeline
    steps = program.steps
    modules = answer.lowering.graph.modules
    memory = live_bytes(answer.lowering.graph)
    peak: NamedValues = {"step": "", "alive": []}
    if steps:
        peak = {
            "step": steps[memory.peak].name,
            "alive": [list(item) for item in memory.alive[:_ALIVE_SHOWN]],
        }
    bounds = [bound_by(engine, answer, launch) for launch in range(len(program.kernel))]
    return {
        "us": _numbers(predictions.duration_us),
        "low": _numbers(predictions.low_us),
        "high": _numbers(predictions.high_us),
        "roof": _numbers(predictions.roofline_us),
        "trust": _trust(predictions.trained, predictions.in_range),
        "kernel": program.kernel.tolist(),
        "step": program.step.tolist(),
        "repeat": [int(count) for count in program.repeat],
        "start": _numbers(timeline.start_us),
        "bound": bounds,
        "operators": [step.name for step in steps],
        "types": [step.op_type for step in steps],
        "modules": [modules.get(step.name.removesuffix(UNFOLDED_NORM), "") for step in steps]
        if modules
        else [],
        "calls": _numbers(program.calls),
        "host_us": engine.host_overhead_us,
        "live": list(memory.live),
        "peak": peak,
    }


def _numbers(values: Array) -> list[Any]:
    return [round(float(value), 2) for value in values]


def _trust(trained: Array, in_range: Array) -> list[int]:
    """Return 0 for kernels inside the trained range, 1 for learned ones outside it, 2 for calculated ones."""
    words = np.where(trained & in_range, _TRUSTED, np.where(trained, _LEARNED, _CALCULATED))
    return [int(word) for word in words]
