"""Hold what binding knows of a value: its type, and its value where that is small and known. Interned, so
compared by id.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import LimitError, ShapeError
from gkestimator.onnx_io.reading import limits
from gkestimator.operators.registry import SequenceType, TensorType, ValueType

Known: TypeAlias = "np.ndarray | tuple[np.ndarray, ...] | None"


class Fact:
    """Hold a type and a known value. Two facts of one pool are equal if and only if they are the same object."""

    __slots__ = ("id", "type", "value")

    def __init__(self, id_: int, type_: ValueType, value: Known) -> None:
        self.id = id_
        self.type = type_
        self.value = value


Facts: TypeAlias = Sequence[Fact | None]
"""What is known of the inputs or outputs of a node; None: left out."""
Types: TypeAlias = Sequence[ValueType | None]
"""Types of the inputs or outputs of a node; None: left out."""


class FactPool:
    """Intern facts; ids start at 1 (0 stands for an omitted input)."""

    def __init__(self) -> None:
        self._facts: dict[Hashable, Fact] = {}
        self._made = 0
        self.known_bytes = 0

    def forget(self) -> None:
        """Start anew; facts that exist stay valid and distinct from new ones."""
        self._facts.clear()
        self.known_bytes = 0

    def intern(self, type_: ValueType, value: Known = None) -> Fact:
        """Return the one fact with this type and value. Values are made read-only."""
        size = sum(array.nbytes for array in _arrays(value))
        if size > limits.MAX_SMALL and self.known_bytes + size > limits.MAX_KNOWN_BYTES:
            value = None
            size = 0
        key: Hashable = (type_, _value_key(value))
        fact = self._facts.get(key)
        if fact is None:
            for array in _arrays(value):
                array.flags.writeable = False
            self._made += 1
            self.known_bytes += size
            fact = self._facts[key] = Fact(self._made, type_, value)
        return fact


def _arrays(value: Known) -> tuple[np.ndarray, ...]:
    if value is None:
        return ()
    if isinstance(value, tuple):
        return value
    return (value,)


def _value_key(value: Known) -> Hashable:
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_value_key(v) for v in value)
    if value.dtype == object:
        return (value.shape, tuple(map(str, value.ravel())))
    return (value.dtype.str, value.shape, value.tobytes())


def check_type(type_: ValueType) -> ValueType:
    """Return ``type_`` with plain int dims.

    Raises ShapeError on a negative dimension, LimitError on one too large.
    """
    if isinstance(type_, SequenceType):
        limits.check("sequence_tensors", len(type_.elements), "a sequence")
        return type_
    shape = type_.shape
    for dim in shape:
        if type(dim) is not int:
            type_ = TensorType(type_.dtype, tuple(map(int, shape)), type_.bounded)
            shape = type_.shape
            break
    if shape:
        if min(shape) < 0:
            raise ShapeError(f"an output would have the negative dimension {min(shape)}")
        if len(shape) > limits.MAX_RANK:
            raise LimitError(
                f"an output has {len(shape)} dimensions; at most {limits.MAX_RANK} are supported"
            )
        if math.prod(shape) >= limits.MAX_ELEMENTS:
            raise LimitError(f"an output has {math.prod(shape)} elements; fewer than 2^63 are supported")
    return type_


def foldable(type_: ValueType) -> bool:
    """Return whether a value of this type is small enough to be evaluated."""
    if isinstance(type_, SequenceType):
        total = sum(math.prod(t.shape) for t in type_.elements)
        return total <= limits.MAX_FOLD_ELEMENTS and all(foldable(t) for t in type_.elements)
    elements = math.prod(type_.shape)
    return elements <= limits.MAX_FOLD_ELEMENTS and type_.dtype.nbytes(elements) <= limits.MAX_FOLD_BYTES
