"""Infer by onnx's own operator schemas, for operators without a rule here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from gkestimator.core.errors import ModelError, ShapeError
from gkestimator.onnx_io.reading.tensors import ELEMENT_TYPES, declared_type, value_kind
from gkestimator.operators.registry import (
    ML,
    MS,
    DeclaredType,
    SequenceType,
    ShapeContext,
    TensorType,
    ValueType,
)

_TENSORS = (defs.OpSchema.AttrType.TENSOR, defs.OpSchema.AttrType.SPARSE_TENSOR)
_SOURCE_PLACE = re.compile(r"\S+\.(?:h|hpp|c|cc|cpp|inc):\d+:?\s*")


def complaint(error: BaseException) -> str:
    """Return what onnx says, on one line, without the assertion and the place in its source where it was made."""
    text = " ".join(str(error).split())
    if "Assertion `" in text:
        text = text.partition("` failed:")[2]
    text = _SOURCE_PLACE.sub("", text).strip().removeprefix("Warning: ")
    return text or "onnx cannot read it"


def known_to_onnx(domain: str, op_type: str, version: int) -> bool:
    """Return whether onnx has a schema of this operator at this opset version of its domain."""
    return bool(defs.has(op_type, version, domain))


def check_tensor_attributes(domain: str, op_type: str, names: Iterable[str], what: str) -> None:
    """Raise ModelError where an attribute in ``names`` holds a tensor that its operator does not expect.

    What operators expect is told by onnx's newest schemas; operators of com.microsoft expect no tensors there, and
    those of other domains whatever a plug-in reads. Every opset counts: rules also estimate operators that are newer
    than the opset of their file.
    """
    if domain not in ("", ML, MS):
        return
    expected: Mapping[str, Any] = {}
    if defs.has(op_type, domain):
        expected = defs.get_schema(op_type, domain).attributes
    for name in names:
        if name not in expected or expected[name].type not in _TENSORS:
            raise ModelError(f"{what}, attribute {name}: found a tensor, which {op_type} does not expect")


def _proto(type_: ValueType) -> onnx.TypeProto:
    if isinstance(type_, SequenceType):
        if type_.elements:
            inner = _proto(type_.elements[0])
        else:
            inner = onnx.TypeProto()
        if type_.optional:
            return helper.make_optional_type_proto(inner)
        return helper.make_sequence_type_proto(inner)
    return helper.make_tensor_type_proto(ELEMENT_TYPES[type_.dtype], type_.shape)


def infer_by_schema(context: ShapeContext) -> Sequence[ValueType | None] | None:
    """Return the types of all outputs, or None where onnx leaves one open.

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
        protos = shape_inference.infer_node_outputs(schema, node, types, values, opset_imports=opset)
    except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError) as e:
        raise ShapeError(f"onnx: {complaint(e)}") from e
    outputs: list[ValueType | None] = []
    for index in range(context.outputs):
        proto = protos.get(f"o{index}")
        if proto is None:
            return None
        kind, tensor = value_kind(proto)
        if kind != "tensor":
            return None
        type_ = concrete_type(declared_type(tensor, f"output {index}"))
        if type_ is None:
            return None
        outputs.append(type_)
    return outputs


def concrete_type(declared: DeclaredType) -> TensorType | None:
    """Return the type that a declaration stands for, None where it leaves the element type or a dimension open."""
    if declared.dtype is None or declared.shape is None:
        return None
    shape = tuple(d for d in declared.shape if isinstance(d, int))
    if len(shape) < len(declared.shape):
        return None
    return TensorType(declared.dtype, shape)


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return value
