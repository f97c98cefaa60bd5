"""Types of outputs that the file leaves open, which ONNX's checker asks for."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx.shape_inference

from gkestimator.merging.editing.checking import FAILURES
from gkestimator.merging.editing.form import EditableModel, ValueInfo
from gkestimator.merging.editing.protos import to_proto, value_of


def with_output_types(model: EditableModel) -> EditableModel:
    """``model`` with the type and rank of every output, where ONNX's shape inference finds what the file does not say.

    Sizes that are neither numbers nor dimensions of an input stay open.
    """
    if all(o.opaque is not None or (o.dtype is not None and o.shape is not None) for o in model.outputs):
        return model
    try:
        proto = onnx.shape_inference.infer_shapes(to_proto(model, large="inputs"), data_prop=True)
    except FAILURES:
        return model  # what is wrong with it is said where it is checked
    known = {d for i in model.inputs for d in i.shape or () if isinstance(d, str)}
    found = {o.name: value_of(o, "output") for o in proto.graph.output}
    return replace(model, outputs=[_completed(o, found.get(o.name, o), known) for o in model.outputs])


def _completed(value: ValueInfo, found: ValueInfo, known: set[str]) -> ValueInfo:
    if value.opaque is not None or found.opaque is not None or (value.dtype and value.shape is not None):
        return value
    shape = found.shape and tuple(d if isinstance(d, int) or d in known else None for d in found.shape)
    return replace(
        value,
        dtype=found.dtype if value.dtype is None else value.dtype,
        shape=shape if value.shape is None else value.shape,
    )
