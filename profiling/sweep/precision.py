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
    fixed = {
        name
        for node in fragment.nodes
        for at, name in enumerate(node.inputs)
        if at in _always_float(node.op_type, fragment.opsets.get(node.domain, 1), node.domain)
    }
    tensors = tuple(_halved(t, half) if t.name not in fixed else t for t in fragment.tensors)
    nodes = tuple(_retyped(n, half) for n in fragment.nodes)
    made = replace(fragment, tensors=tensors, nodes=nodes, opsets=_opsets(fragment, half))
    by_name = {t.name: t.dtype for t in tensors}
    if not fragment.is_model and any(
        n.op_type == "Cast"
        and by_name.get(n.inputs[0]) is half
        and n.attributes.get("to") == element_type(half)
        for n in nodes
    ):
        return None
    return made


def _halved(tensor: FragmentTensor, half: DType) -> FragmentTensor:
    if tensor.dtype is not DType.FLOAT:
        return tensor
    values = tensor.values
    if values is not None and half is DType.FLOAT16:
        values = tuple(max(-_FP16_MOST, min(_FP16_MOST, float(v))) for v in values)
    return replace(tensor, dtype=half, values=values)


def _retyped(node: FragmentNode, half: DType) -> FragmentNode:
    """Have attributes that say float32 say ``half``: a converted file stores what was float32 in half precision."""
    changed = {
        name: element_type(half) for name in _TYPE_ATTRIBUTES if node.attributes.get(name) == _FLOAT_NUMBER
    }
    if not changed or node.domain:
        return node
    return replace(node, attributes={**node.attributes, **changed})


def _opsets(fragment: Fragment, half: DType) -> Mapping[str, int]:
    opset = fragment.opsets.get("", 0)
    nodes = [n for n in fragment.nodes if not n.domain]
    if half is not DType.BFLOAT16 or opset >= _BFLOAT16_OPSET:
        return fragment.opsets
    if all(_takes(n.op_type, opset, "", "bfloat16") for n in nodes):
        return fragment.opsets
    for node in nodes:
        before, after = (_schema(node.op_type, v, "") for v in (opset, _BFLOAT16_OPSET))
        if before is None or after is None or not set(before.attributes) <= set(after.attributes):
            return fragment.opsets
        if len(before.inputs) != len(after.inputs):
            return fragment.opsets
    return {**fragment.opsets, "": _BFLOAT16_OPSET}
