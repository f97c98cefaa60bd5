"""Constants, or nodes at run time, that say how long the parts of a whole are."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from gkestimator.merging.editing import Dims, EditNode, Names
from gkestimator.merging.editing.form import AttributeValue
from gkestimator.merging.lifting.bundles import Bound, BranchBinder, BranchBundle, alike
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.operands import Rewrite
from gkestimator.merging.lifting.planning import Group, Plan, Planner
from gkestimator.merging.lifting.rules import RULES, SHAPE_INPUT
from gkestimator.merging.lifting.terms import Sizes, Term, Terms
from gkestimator.merging.naming import SHAPE_ENDS


class Sizing:
    """Makes each size vector once."""

    def __init__(self, graph: Graph, binder: BranchBinder) -> None:
        """Add to ``graph`` what is needed."""
        self._graph = graph
        self._binder = binder
        self._made: dict[tuple[object, ...], str] = {}

    def cuts(self, sizes: Sizes) -> str:
        """The name of the int64 vector of ``sizes``: what Split takes."""
        if all(isinstance(s, int) for s in sizes):
            return self._graph.integers(tuple(s for s in sizes if isinstance(s, int)))
        if sizes not in self._made:
            self._made[sizes] = self._node("Concat", tuple(map(self._one, sizes)), "sizes", {"axis": 0})
        return self._made[sizes]

    def vector(self, values: Dims, sizes: Sizes) -> str:
        """The name of an int64 vector; None stands for the sum of ``sizes``."""
        if all(isinstance(s, int) for s in sizes):
            total = sum(s for s in sizes if isinstance(s, int))
        else:
            total = None
        numbers = [total if v is None else v for v in values]
        if None not in numbers:
            return self._graph.integers(tuple(n for n in numbers if n is not None))
        key = ("vector", values, sizes)
        if key not in self._made:
            whole = self._node("ReduceSum", (self.cuts(sizes),), "total", {"keepdims": 1})
            parts = tuple(whole if v is None else self._graph.integers((v,)) for v in values)
            if len(parts) > 1:
                self._made[key] = self._node("Concat", parts, "shape", {"axis": 0})
            else:
                self._made[key] = whole
        return self._made[key]

    def _one(self, size: Term) -> str:
        if isinstance(size, int):
            return self._graph.integers((size,))
        if size not in self._made:
            name, axis, times = size
            if self._graph.opset >= SHAPE_ENDS:
                shape = self._node("Shape", (name,), "size", {"start": axis, "end": axis + 1})
            else:
                whole = self._node("Shape", (name,), "shape", {})
                shape = self._node("Gather", (whole, self._graph.integers((axis,))), "size", {"axis": 0})
            if times != 1:
                shape = self._node("Mul", (shape, self._graph.integers((times,))), "size", {})
            self._made[size] = shape
        return self._made[size]

    def _node(self, op_type: str, inputs: Names, stem: str, attributes: dict[str, int]) -> str:
        output = self._graph.name(stem)
        node = EditNode(
            name=self._graph.name(f"{stem}/{op_type}"),
            op_type=op_type,
            inputs=inputs,
            outputs=(output,),
            attributes=dict(attributes),
        )
        self._binder.replaces[node.name] = ()
        self._graph.add(node)
        return output


class Lifter:
    """One rewriting of one graph. ``dropped``: values that a lifted node does not read any more, and its name."""

    def __init__(self, graph: Graph, terms: Terms, binder: BranchBinder) -> None:
        """Rewrite ``graph``; the bundles that the binder knows are where it begins."""
        self.dropped: dict[str, str] = {}
        self._graph = graph
        self._terms = terms
        self._binder = binder
        self._planner = Planner(graph, terms, binder)
        self._sizing = Sizing(graph, binder)
        self._queue: deque[int] = deque()
        self._waiting: set[int] = set()

    def run(self) -> None:
        """Rewrite until nothing changes. It comes to an end: each lifting takes an operator away, and each tuple of
        parts is joined at most once."""
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
        if bundle.joined and bundle.whole == node.outputs[0]:
            plan = self._planner.plan(node.inputs, bundle.sizes)
            if plan is not None and plan.steps:
                self._carry_out(plan)
            bundle = self._binder.bundles[node.inputs]
        if bundle.whole != node.outputs[0] and not self._graph.fixed(node.outputs[0]):
            self._graph.remove(number)
            self._wake(self._graph.redirect(node.outputs[0], bundle.whole))
        return True

    def _attempt(self, number: int, node: EditNode) -> None:
        """Look for the nodes of the other branches that do the same as this one of the first."""
        if (node.domain, node.op_type) not in RULES:
            return
        for place, name in enumerate(node.inputs):
            for parts in self._binder.led_by.get(name, ()):
                group = self._partners(number, node, place, parts)
                if group is not None and self.lift(group, self._binder.bundles[parts].sizes):
                    return

    def _partners(self, number: int, node: EditNode, place: int, parts: Names) -> Group | None:
        chosen = [number]
        for index, name in enumerate(parts[1:], start=1):
            best: tuple[int, int] | None = None
            for other in self._graph.readers(name):
                one = self._graph.nodes[other]
                if other in chosen:
                    continue
                if not alike((node, one)):
                    continue
                if one.inputs[place] != name:
                    continue
                open_inputs = self._open_inputs(node, one, index)
                if open_inputs is not None and (best is None or open_inputs < best[0]):
                    best = (open_inputs, other)
            if best is None:
                return None
            chosen.append(best[1])
        return tuple(chosen)

    def _open_inputs(self, node: EditNode, one: EditNode, index: int) -> int | None:
        """How many inputs of a pair are neither parts of one bundle nor equal constants; None: they do not fit."""
        count = 0
        for mine, its in zip(node.inputs, one.inputs, strict=True):
            if bool(mine) != bool(its):
                return None
            if mine == its:
                continue
            if any(index < len(p) and p[index] == its for p in self._binder.led_by.get(mine, ())):
                continue
            if (mine in self._graph.weights) != (its in self._graph.weights):
                return None
            if mine in self._graph.weights and not self._binder.equal_pair(mine, its):
                if self._terms.vector(mine) is None:
                    return None
            elif mine not in self._graph.weights:
                count += 1
        return count

    def lift(self, group: Group, sizes: Sizes) -> bool:
        """Make the nodes of ``group`` one, if a rule allows it; their batch inputs are cut at ``sizes``."""
        nodes = tuple(self._graph.nodes[n] for n in group)
        bounds: list[Bound] = []
        plans: dict[int, Plan] = {}
        for place, names in enumerate(zip(*(n.inputs for n in nodes), strict=True)):
            bound = self._binder.find(names)
            if bound is None and place == SHAPE_INPUT.get((nodes[0].domain, nodes[0].op_type)):
                bound = Bound(operand=self._binder.other(names), name="")
            if bound is None:
                if all(names):
                    plan = self._planner.plan(names, sizes)
                else:
                    plan = None
                if plan is None:
                    return False
                plans[place] = plan
                bound = Bound(operand=self._binder.batch(names), name="")
            if bound.bundle is not None and bound.bundle.sizes != sizes:
                return False
            bounds.append(bound)
        rule = RULES[nodes[0].domain, nodes[0].op_type]
        rewrite = rule(self._binder.question(nodes, (b.operand for b in bounds), sizes))
        if rewrite is None:
            return False
        for place, plan in plans.items():
            self._carry_out(plan)
            if any(n not in self._graph.nodes for n in group):
                return False
            again = self._binder.find(tuple(self._graph.nodes[n].inputs[place] for n in group))
            if again is None or again.bundle is None:
                return False
            bounds[place] = again
        joined = [b.bundle.whole for b in bounds if b.bundle is not None and b.bundle.joined]
        if joined and not set(group).isdisjoint(self._graph.above(joined)):
            # one of the nodes is needed for what another reads: together they would be a cycle
            return False
        self._replace(group, bounds, rewrite, sizes)
        return True

    def _carry_out(self, plan: Plan) -> None:
        for parts, cut in plan.leaves:
            if parts not in self._binder.bundles:
                whole = self._graph.name(parts[0])
                node = EditNode(
                    name=self._graph.name(f"{parts[0]}/Concat"),
                    op_type="Concat",
                    inputs=parts,
                    outputs=(whole,),
                    attributes={"axis": 0},
                )
                self._binder.replaces[node.name] = ()
                self._graph.add(node)
                self._register(BranchBundle(parts=parts, whole=whole, sizes=cut, joined=True))
        for group, cut in plan.steps:
            if all(n in self._graph.nodes for n in group) and not self.lift(group, cut):
                return

    def _register(self, bundle: BranchBundle) -> None:
        self._binder.register(bundle)
        self._wake(self._graph.readers(bundle.parts[0]))

    def _replace(self, group: Group, bounds: list[Bound], rewrite: Rewrite, sizes: Sizes) -> None:
        nodes = tuple(self._graph.nodes[n] for n in group)
        inputs = [b.name for b in bounds]
        for place, values in rewrite.integers.items():
            inputs[place] = self._sizing.vector(values, sizes)
        attributes: dict[str, AttributeValue] = dict(nodes[0].attributes)
        for key, value in rewrite.attributes.items():
            attributes.pop(key, None)
            if value is not None:
                attributes[key] = value
        if rewrite.sizes is not None:
            sizes = rewrite.sizes
        cuts = self._sizing.cuts(sizes)
        for number in group:
            self._graph.remove(number)
        lifted = replace(
            nodes[0],
            name=self._graph.name(nodes[0].name),
            inputs=tuple(inputs),
            outputs=tuple(self._graph.name(o) if o else "" for o in nodes[0].outputs),
            attributes=attributes,
        )
        self._graph.add(lifted)
        originals = [o for n in nodes for o in self._binder.replaces.pop(n.name, (n.name,))]
        self._binder.replaces[lifted.name] = tuple(originals)
        for node in nodes:
            self.dropped.update((n, lifted.name) for n in node.reads if n not in lifted.inputs)
        for place, whole in enumerate(lifted.outputs):
            if whole:
                self._split(whole, tuple(n.outputs[place] for n in nodes), cuts, sizes)

    def _split(self, whole: str, parts: Names, cuts: str, sizes: Sizes) -> None:
        """Give the values their names back; who reads them may be lifted in turn."""
        node = EditNode(
            name=self._graph.name(f"{parts[0]}/Split"),
            op_type="Split",
            inputs=(whole, cuts),
            outputs=parts,
            attributes={"axis": 0},
        )
        self._binder.replaces[node.name] = ()
        self._graph.add(node)
        for part, size in zip(parts, sizes, strict=True):
            self._terms.set_size(part, 0, size)
        self._register(BranchBundle(parts=parts, whole=whole, sizes=sizes, joined=False))
