"""Plan how values of branches, which nothing joins yet, could become one: joined where they are, or further
up.
"""

from __future__ import annotations

from dataclasses import field
from fractions import Fraction
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.merging.editing import EditNode, Names, Numbers
from gkestimator.merging.lifting.bundles import BranchBinder
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.operands import Operand
from gkestimator.merging.lifting.rules import CHANGES_SIZE, RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Sizes, Terms, multiple, product

_DEEPEST = 64

#: Values to be joined, with their sizes along axis 0.
Leaf: TypeAlias = "tuple[Names, Sizes]"
#: Numbers of nodes, one of each branch, that become one, with the sizes along axis 0 of their (batch) inputs.
Step: TypeAlias = "tuple[Numbers, Sizes]"


@frozen
class Plan:
    """Join each of ``leaves`` by a Concat, then make each group of ``steps`` one node, in this order."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...] = ()


@frozen
class _Upwards:
    """Collect what is needed for the inputs of one group; dicts, because several inputs may need the same."""

    leaves: dict[Leaf, None] = field(default_factory=dict)
    steps: dict[Step, None] = field(default_factory=dict)
    operands: list[Operand] = field(default_factory=list)


class Planner:
    """Look up the branches for the cheapest place to join them.

    Changes nothing but what constants are shared.
    """

    def __init__(self, graph: Graph, terms: Terms, binder: BranchBinder) -> None:
        """Plan on ``graph``."""
        self._graph = graph
        self._terms = terms
        self._binder = binder
        self._known: dict[Leaf, Plan | None] = {}
        self._known_at = -1

    def plan(self, names: Names, sizes: Sizes) -> Plan | None:
        """Return how to join ``names``, whose sizes along axis 0 must be ``sizes``; None where it cannot be
        done.

        Alike nodes above them are made one where no more elements of a sample have to be joined for that.
        """
        if self._graph.changes != self._known_at:
            self._known.clear()  # what was planned holds for the graph as it was
        plan = self._plan(names, sizes, 0)
        self._known_at = self._graph.changes
        return plan

    def _plan(self, names: Names, sizes: Sizes, depth: int) -> Plan | None:
        leaf = (names, sizes)
        if leaf in self._known:
            return self._known[leaf]
        # in a cycle of questions the inner one has no plan
        self._known[leaf] = None
        if depth > _DEEPEST:
            return None
        if len(set(names)) != len(names):
            return None
        if not self._fits(names, sizes):
            return None
        here = self.elements(names)
        above = self._above(names, sizes, depth)
        if here is not None and (above is None or self._joined(above, sizes) > here):
            above = Plan(leaves=(leaf,))
        self._known[leaf] = above
        return above

    def _fits(self, names: Names, sizes: Sizes) -> bool:
        """Return True where these are no constants, and of the sizes that are asked for along axis 0."""
        for name, size in zip(names, sizes, strict=True):
            if name in self._graph.weights or not self._terms.dims(name):
                return False
            if self._terms.size(name, 0) != size:
                return False
        return True

    def elements(self, names: Names) -> int | None:
        """Return elements of one sample, where the values can be joined as they are: equal types and other
        sizes.
        """
        common = self._binder.common(names)
        if common is None:
            return None
        shapes = [self._terms.shape(name) for name in names]
        if len({shape.dtype for shape in shapes if shape is not None}) != 1:
            return None
        return product(common[1:])

    def _joined(self, plan: Plan, sizes: Sizes) -> Fraction | float:
        """Return the elements that a plan joins for each index of axis 0 of a value of ``sizes``; inf: not
        known.
        """
        whole = max(multiple(sizes[0]), 1)
        joined = Fraction(0)
        for names, cut in plan.leaves:
            elements = self.elements(names)
            if elements is None:
                return float("inf")
            joined += Fraction(elements * multiple(cut[0]), whole)
        return joined

    def _above(self, names: Names, sizes: Sizes, depth: int) -> Plan | None:
        """Return the plan that makes the nodes one that write ``names``."""
        group = self._graph.makers_of(names)
        if group is None:
            return None
        nodes = tuple(self._graph.nodes[number] for number in group)
        key = nodes[0].key
        if key not in RULES:
            return None
        inner = sizes
        if key in CHANGES_SIZE and self._terms.dims(nodes[0].inputs[0]):
            inner = tuple(self._terms.size(node.inputs[0], 0) for node in nodes)
        upwards = self._upwards(nodes, inner, depth)
        if upwards is None:
            return None
        rewrite = RULES[key](self._binder.question(nodes, upwards.operands, inner))
        if rewrite is None:
            return None
        # a rule may change the sizes: they must come out as they were asked for
        outer = inner
        if rewrite.sizes is not None:
            outer = rewrite.sizes
        if outer != sizes:
            return None
        return Plan(leaves=tuple(upwards.leaves), steps=(*upwards.steps, (group, inner)))

    def _upwards(self, nodes: tuple[EditNode, ...], inner: Sizes, depth: int) -> _Upwards | None:
        """Return the operands of alike nodes, and what must be joined or made one for them."""
        upwards = _Upwards()
        for place, names in enumerate(zip(*(node.inputs for node in nodes), strict=True)):
            bound = self._binder.find(names)
            if bound is not None:
                if bound.bundle is not None and bound.bundle.sizes != inner:
                    return None
                upwards.operands.append(bound.operand)
                continue
            if place == SHAPE_INPUT.get(nodes[0].key):
                upwards.operands.append(self._binder.other(names))
                continue
            if not all(names):
                return None
            plan = self._plan(names, inner, depth + 1)
            if plan is None:
                return None
            upwards.leaves.update(dict.fromkeys(plan.leaves))
            upwards.steps.update(dict.fromkeys(plan.steps))
            upwards.operands.append(self._binder.batch(names))
        return upwards
