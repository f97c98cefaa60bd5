"""What is left of a weight beside the shared block, and the block itself, as views of the members' weights.

    columns:   0      c        c+w     N
             +------+---------+-------+  0
             |      |  above  |       |
             |      +---------+       |  r
             | left |  shared | right |
             |      +---------+       |  r+h
             |      |  below  |       |
             +------+---------+-------+  K

``left`` and ``right`` have all rows, so their products read the whole activation; ``above`` and ``below`` are added
to the member's part of the shared product. (The four blocks are USHER's residual products, section 3.4; which of
them has the corners is our reading: so no product of a corner is computed twice and no sum is longer than three.)
"""

from __future__ import annotations

from dataclasses import dataclass

from gkestimator.merging.operators import Member, SuperOperator
from gkestimator.onnx_io.editing import Block, Values

__all__ = ["Piece", "Pieces", "pieces_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows ``top`` to ``bottom`` and columns ``left`` to ``right`` of a weight; empty where they are equal."""

    hint: str
    top: int
    bottom: int
    left: int
    right: int

    @property
    def empty(self) -> bool:
        """Whether nothing is in it."""
        return self.top >= self.bottom or self.left >= self.right

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.bottom - self.top

    @property
    def columns(self) -> int:
        """How many columns it has."""
        return self.right - self.left

    def values(self, member: Member) -> Values:
        """Its values in ``member``'s weight: a view of [rows, columns, taps]."""
        matrix = member.operator.matrix
        return Block(
            base=matrix.values,
            start=(self.top, self.left, 0),
            stop=(self.bottom, self.right, matrix.taps),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The parts of one member's weight; see the module."""

    shared: Piece
    left: Piece
    right: Piece
    above: Piece
    below: Piece

    @property
    def row_sizes(self) -> tuple[int, int, int]:
        """Rows above, in and below the shared block."""
        return self.above.rows, self.shared.rows, self.below.rows


def pieces_of(op: SuperOperator, member: Member) -> Pieces:
    """The parts of ``member``'s weight."""
    matrix = member.operator.matrix
    top, left = member.row, member.column
    bottom, right = top + op.rows, left + op.columns
    return Pieces(
        shared=Piece(hint="shared", top=top, bottom=bottom, left=left, right=right),
        left=Piece(hint="left", top=0, bottom=matrix.rows, left=0, right=left),
        right=Piece(hint="right", top=0, bottom=matrix.rows, left=right, right=matrix.columns),
        above=Piece(hint="above", top=0, bottom=top, left=left, right=right),
        below=Piece(hint="below", top=bottom, bottom=matrix.rows, left=left, right=right),
    )
