"""How values of branches, which nothing joins yet, could become one value: joined where they are, or further up."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.merging.editing import EditNode, Names
from gkestimator.merging.lifting.bundles import BranchBinder, alike
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.operands import Operand, product
from gkestimator.merging.lifting.rules import CHANGES_SIZE, RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Sizes, Terms

_DEEPEST = 64

#: Numbers of nodes, one of each branch, that become one.
Group: TypeAlias = "tuple[int, ...]"


@frozen
class Plan:
    """Join each of ``leaves`` by a Concat, then make each group of ``steps`` one node, in this order.

    With each the sizes along axis 0 of its (batch) inputs.
    """

    leaves: tuple[tuple[Names, Sizes], ...]
    steps: tuple[tuple[Group, Sizes], ...]


class Planner:
    """Looks up the branches for the cheapest place to join them. Changes nothing but what constants are shared."""

    def __init__(self, graph: Graph, terms: Terms, binder: BranchBinder) -> None:
        """Plan on ``graph``."""
        self._graph = graph
        self._terms = terms
        self._binder = binder
        self._known: dict[tuple[Names, Sizes], Plan | None] = {}
        self._known_at = -1

    def plan(self, names: Names, sizes: Sizes) -> Plan | None:
        """How to join ``names``, whose sizes along axis 0 must be ``sizes``; None where it cannot be done.

        Alike nodes above them are made one where no more elements of a sample have to be joined for that.
        """
        if self._graph.changes != self._known_at:
            self._known.clear()  # what was found holds for the graph as it was
        found = self._plan(names, sizes, 0)
        self._known_at = self._graph.changes
        return found

    def _plan(self, names: Names, sizes: Sizes, depth: int) -> Plan | None:
        if (names, sizes) in self._known:
            return self._known[names, sizes]
        self._known[names, sizes] = None
        if depth > _DEEPEST:
            return None
        if len(set(names)) != len(names):
            return None
        if not self._fits(names, sizes):
            return None
        here = self.elements(names)
        above = self._above(names, sizes, depth)
        if above is not None and here is not None:
            needed = [self._joined(leaf, cut, sizes) for leaf, cut in above.leaves]
            if any(n is None for n in needed) or sum(n for n in needed if n is not None) > here:
                above = None
        if above is None and here is not None:
            above = Plan(leaves=((names, sizes),), steps=())
        self._known[names, sizes] = above
        return above

    def _fits(self, names: Names, sizes: Sizes) -> bool:
        """Whether these are no constants, and of the sizes that are asked for along axis 0."""
        if any(n in self._graph.weights or not self._terms.dims(n) for n in names):
            return False
        return all(self._terms.size(n, 0) == size for n, size in zip(names, sizes, strict=True))

    def elements(self, names: Names) -> int | None:
        """Elements of one sample, where the values can be joined as they are: equal types and other sizes."""
        shapes = [self._terms.shape(n) for n in names]
        found = self._binder.common(names)
        if found is None:
            return None
        if any(s is None or shapes[0] is None or s.dtype != shapes[0].dtype for s in shapes):
            return None
        return product(found[1:])

    def _joined(self, leaf: Names, cut: Sizes, sizes: Sizes) -> Fraction | None:
        """Elements of ``leaf`` for each index of axis 0 of a value of ``sizes``."""
        found = self.elements(leaf)
        one, other = (s if isinstance(s, int) else s[2] for s in (cut[0], sizes[0]))
        if found is None:
            return None
        return Fraction(found * one, max(other, 1))

    def _above(self, names: Names, sizes: Sizes, depth: int) -> Plan | None:
        group = self.makers(names)
        if group is None:
            return None
        nodes = tuple(self._graph.nodes[n] for n in group)
        if (nodes[0].domain, nodes[0].op_type) in CHANGES_SIZE and self._terms.dims(nodes[0].inputs[0]):
            inner = tuple(self._terms.size(n.inputs[0], 0) for n in nodes)
        else:
            inner = sizes
        leaves: dict[tuple[Names, Sizes], None] = {}
        steps: dict[tuple[Group, Sizes], None] = {}
        operands: list[Operand] = []
        for place, inputs in enumerate(zip(*(n.inputs for n in nodes), strict=True)):
            bound = self._binder.find(inputs)
            if bound is not None:
                if bound.bundle is not None and bound.bundle.sizes != inner:
                    return None
                operands.append(bound.operand)
            elif place == SHAPE_INPUT.get((nodes[0].domain, nodes[0].op_type)):
                operands.append(self._binder.other(inputs))
            else:
                if all(inputs):
                    plan = self._plan(inputs, inner, depth + 1)
                else:
                    plan = None
                if plan is None:
                    return None
                leaves.update(dict.fromkeys(plan.leaves))
                steps.update(dict.fromkeys(plan.steps))
                operands.append(self._binder.batch(inputs))
        rule = RULES[nodes[0].domain, nodes[0].op_type]
        rewrite = rule(self._binder.question(nodes, operands, inner))
        if rewrite is None:
            return None
        if (inner if rewrite.sizes is None else rewrite.sizes) != sizes:
            return None
        return Plan(leaves=tuple(leaves), steps=(*steps, (group, inner)))

    def makers(self, names: Names) -> Group | None:
        """The nodes that write ``names``, if they are alike, write them at one place and have a rule."""
        numbers = tuple(n for n in map(self._graph.maker.get, names) if n is not None)
        if len(set(numbers)) != len(names):
            return None
        nodes: tuple[EditNode, ...] = tuple(self._graph.nodes[n] for n in numbers)
        if (nodes[0].domain, nodes[0].op_type) not in RULES:
            return None
        if not alike(nodes):
            return None
        places = {n.outputs.index(name) for n, name in zip(nodes, names, strict=True)}
        if len(places) == 1:
            return numbers
        return None
