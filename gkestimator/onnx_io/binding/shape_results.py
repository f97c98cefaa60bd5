"""Check, in one place, what a shape rule of a plug-in returned, as ``lowering/results.py`` does for kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.onnx_io.binding.facts import Types
from gkestimator.operators.records import rule_location
from gkestimator.operators.registry import SequenceType, TensorType


def checked_types(rule: Callable[..., Any], result: object, outputs: int) -> Types:
    """Return ``result`` when it can be the types of a node with so many outputs.

    Raises ShapeError naming the rule and the file it stands in; the caller adds the node.
    """
    fault = _fault(result, outputs)
    if fault:
        raise ShapeError(f"shape {rule_location(rule)} returned {fault}")
    assert isinstance(result, list | tuple)
    return result


def _fault(result: object, outputs: int) -> str:
    if type(result) not in (list, tuple):  # a TensorType is a tuple, too
        return f"{type(result).__name__}, expected a list of TensorType or SequenceType"
    assert isinstance(result, list | tuple)
    if len(result) < outputs:
        return f"{len(result)} types, expected one for each of the node's {outputs} outputs"
    for place, type_ in enumerate(result):
        fault = _type_fault(type_)
        if fault:
            return f"for output {place} {fault}"
    return ""


def _type_fault(type_: Any) -> str:
    if type_ is None:
        return ""
    if isinstance(type_, SequenceType):
        return _sequence_fault(type_.elements)
    if not isinstance(type_, TensorType):
        return f"{type(type_).__name__}, expected TensorType or SequenceType"
    dtype: object = type_.dtype
    shape: object = type_.shape
    if not isinstance(dtype, DType):
        return f"the element type {dtype!r}, expected a DType"
    if not isinstance(shape, tuple):
        return f"the shape {shape!r}, expected a tuple"
    for dim in shape:
        if not isinstance(dim, int | np.integer) or isinstance(dim, bool) or dim < 0:
            return f"the shape {shape!r}, expected integers of at least 0"
    return ""


def _sequence_fault(elements: Any) -> str:
    if not isinstance(elements, tuple):
        return "a sequence of no tensors"
    for element in elements:
        if not isinstance(element, TensorType):
            return "a sequence of no tensors"
        fault = _type_fault(element)
        if fault:
            return fault
    return ""
