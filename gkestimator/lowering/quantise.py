"""Conversion between floating point and quantised integers."""

from __future__ import annotations

from gkestimator.graph import Operator, OperatorGraph
from gkestimator.kernels import Family
from gkestimator.lowering.builders import (
    input_at,
    memory_kernel,
    output_at,
    reduction_kernel,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.lowering.registry import Lowered, LoweringOptions, lowering_rule

__all__ = ["DEQUANTIZE_FLOPS", "QUANTIZE_FLOPS", "is_quantised"]

QUANTIZE_FLOPS = 5  # divide, round, add the zero point, saturate at both ends
DEQUANTIZE_FLOPS = 2  # subtract the zero point, multiply

# Operators that make or take quantised activations; weights alone in few bits are still multiplied in floating point.
_QUANTISED = frozenset(
    {("", name) for name in (
        "QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger",
    )}
    | {("com.microsoft", name) for name in (
        "QuantizeLinear", "QLinearConv", "QLinearAdd", "QLinearMul", "QGemm", "QAttention", "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulInteger16", "QuantizeWithOrder", "QOrderedMatMul",
        "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization",
    )}
)  # fmt: skip


def is_quantised(graph: OperatorGraph) -> bool:
    """Whether ``graph`` holds operators on quantised activations (QDQ pairs, QOperators, dynamic quantisation)."""
    return any(op.key in _QUANTISED for op in graph.operators)


@lowering_rule("QuantizeLinear", kind="quantize")
@lowering_rule("QuantizeLinear", domain="com.microsoft", kind="quantize")
def quantize(op: Operator, options: LoweringOptions) -> Lowered:
    """x / scale, rounded, shifted, saturated."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.QUANTIZE, "quantize", tensor_inputs(op), (result,), flops=QUANTIZE_FLOPS * result.elements,
        rows=result.elements,
    )  # fmt: skip
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("DequantizeLinear", kind="dequantize")
@lowering_rule("DequantizeLinear", domain="com.microsoft", kind="dequantize")
def dequantize(op: Operator, options: LoweringOptions) -> Lowered:
    """(x - zero point) x scale."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.QUANTIZE, "dequantize", tensor_inputs(op), (result,), flops=DEQUANTIZE_FLOPS * result.elements,
        rows=result.elements,
    )  # fmt: skip
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("DynamicQuantizeLinear", kind="quantize")
def dynamic_quantize(op: Operator, options: LoweringOptions) -> Lowered:
    """Minimum and maximum of the tensor (2 an element), then quantisation with the scale that follows (8
    FLOPs once).
    """
    source = input_at(op, 0)
    writes = tensor_outputs(op)
    extrema = reduction_kernel("min_max", source, writes[1:], kept=1, per_element=2, per_row=8)
    kernel = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        (source, *writes[1:]),
        writes[:1],
        flops=QUANTIZE_FLOPS * source.elements,
        rows=source.elements,
    )
    return Lowered(kernels=(extrema, kernel), host_calls=1)
