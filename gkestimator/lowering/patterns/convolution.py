"""Operators that onnxruntime folds into a convolution's weights: BatchNormalization, Mul or Add per channel
after Conv.

onnxruntime only (ConvBNFusion, ConvMulFusion, ConvAddFusion: provider-independent, verified). An activation
after the convolution stays a kernel of its own on CUDA: ConvActivationFusion leaves the CUDA provider out
since 1.20 (from its sources; the CPU provider does fuse it). torch eager launches every one of these
operators.
"""

from __future__ import annotations

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch, is_per_channel
from gkestimator.operators.registry import LoweringOptions


def match_conv_folding(view: GraphView, conv: int, options: LoweringOptions) -> Match:
    """Return the convolution at index ``conv`` with everything that folds into its weights."""
    op = view.operators[conv]
    weight = view.operand(conv, 1)
    if not weight.is_weight or not weight.shape:
        raise Mismatch(f"{op.name} has computed weights, expected constants")
    if len(op.inputs) > 2:
        bias = op.inputs[2]
    else:
        bias = None
    if bias is not None and not (isinstance(bias, Tensor) and bias.is_weight):
        raise Mismatch(f"{op.name} has a computed bias, expected a constant")
    covered = [conv]
    value = view.result(conv)
    while True:
        index = view.optional_reader(value, "BatchNormalization", "Mul", "Add")
        if index is None:
            shift = None
        else:
            shift = folded_shift(view, index, value, weight.shape[0])
        if index is None or shift is None:
            break
        if bias is None and view.operators[index].op_type != "Mul":
            bias = shift
        covered.append(index)
        value = view.result(index)
    if len(covered) == 1:
        raise Mismatch(f"nothing after {op.name} folds into its weights")
    return fused(
        view,
        "conv_folding",
        covered,
        op_type="Conv",
        version=op.version,
        inputs=(view.operand(conv, 0), weight, bias),
        attributes=op.attributes,
    )


def folded_shift(view: GraphView, index: int, value: Tensor, channels: int) -> Tensor | None:
    """Return the shift (or factor) per channel that an operator applies to ``value``; None where it does not fold."""
    op = view.operators[index]
    if op.op_type != "BatchNormalization":
        operand = view.other(index, value)
        if is_per_channel(operand, channels, len(value.shape)):
            return operand
        return None
    constant = all(isinstance(v, Tensor) and v.is_weight for v in op.inputs[1:])
    if not view.reads(index, 0, value) or not constant:
        return None
    if any(v is not None for v in op.outputs[1:]):
        return None
    return view.operand(index, 2)
