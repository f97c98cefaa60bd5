"""Transpositions that move nothing, which a compiler takes for views: only dimensions of one element change place.

Exporters write them wherever a program does: at batch 1, and for the one token that a decoder adds.
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.operators.registry import Shape


def moving_order(perm: Shape, shape: Shape) -> Shape:
    """Return the axes of ``shape`` in the order that ``perm`` gives them, without those of one element."""
    return tuple([axis for axis in perm if shape[axis] != 1])


def permutation(op: Operator, rank: int) -> Shape:
    """Return the order that a Transpose gives to ``rank`` axes: reversed where it says none."""
    perm = op.attributes.get("perm")
    if isinstance(perm, tuple) and perm:
        return tuple([int(axis) % rank for axis in perm])
    return tuple(range(rank - 1, -1, -1))


def without_idle_copies(graph: OperatorGraph) -> OperatorGraph:
    """Return the graph with a Reshape in the place of each Transpose that moves nothing; the very object where it has
    none.
    """
    operators = []
    changed = False
    for op in graph.operators:
        if _is_idle(op):
            # Another batch may move: no longer what other bindings of the file are. No signature either.
            op = replace(op, op_type="Reshape", attributes={}, signature=None)
            changed = True
        operators.append(op)
    if not changed:
        return graph
    return replace(graph, operators=tuple(operators), structure=None)


def _is_idle(op: Operator) -> bool:
    if op.key != ("", "Transpose") or not isinstance(op.inputs[0], Tensor) or op.inputs[0].is_weight:
        return False
    shape = op.inputs[0].shape
    order = moving_order(permutation(op, len(shape)), shape)
    return order == tuple(sorted(order))
