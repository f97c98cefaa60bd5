"""The merged graph while nodes are taken out and put in: who makes a value, who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gkestimator.merging.editing import EditableModel, EditNode, Numbers
from gkestimator.merging.naming import OWN_PREFIX, unused_name, whole_numbers


class Graph:
    """Nodes by number (in the order in which they came), the maker and the readers of every value.

    At every moment it is a graph that can be executed: what is lifted goes in together with the Split that gives
    the values their old names.
    """

    def __init__(self, model: EditableModel) -> None:
        """Index ``model``, which is not changed."""
        self.weights = dict(model.weights)
        self.outputs = frozenset(v.name for v in model.outputs)
        self.opset = model.opsets.get("", 1)
        self.nodes: dict[int, EditNode] = {}
        self.maker: dict[str, int] = {}
        self._readers: dict[str, dict[int, None]] = {}
        self._outer: set[str] = set()
        self._names = {n.name for n in model.nodes} | set(model.weights) | {v.name for v in model.inputs}
        self._next = 0
        #: Counts what was changed, for those who remember what they found.
        self.changes = 0
        for node in model.nodes:
            self._names.update(node.writes)
            self.add(node)

    def add(self, node: EditNode) -> int:
        """Take ``node`` in; its number."""
        number = self._next
        self._next = self._next + 1
        self.changes += 1
        self.nodes[number] = node
        for name in node.writes:
            self.maker[name] = number
        for name in node.reads:
            self._readers.setdefault(name, {})[number] = None
        self._outer.update(node.outer)
        return number

    def remove(self, number: int) -> EditNode:
        """Take a node out; what it wrote has no maker until another is added."""
        node = self.nodes.pop(number)
        self.changes += 1
        for name in node.writes:
            if self.maker.get(name) == number:
                del self.maker[name]
        for name in node.reads:
            self._readers[name].pop(number, None)
        return node

    def exchange(self, number: int, node: EditNode) -> None:
        """Put ``node``, which writes the same names, in the place of the one of that number."""
        self.changes += 1
        for name in self.nodes[number].reads:
            self._readers[name].pop(number, None)
        self.nodes[number] = node
        for name in node.reads:
            self._readers.setdefault(name, {})[number] = None

    def readers(self, name: str) -> Numbers:
        """Numbers of the nodes that read ``name``, in order."""
        return tuple(self._readers.get(name, ()))

    def fixed(self, name: str) -> bool:
        """Whether others than plain inputs of nodes rely on the name: an output of the model, a subgraph."""
        return name in self.outputs or name in self._outer

    def redirect(self, old: str, new: str) -> Numbers:
        """Let every reader of ``old`` read ``new`` instead; their numbers. ``old`` must not be :meth:`fixed`."""
        changed = self.readers(old)
        self.changes += 1
        for number in changed:
            node = self.nodes[number]
            self.nodes[number] = replace(node, inputs=tuple(new if n == old else n for n in node.inputs))
            self._readers.setdefault(new, {})[number] = None
        self._readers.pop(old, None)
        return changed

    def name(self, stem: str) -> str:
        """A name below ``merged/`` that nothing has yet."""
        return unused_name(f"{OWN_PREFIX}{stem}", self._names)

    def integers(self, values: Sequence[int]) -> str:
        """The name of a constant int64 vector, one for each content."""
        return whole_numbers(values, self.weights)

    def above(self, names: Iterable[str]) -> Iterator[int]:
        """Numbers of all nodes that must run before every one of ``names`` exists."""
        seen: set[int] = set()
        left = list(names)
        while left:
            number = self.maker.get(left.pop())
            if number is not None and number not in seen:
                seen.add(number)
                yield number
                left.extend(self.nodes[number].reads)

    def alive(self) -> set[int]:
        """Numbers of the nodes that an output of the model needs."""
        return set(self.above(self.outputs))
