"""What stands in the merged graph while it grows: single operators and super-operators."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.records import frozen
from gkestimator.merging.editing import ValueBlock
from gkestimator.merging.operators import MergedMember, Rectangle, SuperOperator, WeightMatrix, WeightOperator


@frozen
class Unit:
    """Operators that are one by now, and the block (of the first one's weight) that they share.

    ``keys``: by member its model and its index among the model's operators. A single operator's block is its weight.
    """

    members: tuple[MergedMember, ...]
    keys: tuple[tuple[int, int], ...]
    block: WeightMatrix

    @classmethod
    def single(cls, operator: WeightOperator, key: tuple[int, int]) -> Unit:
        """One operator that nobody has joined."""
        return cls(
            members=(MergedMember(operator=operator, row=0, column=0),), keys=(key,), block=operator.matrix
        )

    @property
    def place(self) -> int:
        """Where it stands among its (first member's) model's operators."""
        return self.keys[0][1]

    def as_super(self) -> SuperOperator:
        """As emission takes it. Its similarity is that of the two members that are least similar."""
        sizes = sorted(m.operator.matrix.elements for m in self.members)
        return SuperOperator(
            members=self.members,
            rows=self.block.rows,
            columns=self.block.columns,
            similarity=2 * self.block.elements / (sizes[-1] + sizes[-2]),
        )

    def similarity_of_last(self) -> float:
        """Of the last member to the one it is least similar to."""
        *others, last = (m.operator.matrix.elements for m in self.members)
        return 2 * self.block.elements / (max(others) + last)


def joined(unit: Unit, other: Unit, shared: Rectangle, *, omega: float) -> Unit | None:
    """``unit`` with the single operator ``other`` in it; ``shared``: what its block and ``other``'s weight share.

    A super-operator's block shrinks to what is shared. That is refused (None) where two members would be similar by
    less than ``omega``, and where less is read once than before: n members read a block once instead of n times, so
    n x ``shared`` must be more than (n - 1) x block.
    """
    before = len(unit.members)
    cut = replace(
        unit.block,
        rows=shared.rows,
        columns=shared.columns,
        values=ValueBlock(
            base=unit.block.values,
            start=(shared.row_a, shared.column_a, 0),
            stop=(shared.row_a + shared.rows, shared.column_a + shared.columns, unit.block.taps),
        ),
    )
    if before > 1 and before * cut.elements <= (before - 1) * unit.block.elements:
        return None
    moved = [replace(m, row=m.row + shared.row_a, column=m.column + shared.column_a) for m in unit.members]
    last = replace(other.members[0], row=shared.row_b, column=shared.column_b)
    grown = Unit(members=(*moved, last), keys=(*unit.keys, *other.keys), block=cut)
    if grown.as_super().similarity >= omega:
        return grown
    return None
