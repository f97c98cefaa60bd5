"""Inference by onnx's own operator schemas, for operators without a rule here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.onnx_io.reading.tensors import declared_type, value_kind
from gkestimator.operators.registry import SequenceType, ShapeContext, TensorType, ValueType

_NUMBERS = {
    DType(name.lower()): number
    for name, number in onnx.TensorProto.DataType.items()
    if name.lower() in {str(d) for d in DType}
}


def known_to_onnx(domain: str, op_type: str, version: int) -> bool:
    """Whether onnx has a schema of this operator at this opset version of its domain."""
    return bool(defs.has(op_type, version, domain))


def _proto(type_: ValueType) -> onnx.TypeProto:
    if isinstance(type_, SequenceType):
        if type_.elements:
            inner = _proto(type_.elements[0])
        else:
            inner = onnx.TypeProto()
        if type_.optional:
            return helper.make_optional_type_proto(inner)
        return helper.make_sequence_type_proto(inner)
    return helper.make_tensor_type_proto(_NUMBERS[type_.dtype], type_.shape)


def infer_by_schema(context: ShapeContext) -> Sequence[ValueType | None] | None:
    """Types of all outputs, or None where onnx leaves one open.

    Raises ShapeError where onnx finds a contradiction.
    """
    inputs = [f"i{i}" if t is not None else "" for i, t in enumerate(context.types)]
    attributes = {k: _attribute(v) for k, v in context.attributes.items() if v is not None}
    node = helper.make_node(
        context.op_type,
        inputs,
        [f"o{i}" for i in range(context.outputs)],
        domain=context.domain,
        **attributes,
    )
    types = {name: _proto(t) for name, t in zip(inputs, context.types, strict=True) if t is not None}
    values = {
        name: numpy_helper.from_array(v)
        for name, v in zip(inputs, context.values, strict=True)
        if v is not None and v.dtype != object
    }
    schema = defs.get_schema(context.op_type, context.version, context.domain)
    opset = [helper.make_opsetid(context.domain, context.version)]
    try:
        found = shape_inference.infer_node_outputs(schema, node, types, values, opset_imports=opset)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError) as e:
        raise ShapeError(f"onnx: {' '.join(str(e).split())}") from e
    outputs: list[ValueType | None] = []
    for index in range(context.outputs):
        proto = found.get(f"o{index}")
        kind, tensor = value_kind(proto) if proto is not None else ("other", None)
        said = declared_type(tensor, f"output {index}") if kind == "tensor" else None
        if (
            said is None
            or said.dtype is None
            or said.shape is None
            or not all(isinstance(d, int) for d in said.shape)
        ):
            return None
        outputs.append(TensorType(said.dtype, tuple(d for d in said.shape if isinstance(d, int))))
    return outputs


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return value
