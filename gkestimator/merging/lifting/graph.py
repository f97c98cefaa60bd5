"""Hold the merged graph while nodes are taken out and put in: who makes a value, who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gkestimator.merging.editing import EditableModel, EditNode, Names, Numbers
from gkestimator.merging.naming import OWN_PREFIX, unused_name, whole_numbers


def alike(nodes: Iterable[EditNode]) -> bool:
    """Return True where nodes differ in nothing but the names they read and write (and have no subgraphs)."""
    first, *others = nodes
    if first.outer:
        return False
    return all(_same_work(first, other) for other in others)


def _same_work(a: EditNode, b: EditNode) -> bool:
    if a.key != b.key or len(a.inputs) != len(b.inputs):
        return False
    if (a.attributes, a.opaque, a.outer) != (b.attributes, b.opaque, b.outer):
        return False
    return list(map(bool, a.outputs)) == list(map(bool, b.outputs))


class Graph:
    """Hold nodes by number (in the order in which they came), the maker and the readers of every value.

    At every moment it is a graph that can be executed: what is lifted goes in together with the Split that
    gives the values their old names.
    """

    def __init__(self, model: EditableModel) -> None:
        """Index ``model``, which is not changed."""
        self.weights = dict(model.weights)
        self.outputs = frozenset(value.name for value in model.outputs)
        self.opset = model.opsets.get("", 1)
        self.nodes: dict[int, EditNode] = {}
        self.maker: dict[str, int] = {}
        # Dicts, not sets: readers come in the order in which they were added.
        self._readers: dict[str, dict[int, None]] = {}
        self._outer: set[str] = set()
        # all names there are: a new one must be nobody's
        self._names = {node.name for node in model.nodes}
        self._names.update(model.weights, (value.name for value in model.inputs))
        self._next = 0
        #: Counts what was changed, for those who remember what they found.
        self.changes = 0
        for node in model.nodes:
            self._names.update(node.writes)
            self.add(node)

    def add(self, node: EditNode) -> int:
        """Take ``node`` in and return its number."""
        number = self._next
        self._next += 1
        self.maker.update(dict.fromkeys(node.writes, number))
        self._outer.update(node.outer)
        self._put(number, node)
        return number

    def _put(self, number: int, node: EditNode) -> None:
        self.changes += 1
        self.nodes[number] = node
        for name in node.reads:
            self._readers.setdefault(name, {})[number] = None

    def _forget_reads(self, number: int) -> None:
        for name in self.nodes[number].reads:
            self._readers[name].pop(number, None)

    def remove(self, number: int) -> EditNode:
        """Take a node out; what it wrote has no maker until another is added."""
        self._forget_reads(number)
        node = self.nodes.pop(number)
        self.changes += 1
        for name in node.writes:
            if self.maker.get(name) == number:
                del self.maker[name]
        return node

    def exchange(self, number: int, node: EditNode) -> None:
        """Put ``node``, which writes the same names, in the place of the one of that number."""
        self._forget_reads(number)
        self._put(number, node)

    def readers(self, name: str) -> Numbers:
        """Return the numbers of the nodes that read ``name``, in order."""
        return tuple(self._readers.get(name, ()))

    def fixed(self, name: str) -> bool:
        """Return True where others than plain inputs of nodes rely on the name: an output of the model, a
        subgraph.
        """
        return name in self.outputs or name in self._outer

    def redirect(self, old: str, new: str) -> Numbers:
        """Let every reader of ``old`` read ``new`` instead; return their numbers.

        ``old`` must not be :meth:`fixed`.
        """
        changed = self.readers(old)
        self.changes += 1
        for number in changed:
            node = self.nodes[number]
            inputs = [new if name == old else name for name in node.inputs]
            self.nodes[number] = replace(node, inputs=tuple(inputs))
            self._readers.setdefault(new, {})[number] = None
        self._readers.pop(old, None)
        return changed

    def name(self, stem: str) -> str:
        """Return a name below ``merged/`` that nothing has yet."""
        return unused_name(f"{OWN_PREFIX}{stem}", self._names)

    def integers(self, values: Sequence[int]) -> str:
        """Return the name of a constant int64 vector, one for each content."""
        return whole_numbers(values, self.weights)

    def makers_of(self, names: Names) -> Numbers | None:
        """Return the numbers of the nodes that write ``names``, if they are alike and write them at one
        place.
        """
        numbers = tuple(self.maker[name] for name in names if name in self.maker)
        if len(set(numbers)) != len(names):
            return None
        nodes = [self.nodes[number] for number in numbers]
        places = {node.outputs.index(name) for node, name in zip(nodes, names, strict=True)}
        if len(places) == 1 and alike(nodes):
            return numbers
        return None

    def above(self, names: Iterable[str]) -> Iterator[int]:
        """Yield the numbers of all nodes that must run before every one of ``names`` exists."""
        seen: set[int] = set()
        waiting = list(names)
        while waiting:
            number = self.maker.get(waiting.pop())
            if number is not None and number not in seen:
                seen.add(number)
                yield number
                waiting.extend(self.nodes[number].reads)

    def alive(self) -> set[int]:
        """Return the numbers of the nodes that an output of the model needs."""
        return set(self.above(self.outputs))
