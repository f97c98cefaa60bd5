"""Models of different opsets brought to one."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.onnx_io.editing.form import EditableModel

__all__ = ["align_opsets"]

LEAST = 13  # Split, Squeeze and the reductions take sizes and axes as inputs from there on


def align_opsets(models: Sequence[EditableModel]) -> list[EditableModel]:
    """(first: models already agree)"""
    return list(models)
