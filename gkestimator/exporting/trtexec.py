"""The command that builds a TensorRT engine out of an ONNX file: trtexec, which comes with TensorRT.

Flags: TensorRT developer guide, section "trtexec". An engine runs on the type of GPU that it was built on alone.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

from gkestimator.core.records import Names
from gkestimator.exporting.deployment import Instance
from gkestimator.exporting.rounding import memory_mib
from gkestimator.exporting.triton_tensors import bound_dims
from gkestimator.onnx_io.reading.signature import Signature, TensorSpec, read_signature

# A dtype is a permission, and what is wider is allowed too; int8 and FP8 allow half precision, as in an estimate.
_FLAGS: Mapping[str, Names] = {
    "fp32": ("noTF32",),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "int8": ("int8", "fp16"),
    "fp8": ("fp8", "fp16"),
}
_RANGE = ("minShapes", "optShapes", "maxShapes")
_OPEN = "SIZE"
"""Stands for a size that no row of the plan says; trtexec refuses it until somebody fills it in."""
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


def build_command(
    instance: Instance, most: int, signature: Signature | None, onnx_file: str, engine: str
) -> Names:
    """Return the lines of a shell script that build ``engine`` for ``instance``, batches of up to ``most`` in it.

    It is built for the planned batch size, and takes others from 1 on where the file leaves the batch open. The builder
    may use as much scratch memory as the plan gives the model. ``onnx_file`` lies below the shell's ``$MODELS``;
    without its ``signature`` its shapes are left to be named. Raises UsageError where the memory is unknown.
    """
    flags = [f'onnx="$MODELS"/{shlex.quote(onnx_file)}', f"saveEngine={shlex.quote(engine)}"]
    flags += _FLAGS.get(instance.dtype, ())
    flags.append(f"memPoolSize=workspace:{memory_mib(instance, 'tensorrt')}")
    remarks = []
    if signature is None:
        remarks.append(
            f"# Where the file leaves dimensions open, add {', '.join(_RANGE)}=NAME:1x3x224x224,..."
        )
    else:
        ranges = _batch_shapes(signature, instance.dims, instance.batch_size, most)
        flags += [
            f"{name}={shlex.quote(shapes)}" for name, shapes in zip(_RANGE, ranges, strict=True) if shapes
        ]
    if instance.dtype == "int8":
        remarks.append(
            "# Unless the file is quantised, add calib=FILE: trtexec else makes up ranges, and answers are wrong."
        )
    flags.append("skipInference")
    return (*remarks, " ".join(["trtexec", *(f"--{flag}" for flag in flags)]))


def batch_shapes(path: str | os.PathLike[str], dims: str, usual: int, most: int) -> Names:
    """Return the shapes of all inputs that leave a dimension open, for one sample, the usual batch and the largest, as
    TensorRT reads them. Empty where the ONNX file at ``path`` leaves none open, or one that ``dims`` has no size of.
    """
    shapes = _batch_shapes(read_signature(path), dims, usual, most)
    if _OPEN in "".join(shapes) or not all(shapes):
        return ()
    return shapes


def _batch_shapes(signature: Signature, dims: str, usual: int, most: int) -> Names:
    sizes = bound_dims(dims)
    return tuple(_shapes(signature, sizes, batch) for batch in (1, min(usual, most), most))


def _shapes(signature: Signature, sizes: Mapping[str, int], batch: int) -> str:
    """Return the shapes of all inputs that leave a dimension open, as trtexec reads them; nothing where none does."""
    sizes = {**sizes} | dict.fromkeys(signature.batch_dims, batch)
    inputs = [t for t in signature.inputs if any(not isinstance(dim, int) for dim in t.shape or ())]
    return ",".join(f"{_name(t.name)}:{_shape(t, sizes)}" for t in inputs)


def _shape(tensor: TensorSpec, sizes: Mapping[str, int]) -> str:
    parts = []
    for dim in tensor.shape or ():
        if not isinstance(dim, int):
            dim = sizes.get(dim or "")
        parts.append(_OPEN if dim is None else str(dim))
    return "x".join(parts)


def _name(name: str) -> str:
    """Return the name of an input; one with a colon, say, stands in quotes of trtexec's own."""
    if _PLAIN.fullmatch(name):
        return name
    return f"'{name}'"
