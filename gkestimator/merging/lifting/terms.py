"""What is known of sizes: numbers, or which size of which value they are; small integer vectors by their entries.

Two sizes are the same where their terms are equal. A term that is no number names the value and axis it was first
seen at and how often it is taken (``("A/ids", 0, 1)``; 16 for rows = batch x 16); a graph input's named dimensions
are one term wherever the name stands, as ONNX has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import Dims, EditNode, Shapes, ValueInfo, ValueShape, Weight
from gkestimator.merging.editing.tensors import filled_with

#: A number, or so many times the size of a value's axis.
Term: TypeAlias = "int | tuple[str, int, int]"
#: The sizes of several values along one axis.
Sizes: TypeAlias = "tuple[Term, ...]"
#: Entries (None: not known) and whether it is a scalar.
Vector: TypeAlias = "tuple[tuple[Term | None, ...], bool]"
#: Longest vector and largest constant that is looked into.
FEW = 64
_LARGEST = 2**31
_INTEGERS = (DType.INT64, DType.INT32)


class Terms:
    """Sizes and small integer vectors of the values of a graph, found node by node."""

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
        """Element type and sizes; None where the rank is not known."""
        found = self._shapes.get(name)
        weight = self._weights.get(name)
        if found is None and weight:
            return ValueShape(dtype=weight.dtype, dims=weight.shape)
        return found

    def dims(self, name: str) -> Dims | None:
        """Sizes that never change."""
        found = self.shape(name)
        if found is None:
            return None
        return found.dims

    def learn(self, name: str, shape: ValueShape) -> None:
        """Note the shape of a value that had none."""
        self._shapes.setdefault(name, shape)

    def size(self, name: str, axis: int) -> Term:
        """The size of ``axis`` of ``name``; a term of its own where nothing better is known."""
        dims = self.dims(name)
        if dims is not None and axis < len(dims):
            fixed = dims[axis]
        else:
            fixed = None
        if fixed is not None:
            return fixed
        return self._sizes.get((name, axis), (name, axis, 1))

    def set_size(self, name: str, axis: int, term: Term) -> None:
        """Note that the size is another term."""
        if term != (name, axis, 1):
            self._sizes[name, axis] = term

    def vector(self, name: str) -> Vector | None:
        """Entries of a small integer vector or scalar; None where it is not one that is known."""
        found = self._vectors.get(name)
        weight = self._weights.get(name)
        if found is not None or weight is None or weight.dtype not in _INTEGERS:
            return found
        if len(weight.shape) <= 1 and weight.elements <= FEW:
            values = weight.values.array().reshape(-1)
            found = (tuple(int(v) for v in values), not weight.shape)
            self._vectors[name] = found
        return found

    def value(self, name: str) -> np.ndarray | None:
        """Values of a constant of few elements."""
        weight = self._weights.get(name)
        if weight is None or weight.elements > FEW:
            return None
        found = weight.values.array()
        if found.dtype.kind in "biuf":
            return found
        return None

    def work_out(self, node: EditNode) -> None:
        """Note the vector that ``node`` makes, if it is one of those that shapes are made with."""
        if not node.domain:
            evaluate = _EVALUATORS.get(node.op_type)
        else:
            evaluate = None
        if evaluate is None:
            return
        if len(node.outputs) != 1:
            return
        if len(node.inputs) < _INPUTS.get(node.op_type, 1):
            return
        found = evaluate(self, node)
        if found is not None and len(found[0]) <= FEW:
            self._vectors[node.outputs[0]] = found


def scaled(term: Term, times: int, over: int) -> Term | None:
    """``term * times / over``; None where that is not known to be a whole number."""
    if over < 1:
        return None
    number = (term if isinstance(term, int) else term[2]) * times
    if number % over or number >= _LARGEST:
        return None
    if isinstance(term, int):
        return number // over
    return (term[0], term[1], number // over)


def _attribute(node: EditNode, name: str, default: int) -> int:
    found = node.attributes.get(name, default)
    if isinstance(found, int):
        return found
    return default


def _shape(terms: Terms, node: EditNode) -> Vector | None:
    dims = terms.dims(node.inputs[0])
    if dims is None:
        return None
    rank = len(dims)
    start = _attribute(node, "start", 0)
    stop = _attribute(node, "end", rank)
    return tuple(terms.size(node.inputs[0], axis) for axis in range(rank))[start:stop], False


def _size(terms: Terms, node: EditNode) -> Vector | None:
    dims = terms.dims(node.inputs[0])
    known = [d for d in dims or () if d is not None]
    if dims is not None and len(known) == len(dims):
        return ((math.prod(known),), True)
    return None


def _same(terms: Terms, node: EditNode) -> Vector | None:
    return terms.vector(node.inputs[0])


def _cast(terms: Terms, node: EditNode) -> Vector | None:
    # 6 and 7 are ONNX's INT32 and INT64
    if node.attributes.get("to") in (6, 7):
        return terms.vector(node.inputs[0])
    return None


def _cast_like(terms: Terms, node: EditNode) -> Vector | None:
    """A vector, or a scalar 0.0 or 1.0, as the integers of another vector."""
    if terms.vector(node.inputs[1]) is None:
        return None
    found = terms.vector(node.inputs[0])
    value = terms.value(node.inputs[0])
    if found is None and value is not None and value.ndim == 0 and float(value).is_integer():
        return (int(value),), True
    return found


def _as_list(terms: Terms, node: EditNode) -> Vector | None:
    found = terms.vector(node.inputs[0])
    if len(node.inputs) > 1:
        axes = terms.vector(node.inputs[1])
    else:
        axes = None
    single = axes is not None and len(axes[0]) == 1
    if single and found is not None and found[1]:
        return (found[0], False)
    return None


def _as_scalar(terms: Terms, node: EditNode) -> Vector | None:
    found = terms.vector(node.inputs[0])
    if found is not None and not found[1] and len(found[0]) == 1:
        return (found[0], True)
    return None


def _reshape(terms: Terms, node: EditNode) -> Vector | None:
    found = terms.vector(node.inputs[0])
    shape = terms.vector(node.inputs[1])
    if found is None:
        return None
    if shape is None:
        return None
    if shape[1]:
        return None
    if shape[0] == ():
        if len(found[0]) == 1:
            return (found[0], True)
        return None
    if shape[0] in ((-1,), (len(found[0]),)):
        return (found[0], False)
    return None


def _gather(terms: Terms, node: EditNode) -> Vector | None:
    found = terms.vector(node.inputs[0])
    index = terms.vector(node.inputs[1])
    if found is None:
        return None
    if found[1]:
        return None
    if index is None:
        return None
    if _attribute(node, "axis", 0) not in (0, -1):
        return None
    entries = found[0]
    if not all(isinstance(i, int) and -len(entries) <= i < len(entries) for i in index[0]):
        return None
    return tuple(entries[i] for i in index[0] if isinstance(i, int)), index[1]


def _slice(terms: Terms, node: EditNode) -> Vector | None:
    found = terms.vector(node.inputs[0])
    given = [terms.vector(n) if n else None for n in node.inputs[1:]]
    if found is None:
        return None
    if found[1]:
        return None
    if any(g is None and n for g, n in zip(given, node.inputs[1:], strict=True)):
        return None
    bounds: list[int] = []
    for default, place in ((0, 0), (0, 1), (0, 2), (1, 3)):
        if place < len(given):
            one = given[place]
        else:
            one = None
        if one is None:
            entry = default
        elif len(one[0]) == 1:
            entry = one[0][0]
        else:
            entry = None
        if not isinstance(entry, int):
            return None
        bounds.append(entry)
    start, stop, axis, step = bounds
    if axis in (0, -1) and step > 0:
        return (found[0][start:stop:step], False)
    return None


def _concat(terms: Terms, node: EditNode) -> Vector | None:
    parts = [terms.vector(n) for n in node.inputs]
    if any(p is None or p[1] for p in parts):
        return None
    return tuple(entry for p in parts if p is not None for entry in p[0]), False


def _arithmetic(calculate: Callable[[int, int], int | None]) -> Callable[[Terms, EditNode], Vector | None]:
    def evaluate(terms: Terms, node: EditNode) -> Vector | None:
        a = terms.vector(node.inputs[0])
        b = terms.vector(node.inputs[1])
        if a is None or b is None:
            return None
        length = max(len(a[0]), len(b[0]))
        if not length:
            return None
        if any(len(v[0]) not in (1, length) for v in (a, b)):
            return None
        found: list[Term | None] = []
        for x, y in zip(a[0] * (length // len(a[0])), b[0] * (length // len(b[0])), strict=True):
            if isinstance(x, int) and isinstance(y, int):
                number = calculate(x, y)
                found.append(number if number is not None and abs(number) < _LARGEST else None)
            else:
                found.append(_times(x, y) if node.op_type == "Mul" else None)
        return tuple(found), a[1] and b[1]

    return evaluate


def _times(x: Term | None, y: Term | None) -> Term | None:
    """A size times a positive number."""
    if isinstance(x, int):
        number, term = (x, y)
    else:
        number, term = (y, x)
    if isinstance(number, int) and number > 0 and term is not None:
        return scaled(term, number, 1)
    return None


def _filled(terms: Terms, node: EditNode) -> Vector | None:
    shape = terms.vector(node.inputs[0])
    number = filled_with(node)
    if shape is None:
        return None
    if shape[1]:
        return None
    if number is None:
        return None
    if len(shape[0]) > 1:
        return None
    if not shape[0]:
        return (number,), True
    length = shape[0][0]
    if isinstance(length, int) and 0 <= length <= FEW:
        return ((number,) * length, False)
    return None


def _equal(terms: Terms, node: EditNode) -> Vector | None:
    """1 and 0 for true and false; a size is never below 0, whatever it is."""
    a = terms.vector(node.inputs[0])
    b = terms.vector(node.inputs[1])
    if a is None:
        return None
    if b is None:
        return None
    if a[1] != b[1]:
        return None
    if len(a[0]) != len(b[0]):
        return None
    found: list[Term | None] = []
    for x, y in zip(a[0], b[0], strict=True):
        negative = any(isinstance(e, int) and e < 0 for e in (x, y)) and any(
            isinstance(e, tuple) for e in (x, y)
        )
        known = x is not None and (x == y or (isinstance(x, int) and isinstance(y, int)))
        found.append(0 if negative else int(x == y) if known else None)
    return tuple(found), a[1]


def _where(terms: Terms, node: EditNode) -> Vector | None:
    parts = [terms.vector(n) for n in node.inputs]
    known = [p for p in parts if p is not None]
    if len(known) != 3:
        return None
    if len({(len(p[0]), p[1]) for p in known}) != 1:
        return None
    test, yes, no = known
    picked = [None if t is None else y if t else n for t, y, n in zip(test[0], yes[0], no[0], strict=True)]
    return tuple(picked), test[1]


def _divide(a: int, b: int) -> int | None:
    # ONNX's integers divide towards zero
    if b == 0:
        return None
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


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
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    "Div": _arithmetic(_divide),
}
#: How many inputs an operator must have where that is more than one; strangers' files may lack them.
_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("CastLike", "Reshape", "Gather", "Equal", "Add", "Sub", "Mul", "Div"), 2),
    **dict.fromkeys(("Slice", "Where"), 3),
}
