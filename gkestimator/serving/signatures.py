"""Say what emulated models take and give: as their ONNX files declare it, else one value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan
from gkestimator.onnx_io.reading.signature import TensorSpec, read_signature
from gkestimator.serving.backend import ServedSignature, ServedTensor

_WORDS = {
    DType.BOOL: "BOOL",
    DType.UINT8: "UINT8",
    DType.UINT16: "UINT16",
    DType.UINT32: "UINT32",
    DType.UINT64: "UINT64",
    DType.INT8: "INT8",
    DType.INT16: "INT16",
    DType.INT32: "INT32",
    DType.INT64: "INT64",
    DType.FLOAT16: "FP16",
    DType.FLOAT: "FP32",
    DType.DOUBLE: "FP64",
    DType.STRING: "BYTES",
}
_MOST_SAMPLES = 64


def emulated_signatures(plan: PlacementPlan, models: Path | None) -> dict[str, ServedSignature]:
    """Return the signature of every model of ``plan``: of ``<model>.onnx`` in the folder ``models`` where it is there
    (no weight is read), else one value in and one out. Raises ModelError and UsageError for a file that cannot be
    batched.
    """
    signatures = {}
    for name in plan.workload.names():
        path = None if models is None else Path(models, f"{name}.onnx")
        if path is not None and path.is_file():
            signatures[name] = _declared(path)
        else:
            one = (ServedTensor(name="input", datatype="FP32", shape=(1,)),)
            answer = (ServedTensor(name="output", datatype="FP32", shape=(1,)),)
            signatures[name] = ServedSignature(inputs=one, outputs=answer, max_batch=_MOST_SAMPLES)
    return signatures


def _declared(path: Path) -> ServedSignature:
    signature = read_signature(path)
    others = {d for t in signature.inputs for d in (t.shape or ())[1:] if isinstance(d, str)}
    outputs = [t for t in signature.outputs if t.shape and t.shape[0] not in others]
    return ServedSignature(
        inputs=_tensors(path, signature.inputs), outputs=_tensors(path, outputs), max_batch=_MOST_SAMPLES
    )


def _tensors(path: Path, specs: Sequence[TensorSpec]) -> tuple[ServedTensor, ...]:
    tensors = []
    for spec in specs:
        if not spec.shape or spec.dtype not in _WORDS:
            raise UsageError(
                f"{path.name}: {spec.name!r} has no batch axis, or a type that requests cannot carry"
            )
        shape = tuple(size if isinstance(size, int) and size > 0 else None for size in spec.shape[1:])
        tensors.append(ServedTensor(name=spec.name, datatype=_WORDS[spec.dtype], shape=shape))
    return tuple(tensors)
