"""Follow sizes through a graph: which result is as long along axis 0 as which input, and the shapes of new
values.

The values that emission adds (pieces, joined inputs, products) have no shape yet; theirs are worked out as
far as lifting needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gkestimator.merging.editing import Dims, EditNode, Numbers, ValueShape
from gkestimator.merging.lifting.bundles import BranchBinder
from gkestimator.merging.lifting.operands import Operand
from gkestimator.merging.lifting.rules import RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Entries, Term, Terms, Vector, integers

_FROM_ZERO = Vector((0,), True)
_BY_ONE = Vector((1,), True)


def spread_sizes(node: EditNode, binder: BranchBinder, terms: Terms) -> None:
    """Note which results are as long along axis 0 as the inputs, where that is no number."""
    open_outputs = [name for name in node.writes if _is_open(name, terms)]
    if not open_outputs:
        return
    size = _size_by_rule(node, binder, terms)
    if size is None and not node.domain:
        size = _size_alone(node, terms)
    if size is None:
        size = _size_by_shape(node, terms)
    if size is not None:
        for name in open_outputs:
            terms.set_size(name, 0, size)


def _is_open(name: str, terms: Terms) -> bool:
    """Return True where the value has an axis 0 whose size is known as its own alone."""
    dims = terms.dims(name)
    if not dims or dims[0] is not None:
        return False
    return terms.size(name, 0) == (name, 0, 1)


def _size_alone(node: EditNode, terms: Terms) -> Term | None:
    """Return how long the result of an operator is that mixes axis 0: counting up, and picking by indices."""
    size: Term | None = None
    if node.op_type == "Range" and len(node.inputs) == 3:
        start, limit, step = map(terms.vector, node.inputs)
        if start == _FROM_ZERO and step == _BY_ONE and limit is not None and limit.scalar:
            size = limit.entries[0]
    elif node.op_type == "GatherND" and node.attributes.get("batch_dims", 0) == 0 and len(node.inputs) == 2:
        ids = node.inputs[1]
        if len(terms.dims(ids) or ()) >= 2:
            size = terms.size(ids, 0)
    if isinstance(size, tuple):
        return size
    return None


def _size_by_shape(node: EditNode, terms: Terms) -> Term | None:
    """Return the first entry of the shape that Reshape or Expand is told, where the result is as long."""
    place = SHAPE_INPUT.get(node.key)
    if place is None or len(node.inputs) <= place:
        return None
    shape = terms.vector(node.inputs[place])
    if shape is None:
        return None
    if shape.scalar:
        return None
    if not shape.entries:
        return None
    size = shape.entries[0]
    if not isinstance(size, tuple):
        return None
    if node.op_type == "Expand" and not _reaches(node, terms, shape.entries):
        return None
    return size


def _reaches(node: EditNode, terms: Terms, entries: Entries) -> bool:
    """Return True where an Expand's first entry is axis 0 of the result and the input is 1 or has no axis
    there.
    """
    dims = terms.dims(node.inputs[0])
    if dims is None:
        return False
    if len(dims) < len(entries):
        return True
    return len(dims) == len(entries) and dims[0] == 1


def _size_by_rule(node: EditNode, binder: BranchBinder, terms: Terms) -> Term | None:
    """Return the size of axis 0 that all inputs of an open size share, if a rule says that the results keep
    it.
    """
    rule = RULES.get(node.key)
    if rule is None:
        return None
    shape_input = SHAPE_INPUT.get(node.key)
    sizes: set[Term] = set()
    operands: list[Operand] = []
    for place, name in enumerate(node.inputs):
        size: Term | None = None
        if terms.dims(name):
            size = terms.size(name, 0)
        bound = binder.find((name,))
        if place == shape_input and (bound is None or bound.operand.role != "absent"):
            operands.append(binder.other((name,)))
        elif isinstance(size, tuple):
            sizes.add(size)
            operands.append(binder.batch((name,)))
        elif bound is not None:
            operands.append(bound.operand)
        else:
            return None
    if len(sizes) != 1:
        return None
    (shared,) = sizes
    rewrite = rule(binder.question((node,), operands, (shared,)))
    if rewrite is None:
        return None
    if rewrite.sizes is None:
        return shared
    return rewrite.sizes[0]


def learn_shapes(node: EditNode, terms: Terms) -> None:
    """Note ranks and sizes of the outputs of ``node`` that nothing is known of yet."""
    if node.domain:
        return
    if not node.inputs:
        return
    if all(terms.shape(name) is not None for name in node.writes):
        return
    first = terms.shape(node.inputs[0])
    if first is None:
        return
    if len(node.inputs) < _INPUTS.get(node.op_type, 1):
        return
    results: list[Dims | None] = []
    # the only helper of several outputs
    if node.op_type == "Split":
        results += _split(node, terms, first.dims)
    elif node.op_type in _FINDERS:
        results.append(_FINDERS[node.op_type](node, terms, first.dims))
    for name, dims in zip(node.outputs, results, strict=False):
        if name and dims is not None:
            terms.learn(name, ValueShape(dtype=first.dtype, dims=dims))


def _same(_node: EditNode, _terms: Terms, first: Dims) -> Dims | None:
    return first


def _rank_alone(_node: EditNode, _terms: Terms, first: Dims) -> Dims | None:
    return (None,) * len(first)


def _axis(node: EditNode, rank: int) -> int:
    axis = node.attributes.get("axis", 0)
    if isinstance(axis, int) and -rank <= axis < rank:
        return axis % rank
    return 0


def _concat(node: EditNode, terms: Terms, first: Dims) -> Dims | None:
    parts = [terms.dims(name) for name in node.inputs]
    known = [dims for dims in parts if dims is not None and len(dims) == len(first)]
    joined = _axis(node, len(first))
    sizes: list[int | None] = []
    for axis, column in enumerate(zip(*known, strict=True)):
        numbers = [size for size in column if size is not None]
        if axis != joined:
            sizes.append(next(iter(numbers), None))
        elif len(numbers) == len(parts):
            sizes.append(sum(numbers))
        else:
            sizes.append(None)
    return tuple(sizes)


def _split(node: EditNode, terms: Terms, first: Dims) -> list[Dims]:
    axis = _axis(node, len(first))
    entries: Entries = ()
    if len(node.inputs) > 1:
        cuts = terms.vector(node.inputs[1])
        if cuts is not None:
            entries = cuts.entries
    results = []
    for index in range(len(node.outputs)):
        sizes = list(first)
        sizes[axis] = None
        if index < len(entries):
            entry = entries[index]
            if isinstance(entry, int):
                sizes[axis] = entry
        results.append(tuple(sizes))
    return results


def _slice(node: EditNode, terms: Terms, first: Dims) -> Dims | None:
    unknown = (None,) * len(first)
    vectors = terms.vectors(node.inputs[1:])
    if vectors is None or len(vectors) < 3:
        return unknown
    starts, stops, axes = (vector.entries for vector in vectors[:3])
    steps: Entries = (1,) * len(axes)
    if len(vectors) > 3:
        steps = vectors[3].entries
    sizes = list(first)
    for axis, *bounds in zip(axes, starts, stops, steps, strict=False):
        if not isinstance(axis, int) or not -len(sizes) <= axis < len(sizes):
            return unknown
        sizes[axis] = _sliced(sizes[axis], integers(bounds))
    return tuple(sizes)


def _sliced(size: int | None, bounds: Numbers | None) -> int | None:
    """Return how many of ``size`` places lie in (start, stop, step)."""
    if size is None or bounds is None:
        return None
    start, stop, step = bounds
    if step == 0:
        return None
    return len(range(size)[start:stop:step])


def _broadcast(node: EditNode, terms: Terms, _first: Dims) -> Dims | None:
    parts = []
    for name in filter(None, node.inputs):
        dims = terms.dims(name)
        if dims is None:
            return None
        parts.append(dims)
    rank = max(map(len, parts))
    aligned = [(1,) * (rank - len(dims)) + dims for dims in parts]
    return tuple(_broadcast_size(column) for column in zip(*aligned, strict=True))


def _broadcast_size(column: Dims) -> int | None:
    larger = [size for size in column if size not in (1, None)]
    if larger:
        return larger[0]
    # A size that is not known may be 1 or what another has; with all others 1 it is itself, not known.
    if None in column:
        return None
    return 1


def _matmul(node: EditNode, terms: Terms, first: Dims) -> Dims | None:
    second = terms.dims(node.inputs[1])
    if second is None:
        return None
    if len(second) != 2:
        return None
    if len(first) < 2:
        return None
    return (*first[:-1], second[1])


def _gemm(node: EditNode, terms: Terms, first: Dims) -> Dims | None:
    second = terms.dims(node.inputs[1])
    if second is None:
        return None
    if len(second) != 2:
        return None
    if len(first) != 2:
        return None
    if node.attributes.get("transA", 0):
        first = first[::-1]
    if node.attributes.get("transB", 0):
        second = second[::-1]
    return (first[0], second[1])


def _conv(node: EditNode, terms: Terms, first: Dims) -> Dims | None:
    weight = terms.dims(node.inputs[1])
    if weight is None:
        return None
    spatial = (None,) * (len(first) - 2)
    return (first[0], weight[0], *spatial)


def _reshape(node: EditNode, terms: Terms, _first: Dims) -> Dims | None:
    shape = terms.vector(node.inputs[1])
    if shape is None or shape.scalar:
        return None
    sizes: list[int | None] = []
    for entry in shape.entries:
        if isinstance(entry, int) and entry > 0:
            sizes.append(entry)
        else:
            sizes.append(None)
    return tuple(sizes)


def _transpose(node: EditNode, _terms: Terms, first: Dims) -> Dims | None:
    perm = node.attributes.get("perm")
    if perm is None:
        return first[::-1]
    if not isinstance(perm, tuple) or len(perm) != len(first):
        return None
    return tuple(first[axis] for axis in perm if isinstance(axis, int))


_FINDERS: Mapping[str, Callable[[EditNode, Terms, Dims], Dims | None]] = {
    **dict.fromkeys(("Identity", "Relu", "Clip", "Neg", "Sigmoid", "Tanh"), _same),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum"), _broadcast),
    "Concat": _concat,
    "Slice": _slice,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "Reshape": _reshape,
    "Pad": _rank_alone,
    "Transpose": _transpose,
}
_INPUTS: Mapping[str, int] = dict.fromkeys(("MatMul", "Gemm", "Conv", "Reshape"), 2)
