"""Rewrite the graph: take nodes one by one, and run those of the branches once where a rule allows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from gkestimator.merging.editing import AttributeValue, Dims, EditNode, Names, Numbers
from gkestimator.merging.lifting.bundles import Bound, BranchBinder, BranchBundle
from gkestimator.merging.lifting.graph import Graph, alike
from gkestimator.merging.lifting.operands import Rewrite
from gkestimator.merging.lifting.planning import Plan, Planner
from gkestimator.merging.lifting.rules import RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Sizes, Term, Terms, integers
from gkestimator.merging.naming import SHAPE_ENDS

Plans: TypeAlias = "dict[int, Plan]"


class Lifter:
    """Rewrite one graph once. ``dropped``: values that a lifted node does not read any more, and its name."""

    def __init__(self, graph: Graph, terms: Terms, binder: BranchBinder) -> None:
        """Rewrite ``graph``; the bundles that the binder knows are where it begins."""
        self.dropped: dict[str, str] = {}
        self._graph = graph
        self._terms = terms
        self._binder = binder
        self._planner = Planner(graph, terms, binder)
        self._queue: deque[int] = deque()
        self._waiting: set[int] = set()
        self._made: dict[object, str] = {}

    def run(self) -> None:
        """Rewrite until nothing changes.

        It comes to an end: each lifting takes an operator away, and each tuple of parts is joined at most
        once.
        """
        self._wake(tuple(self._graph.nodes))
        while self._queue:
            number = self._queue.popleft()
            self._waiting.discard(number)
            node = self._graph.nodes.get(number)
            if node is not None and not self._joins(number, node):
                self._attempt(number, node)

    def _wake(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in self._waiting:
                self._waiting.add(number)
                self._queue.append(number)

    def _joins(self, number: int, node: EditNode) -> bool:
        """Handle a Concat of whole parts: it is not needed where they come from one value, or can."""
        bundle = self._binder.bundles.get(node.inputs)
        if bundle is None or not self._binder.is_join(node):
            return False
        whole = node.outputs[0]
        if bundle.joined and bundle.whole == whole:
            plan = self._planner.plan(node.inputs, bundle.sizes)
            if plan is not None and plan.steps:
                self._carry_out(plan)
            bundle = self._binder.bundles[node.inputs]
        if bundle.whole != whole and not self._graph.fixed(whole):
            self._graph.remove(number)
            self._wake(self._graph.redirect(whole, bundle.whole))
        return True

    def _attempt(self, number: int, node: EditNode) -> None:
        """Look for the nodes of the other branches that do the same as this one of the first."""
        if node.key not in RULES:
            return
        for place, name in enumerate(node.inputs):
            for parts in self._binder.led_by.get(name, ()):
                group = self._partners(number, node, place, parts)
                if group is not None and self.lift(group, self._binder.bundles[parts].sizes):
                    return

    def _partners(self, number: int, node: EditNode, place: int, parts: Names) -> Numbers | None:
        """Return ``number`` and of each other branch the node that fits it best; None where one has none."""
        group = [number]
        for index, name in enumerate(parts[1:], start=1):
            fitting: list[tuple[int, int]] = []
            for reader in self._graph.readers(name):
                other = self._graph.nodes[reader]
                if reader in group:
                    continue
                if not alike((node, other)):
                    continue
                if other.inputs[place] != name:
                    continue
                open_inputs = self._open_inputs(node, other, index)
                if open_inputs is not None:
                    fitting.append((open_inputs, reader))
            if not fitting:
                return None
            # of equally good ones the first reader
            group.append(min(fitting, key=lambda fit: fit[0])[1])
        return tuple(group)

    def _open_inputs(self, node: EditNode, other: EditNode, index: int) -> int | None:
        """Return how many inputs of a pair are no parts of one bundle nor equal constants; None: they do not
        fit.
        """
        count = 0
        for mine, its in zip(node.inputs, other.inputs, strict=True):
            if mine == its or self._in_one_bundle(mine, its, index):
                continue
            constants = [name in self._graph.weights for name in (mine, its)]
            if not mine:
                return None
            if not its:
                return None
            if constants[0] != constants[1]:
                return None
            if not constants[0]:
                count += 1
            elif not self._binder.equal_pair(mine, its) and self._terms.vector(mine) is None:
                return None
        return count

    def _in_one_bundle(self, first: str, name: str, index: int) -> bool:
        bundles = self._binder.led_by.get(first, ())
        return any(parts[index : index + 1] == (name,) for parts in bundles)

    def lift(self, group: Numbers, sizes: Sizes) -> bool:
        """Make the nodes of ``group`` one, if a rule allows it; their batch inputs are cut at ``sizes``."""
        nodes = tuple(self._graph.nodes[number] for number in group)
        # nothing is changed before a rule has said yes to all inputs together
        plans: Plans = {}
        bounds = self._bounds(nodes, sizes, plans)
        if bounds is None:
            return False
        question = self._binder.question(nodes, (bound.operand for bound in bounds), sizes)
        rewrite = RULES[nodes[0].key](question)
        if rewrite is None:
            return False
        if not self._carried_out(plans, group, bounds):
            return False
        joined = [bound.bundle.whole for bound in bounds if bound.bundle is not None and bound.bundle.joined]
        if joined and not set(group).isdisjoint(self._graph.above(joined)):
            # one of the nodes is needed for what another reads: together they would be a cycle
            return False
        self._replace(group, [bound.name for bound in bounds], rewrite, sizes)
        return True

    def _bounds(self, nodes: tuple[EditNode, ...], sizes: Sizes, plans: Plans) -> list[Bound] | None:
        """Return what the inputs are; ``plans`` gets, by input, how those are joined that are no bundle yet."""
        bounds: list[Bound] = []
        for place, names in enumerate(zip(*(node.inputs for node in nodes), strict=True)):
            bound = self._binder.find(names)
            if bound is not None:
                if bound.bundle is not None and bound.bundle.sizes != sizes:
                    return None
            elif place == SHAPE_INPUT.get(nodes[0].key):
                bound = Bound(operand=self._binder.other(names), name="")
            else:
                if all(names):
                    plan = self._planner.plan(names, sizes)
                else:
                    plan = None
                if plan is None:
                    return None
                plans[place] = plan
                bound = Bound(operand=self._binder.batch(names), name="")
            bounds.append(bound)
        return bounds

    def _carried_out(self, plans: Plans, group: Numbers, bounds: list[Bound]) -> bool:
        """Join the inputs that were planned; False where one of ``group`` is gone or an input is no bundle
        then.
        """
        for place, plan in plans.items():
            self._carry_out(plan)
            # joining one input may have lifted a node of the group already
            if not self._graph.nodes.keys() >= set(group):
                return False
            bound = self._binder.find(tuple(self._graph.nodes[number].inputs[place] for number in group))
            if bound is None or bound.bundle is None:
                return False
            bounds[place] = bound
        return True

    def _carry_out(self, plan: Plan) -> None:
        for parts, cut in plan.leaves:
            if parts not in self._binder.bundles:
                whole = self._graph.name(parts[0])
                self._add_helper(f"{parts[0]}/Concat", "Concat", parts, (whole,), {"axis": 0})
                self._register(BranchBundle(parts=parts, whole=whole, sizes=cut, joined=True))
        for group, cut in plan.steps:
            if self._graph.nodes.keys() >= set(group) and not self.lift(group, cut):
                return

    def _add_helper(
        self, stem: str, op_type: str, inputs: Names, outputs: Names, attributes: dict[str, AttributeValue]
    ) -> None:
        node = EditNode(
            name=self._graph.name(stem),
            op_type=op_type,
            inputs=inputs,
            outputs=outputs,
            attributes=attributes,
        )
        self._binder.replaces[node.name] = ()
        self._graph.add(node)

    def _register(self, bundle: BranchBundle) -> None:
        self._binder.register(bundle)
        self._wake(self._graph.readers(bundle.parts[0]))

    def _replace(self, group: Numbers, inputs: list[str], rewrite: Rewrite, sizes: Sizes) -> None:
        """Put one node in the place of ``group``, and Splits that give the values their names back."""
        first = self._graph.nodes[group[0]]
        for place, values in rewrite.integers.items():
            inputs[place] = self._vector(values, sizes)
        attributes: dict[str, AttributeValue] = dict(first.attributes)
        for key, value in rewrite.attributes.items():
            attributes.pop(key, None)
            if value is not None:
                attributes[key] = value
        if rewrite.sizes is not None:
            sizes = rewrite.sizes
        cuts = self._cuts(sizes)
        # first out, then in: the lifted node and the Split write no name that still has a maker
        nodes = [self._graph.remove(number) for number in group]
        lifted = replace(
            first,
            name=self._graph.name(first.name),
            inputs=tuple(inputs),
            outputs=tuple(self._graph.name(output) if output else "" for output in first.outputs),
            attributes=attributes,
        )
        self._graph.add(lifted)
        originals: list[str] = []
        for node in nodes:
            originals += self._binder.replaces.pop(node.name, (node.name,))
            unread = set(node.reads).difference(lifted.inputs)
            self.dropped.update(dict.fromkeys(unread, lifted.name))
        self._binder.replaces[lifted.name] = tuple(originals)
        for whole, *parts in zip(lifted.outputs, *(node.outputs for node in nodes), strict=True):
            if whole:
                self._split(whole, tuple(parts), cuts, sizes)

    def _split(self, whole: str, parts: Names, cuts: str, sizes: Sizes) -> None:
        """Give the values their names back; who reads them may be lifted in turn."""
        self._add_helper(f"{parts[0]}/Split", "Split", (whole, cuts), parts, {"axis": 0})
        for part, size in zip(parts, sizes, strict=True):
            self._terms.set_size(part, 0, size)
        self._register(BranchBundle(parts=parts, whole=whole, sizes=sizes, joined=False))

    def _cuts(self, sizes: Sizes) -> str:
        """Return the name of the int64 vector of ``sizes``, made once: what Split takes."""
        numbers = integers(sizes)
        if numbers is not None:
            return self._graph.integers(numbers)
        if sizes not in self._made:
            self._made[sizes] = self._size_node("Concat", tuple(map(self._size, sizes)), "sizes", axis=0)
        return self._made[sizes]

    def _vector(self, values: Dims, sizes: Sizes) -> str:
        """Return the name of an int64 vector; None stands for the sum of ``sizes``."""
        numbers = integers(sizes)
        if numbers is not None:
            values = tuple(sum(numbers) if value is None else value for value in values)
        known = integers(values)
        if known is not None:
            return self._graph.integers(known)
        key = ("vector", values, sizes)
        if key not in self._made:
            whole = self._size_node("ReduceSum", (self._cuts(sizes),), "total", keepdims=1)
            parts = tuple(whole if value is None else self._graph.integers((value,)) for value in values)
            if len(parts) > 1:
                whole = self._size_node("Concat", parts, "shape", axis=0)
            self._made[key] = whole
        return self._made[key]

    def _size(self, size: Term) -> str:
        """Return the name of an int64 vector of one entry, the size, made once."""
        if isinstance(size, int):
            return self._graph.integers((size,))
        if size not in self._made:
            name, axis, times = size
            if self._graph.opset >= SHAPE_ENDS:
                shape = self._size_node("Shape", (name,), "size", start=axis, end=axis + 1)
            else:
                whole = self._size_node("Shape", (name,), "shape")
                shape = self._size_node("Gather", (whole, self._graph.integers((axis,))), "size", axis=0)
            if times != 1:
                shape = self._size_node("Mul", (shape, self._graph.integers((times,))), "size")
            self._made[size] = shape
        return self._made[size]

    def _size_node(self, op_type: str, inputs: Names, stem: str, **attributes: int) -> str:
        output = self._graph.name(stem)
        self._add_helper(f"{stem}/{op_type}", op_type, inputs, (output,), dict(attributes))
        return output
