"""Element types of fragments: a float32 fragment in half precision, and what an operator lets its inputs be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import onnx

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import element_type
from gkestimator.profiling.type_names import CountByName

HALVES: Mapping[str, DType] = MappingProxyType({"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16})
_FLOAT_NUMBER = element_type(DType.FLOAT)
_TYPE_ATTRIBUTES = ("to", "dtype")
_BFLOAT16_OPSET = 22  # the first whose Conv, Pool, ... take bfloat16
_FP16_MOST = 65504.0


@lru_cache(maxsize=4096)
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except (onnx.defs.SchemaError, RuntimeError):
        return None  # an operator of a runtime's own domain


@lru_cache(maxsize=4096)
def _always_float(op_type: str, opset: int, domain: str) -> frozenset[int]:
    """Return the positions of inputs that are float32 whatever the element type (Resize's scales)."""
    schema = _schema(op_type, opset, domain)
    inputs = () if schema is None else schema.inputs
    return frozenset(i for i, formal in enumerate(inputs) if formal.type_str == "tensor(float)")


@lru_cache(maxsize=4096)
def _takes(op_type: str, opset: int, domain: str, dtype: str) -> bool:
    schema = _schema(op_type, opset, domain)
    if schema is None or not schema.inputs:
        return True
    return f"tensor({dtype})" in schema.inputs[0].types


def native_dtype(fragment: Fragment) -> str | None:
    """Return the half precision that a fragment's tensors are in already; None where it is in float32 (or in
    integers)."""
    dtypes = {t.dtype for t in fragment.tensors}
    return next((word for word, dtype in HALVES.items() if dtype in dtypes), None)


def in_dtype(fragment: Fragment, dtype: str) -> Fragment | None:
    """Return ``fragment`` with its float32 tensors in the element type of ``dtype`` (one of ``plan.DTYPES``).

    The fragment itself for fp32 and tf32. None where nothing is left to do (a cast to the type it has already), except
    in a whole model, where such a cast stays and does nothing.
    Where an operator takes bfloat16 only from a later opset on, and has the same attributes there, that opset is named.
    """
    half = HALVES.get(dtype)
    if half is None:
        return fragment
    fixed: set[str] = set()
    for node in fragment.nodes:
        floats = _always_float(node.op_type, fragment.opsets.get(node.domain, 1), node.domain)
        fixed.update(name for at, name in enumerate(node.inputs) if at in floats)
    tensors = []
    for tensor in fragment.tensors:
        tensors.append(tensor if tensor.name in fixed else _halved(tensor, half))
    nodes = [_retyped(node, half) for node in fragment.nodes]
    if not fragment.is_model:
        # Converting what is half already would be measured as a copy.
        halves = {tensor.name for tensor in tensors if tensor.dtype is half}
        for node in nodes:
            into_half = node.op_type == "Cast" and node.attributes.get("to") == element_type(half)
            if into_half and node.inputs[0] in halves:
                return None
    return replace(fragment, tensors=tuple(tensors), nodes=tuple(nodes), opsets=_opsets(fragment, half))


def _halved(tensor: FragmentTensor, half: DType) -> FragmentTensor:
    if tensor.dtype is not DType.FLOAT:
        return tensor
    values = tensor.values
    if values is not None and half is DType.FLOAT16:
        values = tuple(_clipped(float(v)) for v in values)
    return replace(tensor, dtype=half, values=values)


def _clipped(number: float) -> float:
    return max(-_FP16_MOST, min(_FP16_MOST, number))


def _retyped(node: FragmentNode, half: DType) -> FragmentNode:
    """Have attributes that say float32 say ``half``: a converted file stores what was float32 in half precision."""
    changed = {
        name: element_type(half) for name in _TYPE_ATTRIBUTES if node.attributes.get(name) == _FLOAT_NUMBER
    }
    if not changed or node.domain:
        return node
    return replace(node, attributes={**node.attributes, **changed})


def _opsets(fragment: Fragment, half: DType) -> CountByName:
    opset = fragment.opsets.get("", 0)
    nodes = [n for n in fragment.nodes if not n.domain]
    if half is not DType.BFLOAT16 or opset >= _BFLOAT16_OPSET:
        return fragment.opsets
    if all(_takes(n.op_type, opset, "", "bfloat16") for n in nodes):
        return fragment.opsets
    for node in nodes:
        before = _schema(node.op_type, opset, "")
        after = _schema(node.op_type, _BFLOAT16_OPSET, "")
        if before is None or after is None:
            return fragment.opsets
        # An attribute that went away, or another input, would make another operator of the node.
        if not before.attributes.keys() <= after.attributes.keys():
            return fragment.opsets
        if len(before.inputs) != len(after.inputs):
            return fragment.opsets
    return {**fragment.opsets, "": _BFLOAT16_OPSET}
