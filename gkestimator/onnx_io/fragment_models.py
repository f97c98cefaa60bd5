"""Fragments to ONNX files and to operator graphs, and operators of bound models to fragments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, ModelError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.core.graph import OperatorGraph
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.reading.convert import convert_model
from gkestimator.onnx_io.reading.tensors import ELEMENT_TYPES

Weights = Callable[[FragmentTensor], np.ndarray]
_IR_VERSION = 8  # what every ONNX Runtime since 1.11 reads; raised where an opset needs more
_LATER = ((19, 9), (21, 10), (23, 11), (24, 12))


def element_type(dtype: DType) -> int:
    """ONNX's number of an element type. Raises ModelError for one that this onnx does not know."""
    number = ELEMENT_TYPES.get(dtype)
    if number is None:
        raise ModelError(f"element type {dtype.value} is not known to onnx {onnx.__version__}")
    return number


def fragment_model(fragment: Fragment, weights: Weights | None = None) -> onnx.ModelProto:
    """The fragment as an ONNX model: inputs of role ``input``, initialisers for the rest.

    ``weights`` gives the values of tensors of role ``weight``; None leaves them out (as external data that is
    never opened), which is enough to read and to lower. Outputs carry no declared type. Raises ModelError for
    an attribute that does not fit its operator.
    """
    inputs = []
    initializers = []
    for tensor in fragment.tensors:
        if tensor.role == "input":
            inputs.append(
                helper.make_tensor_value_info(tensor.name, element_type(tensor.dtype), tensor.shape)
            )
        else:
            initializers.append(_initializer(tensor, weights))
    nodes = [_node(n, fragment.opsets) for n in fragment.nodes]
    outputs = [onnx.ValueInfoProto(name=name) for name in fragment.outputs]
    graph = helper.make_graph(nodes, fragment.op_type, inputs, outputs, initializer=initializers)
    opset = fragment.opsets.get("", 0)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(d, v) for d, v in sorted(fragment.opsets.items())],
        ir_version=max([_IR_VERSION, *(ir for since, ir in _LATER if opset >= since)]),
        producer_name="gkestimator",
    )


def fragment_graph(fragment: Fragment) -> OperatorGraph:
    """The fragment as the operator graph that a model holding it would have. Raises ModelError, ShapeError, ..."""
    try:
        program = convert_model(fragment_model(fragment))
        return Model(program, name=fragment.op_type).bind()
    except GkestimatorError:
        raise
    except (TypeError, AttributeError, ValueError) as e:
        raise ModelError(f"fragment {fragment.op_type}: malformed: {e}") from e


def _initializer(tensor: FragmentTensor, weights: Weights | None) -> TensorProto:
    if tensor.values is not None:
        return helper.make_tensor(tensor.name, element_type(tensor.dtype), tensor.shape, list(tensor.values))
    if weights is not None:
        data = weights(tensor)
        return TensorProto(
            name=tensor.name, data_type=element_type(tensor.dtype), dims=tensor.shape, raw_data=data.tobytes()
        )
    stub = TensorProto(
        name=tensor.name,
        data_type=element_type(tensor.dtype),
        dims=tensor.shape,
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(tensor.nbytes))):
        entry = stub.external_data.add()
        entry.key = key
        entry.value = value
    return stub


def _node(node: FragmentNode, opsets: Mapping[str, int]) -> onnx.NodeProto:
    made = helper.make_node(node.op_type, list(node.inputs), list(node.outputs), domain=node.domain)
    kinds = _attribute_kinds(node, opsets)
    for name, value in node.attributes.items():
        made.attribute.append(_attribute(node, name, value, kinds.get(name)))
    return made


def _attribute_kinds(node: FragmentNode, opsets: Mapping[str, int]) -> Mapping[str, Any]:
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except (onnx.defs.SchemaError, RuntimeError):
        return {}  # an operator of a runtime's own domain: the JSON type decides
    return {name: attribute.type for name, attribute in schema.attributes.items()}


def _attribute(node: FragmentNode, name: str, value: Any, kind: Any) -> onnx.AttributeProto:
    types = onnx.defs.OpSchema.AttrType
    try:
        if kind == types.FLOAT:
            value = float(value)
        elif kind == types.FLOATS:
            value = [float(v) for v in value]
        elif kind in (types.INTS, types.STRINGS) and not isinstance(value, tuple):
            raise TypeError(f"found {value!r}, expected a list")
        made = helper.make_attribute(
            name,
            list(value) if isinstance(value, tuple) else value,
            attr_type=_EMPTY.get(str(kind)) if value == () else None,
        )
    except (TypeError, ValueError) as e:
        raise ModelError(f"{node.op_type}: attribute {name}: {e}") from e
    return made


_EMPTY = {
    "AttrType.INTS": onnx.AttributeProto.INTS,
    "AttrType.FLOATS": onnx.AttributeProto.FLOATS,
    "AttrType.STRINGS": onnx.AttributeProto.STRINGS,
}
