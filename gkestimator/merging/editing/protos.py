"""Turn EditableModels to ModelProtos, check them, and turn nodes between their two forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx
import onnx.checker
import onnx.shape_inference
from onnx import AttributeProto, NodeProto, helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError
from gkestimator.merging.editing.form import AttributeValue, EditableModel, EditNode, Names, ValueInfo, Weight
from gkestimator.merging.editing.tensors import tensor_proto
from gkestimator.onnx_io.fragment_models import element_type
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.names import free_names
from gkestimator.onnx_io.reading.schemas import complaint
from gkestimator.onnx_io.reading.tensors import declared_type, value_kind
from gkestimator.operators.registry import DeclaredType

# What a name that is no UTF-8 text, or a field of an absurd size, ends in.
MALFORMED = (TypeError, AttributeError, UnicodeError, ValueError)
_PLAIN = frozenset(
    getattr(AttributeProto, k) for k in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")
)


def least_ir(opsets: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the IR version that a file with these opsets needs; 4 at least, where initializers need not be
    inputs.
    """
    return max(4, helper.find_min_ir_version_for(list(opsets), ignore_unknown=True))


def may_be_arithmetic(weight: Weight) -> bool:
    """Return True where the values may decide shapes (what ``onnx_io`` would decode of a file): few, and
    numbers.
    """
    if weight.dtype is DType.STRING:
        return False
    if weight.dtype.bits % 8:
        return False
    if weight.nbytes > limits.MAX_FOLD_BYTES:
        return False
    whole = weight.dtype.is_integer or weight.dtype is DType.BOOL
    return weight.elements <= (limits.MAX_FOLD_ELEMENTS if whole else limits.MAX_FLOAT_INITIALIZER)


def to_proto(model: EditableModel, large: str = "bare") -> onnx.ModelProto:
    """Return ``model`` as a ModelProto with the values of the weights that may be shape arithmetic alone.

    ``large``: what becomes of the other weights: ``bare`` initializers without values, ``inputs`` of the
    graph after its own, or ``none`` of any weight.
    """
    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer or None)
    for domain, version in sorted(model.opsets.items()):
        proto.opset_import.add(domain=domain, version=version)
    graph = proto.graph
    graph.name = model.name
    graph.input.extend(_value_proto(value) for value in model.inputs)
    graph.output.extend(_value_proto(value) for value in model.outputs)
    for weight in model.weights.values() if large != "none" else ():
        if may_be_arithmetic(weight):
            graph.initializer.append(tensor_proto(weight, values=True))
        elif large == "bare":
            graph.initializer.append(tensor_proto(weight, values=False))
        else:
            graph.input.append(
                helper.make_tensor_value_info(weight.name, element_type(weight.dtype), weight.shape)
            )
    graph.node.extend(_node_proto(node) for node in model.nodes)
    return proto


def _value_proto(value: ValueInfo) -> onnx.ValueInfoProto:
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


def value_of(proto: onnx.ValueInfoProto, what: str) -> ValueInfo:
    """Return a graph's input or output. Raises ModelError."""
    kind, tensor = value_kind(proto.type)
    if kind != "tensor" or proto.type.WhichOneof("value") != "tensor_type":
        if proto.type.WhichOneof("value") is None:
            return ValueInfo(name=proto.name, dtype=None, shape=None)
        return ValueInfo(name=proto.name, dtype=None, shape=None, opaque=proto.type.SerializeToString())
    declared: DeclaredType = declared_type(tensor, f"{what} {proto.name!r}")
    return ValueInfo(name=proto.name, dtype=declared.dtype, shape=declared.shape)


def _node_proto(node: EditNode) -> NodeProto:
    proto = NodeProto(
        name=node.name, op_type=node.op_type, domain=node.domain, input=node.inputs, output=node.outputs
    )
    for name, value in node.attributes.items():
        proto.attribute.append(_attribute_proto(node, name, value))
    for opaque in node.opaque:
        proto.attribute.add().ParseFromString(opaque)
    return proto


def _attribute_proto(node: EditNode, name: str, value: AttributeValue) -> AttributeProto:
    if value == ():
        return AttributeProto(name=name, type=AttributeProto.INTS)
    try:
        return helper.make_attribute(name, value)
    except (TypeError, ValueError) as e:
        raise ModelError(f"node {node.name}: attribute {name} is {value!r:.60}: {e}") from e


def node_of(proto: NodeProto, name: str) -> EditNode:
    """Return ``proto`` under ``name``. Raises ModelError where it has an attribute twice."""
    attributes: dict[str, AttributeValue] = {}
    opaque: list[bytes] = []
    for attribute in proto.attribute:
        value = _plain(attribute)
        if value is None:
            opaque.append(attribute.SerializeToString(deterministic=True))
        elif attribute.name in attributes:
            raise ModelError(f"node {name} has attribute {attribute.name} twice")
        else:
            attributes[attribute.name] = value
    domain = proto.domain
    return EditNode(
        name=name,
        op_type=proto.op_type,
        inputs=_trimmed(proto.input),
        outputs=_trimmed(proto.output),
        domain="" if domain == "ai.onnx" else domain,
        attributes=attributes,
        opaque=tuple(opaque),
        outer=tuple(sorted(free_names(proto))),
    )


def _trimmed(names: Iterable[str]) -> Names:
    """Return ``names`` without those left out at the end."""
    trimmed = list(names)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return tuple(trimmed)


def _plain(attribute: AttributeProto) -> AttributeValue | None:
    """Return the value of a number, a text or a list of them; None where the attribute has to stay as it is."""
    kind = attribute.type
    if kind not in _PLAIN or attribute.ref_attr_name:
        return None
    if kind == AttributeProto.INT:
        return int(attribute.i)
    if kind == AttributeProto.FLOAT:
        return float(attribute.f)
    if kind == AttributeProto.INTS:
        return tuple(attribute.ints)
    if kind == AttributeProto.FLOATS:
        return tuple(attribute.floats) or None  # an empty list would not tell its type
    try:
        if kind == AttributeProto.STRING:
            return attribute.s.decode()
        return tuple(string.decode() for string in attribute.strings) or None
    except UnicodeDecodeError:
        return None  # bytes that only the operator understands


# What the library's C++ part raises; its own errors are no RuntimeError.
FAILURES = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
)


def check_editable(model: EditableModel) -> None:
    """Run ONNX's checker and strict shape inference on ``model``; large weights are looked at by type and
    shape only.

    Raises ModelError with the checker's first complaint.
    """
    # Weights without values would be refused, or their files looked for: for these checks inputs say the same.
    proto = to_proto(model, large="inputs")
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
        raise ModelError(f"{model.name}: not valid by ONNX's checker: {complaint(e)}") from e
    except FAILURES as e:
        raise ModelError(f"{model.name}: ONNX's checker failed: {complaint(e)}") from e


def _check_nodes(proto: onnx.ModelProto) -> None:
    """Run ONNX's checker on all but the types of outputs, which may be open.

    Shape inference believes nodes: one without an input that it needs ends the process. Raises FAILURES.
    """
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    for output in checked.graph.output:
        output.type.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ()))
    onnx.checker.check_model(checked)


def with_output_types(model: EditableModel) -> EditableModel:
    """Return ``model`` with the type and rank of every output, where ONNX's shape inference finds what the
    file does not say.

    Sizes that are neither numbers nor dimensions of an input stay open.
    """
    # nothing is open: inference would only cost time
    if all(
        value.opaque is not None or (value.dtype is not None and value.shape is not None)
        for value in model.outputs
    ):
        return model
    proto = to_proto(model, large="inputs")
    try:
        _check_nodes(proto)
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except FAILURES:
        return model  # what is wrong with it is said where it is checked
    known: set[str] = set()
    for value in model.inputs:
        known.update(size for size in value.shape or () if isinstance(size, str))
    inferred = {value.name: value_of(value, "output") for value in proto.graph.output}
    outputs = [_completed(value, inferred.get(value.name, value), known) for value in model.outputs]
    return replace(model, outputs=outputs)


def _completed(value: ValueInfo, inferred: ValueInfo, known: set[str]) -> ValueInfo:
    """Return ``value`` with what is open of its type as inferred."""
    if value.opaque is not None or inferred.opaque is not None:
        return value
    dtype = value.dtype
    shape = value.shape
    if dtype is None:
        dtype = inferred.dtype
    if shape is None and inferred.shape is not None:
        sizes = [size if isinstance(size, int) or size in known else None for size in inferred.shape]
        shape = tuple(sizes)
    return replace(value, dtype=dtype, shape=shape)
