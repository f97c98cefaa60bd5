"""Open ONNX files as graphs that can be changed and written again, with weights that stay in their files."""

from __future__ import annotations

from gkestimator.merging.editing.combining import alive, combine, operator_name, order_nodes, tidy
from gkestimator.merging.editing.form import (
    AttributeValue,
    BatchSizes,
    Dims,
    DimSizes,
    EditableModel,
    EditNode,
    Models,
    Names,
    Replaces,
    Shapes,
    ValueInfo,
    ValueShape,
    Weight,
    Weights,
)
from gkestimator.merging.editing.opsets import LEAST_OPSET, align_opsets
from gkestimator.merging.editing.protos import check_editable
from gkestimator.merging.editing.reading import read_editable
from gkestimator.merging.editing.shapes import batch_dims, fix_dims, graph_of, symbolic_dims, value_shapes
from gkestimator.merging.editing.tensors import make_weight
from gkestimator.merging.editing.values import Held, Mapped, Numbers, Rearranged, ValueBlock, Values
from gkestimator.merging.editing.writing import write_editable

__all__ = [
    "LEAST_OPSET",
    "AttributeValue",
    "BatchSizes",
    "DimSizes",
    "Dims",
    "EditNode",
    "EditableModel",
    "Held",
    "Mapped",
    "Models",
    "Names",
    "Numbers",
    "Rearranged",
    "Replaces",
    "Shapes",
    "ValueBlock",
    "ValueInfo",
    "ValueShape",
    "Values",
    "Weight",
    "Weights",
    "align_opsets",
    "alive",
    "batch_dims",
    "check_editable",
    "combine",
    "fix_dims",
    "graph_of",
    "make_weight",
    "operator_name",
    "order_nodes",
    "read_editable",
    "symbolic_dims",
    "tidy",
    "value_shapes",
    "write_editable",
]
