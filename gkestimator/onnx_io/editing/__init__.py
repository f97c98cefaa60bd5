"""ONNX files as graphs that can be changed and written again, with weights that stay in their files."""

from __future__ import annotations

from gkestimator.onnx_io.editing.checking import check_editable
from gkestimator.onnx_io.editing.combining import alive, combine, tidy
from gkestimator.onnx_io.editing.form import EditableModel, Node, ValueInfo, ValueShape, Weight
from gkestimator.onnx_io.editing.opsets import LEAST_OPSET, align_opsets
from gkestimator.onnx_io.editing.ordering import operator_name, order_nodes
from gkestimator.onnx_io.editing.reading import read_editable
from gkestimator.onnx_io.editing.shapes import batch_dims, fix_dims, graph_of, symbolic_dims, value_shapes
from gkestimator.onnx_io.editing.tensors import make_weight
from gkestimator.onnx_io.editing.values import Block, Held, Mapped, Rearranged, Values
from gkestimator.onnx_io.editing.writing import write_editable

__all__ = [
    "LEAST_OPSET",
    "Block",
    "EditableModel",
    "Held",
    "Mapped",
    "Node",
    "Rearranged",
    "ValueInfo",
    "ValueShape",
    "Values",
    "Weight",
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
