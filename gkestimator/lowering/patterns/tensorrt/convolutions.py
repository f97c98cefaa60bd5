"""Convolutions: padding before them, what folds into their weights, a shortcut's sum, and an activation.

Developer Guide, "Types of Fusions": padding and convolution; convolution and scale; convolution and element-wise sum
(which must not broadcast); convolution and activation; convolution and generic activation (an element-wise chain of
one input). Of two convolutions that are summed, the engines' layers show the sum in the one that runs last.
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Operator, Tensor
from gkestimator.lowering.patterns.convolution import folded_shift
from gkestimator.lowering.patterns.match import Match
from gkestimator.lowering.patterns.products import scales
from gkestimator.lowering.patterns.tensorrt.extended import extended
from gkestimator.lowering.patterns.tensorrt.regions import constants_alone, grown_forwards, joins
from gkestimator.lowering.patterns.view import GraphView, Indices
from gkestimator.operators.registry import LoweringOptions


def match_convolution(view: GraphView, conv: int, options: LoweringOptions) -> Match:
    """Return the convolution at index ``conv`` with everything that its kernel does besides."""
    op = view.operators[conv]
    core, own = _folded(view, conv, op)
    value = view.result(own[-1])
    padding = _padding(view, op)
    own += padding
    added = _summed(view, value)
    if added:
        value = view.result(added[-1])
    added += grown_forwards(view, value, constants_alone)
    if own == [conv] and not added:
        raise view.mismatch(conv, "has nothing around it that its kernel could do")
    for pad in padding:
        source = view.operand(pad, 0)
        core = replace(core, inputs=(source, *core.inputs[1:]))
    return extended(view, "convolution", core, own, added, options)


def _folded(view: GraphView, conv: int, op: Operator) -> tuple[Operator, Indices]:
    """Return the convolution with a bias where one arises, and it with the operators that fold into its weights."""
    own = [conv]
    weight = view.operand(conv, 1)
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    channels = view.result(conv).shape[1]
    value = view.result(conv)
    while weight.is_weight:
        index = view.optional_reader(value, "BatchNormalization", "Mul", "Add", "Sub", "Div")
        if index is None or not view.free(index):
            break
        op_type = view.operators[index].op_type
        if op_type == "Div" and not view.reads(index, 0, value):
            break
        shift = folded_shift(view, index, value, channels)
        if shift is None and (op_type == "BatchNormalization" or not scales(view, index, value)):
            break
        if bias is None and shift is not None and op_type not in ("Mul", "Div"):
            bias = shift
        own.append(index)
        value = view.result(index)
    return replace(op, inputs=(op.inputs[0], weight, bias)), own


def _padding(view: GraphView, op: Operator) -> Indices:
    """Return the Pad by zeros that only the convolution reads."""
    source = op.inputs[0]
    pad = view.made_by(source, "Pad")
    if pad is None or source is None or view.sole_reader(source) is None or not view.free(pad):
        return []
    padding = view.operators[pad]
    if padding.attributes.get("mode", "constant") != "constant" or op.op_type != "Conv":
        return []
    fill = padding.inputs[2] if len(padding.inputs) > 2 else None
    if isinstance(fill, Tensor) and (fill.value is None or fill.value.any()):
        return []
    before = view.operand(pad, 0).shape
    if before[:2] != view.result(pad).shape[:2] or padding.attributes.get("value", 0.0) != 0.0:
        return []
    return [pad]


def _summed(view: GraphView, value: Tensor) -> Indices:
    """Return the Add of another tensor of the same shape that alone reads ``value``."""
    index = view.optional_reader(value, "Add", "Sum")
    if index is None or not joins(view, index, value.shape):
        return []
    op = view.operators[index]
    others = [v for v in op.inputs if isinstance(v, Tensor) and v.name != value.name]
    if len(others) != 1 or others[0].shape != value.shape or others[0].is_weight:
        return []
    # What is quantised before the sum is written in 8 bits: the sum belongs to the convolution on the other side.
    if value.dtype.bits == 8 and others[0].dtype.bits > 8:
        return []
    return [index]
