"""Say what a rule of lifting is asked, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.editing import AttributeValue, Dims, Numbers
from gkestimator.merging.lifting.terms import Entries, Sizes, integers


@frozen
class Operand:
    """Hold one input of the nodes that would become one.

    ``role``: ``batch``: each branch has its part (along axis 0) of one value; ``constant``: the same value in
    all branches; ``absent``; ``other``: anything else, of which only ``entries`` may be used. ``dims``: the
    sizes that are known in every branch and are the same (None: not known, or they differ); ``dims[0]`` of
    ``batch`` is always None. Of a ``constant`` every size is exact where it is a number. ``entries``: of a
    small integer vector its entries, one tuple a branch (None where not known). ``value``: of a ``constant``
    of few elements its values.
    """

    role: Literal["batch", "constant", "absent", "other"]
    dims: Dims | None = None
    entries: tuple[Entries | None, ...] = ()
    value: np.ndarray | None = None

    @property
    def rank(self) -> int | None:
        """Return the number of dimensions."""
        if self.dims is None:
            return None
        return len(self.dims)

    def ints(self) -> Numbers | None:
        """Return the entries of a small integer constant (one for a scalar)."""
        if self.role != "constant" or len(set(self.entries)) != 1:
            return None
        entries = self.entries[0]
        if entries is None:
            return None
        return integers(entries)


ABSENT = Operand(role="absent")


@frozen
class Question:
    """Ask of n nodes of one operator type with the same attributes: may they run once on the whole of their
    inputs?

    ``results``: sizes of each output as for ``batch`` operands, ``""`` outputs and unknown ranks None.
    ``used``: which outputs exist. ``sizes``: the branches' sizes of axis 0.
    """

    op_type: str
    attributes: Mapping[str, AttributeValue]
    operands: tuple[Operand, ...]
    results: tuple[Dims | None, ...]
    used: tuple[bool, ...]
    sizes: Sizes
    opset: int

    def operand(self, index: int) -> Operand:
        """Return input ``index``; absent where the node has fewer."""
        if index < len(self.operands):
            return self.operands[index]
        return ABSENT

    def batch(self, index: int, least: int = 1) -> int | None:
        """Return the rank of input ``index`` if it is a batch operand of at least that rank."""
        operand = self.operand(index)
        if operand.role == "batch" and (operand.rank or 0) >= least:
            return operand.rank
        return None

    def steady(self, *indices: int) -> bool:
        """Return True where each of these inputs is constant or absent."""
        return all(self.operand(index).role in ("constant", "absent") for index in indices)

    def steady_from(self, first: int) -> bool:
        """Return True where every input from ``first`` on is constant or absent."""
        return self.steady(*range(first, len(self.operands)))

    def absent(self, *indices: int) -> bool:
        """Return True where none of these inputs is given."""
        return all(self.operand(index).role == "absent" for index in indices)

    def integer(self, name: str, default: int) -> int | None:
        """Return an integer attribute; None where it is something else."""
        value = self.attributes.get(name, default)
        if isinstance(value, int):
            return value
        return None

    def axis(self, rank: int, default: int) -> int | None:
        """Return attribute ``axis`` counted from the front; None where it is out of range."""
        axis = self.integer("axis", default)
        if axis is None or not -rank <= axis < rank:
            return None
        return axis % rank

    def only_first(self) -> bool:
        """Return True where no output but the first is used."""
        return not any(self.used[1:])


@frozen
class Rewrite:
    """Answer yes: with ``attributes`` set (None: taken away) and integer vectors in place of the inputs of
    ``integers``.

    An entry None of such a vector is the size of axis 0 of the whole, taken at run time. ``sizes``: the
    branches' sizes of axis 0 of the results, where they are not those of the inputs (rows = batch x
    positions).
    """

    attributes: Mapping[str, AttributeValue | None] = field(default_factory=dict)
    integers: Mapping[int, Dims] = field(default_factory=dict)
    sizes: Sizes | None = None


Rule: TypeAlias = Callable[[Question], "Rewrite | None"]
#: Run once with nothing changed but the inputs.
_YES = Rewrite()


def proves(check: Callable[[Question], bool]) -> Rule:
    """Make a rule of a check: where it is true, the nodes run once as they are."""

    def rule(question: Question) -> Rewrite | None:
        if check(question):
            return _YES
        return None

    return rule
