"""Which operators can be merged without a cycle in the merged graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.merging.operators import WeightOperator
from gkestimator.onnx_io.editing import EditableModel

__all__ = ["Contraction"]


class Contraction:
    """The models' graphs side by side, in which operators are contracted to one node, pair by pair.

    Only the operators count, so what is kept is who reaches whom among them, as bits of integers: a set of 400
    operators is 50 bytes. Contracting two updates those above and below alone. An operator is known by its model
    and its index among the model's operators.
    """

    def __init__(
        self, models: Sequence[EditableModel], operators: Sequence[Sequence[WeightOperator]]
    ) -> None:
        """``operators[m]``: those of ``models[m]``, whose ``position`` is their node's index."""
        self._first = [sum(map(len, operators[:m])) for m in range(len(models))]
        count = sum(map(len, operators))
        self._of = list(range(count))  # by operator its unit, named by one of its operators
        self._members = [1 << n for n in range(count)]  # by unit: operators in it, above it, below it
        self._above = [0] * count
        self._below = [0] * count
        for first, model, own in zip(self._first, models, operators, strict=True):
            by_position = {o.position: first + k for k, o in enumerate(own)}
            before: dict[str, int] = {}  # by value the operators that it depends on
            for position, node in enumerate(model.nodes):
                above = 0
                for name in node.reads:
                    above |= before.get(name, 0)
                number = by_position.get(position)
                if number is not None:
                    self._above[number] = above
                    above |= 1 << number
                before.update(dict.fromkeys(node.writes, above))
            for number in by_position.values():
                for other in _bits(self._above[number]):
                    self._below[other] |= 1 << number

    def makes_cycle(self, a: tuple[int, int], b: tuple[int, int]) -> bool:
        """Whether one of ``a`` and ``b`` (model, index) needs the other's result, so that they cannot be one."""
        one, other = self._unit(a), self._unit(b)
        return one != other and bool(
            (self._below[one] | self._above[one]) & self._members[other]
            or (self._below[other] | self._above[other]) & self._members[one]
        )

    def contract(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        """Make one of ``a`` and ``b`` (model, index). Raises ValueError where that makes a cycle."""
        if self.makes_cycle(a, b):
            raise ValueError(f"contracting {a} and {b} makes a cycle")
        one, other = self._unit(a), self._unit(b)
        if one == other:
            return
        for sets in (self._members, self._above, self._below):
            sets[one] |= sets[other]
            sets[other] = 0
        for number in _bits(self._members[one]):
            self._of[number] = one
        for sets, along in ((self._below, self._above), (self._above, self._below)):
            more = sets[one] | self._members[one]
            for unit in {self._of[number] for number in _bits(along[one])}:
                sets[unit] |= more

    def _unit(self, operator: tuple[int, int]) -> int:
        return self._of[self._first[operator[0]] + operator[1]]


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
