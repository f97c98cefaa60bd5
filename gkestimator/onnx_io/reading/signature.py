"""What a model takes and gives, as its file declares it: no operator is looked at, no weight is read."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, ModelError
from gkestimator.core.records import frozen
from gkestimator.onnx_io.binding.dims import choose_batch, name_dims
from gkestimator.onnx_io.reading.file import read_proto
from gkestimator.onnx_io.reading.program import InputSpec
from gkestimator.onnx_io.reading.tensors import declared_type, value_kind
from gkestimator.operators.registry import DeclaredType


@frozen
class TensorSpec:
    """One input or output. ``shape``: numbers, names of symbolic dimensions, or None for one without a name; the whole
    shape, or the element type, is None where the file declares none."""

    name: str
    dtype: DType | None
    shape: tuple[int | str | None, ...] | None


@frozen
class Signature:
    """``batch_dims`` are the symbolic dimensions that stand for the batch (an anonymous one is ``<input>.<axis>``);
    ``fixed_batch`` is the batch that the file was exported at where none does, None where there is none either."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_dims: tuple[str, ...]
    fixed_batch: int | None


def read_signature(path: str | os.PathLike[str]) -> Signature:
    """Inputs and outputs of the ONNX file at ``path``.

    Raises ModelError naming the file: it cannot be read, or an input or output is no tensor (a sequence, an
    optional one, a map).
    """
    where = Path(path)
    try:
        graph = read_proto(where).graph
        weights = {i.name for i in graph.initializer} | {i.values.name for i in graph.sparse_initializer}
        specs = tuple(
            InputSpec(slot, *_tensor(proto, "input"))
            for slot, proto in enumerate(p for p in graph.input if p.name not in weights)
        )
        inputs = name_dims(specs)
        batch = choose_batch(inputs)
        outputs = [_tensor(proto, "output") for proto in graph.output]
    except GkestimatorError as e:
        raise type(e)(f"{where.name}: {e}") from e
    except (TypeError, AttributeError, UnicodeError) as e:
        raise ModelError(f"{where.name}: malformed (a name is not UTF-8 text)") from e
    return Signature(
        inputs=tuple(TensorSpec(name=i.name, dtype=i.declared.dtype, shape=i.declared.shape) for i in inputs),
        outputs=tuple(
            TensorSpec(name=name, dtype=type_.dtype, shape=type_.shape) for name, _, type_ in outputs
        ),
        batch_dims=batch.names,
        fixed_batch=batch.fixed,
    )


def _tensor(proto: onnx.ValueInfoProto, what: str) -> tuple[str, str, DeclaredType]:
    kind, tensor = value_kind(proto.type)
    if kind != "tensor":
        raise ModelError(f"{what} {proto.name!r} is not a tensor, as the server expects of every one")
    return proto.name, kind, declared_type(tensor, f"{what} {proto.name!r}")
