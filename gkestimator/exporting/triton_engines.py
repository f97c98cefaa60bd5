"""What Triton loads where a runtime compiles models for one type of GPU: engines, built by a script that stands beside
the repository, or ONNX files under an accelerator, which builds its engines itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from gkestimator.core.errors import one_line
from gkestimator.core.records import Names
from gkestimator.exporting.rounding import memory_bytes
from gkestimator.exporting.variants import Variant
from gkestimator.hardware.runtimes import RuntimeTraits, served_as
from gkestimator.onnx_io.reading.signature import read_signature

SCRIPT = "build-engines.sh"
_TARGET = "triton"


def served(way: Variant) -> RuntimeTraits:
    """Return the record of the runtime that Triton runs ``way`` under."""
    return served_as(way.first.runtime)


def file_of(way: Variant) -> str:
    """Return the name of the file that Triton loads."""
    return served(way).server.engine_file or "model.onnx"


def build_script(
    gpu_type: str,
    ways: Sequence[Variant],
    models: Mapping[str, str],
    largest: Callable[[Variant], int],
    limits: str,
) -> str | None:
    """Return the shell script that builds the engines of one repository, for GPUs of ``gpu_type``; None where it has
    none. ``models`` are ONNX files by model name, ``largest`` says how many requests a batch may hold.
    """
    lines = []
    for way in ways:
        form = served(way).server
        if form.engine_builder is None:
            continue
        module, function = form.engine_builder
        build = getattr(import_module(module), function)
        signature = None
        if way.model in models:
            signature = read_signature(models[way.model])
        folder = f"{way.name}/1"
        engine = f"{folder}/{form.engine_file}"
        lines.append(f"mkdir -p {folder}")
        lines += build(way.first, largest(way), signature, f"{way.model}.onnx", engine)
    if not lines:
        return None
    comments = [
        f"Builds the engines of this repository, written by gkest export. Run it where the GPU is of the type "
        f"{gpu_type}, with the version of TensorRT that the server has: other engines do not load.",
        f"Use: sh {SCRIPT} FOLDER, which holds the ONNX files.",
        limits,
    ]
    head = ["#!/bin/sh", *(f"# {one_line(c, limit=2000)}" for c in comments), "set -e"]
    head += ['MODELS=$(cd "${1:?the folder of the ONNX files is missing}" && pwd)', 'cd "$(dirname "$0")"']
    return "".join(f"{line}\n" for line in (*head, *lines))


def add_accelerator(config: Any, way: Variant) -> None:
    """Name in a configuration the accelerator that ``way`` was planned for, with its options; none is the default."""
    form = served(way).server
    if not form.accelerator:
        return
    most_bytes = max(memory_bytes(i, _TARGET) for i in way.instances)
    accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(
        name=form.accelerator
    )
    for key, value in form.accelerator_options.values(way.first.dtype, most_bytes).items():
        accelerator.parameters.add(key=key, value=value)


def build_remarks(ways: Sequence[Variant], gpu_type: str) -> Names:
    """Return what must be built before ``ways`` answer on GPUs of ``gpu_type``, a line for each runtime."""
    lines = []
    for name in dict.fromkeys(way.first.runtime for way in ways):
        mine = sorted({way.model for way in ways if way.first.runtime == name})
        traits = served_as(name)
        if traits.server.engine_file:
            lines.append(
                f"{gpu_type}: the engines of {', '.join(mine)} are to be built before the server starts: sh {SCRIPT}; "
                f"{traits.build}"
            )
        elif traits.build:
            lines.append(f"{gpu_type}, {', '.join(mine)}: {traits.build}")
    return tuple(lines)


def form_remarks(way: Variant) -> Names:
    """Return what a reader of one configuration must know of the runtime."""
    runtime = way.first.runtime
    traits = served(way)
    if traits.name != runtime:
        return (f"Planned for {runtime}; Triton runs the file with onnxruntime.",)
    lines = []
    if traits.build:
        lines.append(f"{runtime}: {traits.build}.")
    words = traits.server.accelerator_options.by_dtype
    dtype = way.first.dtype
    if traits.server.accelerator and dtype not in ("fp32", "tf32", *words):
        lines.append(f"The accelerator has no option for {dtype}: the file itself must say it.")
    if traits.server.accelerator_options.int8 and dtype == "int8":
        lines.append(f"int8: {traits.server.accelerator_options.int8}.")
    return tuple(lines)
