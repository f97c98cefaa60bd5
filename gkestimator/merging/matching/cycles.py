"""Which operators can be merged without a cycle in the merged graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gkestimator.merging.editing import EditableModel
from gkestimator.merging.operators import Pair, WeightOperator

_Bits = NDArray[np.uint8]


class Contraction:
    """The models' graphs side by side, in which operators are contracted to one node, pair by pair.

    Only the operators count, so what is kept is who reaches whom among them: a row of bits by operator, 5 MB for
    64 models of 75. Contracting two updates the rows of those above and below alone. An operator is known by its
    model and its index among the model's operators.
    """

    def __init__(
        self, models: Sequence[EditableModel], operators: Sequence[Sequence[WeightOperator]]
    ) -> None:
        """``operators[m]``: those of ``models[m]``, whose ``position`` is their node's index."""
        self._first: list[int] = []
        count = 0
        for own in operators:
            self._first.append(count)
            count += -(-len(own) // 8) * 8  # a model's bits begin with a byte
        # By operator its unit, named by one of its operators; by unit who is in it, above it, below it.
        self._of: NDArray[np.int64] = np.arange(count)
        self._members: _Bits = np.packbits(np.eye(count, dtype=bool), axis=1)
        self._above: _Bits = np.zeros((count, count // 8), np.uint8)
        self._below: _Bits = np.zeros((count, count // 8), np.uint8)
        for first, model, own in zip(self._first, models, operators, strict=True):
            rows = _above_each(model, own)
            end = first + rows.shape[0]
            self._above[first:end, first // 8 : end // 8] = np.packbits(rows, axis=1)
            self._below[first:end, first // 8 : end // 8] = np.packbits(rows.T, axis=1)

    def makes_cycle(self, a: Pair, b: Pair) -> bool:
        """Whether one of ``a`` and ``b`` (model, index) needs the other's result, so that they cannot be one."""
        one = self._unit(a)
        other = self._unit(b)
        near = self._above[one] | self._below[one]
        return one != other and bool((near & self._members[other]).any())

    def contract(self, a: Pair, b: Pair) -> None:
        """Make one of ``a`` and ``b`` (model, index). Raises ValueError where that makes a cycle."""
        if self.makes_cycle(a, b):
            raise ValueError(f"contracting {a} and {b} makes a cycle")
        one = self._unit(a)
        other = self._unit(b)
        if one == other:
            return
        for bits in (self._members, self._above, self._below):
            bits[one] |= bits[other]
        self._of[_numbers(self._members[one])] = one
        for bits, along in ((self._below, self._above), (self._above, self._below)):
            bits[np.unique(self._of[_numbers(along[one])])] |= bits[one] | self._members[one]

    def _unit(self, operator: Pair) -> int:
        return int(self._of[self._first[operator[0]] + operator[1]])


def _above_each(model: EditableModel, own: Sequence[WeightOperator]) -> NDArray[np.bool_]:
    """[n, n]: whether operator i needs operator k's result; n is the number of operators, up to a multiple of 8."""
    size = -(-len(own) // 8)
    by_position = {o.position: k for k, o in enumerate(own)}
    above = np.zeros((8 * size, size), np.uint8)
    before: dict[str, int] = {}  # by value the operators that it depends on, as bits
    for position, node in enumerate(model.nodes):
        needs = 0
        for name in node.reads:
            needs |= before.get(name, 0)
        k = by_position.get(position)
        if k is not None:
            above[k] = np.frombuffer(needs.to_bytes(size, "little"), np.uint8)
            needs |= 1 << k
        before.update(dict.fromkeys(node.writes, needs))
    return np.unpackbits(above, axis=1, bitorder="little").astype(bool)


def _numbers(bits: _Bits) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(bits))
