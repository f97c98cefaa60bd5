"""The biases of a super-operator's members: one for all where they are equal, else added after the split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gkestimator.merging.operators import Member
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.super_operators.form import Sheet
from gkestimator.onnx_io.editing import Block, Rearranged, Values, Weight

__all__ = ["Span", "common"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Values ``start`` to ``stop`` of a member's bias."""

    weight: Weight
    start: int
    stop: int

    @classmethod
    def of(cls, member: Member, start: int, stop: int) -> Span | None:
        """That part of ``member``'s bias; None where it has none or the part is empty."""
        weight = member.operator.bias
        return None if weight is None or start >= stop else cls(weight=weight, start=start, stop=stop)

    @property
    def all(self) -> bool:
        """Whether it is the whole bias."""
        return self.start == 0 and self.stop == self.weight.elements

    @property
    def values(self) -> Values:
        """The values, of shape [stop - start]."""
        return Block(base=self.weight.values, start=(self.start,), stop=(self.stop,))

    def named(self, sheet: Sheet, hint: str) -> str:
        """The name of a weight with these values, for a node that takes one value per column."""
        if self.all:
            return self.weight.name
        return sheet.weight(f"{hint}_bias", self.weight.dtype, [self.stop - self.start], self.values)

    def spread(self, sheet: Sheet, hint: str, trailing: int) -> str:
        """The same for Add: ``trailing`` axes of size 1 follow the columns."""
        if not trailing:
            return self.named(sheet, hint)
        shape = (self.stop - self.start, *[1] * trailing)
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
