"""Constants, or nodes at run time, that say how long the parts of a whole are."""

from __future__ import annotations

from gkestimator.merging.constants import SHAPE_ENDS
from gkestimator.merging.editing import EditNode
from gkestimator.merging.lifting.bundles import BranchBinder
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.terms import Term


class Sizing:
    """Makes each size vector once."""

    def __init__(self, graph: Graph, binder: BranchBinder) -> None:
        """Add to ``graph`` what is needed."""
        self._graph = graph
        self._binder = binder
        self._made: dict[tuple[object, ...], str] = {}

    def cuts(self, sizes: tuple[Term, ...]) -> str:
        """The name of the int64 vector of ``sizes``: what Split takes."""
        if all(isinstance(s, int) for s in sizes):
            return self._graph.integers(tuple(s for s in sizes if isinstance(s, int)))
        if sizes not in self._made:
            self._made[sizes] = self._node("Concat", tuple(map(self._one, sizes)), "sizes", {"axis": 0})
        return self._made[sizes]

    def vector(self, values: tuple[int | None, ...], sizes: tuple[Term, ...]) -> str:
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
            self._made[key] = self._node("Concat", parts, "shape", {"axis": 0}) if len(parts) > 1 else whole
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

    def _node(self, op_type: str, inputs: tuple[str, ...], stem: str, attributes: dict[str, int]) -> str:
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
