"""Follows sizes that are no numbers through a graph: which result is as long along axis 0 as which input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gkestimator.merging.editing import Dims, EditNode, ValueShape
from gkestimator.merging.lifting.bundles import BranchBinder
from gkestimator.merging.lifting.operands import Operand
from gkestimator.merging.lifting.rules import RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Term, Terms

Vectors: TypeAlias = "list[Dims | None]"


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
        if isinstance(entry, tuple):
            found = entry
        else:
            found = None
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
        if name:
            dims = terms.dims(name)
        else:
            dims = None
        if dims:
            size = terms.size(name, 0)
        else:
            size = None
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


def learn_shapes(node: EditNode, terms: Terms) -> None:
    """Note ranks and sizes of the outputs of ``node`` that nothing is known of yet."""
    if node.domain:
        return
    if not node.inputs:
        return
    if all(terms.shape(n) is not None for n in node.writes):
        return
    find = _FINDERS.get(node.op_type)
    first = terms.shape(node.inputs[0])
    if find is None:
        return
    if first is None:
        return
    if len(node.inputs) < _INPUTS.get(node.op_type, 1):
        return
    for name, dims in zip(node.outputs, find(node, terms, first.dims), strict=False):
        if name and dims is not None:
            terms.learn(name, ValueShape(dtype=first.dtype, dims=dims))


def _same(node: EditNode, _terms: Terms, first: Dims) -> Vectors:
    return [first]


def _axis(node: EditNode, rank: int, default: int = 0) -> int:
    axis = node.attributes.get("axis", default)
    if isinstance(axis, int) and rank and -rank <= axis < rank:
        return axis % rank
    return 0


def _concat(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    parts = [terms.dims(n) for n in node.inputs]
    rank = len(first)
    known = [p for p in parts if p is not None and len(p) == rank]
    axis = _axis(node, rank)
    sizes = list(first)
    for place in range(rank):
        found = [p[place] for p in known]
        if place == axis:
            numbers = [f for f in found if f is not None]
            if len(numbers) == len(parts):
                sizes[place] = sum(numbers)
            else:
                sizes[place] = None
        else:
            sizes[place] = next((f for f in found if f is not None), None)
    return [tuple(sizes)]


def _split(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    axis = _axis(node, len(first))
    if len(node.inputs) > 1 and node.inputs[1]:
        given = terms.vector(node.inputs[1])
    else:
        given = None
    found: Vectors = []
    for index in range(len(node.outputs)):
        if given is not None and index < len(given[0]):
            entry = given[0][index]
        else:
            entry = None
        sizes = list(first)
        if isinstance(entry, int):
            sizes[axis] = entry
        else:
            sizes[axis] = None
        found.append(tuple(sizes))
    return found


def _slice(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    given = [terms.vector(n) if n else None for n in node.inputs[1:]]
    if len(given) < 3 or any(g is None for g in given[:3]):
        return [tuple(None for _ in first)]
    sizes = list(first)
    if len(given) > 3 and given[3] is not None:
        steps = given[3][0]
    else:
        steps = (1,) * len(sizes)
    starts, stops, axes = (g[0] for g in given[:3] if g is not None)
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=False):
        if not isinstance(axis, int) or not -len(sizes) <= axis < len(sizes):
            return [tuple(None for _ in first)]
        size = sizes[axis]
        numbers = [n for n in (start, stop, step, size) if isinstance(n, int)]
        if len(numbers) == 4 and numbers[2]:
            sizes[axis] = len(range(numbers[3])[slice(*numbers[:3])])
        else:
            sizes[axis] = None
    return [tuple(sizes)]


def _broadcast(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    parts = [terms.dims(n) for n in node.inputs if n]
    if any(p is None for p in parts):
        return [None]
    rank = max(len(p) for p in parts if p is not None)
    aligned = [(1,) * (rank - len(p)) + p for p in parts if p is not None]
    sizes: list[int | None] = []
    for column in zip(*aligned, strict=True):
        above = [c for c in column if c is not None and c != 1]
        # a size that is not known may be 1 or what another has; with all others 1 it is itself, not known
        sizes.append(above[0] if above else None if None in column else 1)
    return [tuple(sizes)]


def _matmul(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    second = terms.dims(node.inputs[1])
    if second is None or len(second) != 2 or len(first) < 2:
        return [None]
    return [(*first[:-1], second[1])]


def _gemm(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    second = terms.dims(node.inputs[1])
    if second is None or len(second) != 2 or len(first) != 2:
        return [None]
    rows = first[1 if node.attributes.get("transA", 0) else 0]
    return [(rows, second[0 if node.attributes.get("transB", 0) else 1])]


def _conv(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    weight = terms.dims(node.inputs[1])
    return [None if weight is None else (first[0], weight[0], *(None,) * (len(first) - 2))]


def _reshape(node: EditNode, terms: Terms, first: Dims) -> Vectors:
    shape = terms.vector(node.inputs[1])
    if shape is None or shape[1]:
        return [None]
    return [tuple(e if isinstance(e, int) and e > 0 else None for e in shape[0])]


def _pad(node: EditNode, _terms: Terms, first: Dims) -> Vectors:
    return [tuple(None for _ in first)]


def _transpose(node: EditNode, _terms: Terms, first: Dims) -> Vectors:
    perm = node.attributes.get("perm", tuple(reversed(range(len(first)))))
    if not isinstance(perm, tuple) or len(perm) != len(first):
        return [None]
    return [tuple(first[p] for p in perm if isinstance(p, int))]


_FINDERS: Mapping[str, Callable[[EditNode, Terms, Dims], Vectors]] = {
    **dict.fromkeys(("Identity", "Relu", "Clip", "Neg", "Sigmoid", "Tanh"), _same),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum"), _broadcast),
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "Reshape": _reshape,
    "Pad": _pad,
    "Transpose": _transpose,
}
_INPUTS: Mapping[str, int] = dict.fromkeys(("MatMul", "Gemm", "Conv", "Reshape"), 2)
