"""Copies that become one, or none: transpositions with nothing but views between them, and images joined by channels.

Developer Guide, "Types of Fusions": shuffle and shuffle. Concatenations: the builder's log says "Eliminating
concatenation" where kernels write their parts of the result themselves, and "Generating copy" for an operand that does
not move: one that no kernel of the engine writes, or that is part of another concatenation already. Where most do not
(DenseNet joins all layers before, again and again) the concatenation is taken for one kernel that copies all.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator, Tensor
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import GraphView, Indices
from gkestimator.operators.builders import copy_kernel, int_of, scratch, tensor_inputs
from gkestimator.operators.registry import Lowered, LoweringOptions, launched, lowering_rule

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def match_shuffle(view: GraphView, last: int, options: LoweringOptions) -> Match:
    """Return the transpositions that end at index ``last``, with the views between them."""
    covered: Indices = [last]
    passed: Indices = []
    value = view.operand(last, 0)
    source = value
    while view.sole_reader(value) is not None:
        index = view.made_by(value, "Transpose", *_VIEWS)
        if index is None or not view.free(index):
            break
        passed.append(index)
        value = view.operand(index, 0)
        if view.operators[index].op_type == "Transpose":
            covered += passed
            passed = []
            source = value
    if len(covered) == 1:
        raise view.mismatch(last, "follows no other transposition")
    op = view.operators[last]
    return fused(
        view,
        "shuffle",
        covered,
        op_type="Transpose",
        version=op.version,
        inputs=(source,),
        attributes=op.attributes,
    )


def match_concat(view: GraphView, index: int, options: LoweringOptions) -> Match:
    """Return the concatenation of images by channels at index ``index`` with the operands that have to be copied."""
    op = view.operators[index]
    rank = len(view.result(index).shape)
    if rank < 4 or int_of(op, "axis", 1) % rank != 1:
        raise view.mismatch(index, "does not join images by their channels")
    names = [value.name for value in op.inputs if value is not None]
    copied = []
    for place, value in enumerate(op.inputs):
        if not isinstance(value, Tensor) or names.count(value.name) > 1 or not _moves(view, index, value):
            copied.append(place)
    if 2 * len(copied) > len(op.inputs):
        raise view.mismatch(index, "has few operands that their kernels could write in place")
    return fused(
        view,
        "concat",
        (index,),
        op_type="Concat",
        domain=FUSED_DOMAIN,
        inputs=op.inputs,
        attributes={"copied": tuple(copied)},
    )


def _moves(view: GraphView, index: int, value: Tensor) -> bool:
    """Return True where the kernel that makes ``value`` can write it into the result of the Concat at ``index``."""
    maker = view.producer.get(value.name)
    if maker is None or value.name in view.outputs or view.operators[maker].op_type in (*_VIEWS, "Dropout"):
        return False
    for reader in view.consumers.get(value.name, ()):
        if view.operators[reader].op_type == "Concat":
            return reader == index
    return True


@lowering_rule("Concat", domain=FUSED_DOMAIN, kind="copy")
def lower_concat(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a copy for each operand that does not lie in the result already."""
    places = op.attributes.get("copied")
    operands = tensor_inputs(op)
    kernels = []
    for place in places if isinstance(places, tuple) else ():
        operand = operands[int(place)]
        part = scratch(operand, "part", operand.shape)
        kernels.append(copy_kernel("concat", (operand,), (part,)))
    return launched(*kernels, calls=max(1, len(kernels)))
