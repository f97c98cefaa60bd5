"""Find values that lie one behind the other along axis 0 of a whole, and how names of branches become
operands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing import Dims, EditNode, Names, Numbers
from gkestimator.merging.lifting.graph import Graph
from gkestimator.merging.lifting.operands import ABSENT, Operand, Question
from gkestimator.merging.lifting.rules import DETERMINISTIC
from gkestimator.merging.lifting.terms import Entries, Sizes, Terms, Vector, integers
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.similarity.equality import floats

_DEEPEST = 64
_FLOATS = frozenset({DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16})


@frozen
class BranchBundle:
    """Say that ``whole`` is the concatenation of ``parts`` along axis 0, whose sizes there are ``sizes``.

    ``joined``: a Concat makes the whole, so that who reads it waits for all parts. Otherwise a Split makes
    the parts, and whoever reads one has waited for the whole already.
    """

    parts: Names
    whole: str
    sizes: Sizes
    joined: bool


@frozen
class Bound:
    """Say what the branches' inputs are, and the name that one node for all of them would read."""

    operand: Operand
    name: str
    bundle: BranchBundle | None = None


class BranchBinder:
    """Find what n names, one of each branch, are to an operator that runs once."""

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
        """Return True where ``node`` is a Concat along axis 0."""
        axis = node.attributes.get("axis")
        if node.key != ("", "Concat") or not isinstance(axis, int):
            return False
        rank = len(self._terms.dims(node.inputs[0]) or ())
        return axis == 0 or (rank > 0 and axis == -rank)

    def note_steady(self, node: EditNode) -> None:
        """Remember what depends on constants alone, as far as values go."""
        if node.key in DETERMINISTIC and all(map(self._is_steady, node.reads)):
            self._steady.update(node.writes)

    def _is_steady(self, name: str) -> bool:
        return name in self._graph.weights or name in self._steady or self._numbers(name) is not None

    def _numbers(self, name: str) -> Vector | None:
        """Return a vector all of whose entries are numbers."""
        vector = self._terms.vector(name)
        if vector is None or integers(vector.entries) is None:
            return None
        return vector

    def find(self, names: Names, depth: int = 0) -> Bound | None:
        """Return what the names are as they stand; None where they are neither a bundle nor one constant."""
        if not any(names):
            return Bound(operand=ABSENT, name="")
        if not all(names):
            return None
        bundle = self.bundles.get(names)
        if bundle is not None:
            return Bound(operand=self.batch(names), name=bundle.whole, bundle=bundle)
        # one value in all branches, or weights that merging takes for equal
        first = names[0]
        if all(name == first for name in names) or all(self.equal_pair(first, name) for name in names[1:]):
            return self._constant(first, len(names))
        return self._same_integers(names) or self._shared(names, depth)

    def batch(self, names: Names) -> Operand:
        """Return the operand that a bundle of these parts is."""
        return Operand(role="batch", dims=self.common(names))

    def other(self, names: Names) -> Operand:
        """Return an operand of which only the entries of small integer vectors count."""
        rows: list[Entries | None] = []
        for name in names:
            vector = self._terms.vector(name)
            if vector is None or vector.scalar:
                rows.append(None)
            else:
                rows.append(vector.entries)
        return Operand(role="other", entries=tuple(rows))

    def common(self, names: Names) -> Dims | None:
        """Return the sizes that all the values have; axis 0 is never told."""
        every = [self._terms.dims(name) or () for name in names]
        if not every[0] or len(set(map(len, every))) != 1:
            return None
        common: list[int | None] = [None]
        for column in list(zip(*every, strict=True))[1:]:
            if len(set(column)) == 1:
                common.append(column[0])
            else:
                common.append(None)
        return tuple(common)

    def question(self, nodes: tuple[EditNode, ...], operands: Iterable[Operand], sizes: Sizes) -> Question:
        """Return what a rule is asked about these nodes."""
        first = nodes[0]
        outputs = zip(*(node.outputs for node in nodes), strict=True)
        return Question(
            op_type=first.op_type,
            attributes=first.attributes,
            operands=tuple(operands),
            results=tuple(map(self.common, outputs)),
            used=tuple(map(bool, first.outputs)),
            sizes=sizes,
            opset=self._graph.opset,
        )

    def _constant(self, name: str, count: int) -> Bound:
        vector = self._terms.vector(name)
        entries: tuple[Entries, ...] = ()
        if vector is not None:
            entries = (vector.entries,) * count
        operand = Operand(
            role="constant", dims=self._terms.dims(name), entries=entries, value=self._terms.value(name)
        )
        return Bound(operand=operand, name=name)

    def equal_pair(self, one: str, other: str) -> bool:
        """Return True where two constants have one type and shape and equal values within the tolerance.

        They are compared once. The tolerance is for weights, which are added up with others. A single number
        smaller than 1 may as well divide or bound (``x / 1e-8``, ``max(x, 1e-12)``): it must be equal within
        that part of itself.
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
                number = floats(a.values.array()).reshape(-1)[0]
                tolerance *= min(1.0, abs(float(number)))
            same = a.values == b.values
            self._equal[one, other] = same or equal_values(a.values, b.values, tolerance, dtype=a.dtype)
        return self._equal[one, other]

    def _same_integers(self, names: Names) -> Bound | None:
        """Return vectors worked out from sizes that never change as one constant, if they are equal."""
        vector = self._numbers(names[0])
        if vector is None or vector.scalar:
            return None
        for name in names:
            shape = self._terms.shape(name)
            if self._numbers(name) != vector:
                return None
            if shape is None:
                return None
            if shape.dtype is not DType.INT64:
                return None
        numbers = integers(vector.entries) or ()
        return self._constant(self._graph.integers(numbers), len(names))

    def _shared(self, names: Names, depth: int) -> Bound | None:
        """Return values that alike nodes make of equal constants as the first one's, which stands for all."""
        # constants may be made of constants, but a stranger's chain must not end the stack
        if depth > _DEEPEST or not self._steady.issuperset(names):
            return None
        numbers = self._graph.makers_of(names)
        if numbers is None:
            return None
        makers = [self._graph.nodes[number] for number in numbers]
        for maker in makers[1:]:
            if any(self._graph.fixed(name) for name in maker.writes):
                return None
        inputs: list[str] = []
        for column in zip(*(maker.inputs for maker in makers), strict=True):
            bound = self.find(column, depth + 1)
            if bound is None:
                return None
            if bound.operand.role not in ("constant", "absent"):
                return None
            inputs.append(bound.name)
        self._share(numbers, tuple(inputs))
        return self._constant(names[0], len(names))

    def _share(self, numbers: Numbers, inputs: Names) -> None:
        """Let the first node, which reads constants alone, stand for all."""
        first = replace(self._graph.nodes[numbers[0]], inputs=inputs)
        self._graph.exchange(numbers[0], first)
        originals = list(self.replaces.get(first.name, (first.name,)))
        for number in numbers[1:]:
            node = self._graph.remove(number)
            originals.extend(self.replaces.pop(node.name, (node.name,)))
            for old, new in zip(node.outputs, first.outputs, strict=True):
                if old:
                    self._graph.redirect(old, new)
        self.replaces[first.name] = tuple(originals)
