"""Tensors that note when a rule reads their value, so that what the rule says is remembered under that value.

A rule may reach ``Tensor.value`` through any helper; the operator that it is handed holds the same tensors with a
``value`` that keeps a record. Everything else of them is as in the operator of the graph.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gkestimator.core.graph import Operator, Sequence, Tensor, Value
from gkestimator.operators.builders import tensors_of

_STORED = Tensor.__dict__["value"]  # the slot that the property below stands before


class _NotingTensor(Tensor):
    """Note a tensor that is looked at: it adds its place to ``noted`` whenever somebody looks at its value."""

    __slots__ = ("noted", "place")
    noted: set[int]
    place: int

    @property
    def value(self) -> np.ndarray | None:
        """Return the folded value, None where there is none; that it was looked at is noted."""
        # A copy that a rule makes (dataclasses.replace) has no place: it read the value when it was made.
        if hasattr(self, "place"):
            self.noted.add(self.place)
        return _STORED.__get__(self)  # type: ignore[no-any-return]

    @value.setter
    def value(self, value: np.ndarray | None) -> None:
        _STORED.__set__(self, value)


def leaf_tensors(op: Operator) -> list[Tensor]:
    """Return the tensors among the inputs and outputs of ``op``, elements of sequences included, in order."""
    return tensors_of((*op.inputs, *op.outputs))


def with_noting_tensors(op: Operator) -> tuple[Operator, set[int]]:
    """Return ``op`` with tensors that note when their value is read, and the set in which they note their place.

    Places count :func:`leaf_tensors`. A tensor that stands in several places stays one object, which has the first.
    Tensors without a value stay as they are, so most operators do: which have one is part of an operator's
    signature.
    """
    noted: set[int] = set()
    made: dict[int, Tensor] = {}
    for place, tensor in enumerate(leaf_tensors(op)):
        if tensor.value is not None and id(tensor) not in made:
            made[id(tensor)] = _noting(tensor, place, noted)
    if not made:
        return op, noted

    def noting(value: Value | None) -> Value | None:
        if isinstance(value, Sequence):
            return replace(value, elements_=tuple(made.get(id(t), t) for t in value.elements_))
        return made.get(id(value), value)

    inputs = tuple(noting(value) for value in op.inputs)
    outputs = tuple(noting(value) for value in op.outputs)
    return replace(op, inputs=inputs, outputs=outputs), noted


def _noting(tensor: Tensor, place: int, noted: set[int]) -> Tensor:
    copy = _NotingTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        storage=tensor.storage,
        is_weight=tensor.is_weight,
        bounded=tensor.bounded,
        value=tensor.value,
    )
    object.__setattr__(copy, "noted", noted)
    object.__setattr__(copy, "place", place)
    return copy
