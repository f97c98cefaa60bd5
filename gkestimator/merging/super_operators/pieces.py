"""Name what is left of a weight beside the shared block, and the block itself, as views of the members'
weights.

columns:   0      c        c+w     N
             +------+---------+-------+  0
             |      |  above  |       |
             |      +---------+       |  r
             | left |  shared | right |
             |      +---------+       |  r+h
             |      |  below  |       |
             +------+---------+-------+  K

``left`` and ``right``, the sides, have all rows: one product of the whole activation by both, taken apart and
put at both ends of the result. ``above`` and ``below``, the border, have the other rows of the block's
columns: one product by both, added to the member's part of the shared product. (The blocks are USHER's
residual products, section 3.4; to give the corners to the sides and to multiply by both sides and both
borders at once is our reading: no value is multiplied twice, and a thin product costs a GPU far more than the
copy of a few columns.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Rearranged, ValueBlock, Values, Weight
from gkestimator.merging.operators import MergedMember, SuperOperator
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.super_operators.form import Sheet


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stacked:
    """Hold values one after the other along ``axis``; copied together when they are read, not before."""

    parts: tuple[Values, ...]
    axis: int

    def array(self) -> np.ndarray:
        """Return a copy; see :class:`gkestimator.merging.editing.Values`."""
        joined = np.concatenate([part.array() for part in self.parts], axis=self.axis)
        joined.flags.writeable = False
        return joined


def joint(parts: Sequence[Values], axis: int) -> Values:
    """Return ``parts`` one after the other along ``axis``; a single one as it stands."""
    if len(parts) == 1:
        return parts[0]
    return Stacked(parts=tuple(parts), axis=axis)


@frozen
class Area:
    """Bound rows ``top`` to ``bottom`` and columns ``left`` to ``right`` of a weight; empty where they are
    equal.
    """

    top: int
    bottom: int
    left: int
    right: int

    @property
    def empty(self) -> bool:
        """Return True where nothing is in it."""
        return self.top >= self.bottom or self.left >= self.right

    def values(self, member: MergedMember) -> Values:
        """Return its values in ``member``'s weight: a view of [rows, columns, taps]."""
        matrix = member.operator.matrix
        return ValueBlock(
            base=matrix.values,
            start=(self.top, self.left, 0),
            stop=(self.bottom, self.right, matrix.taps),
        )


@frozen
class Piece:
    """Hold one or two rectangles of a weight, side by side (``axis`` 1) or one above the other (0)."""

    hint: str
    blocks: tuple[Area, ...]
    axis: int = 0

    @property
    def empty(self) -> bool:
        """Return True where nothing is in it."""
        return not self.blocks

    @property
    def rows(self) -> int:
        """Return how many rows it has."""
        blocks = self.blocks
        if self.axis == 1:
            blocks = blocks[:1]
        return sum(block.bottom - block.top for block in blocks)

    @property
    def columns(self) -> int:
        """Return how many columns it has."""
        blocks = self.blocks
        if self.axis == 0:
            blocks = blocks[:1]
        return sum(block.right - block.left for block in blocks)

    def values(self, member: MergedMember) -> Values:
        """Return its values in ``member``'s weight, [rows, columns, taps]."""
        return joint([block.values(member) for block in self.blocks], self.axis)


@frozen
class Pieces:
    """Hold the parts of one member's weight; see the module. ``rows``: rows above, in and below the block;
    ``columns``: columns left of it, in it and right of it."""

    shared: Piece
    above: Piece
    below: Piece
    border: Piece
    sides: Piece
    rows: tuple[int, int, int]
    columns: tuple[int, int, int]


def pieces_of(op: SuperOperator, member: MergedMember) -> Pieces:
    """Return the parts of ``member``'s weight."""
    matrix = member.operator.matrix
    top = member.row
    left = member.column
    bottom = top + op.rows
    right = left + op.columns

    def piece(hint: str, *blocks: Area, axis: int = 0) -> Piece:
        return Piece(hint=hint, blocks=tuple(block for block in blocks if not block.empty), axis=axis)

    above = Area(top=0, bottom=top, left=left, right=right)
    below = Area(top=bottom, bottom=matrix.rows, left=left, right=right)
    before = Area(top=0, bottom=matrix.rows, left=0, right=left)
    after = Area(top=0, bottom=matrix.rows, left=right, right=matrix.columns)
    return Pieces(
        shared=piece("shared", Area(top=top, bottom=bottom, left=left, right=right)),
        above=piece("above", above),
        below=piece("below", below),
        border=piece("border", above, below, axis=0),
        sides=piece("sides", before, after, axis=1),
        rows=(top, op.rows, matrix.rows - bottom),
        columns=(left, op.columns, matrix.columns - right),
    )


@frozen
class Span:
    """Hold parts of a member's bias, one after the other: from the first to the second number of each range."""

    weight: Weight
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, member: MergedMember, ranges: Sequence[tuple[int, int]]) -> Span | None:
        """Return those parts of ``member``'s bias; None where it has none."""
        weight = member.operator.bias
        if weight is None:
            return None
        return cls(weight=weight, ranges=tuple(ranges))

    @property
    def count(self) -> int:
        """Return how many values there are."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def all(self) -> bool:
        """Return True where it is the whole bias."""
        return self.ranges == ((0, self.weight.elements),)

    @property
    def values(self) -> Values:
        """Return the values, of shape [count]."""
        parts = [ValueBlock(base=self.weight.values, start=(a,), stop=(b,)) for a, b in self.ranges]
        return joint(parts, 0)

    def named(self, sheet: Sheet, hint: str) -> str:
        """Return the name of a weight with these values, for a node that takes one value per column."""
        if self.all:
            return self.weight.name
        return sheet.weight(f"{hint}_bias", self.weight.dtype, [self.count], self.values)

    def spread(self, sheet: Sheet, hint: str, trailing: int) -> str:
        """Return the same for Add: ``trailing`` axes of size 1 follow the columns."""
        if not trailing:
            return self.named(sheet, hint)
        shape = (self.count, *[1] * trailing)
        values = Rearranged(base=self.values, shape=shape)
        return sheet.weight(f"{hint}_bias", self.weight.dtype, shape, values)


def common(spans: Sequence[Span | None], tolerance: float) -> bool:
    """Return True where all have a bias of the same values (within ``tolerance``), or none has one."""
    present = [span for span in spans if span is not None]
    if not present:
        return True
    if len(present) < len(spans):
        return False
    first, *others = present
    dtype = first.weight.dtype
    # values are compared last: they lie in files
    for span in others:
        if span.weight.dtype is not dtype:
            return False
        if not equal_values(first.values, span.values, tolerance, dtype=dtype):
            return False
    return True
