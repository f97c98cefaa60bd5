"""Engines: what servers load where a runtime compiles models for one type of GPU, and the commands that build them.

Triton loads an engine in the place of the ONNX file, built by a script that stands beside its repository, or the ONNX
file under an accelerator, which builds its engines itself. TensorRT's builder is trtexec (its flags: TensorRT developer
guide, section "trtexec").
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import one_line
from gkestimator.core.records import Names
from gkestimator.exporting.deployment import Instance
from gkestimator.exporting.rounding import memory_bytes, memory_mib
from gkestimator.exporting.triton_tensors import bound_dims
from gkestimator.exporting.variants import Variant
from gkestimator.hardware.runtimes import RuntimeTraits, served_as
from gkestimator.onnx_io.reading.signature import Signature, TensorSpec, read_signature

SCRIPT = "build-engines.sh"
_TARGET = "triton"
_RANGE = ("minShapes", "optShapes", "maxShapes")
_OPEN = "SIZE"
"""Stands for a size that no row of the plan says; trtexec refuses it until somebody fills it in."""
_UNKNOWN = re.compile(rf"[:x]{_OPEN}(?=[x,]|$)")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


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
    remark = traits.server.accelerator_options.remarks.get(way.first.dtype)
    if remark is not None:
        lines.append(f"{way.first.dtype}: {remark}.")
    return tuple(lines)


def trtexec_command(
    instance: Instance, most: int, signature: Signature | None, onnx_file: str, engine: str
) -> Names:
    """Return the lines of a shell script that build ``engine`` for ``instance``, batches of up to ``most`` in it.

    It is built for the planned batch size, and takes others from 1 on where the file leaves the batch open. The builder
    may use as much scratch memory as the plan gives the model. ``onnx_file`` lies below the shell's ``$MODELS``;
    without its ``signature`` its shapes are left to be named. Raises UsageError where the memory is unknown.
    """
    flags = [f'onnx="$MODELS"/{shlex.quote(onnx_file)}', f"saveEngine={shlex.quote(engine)}"]
    flags += _permissions(instance)
    flags.append(f"memPoolSize=workspace:{memory_mib(instance, 'tensorrt')}")
    remarks = []
    if signature is None:
        remarks.append(
            f"# Where the file leaves dimensions open, add {', '.join(_RANGE)}=NAME:1x3x224x224,..."
        )
    else:
        ranges = _batch_shapes(signature, instance.dims, instance.batch_size, most, name=_quoted)
        flags += [
            f"{name}={shlex.quote(shapes)}" for name, shapes in zip(_RANGE, ranges, strict=True) if shapes
        ]
    if instance.dtype == "int8":
        remarks.append(
            "# Unless the file is quantised, add calib=FILE: trtexec else makes up ranges, and answers are wrong."
        )
    flags.append("skipInference")
    return (*remarks, " ".join(["trtexec", *(f"--{flag}" for flag in flags)]))


def _permissions(instance: Instance) -> Names:
    """Return the flags for the precisions that the builder may take; FP32 always, and TF32 unless it is forbidden."""
    allowed = served_as(instance.runtime).permits.get(instance.dtype, ())
    flags = [p.value for p in allowed if p not in (Precision.TF32, Precision.FP32)]
    if allowed and Precision.TF32 not in allowed:
        flags.append("noTF32")
    return tuple(flags)


def batch_shapes(path: str | os.PathLike[str], dims: str, usual: int, most: int) -> Names:
    """Return the shapes of all inputs that leave a dimension open, for one sample, the usual batch and the largest, as
    ONNX Runtime reads them. Empty where the file at ``path`` leaves none open, or one that ``dims`` has no size of.
    """
    shapes = _batch_shapes(read_signature(path), dims, usual, most, name=str)
    if all(shapes) and not any(map(_UNKNOWN.search, shapes)):
        return shapes
    return ()


def _batch_shapes(
    signature: Signature, dims: str, usual: int, most: int, *, name: Callable[[str], str]
) -> Names:
    """Return the shapes of one sample, the usual batch and the largest, ``name`` spelling the names of inputs; empty
    texts where the file leaves no dimension open.
    """
    open_ended = [t for t in signature.inputs if any(not isinstance(dim, int) for dim in t.shape or ())]
    texts = []
    for batch in (1, min(usual, most), most):
        sizes = bound_dims(dims) | dict.fromkeys(signature.batch_dims, batch)
        texts.append(",".join(f"{name(t.name)}:{_shape(t, sizes)}" for t in open_ended))
    return tuple(texts)


def _shape(tensor: TensorSpec, sizes: Mapping[str, int]) -> str:
    parts = []
    for dim in tensor.shape or ():
        if not isinstance(dim, int):
            dim = sizes.get(dim or "")
        parts.append(_OPEN if dim is None else str(dim))
    return "x".join(parts)


def _quoted(name: str) -> str:
    """Return the name of an input for trtexec: one with a colon, say, stands in quotes of its own."""
    if _PLAIN.fullmatch(name):
        return name
    return f"'{name}'"
