"""Conversion between floating point and quantised integers."""

from __future__ import annotations

from gkestimator.core.graph import Operator, OperatorGraph
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    input_at,
    memory_kernel,
    output_at,
    reduction_kernel,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

QUANTIZE_FLOPS = 5  # divide, round, add the zero point, saturate at both ends
DEQUANTIZE_FLOPS = 2  # subtract the zero point, multiply


def is_quantised(graph: OperatorGraph) -> bool:
    """Return True when ``graph`` holds operators on quantised activations (QDQ pairs, QOperators, dynamic ones).

    Weights alone in few bits do not count: they are still multiplied in floating point.
    """
    return any(traits_of(op.key).quantised for op in graph.operators)


@lowering_rule("QuantizeLinear", kind="quantize", autocast="declared", quantised=True)
@lowering_rule("QuantizeLinear", domain="com.microsoft", kind="quantize", autocast="declared", quantised=True)
def quantize(op: Operator, options: LoweringOptions) -> Lowered:
    """x / scale, rounded, shifted, saturated."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        tensor_inputs(op),
        (result,),
        flops=QUANTIZE_FLOPS * result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("DequantizeLinear", kind="dequantize", autocast="declared")
@lowering_rule("DequantizeLinear", domain="com.microsoft", kind="dequantize", autocast="declared")
def dequantize(op: Operator, options: LoweringOptions) -> Lowered:
    """(x - zero point) x scale."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.QUANTIZE,
        "dequantize",
        tensor_inputs(op),
        (result,),
        flops=DEQUANTIZE_FLOPS * result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("DynamicQuantizeLinear", kind="quantize", autocast="declared", quantised=True)
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
