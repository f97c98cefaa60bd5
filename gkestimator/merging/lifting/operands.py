"""What a rule of lifting is asked, and what it may answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Dims, Numbers
from gkestimator.merging.editing.form import AttributeValue
from gkestimator.merging.lifting.terms import Sizes, Term


@frozen
class Operand:
    """One input of the nodes that would become one.

    ``role``: ``batch``: each branch has its part (along axis 0) of one value; ``constant``: the same value in all
    branches; ``absent``; ``other``: anything else, of which only ``entries`` may be used. ``dims``: the sizes that
    are known in every branch and are the same (None: not known, or they differ); ``dims[0]`` of ``batch`` is always
    None. Of a ``constant`` every size is exact where it is a number. ``entries``: of a small integer vector its
    entries, one tuple a branch (None where not known). ``value``: of a ``constant`` of few elements its values.
    """

    role: Literal["batch", "constant", "absent", "other"]
    dims: Dims | None = None
    entries: tuple[tuple[Term | None, ...] | None, ...] = ()
    value: np.ndarray | None = None

    @property
    def rank(self) -> int | None:
        """Number of dimensions."""
        if self.dims is None:
            return None
        return len(self.dims)

    def ints(self) -> Numbers | None:
        """The entries of a small integer constant (one for a scalar)."""
        if self.role != "constant" or not self.entries:
            return None
        first = self.entries[0]
        if first is None or any(e != first for e in self.entries):
            return None
        found = tuple(e for e in first if isinstance(e, int))
        if len(found) == len(first):
            return found
        return None


@frozen
class Question:
    """n nodes of one operator type with the same attributes; may they run once on the whole of their inputs?

    ``results``: sizes of each output as for ``batch`` operands, ``""`` outputs and unknown ranks None. ``used``:
    which outputs exist. ``sizes``: the branches' sizes of axis 0.
    """

    op_type: str
    attributes: Mapping[str, AttributeValue]
    operands: tuple[Operand, ...]
    results: tuple[Dims | None, ...]
    used: tuple[bool, ...]
    sizes: Sizes
    opset: int

    def operand(self, index: int) -> Operand:
        """Input ``index``; absent where the node has fewer."""
        if index < len(self.operands):
            return self.operands[index]
        return Operand(role="absent")

    def batch(self, index: int, least: int = 1) -> int | None:
        """Rank of input ``index`` if it is a batch operand of at least that rank."""
        found = self.operand(index)
        if found.role == "batch" and (found.rank or 0) >= least:
            return found.rank
        return None

    def steady(self, *indices: int) -> bool:
        """Whether each of these inputs is constant or absent."""
        return all(self.operand(i).role in ("constant", "absent") for i in indices)

    def steady_from(self, first: int) -> bool:
        """Whether every input from ``first`` on is constant or absent."""
        return self.steady(*range(first, len(self.operands)))

    def absent(self, *indices: int) -> bool:
        """Whether none of these inputs is given."""
        return all(self.operand(i).role == "absent" for i in indices)

    def integer(self, name: str, default: int) -> int | None:
        """An integer attribute; None where it is something else."""
        found = self.attributes.get(name, default)
        if isinstance(found, int):
            return found
        return None

    def axis(self, rank: int, default: int) -> int | None:
        """Attribute ``axis`` counted from the front; None where it is out of range."""
        axis = self.integer("axis", default)
        if axis is None or not -rank <= axis < rank:
            return None
        return axis % rank

    def only_first(self) -> bool:
        """Whether no output but the first is used."""
        return not any(self.used[1:])


@frozen
class Rewrite:
    """Yes: with ``attributes`` set (None: taken away) and integer vectors in place of the inputs of ``integers``.

    An entry None of such a vector is the size of axis 0 of the whole, taken at run time. ``sizes``: the branches'
    sizes of axis 0 of the results, where they are not those of the inputs (rows = batch x positions).
    """

    attributes: Mapping[str, AttributeValue | None] = field(default_factory=dict)
    integers: Mapping[int, Dims] = field(default_factory=dict)
    sizes: Sizes | None = None


Rule: TypeAlias = Callable[[Question], "Rewrite | None"]


def product(dims: Dims) -> int | None:
    """Product of sizes that are all known, else None."""
    known = [d for d in dims if d is not None]
    if len(known) == len(dims):
        return math.prod(known)
    return None
