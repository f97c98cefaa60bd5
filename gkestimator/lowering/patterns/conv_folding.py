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
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions


def match_conv_folding(view: GraphView, conv: int, options: LoweringOptions) -> Match:
    """The convolution at index ``conv`` with everything that folds into its weights."""
    op = view.operators[conv]
    weight = view.operand(conv, 1)
    if not weight.is_weight or not weight.shape:
        raise Mismatch(f"{op.name} has computed weights, expected constants")
    channels = weight.shape[0]
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
            break
        follower = view.operators[index]
        if follower.op_type == "BatchNormalization":
            shift = view.operand(index, 2)
            if view.operand(index, 0).name != value.name or not all(
                isinstance(v, Tensor) and v.is_weight for v in follower.inputs[1:]
            ):
                break
            if any(v is not None for v in follower.outputs[1:]):
                break
        else:
            shift = view.other(index, value)
            if not _per_channel(shift, channels, len(value.shape)):
                break
        if bias is None and follower.op_type != "Mul":
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


def _per_channel(tensor: Tensor, channels: int, rank: int) -> bool:
    """A weight of shape (1, C, 1, ...) or (C, 1, ...): one number per output channel."""
    shape = tensor.shape
    if not tensor.is_weight or not shape or tensor.elements != channels or len(shape) not in (rank - 1, rank):
        return False
    return shape[1 - rank] == channels
