"""Kernels over rows (normalisations, softmax, reductions) with the element-wise operators that make their rows.

A normalisation also takes an activation behind it, and the sum of a residual before it, as the "skip" normalisations of
BERT engines do; a sum that is read elsewhere too (networks that normalise first) stays with the product before it.
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Operator, Tensor
from gkestimator.lowering.patterns.match import Match
from gkestimator.lowering.patterns.normalisation import match_group_norm, match_layer_norm, match_rms_norm
from gkestimator.lowering.patterns.tensorrt.extended import extended
from gkestimator.lowering.patterns.tensorrt.regions import (
    constants_alone,
    grown_backwards,
    grown_forwards,
    joins,
    only_result,
)
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch
from gkestimator.operators.registry import LoweringOptions

_WRITTEN_OUT = {"Sqrt": (match_layer_norm, match_rms_norm), "InstanceNormalization": (match_group_norm,)}


def match_norm(view: GraphView, index: int, options: LoweringOptions) -> Match:
    """Return the normalisation at (or written out around) index ``index``, with the residual's sum before it and the
    activation behind it.
    """
    written = _written_out(view, index, options)
    if written is None:
        core = view.operators[index]
        own: Indices = [index]
        if core.op_type == "Sqrt":
            raise view.mismatch(index, "is part of no normalisation")
    else:
        core = written.operator
        own = list(written.covered)
    before = _residual(view, core, own)
    after: Indices = []
    if only_result(view, own[-1]) is not None:
        after = grown_forwards(view, view.result(own[-1]), constants_alone)
    if not before and not after:
        if written is None:
            raise view.mismatch(index, "adds no residual and no activation follows")
        return written
    return extended(view, "norm", core, own, [*before, *after], options, prologue=bool(before))


def _written_out(view: GraphView, index: int, options: LoweringOptions) -> Match | None:
    """Return the match of a normalisation that is written out in operators, None where none is."""
    problem: Mismatch | None = None
    for matcher in _WRITTEN_OUT.get(view.operators[index].op_type, ()):
        try:
            return matcher(view, index, options)
        except Mismatch as mismatch:
            problem = problem or mismatch
    if problem is not None and view.operators[index].op_type == "Sqrt":
        raise problem
    return None


def _residual(view: GraphView, core: Operator, own: Indices) -> Indices:
    """Return the Add of two activations that makes what ``core`` normalises and which nothing else reads, with the
    additions of biases before it.
    """
    x = core.inputs[0]
    add = view.made_by(x, "Add")
    if add is None or not isinstance(x, Tensor) or not set(own).issuperset(view.consumers.get(x.name, ())):
        return []
    operands = view.either_order(add)[0]
    plain = all(value.shape == x.shape and not value.is_weight for value in operands)
    if not plain or x.name in view.outputs or not joins(view, add, x.shape):
        return []
    added = [add]
    for value in operands:
        biased = view.added_bias(value)
        if biased is not None and view.sole_reader(value) is not None and view.free(biased[0]):
            added.append(biased[0])
    return added


def match_rows(view: GraphView, index: int, options: LoweringOptions) -> Match:
    """Return the softmax or reduction at index ``index`` with the element-wise operators that make its rows; after a
    softmax also those that follow (the guard of rows without a key).
    """
    core = view.operators[index]
    x = view.operand(index, 0)
    if only_result(view, index) is None:
        raise view.mismatch(index, "gives several results")
    before: set[int] = set()
    if x.name not in view.outputs:
        before = grown_backwards(view, (index,), (x,), x.shape)
    after: Indices = []
    if core.op_type in ("Softmax", "LogSoftmax"):
        after = grown_forwards(view, view.result(index), constants_alone)
    if not before and not after:
        raise view.mismatch(index, "reads no element-wise result that nothing else reads")
    if any(isinstance(value, Tensor) and value.name == x.name for value in core.inputs[1:]):
        raise view.mismatch(index, f"reads {x.name} twice")
    return extended(
        view,
        "rows",
        replace(core, inputs=core.inputs[:1]),
        [index],
        [*before, *after],
        options,
        prologue=bool(before),
    )
