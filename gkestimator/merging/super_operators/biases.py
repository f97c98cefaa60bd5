"""The biases of a super-operator's members: one for all where they are equal, else added after the split."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Rearranged, ValueBlock, Values, Weight
from gkestimator.merging.operators import MergedMember
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.super_operators.form import Sheet
from gkestimator.merging.super_operators.pieces import joint


@frozen
class Span:
    """Parts of a member's bias, one after the other: from the first to the second number of each range."""

    weight: Weight
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, member: MergedMember, ranges: Sequence[tuple[int, int]]) -> Span | None:
        """Those parts of ``member``'s bias; None where it has none."""
        weight = member.operator.bias
        if weight is None:
            return None
        return cls(weight=weight, ranges=tuple(ranges))

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def all(self) -> bool:
        """Whether it is the whole bias."""
        return self.ranges == ((0, self.weight.elements),)

    @property
    def values(self) -> Values:
        """The values, of shape [count]."""
        parts = [ValueBlock(base=self.weight.values, start=(a,), stop=(b,)) for a, b in self.ranges]
        return joint(parts, 0)

    def named(self, sheet: Sheet, hint: str) -> str:
        """The name of a weight with these values, for a node that takes one value per column."""
        if self.all:
            return self.weight.name
        return sheet.weight(f"{hint}_bias", self.weight.dtype, [self.count], self.values)

    def spread(self, sheet: Sheet, hint: str, trailing: int) -> str:
        """The same for Add: ``trailing`` axes of size 1 follow the columns."""
        if not trailing:
            return self.named(sheet, hint)
        shape = (self.count, *[1] * trailing)
        values = Rearranged(base=self.values, shape=shape)
        return sheet.weight(f"{hint}_bias", self.weight.dtype, shape, values)


def common(spans: Sequence[Span | None], tolerance: float) -> bool:
    """Whether all have a bias of the same values (within ``tolerance``), or none has one."""
    present = [span for span in spans if span is not None]
    if not present:
        return True
    first = present[0]
    return len(present) == len(spans) and all(
        span.weight.dtype is first.weight.dtype
        and equal_values(first.values, span.values, tolerance, dtype=first.weight.dtype)
        for span in present[1:]
    )
