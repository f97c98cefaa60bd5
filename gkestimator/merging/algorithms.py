"""Hold what several steps of a merge calculate with: disjoint sets, and the cheapest assignment (SciPy's)."""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra

Thing = TypeVar("Thing", bound=Hashable)


class DisjointSets(Generic[Thing]):
    """Keep disjoint sets of things (union by first member: which one stands for a set does not matter)."""

    def __init__(self) -> None:
        """Begin with each thing in a set of its own."""
        self._above: dict[Thing, Thing] = {}

    def find(self, thing: Thing) -> Thing:
        """Return the thing that stands for the set of ``thing``."""
        path = [thing]
        while path[-1] in self._above:
            path.append(self._above[path[-1]])
        root = path.pop()
        # path compression: the next search from any of them is one step
        self._above.update(dict.fromkeys(path, root))
        return root

    def join(self, members: Iterable[Thing]) -> None:
        """Make the sets of all ``members`` one."""
        roots = list(dict.fromkeys(map(self.find, members)))
        for root in roots[1:]:
            self._above[root] = roots[0]


def cheapest_assignment(cost: np.ndarray, *, maximize: bool = False) -> npt.NDArray[np.int64]:
    """Return for each row of ``cost`` (no more rows than columns) its column in the cheapest assignment of
    all rows.

    With ``maximize`` the dearest. Raises UsageError without SciPy, saying what to install.
    """
    try:
        # imported where it is called: few parts need it (the extra ``merge``)
        optimize = importlib.import_module("scipy.optimize")
    except ImportError as e:
        raise UsageError(f"merging needs scipy: {install_extra('merge')}") from e
    _, columns = optimize.linear_sum_assignment(cost, maximize=maximize)
    return np.asarray(columns, dtype=np.int64)
