"""The number that a ConstantOfShape fills its result with: the one tensor attribute that shape arithmetic reads."""

from __future__ import annotations

from onnx import AttributeProto, TensorProto

from gkestimator.merging.editing.form import EditNode
from gkestimator.merging.editing.tensors import weight_of

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)


def filled_with(node: EditNode) -> int | None:
    """The integer of a ConstantOfShape; None where it is no integer (the default is the float 0).

    Raises ModelError where the attribute holds fewer values than it says.
    """
    for opaque in node.opaque:
        attribute = AttributeProto.FromString(opaque)
        tensor = attribute.t
        if attribute.name == "value" and tensor.data_type in _INTEGERS and tensor.data_location == 0:
            values = weight_of(tensor, "value", None, f"{node.name}: value").values.array().reshape(-1)
            if len(values) == 1:
                return int(values[0])
            return None
    return None
