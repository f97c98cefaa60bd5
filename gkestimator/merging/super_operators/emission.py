"""Write a super-operator as nodes (USHER, OSDI 2024, section 3.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing import LEAST_OPSET, EditNode, Names, Shapes
from gkestimator.merging.naming import OWN_PREFIX
from gkestimator.merging.operators import PRODUCTS, MergedMember, SuperOperator
from gkestimator.merging.super_operators.convolutions import conv_reason, emit_convolutions
from gkestimator.merging.super_operators.form import Emitted, Sheet
from gkestimator.merging.super_operators.products import emit_products, product_reason


def can_emit(op: SuperOperator, shapes: Shapes) -> str | None:
    """Say why ``op`` cannot be written as nodes; None where it can.

    ``shapes``: what is static of each member's activation, by name.
    """
    if len(op.members) < 2:
        return f"{len(op.members)} member: expected at least two"
    for member in op.members:
        reason = _member_reason(op, member, shapes)
        if reason is not None:
            return reason
    kinds = {member.operator.kind for member in op.members}
    if kinds <= PRODUCTS:
        return product_reason(op, shapes)
    if len(kinds) > 1:
        return f"{' and '.join(sorted(kinds))} cannot run as one"
    return conv_reason(op, shapes)


def _member_reason(op: SuperOperator, member: MergedMember, shapes: Shapes) -> str | None:
    operator = member.operator
    first = op.members[0].operator
    node = operator.node
    matrix = operator.matrix
    if operator.x not in shapes:
        return f"the shape of {node.name}'s input {operator.x} is not known"
    if node.inputs[:2] != (operator.x, operator.weight_name) or node.writes != (operator.y,):
        return f"{node.name} does not read an activation and a weight and write one result"
    if (operator.bias is not None) != (len(node.inputs) > 2 and bool(node.inputs[2])):
        return f"{node.name}'s bias is not constant with one value per column"
    if operator.kind == "matmul" and operator.bias is not None:
        return f"{node.name} is a MatMul with a bias"
    if matrix.dtype is not first.matrix.dtype or matrix.taps != first.matrix.taps:
        return f"{node.name} has weights of another type or kernel than {first.node.name}"
    inside = 0 <= member.row <= matrix.rows - op.rows and 0 <= member.column <= matrix.columns - op.columns
    if not inside or op.rows < 1 or op.columns < 1:
        return f"the shared block is not inside {node.name}'s weight"
    return None


def emit(op: SuperOperator, *, shapes: Shapes, tolerance: float, name: str, opset: int = 13) -> Emitted:
    """Return nodes that multiply the members' activations by the shared block at once and give each member
    its result.

    Ya = Xa Wa and Yb = Xb Wb with Wa[ra:ra+h, ca:ca+w] = Wb[rb:rb+h, cb:cb+w] = C: the columns ca:ca+w of Ya
    are Xa[..., ra:ra+h] C plus the product of the other rows; Xa[..., ra:ra+h] and Xb[..., rb:rb+h] are
    stacked along axis 0 and multiplied by C once. What is left of the weights is in
    :mod:`gkestimator.merging.super_operators.pieces`. Conv the same way, on channels.

    ``shapes``: by name of the activations. ``tolerance``: biases that differ by at most this are one.
    ``name``: new names begin with it; small constants are ``merged/int64[...]``. ``opset``: of the merged
    model's standard domain; from 15 on sizes are read with fewer nodes. Raises ModelError where
    :func:`can_emit` gives a reason.
    """
    reason = can_emit(op, shapes)
    if reason is not None:
        raise ModelError(f"{name}: {reason}")
    # Split takes its sizes as an input from there on
    if opset < LEAST_OPSET:
        raise ModelError(f"{name}: opset {opset}: expected at least {LEAST_OPSET}")
    sheet = Sheet(name=name, opset=opset)
    if op.members[0].operator.kind in PRODUCTS:
        emit_products(sheet, op, shapes, tolerance)
    else:
        emit_convolutions(sheet, op, shapes, tolerance)
    return sheet.emitted()


SHARED = frozenset({"Concat", "Gather", "Pad", "Reshape", "Shape", "Slice", "Split"})


def share_helpers(nodes: Iterable[EditNode]) -> list[EditNode]:
    """Return ``nodes`` of emitted super-operators without those that compute what an earlier one has
    computed.

    Query, key and value of an attention read one activation: their three super-operators stack the same
    values, ask for the same sizes and take apart the same rows. Two nodes compute the same when operator,
    inputs and attributes are equal; all of :data:`SHARED` are deterministic. Each super-operator's nodes must
    come in an order that can be executed, as :func:`emit` gives them. Nodes that write a value of a model
    itself stay.
    """
    renamed: dict[str, str] = {}
    seen: dict[object, Names] = {}
    kept: list[EditNode] = []
    for node in nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        if node.op_type in SHARED and all(name.startswith(OWN_PREFIX) for name in node.outputs):
            attributes = tuple(sorted(node.attributes.items()))
            key = (node.key, inputs, attributes, len(node.outputs))
            first = seen.setdefault(key, node.outputs)
            if first is not node.outputs:
                renamed.update(zip(node.outputs, first, strict=True))
                continue
        kept.append(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
    return kept
