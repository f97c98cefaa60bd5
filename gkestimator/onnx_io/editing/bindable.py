"""An edited model as one that can be bound to batch sizes and estimated, without the values of its weights."""

from __future__ import annotations

import math

import onnx
from onnx import helper

from gkestimator.dtypes import DType
from gkestimator.errors import GkestimatorError, LimitError, ModelError
from gkestimator.onnx_io import limits
from gkestimator.onnx_io.convert import convert_model
from gkestimator.onnx_io.editing.form import AttributeValue, EditableModel, Node, ValueInfo, Weight
from gkestimator.onnx_io.model import Model

__all__ = ["bindable", "element_type"]

_NUMBERS = {
    DType(name.lower()): number
    for name, number in onnx.TensorProto.DataType.items()
    if name.lower() in {str(d) for d in DType}
}


def element_type(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return _NUMBERS[dtype]


def bindable(model: EditableModel) -> Model:
    """``model`` as :func:`gkestimator.onnx_io.read_model` would have read it from a file.

    Operators of a binding are named like the nodes, tensors like the values. Values of weights are looked at only
    where they may be shape arithmetic (whole numbers up to 65,536 of them, a few floats), so that nothing of a large
    weight is read. Raises ModelError (LimitError) naming the model.
    """
    try:
        return Model(convert_model(_proto(model)), name=model.name)
    except GkestimatorError as e:
        raise type(e)(f"{model.name}: {e}") from e
    except RecursionError as e:
        raise LimitError(f"{model.name}: nested too deeply") from e


def _proto(model: EditableModel) -> onnx.ModelProto:
    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer)
    for domain, version in sorted(model.opsets.items()):
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = model.name
    graph.initializer.extend(_tensor(weight) for weight in model.weights.values())
    graph.input.extend(_value(value) for value in model.inputs)
    graph.output.extend(_value(value) for value in model.outputs)
    graph.node.extend(_node(node) for node in model.nodes)
    return proto


def _tensor(weight: Weight) -> onnx.TensorProto:
    proto = onnx.TensorProto(name=weight.name, data_type=element_type(weight.dtype), dims=weight.shape)
    if _may_be_shape_arithmetic(weight):
        array = weight.values.array()
        proto.raw_data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return proto


def _may_be_shape_arithmetic(weight: Weight) -> bool:
    """As ``tensors.constant`` asks; types that are no whole number of bytes are never folded."""
    dtype, elements = weight.dtype, math.prod(weight.shape)
    if dtype is DType.STRING or dtype.bits % 8 or weight.nbytes > limits.MAX_FOLD_BYTES:
        return False
    whole = dtype.is_integer or dtype is DType.BOOL
    return elements <= (limits.MAX_FOLD_ELEMENTS if whole else limits.MAX_FLOAT_INITIALIZER)


def _value(value: ValueInfo) -> onnx.ValueInfoProto:
    proto = onnx.ValueInfoProto(name=value.name)
    if value.opaque is not None:
        proto.type.ParseFromString(value.opaque)
        return proto
    tensor = proto.type.tensor_type
    if value.dtype is not None:
        tensor.elem_type = element_type(value.dtype)
    if value.shape is None:
        return proto
    tensor.shape.SetInParent()
    for size in value.shape:
        dim = tensor.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif size is not None:
            dim.dim_value = size
    return proto


def _node(node: Node) -> onnx.NodeProto:
    proto = onnx.NodeProto(
        name=node.name, op_type=node.op_type, domain=node.domain, input=node.inputs, output=node.outputs
    )
    for name, value in node.attributes.items():
        proto.attribute.append(_attribute(node, name, value))
    for opaque in node.opaque:
        proto.attribute.add().ParseFromString(opaque)
    return proto


def _attribute(node: Node, name: str, value: AttributeValue) -> onnx.AttributeProto:
    if value == ():
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
    try:
        return helper.make_attribute(name, value)
    except (TypeError, ValueError) as e:
        raise ModelError(f"node {node.name}: attribute {name} is {value!r:.60}: {e}") from e
