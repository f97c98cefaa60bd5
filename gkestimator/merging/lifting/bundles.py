"""Values that lie one behind the other along axis 0 of a whole, and how names of branches become operands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing import Dims, EditNode, Names, Numbers
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.operands import Operand, Question
from gkestimator.merging.lifting.rules import DETERMINISTIC
from gkestimator.merging.lifting.terms import Sizes, Terms
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.similarity.equality import floats

_DEEPEST = 64
_FLOATS = frozenset({DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16})


@frozen
class BranchBundle:
    """``whole`` is the concatenation of ``parts`` along axis 0, whose sizes there are ``sizes``.

    ``joined``: a Concat makes the whole, so that who reads it waits for all parts. Otherwise a Split makes the
    parts, and whoever reads one has waited for the whole already.
    """

    parts: Names
    whole: str
    sizes: Sizes
    joined: bool


@frozen
class Bound:
    """What the branches' inputs are, and the name that one node for all of them would read."""

    operand: Operand
    name: str
    bundle: BranchBundle | None = None


def alike(nodes: Iterable[EditNode]) -> bool:
    """Whether nodes differ in nothing but the names they read and write (and have no subgraphs)."""
    first, *others = nodes
    return not first.outer and all(
        (n.domain, n.op_type, n.attributes, n.opaque, n.outer)
        == (first.domain, first.op_type, first.attributes, first.opaque, ())
        and len(n.inputs) == len(first.inputs)
        and [bool(o) for o in n.outputs] == [bool(o) for o in first.outputs]
        for n in others
    )


class BranchBinder:
    """Finds what n names, one of each branch, are to an operator that runs once."""

    def __init__(self, graph: Graph, terms: Terms, tolerance: float) -> None:
        """Work on ``graph``, with what ``terms`` know of sizes; constants are equal within ``tolerance``."""
        self.bundles: dict[Names, BranchBundle] = {}
        self.led_by: dict[str, list[Names]] = {}
        self.replaces: dict[str, Names] = {}
        self._graph = graph
        self._terms = terms
        self._tolerance = tolerance
        self._equal: dict[tuple[str, str], bool] = {}
        self._steady: set[str] = set()

    def register(self, bundle: BranchBundle) -> None:
        """Remember a bundle; one with the same parts is forgotten."""
        if bundle.parts not in self.bundles:
            self.led_by.setdefault(bundle.parts[0], []).append(bundle.parts)
        self.bundles[bundle.parts] = bundle

    def is_join(self, node: EditNode) -> bool:
        """Whether ``node`` is a Concat along axis 0."""
        axis = node.attributes.get("axis")
        if node.op_type != "Concat":
            return False
        if node.domain:
            return False
        if not isinstance(axis, int):
            return False
        rank = len(self._terms.dims(node.inputs[0]) or ())
        return axis == 0 or (rank > 0 and axis == -rank)

    def note_steady(self, node: EditNode) -> None:
        """Remember what depends on constants alone, as far as values go."""
        if (node.domain, node.op_type) in DETERMINISTIC and all(map(self._is_steady, node.reads)):
            self._steady.update(node.writes)

    def _is_steady(self, name: str) -> bool:
        return name in self._graph.weights or name in self._steady or self._numbers(name) is not None

    def _numbers(self, name: str) -> tuple[Numbers, bool] | None:
        vector = self._terms.vector(name)
        if vector:
            numbers = tuple(e for e in vector[0] if isinstance(e, int))
        else:
            numbers = ()
        if vector is not None and len(numbers) == len(vector[0]):
            return (numbers, vector[1])
        return None

    def find(self, names: Names, depth: int = 0) -> Bound | None:
        """What the names are as they stand; None where they are neither a bundle nor one constant."""
        if not all(names):
            if any(names):
                return None
            return Bound(operand=Operand(role="absent"), name="")
        bundle = self.bundles.get(names)
        if bundle is not None:
            return Bound(operand=self.batch(names), name=bundle.whole, bundle=bundle)
        if all(n == names[0] for n in names) or self._equal_weights(names):
            return self._constant(names[0], len(names))
        return self._same_integers(names) or self._shared(names, depth)

    def batch(self, names: Names) -> Operand:
        """The operand that a bundle of these parts is."""
        return Operand(role="batch", dims=self.common(names))

    def other(self, names: Names) -> Operand:
        """An operand of which only the entries of small integer vectors count."""
        vectors = [self._terms.vector(n) if n else None for n in names]
        return Operand(role="other", entries=tuple(None if v is None or v[1] else v[0] for v in vectors))

    def common(self, names: Names) -> Dims | None:
        """Sizes that all the values have; axis 0 is never told."""
        found = [self._terms.dims(n) if n else None for n in names]
        first = found[0]
        if first is None:
            return None
        if not first:
            return None
        if any(f is None or len(f) != len(first) for f in found):
            return None
        columns = zip(*(f for f in found if f is not None), strict=True)
        return (None, *(c[0] if all(x == c[0] for x in c) else None for c in list(columns)[1:]))

    def question(self, nodes: tuple[EditNode, ...], operands: Iterable[Operand], sizes: Sizes) -> Question:
        """What a rule is asked about these nodes."""
        first = nodes[0]
        outputs = zip(*(n.outputs for n in nodes), strict=True)
        return Question(
            op_type=first.op_type,
            attributes=first.attributes,
            operands=tuple(operands),
            results=tuple(self.common(names) for names in outputs),
            used=tuple(bool(n) for n in first.outputs),
            sizes=sizes,
            opset=self._graph.opset,
        )

    def _constant(self, name: str, count: int) -> Bound:
        vector = self._terms.vector(name)
        operand = Operand(
            role="constant",
            dims=self._terms.dims(name),
            entries=() if vector is None else (vector[0],) * count,
            value=self._terms.value(name),
        )
        return Bound(operand=operand, name=name)

    def _equal_weights(self, names: Names) -> bool:
        return all(self.equal_pair(names[0], n) for n in names[1:])

    def equal_pair(self, one: str, other: str) -> bool:
        """Whether two constants have one type and shape and equal values within the tolerance; compared once.

        The tolerance is for weights, which are added up with others. A single number smaller than 1 may as well
        divide or bound (``x / 1e-8``, ``max(x, 1e-12)``): it must be equal within that part of itself.
        """
        a = self._graph.weights.get(one)
        b = self._graph.weights.get(other)
        if a is None:
            return False
        if b is None:
            return False
        if a.dtype is not b.dtype:
            return False
        if a.shape != b.shape:
            return False
        if (one, other) not in self._equal:
            tolerance = self._tolerance
            if a.elements == 1 and a.dtype in _FLOATS:
                tolerance *= min(1.0, abs(float(floats(a.values.array()).reshape(-1)[0])))
            self._equal[one, other] = a.values == b.values or equal_values(
                a.values, b.values, tolerance, dtype=a.dtype
            )
        return self._equal[one, other]

    def _same_integers(self, names: Names) -> Bound | None:
        """Vectors worked out from sizes that never change: one constant, if they are equal."""
        found = self._numbers(names[0])
        if found is None:
            return None
        if found[1]:
            return None
        if any(self._numbers(n) != found for n in names[1:]):
            return None
        shapes = [self._terms.shape(n) for n in names]
        if any(s is None or s.dtype != "int64" for s in shapes):
            return None
        return self._constant(self._graph.integers(found[0]), len(names))

    def _shared(self, names: Names, depth: int) -> Bound | None:
        """Values that alike nodes make of equal constants: the first one's stands for all."""
        if depth > _DEEPEST or not all(n in self._steady for n in names):
            return None
        numbers = [self._graph.maker.get(n) for n in names]
        makers = [self._graph.nodes[n] for n in numbers if n is not None]
        if len(makers) != len(names):
            return None
        if len(set(numbers)) != len(names):
            return None
        if not alike(makers):
            return None
        place = makers[0].outputs.index(names[0])
        if any(m.outputs.index(n) != place for m, n in zip(makers, names, strict=True)):
            return None
        if any(self._graph.fixed(n) for m in makers[1:] for n in m.writes):
            return None
        read: list[str] = []
        for inputs in zip(*(m.inputs for m in makers), strict=True):
            bound = self.find(inputs, depth + 1)
            if bound is None:
                return None
            if bound.operand.role not in ("constant", "absent"):
                return None
            read.append(bound.name)
        self._share(tuple(n for n in numbers if n is not None), tuple(read))
        return self._constant(names[0], len(names))

    def _share(self, numbers: Numbers, read: Names) -> None:
        """Let the first node, which reads constants alone, stand for all."""
        first = replace(self._graph.nodes[numbers[0]], inputs=read)
        self._graph.exchange(numbers[0], first)
        originals = list(self.replaces.get(first.name, (first.name,)))
        for number in numbers[1:]:
            node = self._graph.remove(number)
            originals.extend(self.replaces.pop(node.name, (node.name,)))
            for old, new in zip(node.outputs, first.outputs, strict=True):
                if old:
                    self._graph.redirect(old, new)
        self.replaces[first.name] = tuple(originals)
