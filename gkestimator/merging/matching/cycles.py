"""Tell which operators can be merged without a cycle in the merged graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.merging.editing import EditableModel, Models
from gkestimator.merging.operators import Pair, WeightOperator

Bits: TypeAlias = "NDArray[np.uint8]"


class Contraction:
    """Hold the models' graphs side by side, in which operators are contracted to one node, pair by pair.

    Only the operators count, so what is kept is who reaches whom among them: a row of bits by operator, 5 MB
    for 64 models of 75. Contracting two updates the rows of those above and below alone. An operator is known
    by its model and its index among the model's operators.
    """

    def __init__(self, models: Models, operators: Sequence[Sequence[WeightOperator]]) -> None:
        """Begin with every operator apart.

        ``operators[m]``: of ``models[m]``; ``position`` is their node's index.
        """
        self._first: list[int] = []
        count = 0
        for own in operators:
            self._first.append(count)
            count += _whole_bytes(len(own)) * 8  # a model's bits begin with a byte
        # By operator its unit, named by one of its operators; by unit who is in it, above it, below it.
        self._of: NDArray[np.int64] = np.arange(count)
        self._members: Bits = np.packbits(np.eye(count, dtype=bool), axis=1)
        self._above: Bits = np.zeros((count, count // 8), np.uint8)
        self._below: Bits = np.zeros_like(self._above)
        for first, model, own in zip(self._first, models, operators, strict=True):
            above = _above_each(model, own)
            rows = slice(first, first + len(above))
            columns = slice(first // 8, rows.stop // 8)
            self._above[rows, columns] = np.packbits(above, axis=1)
            self._below[rows, columns] = np.packbits(above.T, axis=1)

    def makes_cycle(self, a: Pair, b: Pair) -> bool:
        """Return True where one of ``a`` and ``b`` (model, index) needs the other's result: they cannot be
        one.
        """
        unit = self._unit(a)
        other = self._unit(b)
        if unit == other:
            return False
        # whoever needs the other's result, directly or not, cannot run together with it
        near = self._above[unit] | self._below[unit]
        return bool((near & self._members[other]).any())

    def contract(self, a: Pair, b: Pair) -> None:
        """Make one of ``a`` and ``b`` (model, index). Raises ValueError where that makes a cycle."""
        if self.makes_cycle(a, b):
            raise ValueError(f"contracting {a} and {b} makes a cycle")
        unit = self._unit(a)
        other = self._unit(b)
        if unit == other:
            return
        for bits in (self._members, self._above, self._below):
            bits[unit] |= bits[other]
        self._of[_numbers(self._members[unit])] = unit
        for bits, along in ((self._below, self._above), (self._above, self._below)):
            reached = np.unique(self._of[_numbers(along[unit])])
            bits[reached] |= bits[unit] | self._members[unit]

    def _unit(self, operator: Pair) -> int:
        model, index = operator
        return int(self._of[self._first[model] + index])


def _whole_bytes(bits: int) -> int:
    return -(-bits // 8)


def _above_each(model: EditableModel, own: Sequence[WeightOperator]) -> NDArray[np.bool_]:
    """Return [n, n]: True where operator i needs operator k's result; n: how many there are, up to a multiple
    of 8.
    """
    size = _whole_bytes(len(own))
    by_position = {operator.position: k for k, operator in enumerate(own)}
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


def _numbers(bits: Bits) -> NDArray[np.int64]:
    return np.flatnonzero(np.unpackbits(bits))
