"""Inputs and outputs of a Triton model from an ONNX file: which dimension Triton batches, and which it is
told."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.records import Names, frozen
from gkestimator.exporting.deployment import Instance
from gkestimator.exporting.rounding import refuse_other_batch
from gkestimator.onnx_io.reading.signature import Signature, TensorSpec

_SIZE = re.compile(r"[1-9][0-9]{0,17}")
_TYPES: Mapping[DType, str] = {
    DType.BOOL: "TYPE_BOOL",
    DType.UINT8: "TYPE_UINT8",
    DType.UINT16: "TYPE_UINT16",
    DType.UINT32: "TYPE_UINT32",
    DType.UINT64: "TYPE_UINT64",
    DType.INT8: "TYPE_INT8",
    DType.INT16: "TYPE_INT16",
    DType.INT32: "TYPE_INT32",
    DType.INT64: "TYPE_INT64",
    DType.FLOAT16: "TYPE_FP16",
    DType.FLOAT: "TYPE_FP32",
    DType.DOUBLE: "TYPE_FP64",
    DType.STRING: "TYPE_STRING",
    DType.BFLOAT16: "TYPE_BF16",
}


@frozen
class TritonTensor:
    """``dims`` without the batch where Triton adds it; -1: any size. ``scalar``: ``dims`` is [1] because
    Triton allows no empty list, and is reshaped to none."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    scalar: bool


@frozen
class TritonTensors:
    """``max_batch_size`` 0: the file has no batch that Triton could vary, so ``dims`` are whole shapes and
    nothing is batched. ``inputs`` or ``outputs`` are empty where the file does not declare them wholly:
    Triton completes them. ``left_out`` are outputs that Triton cannot hand out, because they do not begin
    with the batch."""

    max_batch_size: int
    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    left_out: Names = ()


def tensors(signature: Signature, instance: Instance) -> TritonTensors:
    """Return what Triton is told of the file with ``signature`` for ``instance``'s batch size and dims.

    Triton batches along the first dimension of every input and output, which the file must leave open;
    outputs of another form are left out, as Triton allows. Raises UsageError where the asked batch size
    cannot be had from this file, and for an element type that Triton does not have."""
    size = instance.batch_size
    refuse_other_batch(instance, signature.fixed_batch, "triton")
    batched = bool(signature.batch_dims)
    unbatched = _unbatched(signature) if batched else ()
    outputs = tuple(t for t in signature.outputs if t not in unbatched)
    inside = next((t for t in signature.inputs if t in unbatched), None)
    if inside is not None or not outputs:
        if size > 1:
            what = "its outputs do"
            if inside is not None:
                what = f"input {inside.name!r} does"
            raise UsageError(
                f"triton: {instance.model}: {what} not begin with the batch, so Triton cannot form batches of {size}"
            )
        batched = False
        outputs = signature.outputs
        unbatched = ()
    bound = bound_dims(instance.dims)
    most = size
    if not batched:
        bound |= dict.fromkeys(signature.batch_dims, size)
        most = 0
    return TritonTensors(
        max_batch_size=most,
        inputs=_all(signature.inputs, batched, bound, instance.model, "input"),
        outputs=_all(outputs, batched, bound, instance.model, "output"),
        left_out=tuple(t.name for t in unbatched),
    )


def bound_dims(dims: str) -> dict[str, int]:
    """Return the sizes of symbolic dimensions that the row was estimated at (``name=value`` pairs)."""
    pairs = (pair.rpartition("=") for pair in dims.split(","))
    return {name: int(value) for name, _, value in pairs if _SIZE.fullmatch(value)}


def _unbatched(signature: Signature) -> tuple[TensorSpec, ...]:
    """Inputs and outputs that do not begin with the batch.

    Exporters give the batch of an output names of their own; it is not a number, nor another dimension of an
    input."""
    batches = signature.batch_dims
    others = {d for i in signature.inputs for d in i.shape or () if isinstance(d, str) and d not in batches}
    inputs = [
        t for t in signature.inputs if t.shape is not None and t.shape[:1] not in [(b,) for b in batches]
    ]
    outputs = [
        t
        for t in signature.outputs
        if t.shape is not None and (not t.shape or isinstance(t.shape[0], int) or t.shape[0] in others)
    ]
    return (*inputs, *outputs)


def _all(
    specs: tuple[TensorSpec, ...], batched: bool, bound: Mapping[str, int], model: str, what: str
) -> tuple[TritonTensor, ...]:
    described = []
    for spec in specs:
        if spec.dtype is None or spec.shape is None:
            return ()
        if spec.dtype not in _TYPES:
            raise UsageError(
                f"triton: {model}: {what} {spec.name!r} is of {spec.dtype}, which Triton does not have"
            )
        shape = spec.shape[1:] if batched else spec.shape
        dims = tuple(_size(d, bound) for d in shape)
        described.append(
            TritonTensor(
                name=spec.name,
                data_type=_TYPES[spec.dtype],
                dims=dims or (1,),
                scalar=not dims,
            )
        )
    return tuple(described)


def _size(dim: int | str | None, bound: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        if dim > 0:
            return dim
        return -1
    if dim is not None:
        return bound.get(dim, -1)
    return -1
