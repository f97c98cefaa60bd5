"""Disjoint sets."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)


class DisjointSets(Generic[_T]):
    """Disjoint sets of things (union by first member: which one stands for a set does not matter)."""

    def __init__(self) -> None:
        """Each in a set of its own."""
        self._above: dict[_T, _T] = {}

    def find(self, one: _T) -> _T:
        """Who stands for the set of ``one``."""
        above = self._above
        root = one
        while (up := above.get(root, root)) != root:
            root = up
        while one != root:
            above[one], one = root, above.get(one, root)
        return root

    def join(self, members: Iterable[_T]) -> None:
        """Make the sets of all ``members`` one."""
        first: _T | None = None
        for one in members:
            root = self.find(one)
            if first is None:
                first = root
            elif root != first:
                self._above[root] = first
