"""Hold what is known of sizes: numbers, or which size of which value they are; small integer vectors by their
entries.

Two sizes are the same where their terms are equal. A term that is no number names the value and axis it was
first seen at and how often it is taken (``("A/ids", 0, 1)``; 16 for rows = batch x 16); a graph input's named
dimensions are one term wherever the name stands, as ONNX has it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import Dims, EditNode, Numbers, Shapes, ValueInfo, ValueShape, Weight
from gkestimator.merging.editing.tensors import filled_with

#: A number, or so many times the size of a value's axis.
Term: TypeAlias = "int | tuple[str, int, int]"
#: The sizes of several values along one axis.
Sizes: TypeAlias = "tuple[Term, ...]"
#: What a vector holds; None: not known.
Entries: TypeAlias = "tuple[Term | None, ...]"
#: Longest vector and largest constant that is looked into.
FEW = 64
_LARGEST = 2**31
_INTEGERS = (DType.INT64, DType.INT32)
# ONNX's numbers of INT32 and INT64
_INTEGER_CASTS = (6, 7)


class Vector(NamedTuple):
    """Hold a small integer vector, or a scalar with one entry."""

    entries: Entries
    scalar: bool


class Terms:
    """Collect sizes and small integer vectors of the values of a graph, node by node."""

    def __init__(self, inputs: Iterable[ValueInfo], weights: Mapping[str, Weight], shapes: Shapes) -> None:
        """Start with what graph inputs, weights and known shapes say."""
        self._weights = weights
        self._shapes = dict(shapes)
        self._sizes: dict[tuple[str, int], Term] = {}
        self._vectors: dict[str, Vector] = {}
        named: dict[str, Term] = {}
        for value in inputs:
            for axis, size in enumerate(value.shape or ()):
                if isinstance(size, int):
                    self._sizes[value.name, axis] = size
                elif size is not None:
                    self._sizes[value.name, axis] = named.setdefault(size, (value.name, axis, 1))

    def shape(self, name: str) -> ValueShape | None:
        """Return element type and sizes; None where the rank is not known."""
        if name in self._shapes:
            return self._shapes[name]
        weight = self._weights.get(name)
        if weight is None:
            return None
        return ValueShape(dtype=weight.dtype, dims=weight.shape)

    def dims(self, name: str) -> Dims | None:
        """Return the sizes that never change; None where the rank is not known."""
        shape = self.shape(name)
        if shape is None:
            return None
        return shape.dims

    def learn(self, name: str, shape: ValueShape) -> None:
        """Note the shape of a value that had none."""
        self._shapes.setdefault(name, shape)

    def size(self, name: str, axis: int) -> Term:
        """Return the size of ``axis`` of ``name``; a term of its own where nothing better is known."""
        dims = self.dims(name)
        if dims is not None and axis < len(dims):
            fixed = dims[axis]
            if fixed is not None:
                return fixed
        return self._sizes.get((name, axis), (name, axis, 1))

    def set_size(self, name: str, axis: int, term: Term) -> None:
        """Note that the size is another term."""
        if term != (name, axis, 1):
            self._sizes[name, axis] = term

    def vector(self, name: str) -> Vector | None:
        """Return the entries of a small integer vector or scalar; None where it is not one that is known."""
        if name in self._vectors:
            return self._vectors[name]
        weight = self._weights.get(name)
        if weight is None or weight.dtype not in _INTEGERS:
            return None
        if len(weight.shape) > 1 or weight.elements > FEW:
            return None
        values = weight.values.array().reshape(-1)
        # looked at once: a weight's values lie in a file
        self._vectors[name] = Vector(tuple(values.tolist()), not weight.shape)
        return self._vectors[name]

    def vectors(self, names: Iterable[str]) -> list[Vector] | None:
        """Return :meth:`vector` of each name; None where one of them is not known."""
        vectors = []
        for name in names:
            vector = self.vector(name)
            if vector is None:
                return None
            vectors.append(vector)
        return vectors

    def number(self, name: str) -> int | None:
        """Return the one entry of a vector or scalar where it is a number."""
        vector = self.vector(name)
        if vector is None or len(vector.entries) != 1:
            return None
        entry = vector.entries[0]
        if isinstance(entry, int):
            return entry
        return None

    def value(self, name: str) -> np.ndarray | None:
        """Return the values of a constant of few elements."""
        weight = self._weights.get(name)
        if weight is None or weight.elements > FEW:
            return None
        values = weight.values.array()
        if values.dtype.kind in "biuf":
            return values
        return None

    def work_out(self, node: EditNode) -> None:
        """Note the vector that ``node`` makes, if it is one of those that shapes are made with."""
        evaluate = _EVALUATORS.get(node.op_type)
        if evaluate is None:
            return
        if node.domain:
            return
        if len(node.outputs) != 1:
            return
        if len(node.inputs) < _INPUTS.get(node.op_type, 1):
            return
        vector = evaluate(self, node)
        if vector is not None and len(vector.entries) <= FEW:
            self._vectors[node.outputs[0]] = vector


def integers(entries: Sequence[object]) -> Numbers | None:
    """Return ``entries`` where all of them are numbers, else None."""
    numbers = tuple(entry for entry in entries if isinstance(entry, int))
    if len(numbers) < len(entries):
        return None
    return numbers


def product(dims: Dims) -> int | None:
    """Return the product of sizes that are all known, else None."""
    known = integers(dims)
    if known is None:
        return None
    return math.prod(known)


def multiple(term: Term) -> int:
    """Return the number that a term is, or how often it takes another size."""
    if isinstance(term, int):
        return term
    return term[2]


def scaled(term: Term, times: int, over: int) -> Term | None:
    """Return ``term * times / over``; None where that is not known to be a whole number."""
    if over < 1:
        return None
    dividend = multiple(term) * times
    number, rest = divmod(dividend, over)
    if rest or dividend >= _LARGEST:
        return None
    if isinstance(term, int):
        return number
    return (term[0], term[1], number)


def _attribute(node: EditNode, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    if isinstance(value, int):
        return value
    return default


def _shape(terms: Terms, node: EditNode) -> Vector | None:
    name = node.inputs[0]
    dims = terms.dims(name)
    if dims is None:
        return None
    sizes = tuple(terms.size(name, axis) for axis in range(len(dims)))
    start = _attribute(node, "start", 0)
    stop = _attribute(node, "end", len(dims))
    return Vector(sizes[start:stop], False)


def _size(terms: Terms, node: EditNode) -> Vector | None:
    dims = terms.dims(node.inputs[0])
    if dims is None:
        return None
    elements = product(dims)
    if elements is None:
        return None
    return Vector((elements,), True)


def _same(terms: Terms, node: EditNode) -> Vector | None:
    return terms.vector(node.inputs[0])


def _cast(terms: Terms, node: EditNode) -> Vector | None:
    if node.attributes.get("to") in _INTEGER_CASTS:
        return terms.vector(node.inputs[0])
    return None


def _cast_like(terms: Terms, node: EditNode) -> Vector | None:
    """Return a vector, or a scalar 0.0 or 1.0, as the integers of another vector."""
    name, like = node.inputs[:2]
    if terms.vector(like) is None:
        return None
    vector = terms.vector(name)
    value = terms.value(name)
    if vector is None and value is not None and value.ndim == 0 and float(value).is_integer():
        return Vector((int(value),), True)
    return vector


def _as_list(terms: Terms, node: EditNode) -> Vector | None:
    vectors = terms.vectors(node.inputs[:2])
    if vectors is None or len(vectors) < 2:
        return None
    data, axes = vectors
    if data.scalar and len(axes.entries) == 1:
        return Vector(data.entries, False)
    return None


def _as_scalar(terms: Terms, node: EditNode) -> Vector | None:
    vector = terms.vector(node.inputs[0])
    if vector is not None and not vector.scalar and len(vector.entries) == 1:
        return Vector(vector.entries, True)
    return None


def _reshape(terms: Terms, node: EditNode) -> Vector | None:
    vectors = terms.vectors(node.inputs[:2])
    if vectors is None:
        return None
    data, shape = vectors
    if shape.scalar:
        return None
    if shape.entries in ((-1,), (len(data.entries),)):
        return Vector(data.entries, False)
    if not shape.entries and len(data.entries) == 1:
        return Vector(data.entries, True)
    return None


def _gather(terms: Terms, node: EditNode) -> Vector | None:
    vectors = terms.vectors(node.inputs[:2])
    if vectors is None or _attribute(node, "axis", 0) not in (0, -1):
        return None
    data, indices = vectors
    places = integers(indices.entries)
    if data.scalar or places is None:
        return None
    count = len(data.entries)
    if any(not -count <= place < count for place in places):
        return None
    return Vector(tuple(data.entries[place] for place in places), indices.scalar)


def _slice(terms: Terms, node: EditNode) -> Vector | None:
    data = terms.vector(node.inputs[0])
    if data is None or data.scalar:
        return None
    bounds = []
    # starts, ends, axes, steps
    for place, default in enumerate((0, 0, 0, 1), start=1):
        bound: int | None = default
        if place < len(node.inputs) and node.inputs[place]:
            bound = terms.number(node.inputs[place])
        if bound is None:
            return None
        bounds.append(bound)
    start, stop, axis, step = bounds
    if axis in (0, -1) and step > 0:
        return Vector(data.entries[start:stop:step], False)
    return None


def _concat(terms: Terms, node: EditNode) -> Vector | None:
    vectors = terms.vectors(node.inputs)
    if vectors is None:
        return None
    entries: Entries = ()
    for vector in vectors:
        if vector.scalar:
            return None
        entries += vector.entries
    return Vector(entries, False)


def _arithmetic(calculate: Callable[[int, int], int | None]) -> Callable[[Terms, EditNode], Vector | None]:
    def evaluate(terms: Terms, node: EditNode) -> Vector | None:
        vectors = terms.vectors(node.inputs[:2])
        if vectors is None:
            return None
        a, b = vectors
        length = max(len(a.entries), len(b.entries))
        if not length:
            return None
        if not {len(a.entries), len(b.entries)} <= {1, length}:
            return None
        left = a.entries * (length // len(a.entries))
        right = b.entries * (length // len(b.entries))
        entries: list[Term | None] = []
        for x, y in zip(left, right, strict=True):
            entry: Term | None = None
            if isinstance(x, int) and isinstance(y, int):
                entry = _small(calculate(x, y))
            elif node.op_type == "Mul":
                entry = _times(x, y)
            entries.append(entry)
        return Vector(tuple(entries), a.scalar and b.scalar)

    return evaluate


def _small(number: int | None) -> int | None:
    """Return ``number`` unless a size cannot be so large."""
    if number is None or abs(number) >= _LARGEST:
        return None
    return number


def _times(x: Term | None, y: Term | None) -> Term | None:
    """Return a size times a positive number; None where the two are not one of each."""
    if isinstance(y, int):
        x, y = y, x
    if isinstance(x, int) and x > 0 and y is not None:
        return scaled(y, x, 1)
    return None


def _filled(terms: Terms, node: EditNode) -> Vector | None:
    shape = terms.vector(node.inputs[0])
    number = filled_with(node)
    if shape is None or number is None or shape.scalar:
        return None
    if not shape.entries:
        return Vector((number,), True)
    length = shape.entries[0]
    if len(shape.entries) == 1 and isinstance(length, int) and 0 <= length <= FEW:
        return Vector((number,) * length, False)
    return None


def _equal(terms: Terms, node: EditNode) -> Vector | None:
    """Return 1 and 0 for true and false."""
    vectors = terms.vectors(node.inputs[:2])
    if vectors is None:
        return None
    a, b = vectors
    if a.scalar != b.scalar or len(a.entries) != len(b.entries):
        return None
    return Vector(tuple(map(_same_entry, a.entries, b.entries)), a.scalar)


def _same_entry(x: Term | None, y: Term | None) -> int | None:
    """Return 1 where two entries are equal, 0 where they differ; None where that is not known."""
    for size, number in ((x, y), (y, x)):
        # a size is never below 0, whatever it is
        if isinstance(size, tuple) and isinstance(number, int) and number < 0:
            return 0
    if x is not None and x == y:
        return 1
    if isinstance(x, int) and isinstance(y, int):
        return 0
    return None


def _where(terms: Terms, node: EditNode) -> Vector | None:
    vectors = terms.vectors(node.inputs)
    if vectors is None or len(vectors) != 3:
        return None
    condition, yes, no = vectors
    for vector in (yes, no):
        if len(vector.entries) != len(condition.entries):
            return None
        if vector.scalar != condition.scalar:
            return None
    picked: list[Term | None] = []
    for test, x, y in zip(condition.entries, yes.entries, no.entries, strict=True):
        if test is None:
            picked.append(None)
        elif test:
            picked.append(x)
        else:
            picked.append(y)
    return Vector(tuple(picked), condition.scalar)


def _divide(a: int, b: int) -> int | None:
    """Divide towards zero, as ONNX's integers do."""
    if b == 0:
        return None
    quotient = abs(a) // abs(b)
    if (a < 0) != (b < 0):
        return -quotient
    return quotient


_EVALUATORS: Mapping[str, Callable[[Terms, EditNode], Vector | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Identity": _same,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Unsqueeze": _as_list,
    "Squeeze": _as_scalar,
    "Reshape": _reshape,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Equal": _equal,
    "Where": _where,
    "Add": _arithmetic(operator.add),
    "Sub": _arithmetic(operator.sub),
    "Mul": _arithmetic(operator.mul),
    "Div": _arithmetic(_divide),
}
#: How many inputs an operator must have where that is more than one; strangers' files may lack them.
_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("CastLike", "Reshape", "Gather", "Equal", "Add", "Sub", "Mul", "Div"), 2),
    **dict.fromkeys(("Slice", "Where"), 3),
}
