"""ONNX files as graphs that can be changed and written again, with weights that stay in their files."""

from __future__ import annotations

from gkestimator.onnx_io.editing.form import EditableModel, Node, ValueInfo, ValueShape, Weight
from gkestimator.onnx_io.editing.values import Block, Held, Mapped, Rearranged, Values

__all__ = [
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
]
