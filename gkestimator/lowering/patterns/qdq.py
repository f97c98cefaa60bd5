"""Quantised operators between DequantizeLinear and QuantizeLinear: one int8 kernel.

Only under ``dtype = "int8"``, which says that the model shall run in int8. Neither runtime does so by itself
on CUDA: eager torch launches every quantise and dequantise, and onnxruntime's QDQSelectorActionTransformer
(verified on its CPU provider) leaves nodes of the CUDA provider alone (from its sources).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor, Value
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions

Inputs: TypeAlias = "list[Value | None]"

_QOPERATOR = {
    "Conv": ("", "QLinearConv", 10),
    "MatMul": ("", "QLinearMatMul", 21),
    "Gemm": ("com.microsoft", "QGemm", 1),
    "Add": ("com.microsoft", "QLinearAdd", 1),
    "Mul": ("com.microsoft", "QLinearMul", 1),
}


def match_quantised(view: GraphView, index: int, options: LoweringOptions) -> Match:
    """Return the quantised operator around the Conv, MatMul, Gemm, Add or Mul at ``index``."""
    op = view.operators[index]
    domain, op_type, version = _QOPERATOR[op.op_type]
    covered = [index]
    quantised: Inputs = []
    for position in (0, 1):
        value = view.operand(index, position)
        if value.is_weight:
            quantised += [_stored(view, value), None, None]
            continue
        dequantise = view.source(value, "DequantizeLinear")
        quantised += _three(view, dequantise)
        if view.sole_reader(value) is not None:
            covered.append(dequantise)
    extra: Inputs = []
    if len(op.inputs) > 2 and op.inputs[2] is not None:
        bias = view.operand(index, 2)
        origin = view.made_by(bias, "DequantizeLinear")
        extra.append(bias if origin is None else view.operand(origin, 0))
        if origin is not None and view.sole_reader(bias) is not None:
            covered.append(origin)
    elif op.op_type == "Gemm":
        extra.append(None)
    result = view.result(index)
    activation = view.optional_reader(result, "Relu")
    if activation is not None:
        covered.append(activation)
        result = view.result(activation)
    quantise = view.reader(result, "QuantizeLinear")
    covered.append(quantise)
    scale_and_zero = _three(view, quantise)[1:]
    if activation is not None:
        _require_clipping(view, quantise)
    if op.op_type == "Gemm":
        order = (*extra, *scale_and_zero)
    else:
        order = (*scale_and_zero, *extra)
    return fused(
        view,
        "quantised",
        covered,
        op_type=op_type,
        domain=domain,
        version=version,
        inputs=(*quantised, *order),
        attributes=op.attributes,
    )


def _stored(view: GraphView, weight: Tensor) -> Tensor:
    """Return the weight as it lies in memory: binding folds its DequantizeLinear away, the bytes of its storage
    tell.
    """
    if view.weights.get(weight.storage) != weight.elements:
        raise Mismatch(f"{weight.name} is stored in more or fewer than 8 bits, expected a quantised weight")
    return replace(weight, dtype=DType.INT8)


def _require_clipping(view: GraphView, quantise: int) -> None:
    """Raise Mismatch unless quantising clips at zero like a Relu: the zero point is the lowest number of the type."""
    zero_point = view.operators[quantise].inputs[2:3]
    if not zero_point or zero_point[0] is None:
        return  # the default: zero, of an unsigned type
    lowest = {DType.UINT8: 0, DType.INT8: -128, DType.UINT16: 0, DType.INT16: -32768}
    tensor = view.operand(quantise, 2)
    if tensor.value is None:
        values = None
    else:
        values = set(tensor.value.reshape(-1).tolist())
    if values != {lowest.get(tensor.dtype)}:
        raise Mismatch(
            f"{tensor.name} is not the lowest {tensor.dtype.value}, so the Relu before does not vanish"
        )


def _three(view: GraphView, index: int) -> Inputs:
    """Return value, scale and zero point of a QuantizeLinear or DequantizeLinear."""
    inputs: Inputs = list(view.operators[index].inputs[:3])
    if len(inputs) < 2 or not isinstance(inputs[0], Tensor):
        raise view.mismatch(index, f"has {len(inputs)} inputs, expected a value and a scale")
    return inputs + [None] * (3 - len(inputs))
