"""Follows sizes that are no numbers through a graph: which result is as long along axis 0 as which input."""

from __future__ import annotations

from gkestimator.merging.editing import EditNode
from gkestimator.merging.lifting.bundles import BranchBinder
from gkestimator.merging.lifting.operands import Operand
from gkestimator.merging.lifting.rules import RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Term, Terms


def spread_sizes(node: EditNode, binder: BranchBinder, terms: Terms) -> None:
    """Note which results are as long along axis 0 as the inputs, where that is no number."""
    open_outputs = [
        n for n in node.writes if (terms.dims(n) or (0,))[0] is None and terms.size(n, 0) == (n, 0, 1)
    ]
    if not open_outputs:
        return
    found: Term | None = None
    rule = RULES.get((node.domain, node.op_type))
    shape_input = SHAPE_INPUT.get((node.domain, node.op_type))
    if rule is not None:
        found = _size_by_rule(node, binder, terms)
    if found is None and not node.domain:
        found = _size_alone(node, terms)
    if found is None and shape_input is not None and len(node.inputs) > shape_input:
        vector = terms.vector(node.inputs[shape_input])
        if vector is not None and vector[0] and not vector[1]:
            entry = vector[0][0]
        else:
            entry = None
        found = entry if isinstance(entry, tuple) else None
        if node.op_type == "Expand" and not _reaches(node, terms, vector[0] if vector else ()):
            found = None
    if found is not None:
        for name in open_outputs:
            terms.set_size(name, 0, found)


def _size_alone(node: EditNode, terms: Terms) -> Term | None:
    """Operators that mix axis 0 and still say how long the result is: counting up, and picking by indices."""
    if node.op_type == "Range" and len(node.inputs) == 3:
        start, limit, step = (terms.vector(n) for n in node.inputs)
        counts = start == ((0,), True) and step == ((1,), True) and limit is not None and limit[1]
        if counts and limit is not None and isinstance(limit[0][0], tuple):
            return limit[0][0]
        return None
    if node.op_type == "GatherND" and node.attributes.get("batch_dims", 0) == 0 and len(node.inputs) == 2:
        ids = terms.dims(node.inputs[1])
        if ids is not None and len(ids) >= 2:
            size = terms.size(node.inputs[1], 0)
        else:
            size = None
        if isinstance(size, tuple):
            return size
        return None
    return None


def _reaches(node: EditNode, terms: Terms, entries: tuple[Term | None, ...]) -> bool:
    """Whether an Expand's first entry is axis 0 of the result and the input is 1 there, or has no such axis."""
    dims = terms.dims(node.inputs[0])
    return dims is not None and (len(dims) < len(entries) or (len(dims) == len(entries) and dims[0] == 1))


def _size_by_rule(node: EditNode, binder: BranchBinder, terms: Terms) -> Term | None:
    """The size of axis 0 that all inputs of an open size share, if a rule says that the results keep it."""
    shape_input = SHAPE_INPUT.get((node.domain, node.op_type))
    sizes: set[Term] = set()
    operands: list[Operand] = []
    for place, name in enumerate(node.inputs):
        dims = terms.dims(name) if name else None
        size = terms.size(name, 0) if dims else None
        bound = binder.find((name,))
        if place == shape_input and (bound is None or bound.operand.role != "absent"):
            operands.append(binder.other((name,)))
        elif isinstance(size, tuple):
            sizes.add(size)
            operands.append(binder.batch((name,)))
        elif bound is not None:
            operands.append(bound.operand)
    if len(sizes) != 1 or len(operands) != len(node.inputs):
        return None
    (size,) = sizes
    rule = RULES[node.domain, node.op_type]
    rewrite = rule(binder.question((node,), operands, (size,)))
    if rewrite is None:
        return None
    if rewrite.sizes is None:
        return size
    return rewrite.sizes[0]
