"""What a fusion pattern finds, and the single place where its soundness is checked.

A pattern describes the group it found as one operator (``Gelu``, ``LayerNormalization``, ...) whose exact key
has a lowering rule, so FLOPs and traffic of a fused group are those of the family, counted in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from gkestimator.core.errors import UnsupportedOperatorError
from gkestimator.core.graph import Attribute, Operator, Tensor, Value
from gkestimator.core.records import frozen
from gkestimator.lowering.memo import lower_operator, memo_of
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LOWERINGS, Lowered, LoweringOptions

Attributes: TypeAlias = "Mapping[str, Attribute]"

FUSED_DOMAIN = "gkestimator"
"""Domain of the operators that exist only as fused groups (no ONNX operator says the same)."""

_NO_ATTRIBUTES: Attributes = {}


@frozen
class Match:
    """Hold a group of operators that the runtime launches as one call.

    ``name`` is the pattern's. ``operator`` stands for the whole group: its key selects the lowering rule, its
    inputs and outputs are the group's. ``covered`` are the replaced operators' indices, ascending; the call runs at
    ``position``, when everything it reads exists and nothing has read what it writes: the last of them, or the first
    where ``runs_first``. ``also_reads`` are inputs that the operator has no place for (a second mask); they only keep
    their storage alive.
    """

    name: str
    operator: Operator
    covered: tuple[int, ...]
    also_reads: tuple[Value, ...] = ()
    runs_first: bool = False

    @property
    def op_type(self) -> str:
        """Return what the step is called."""
        return self.operator.op_type

    @property
    def position(self) -> int:
        """Return the index of the operator in whose place the call runs."""
        if self.runs_first:
            return self.covered[0]
        return self.covered[-1]

    @property
    def reads(self) -> tuple[Value, ...]:
        """Return the inputs from outside the group."""
        inputs = [value for value in self.operator.inputs if value is not None]
        return (*inputs, *self.also_reads)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Return the group's results."""
        return tuple(v for v in self.operator.outputs if isinstance(v, Tensor))

    def lower(self, options: LoweringOptions) -> Lowered:
        """Return the kernels of the group. Raises UnsupportedOperatorError when its operator has no rule."""
        if self.operator.key not in LOWERINGS:
            named = f"{self.operator.domain}.{self.op_type}".lstrip(".")
            raise UnsupportedOperatorError(
                f"pattern {self.name} at {self.operator.name!r}: no lowering rule for {named}, expected one",
                operators=(named,),
            )
        return lower_operator(self.operator, options, memo_of(options))


@lru_cache(maxsize=1024)
def _shared(items: tuple[tuple[str, Attribute], ...]) -> Attributes:
    return dict(items)


def _interned(attributes: Attributes | None) -> Attributes:
    """Return equal attributes as one object: the lowering's memory finds an operator's attributes by identity."""
    if not attributes:
        return _NO_ATTRIBUTES
    try:
        return _shared(tuple(attributes.items()))
    except TypeError:  # an array: those of an operator of the file, which live as long as the model
        return attributes


def fused(
    view: GraphView,
    name: str,
    covered: Iterable[int],
    *,
    op_type: str,
    inputs: tuple[Value | None, ...],
    domain: str = "",
    version: int = 1,
    attributes: Attributes | None = None,
    also_reads: tuple[Value, ...] = (),
) -> Match:
    """Return the match that replaces ``covered`` by one operator, whose outputs are those of the last covered
    operator.

    Raises Mismatch when a result inside the group is read outside of it or is an output of the graph (it has to be
    written to memory, so the runtime cannot fuse), or when the group straddles the edge of a loop.
    """
    indices = tuple(sorted(set(covered)))
    last = view.operators[indices[-1]]
    _require_closed(view, indices, frozenset(indices[-1:]), (*inputs, *also_reads))
    operator = Operator(
        name=last.name,
        domain=domain,
        op_type=op_type,
        version=version,
        attributes=_interned(attributes),
        inputs=inputs,
        outputs=last.outputs,
        repeat=last.repeat,
    )
    return Match(name=name, operator=operator, covered=indices, also_reads=also_reads)


def side_by_side(
    view: GraphView,
    name: str,
    covered: Iterable[int],
    ends: Sequence[int],
    *,
    op_type: str,
    inputs: tuple[Value | None, ...],
    attributes: Attributes | None = None,
) -> Match:
    """Return the match that replaces ``covered`` by one operator of :data:`FUSED_DOMAIN` whose outputs are those of all
    ``ends``, and which runs in the place of the first of them.

    Raises Mismatch as :func:`fused` does, and when something that it reads is made later than that.
    """
    indices = tuple(sorted(set(covered)))
    _require_closed(view, indices, frozenset(ends), inputs)
    for value in inputs:
        if value is not None and view.producer.get(value.name, -1) > indices[0]:
            raise Mismatch(f"{value.name} is made after {view.name(indices[0])}")
    last = view.operators[indices[-1]]
    operator = Operator(
        name=last.name,
        domain=FUSED_DOMAIN,
        op_type=op_type,
        version=1,
        attributes=_interned(attributes),
        inputs=inputs,
        outputs=tuple([view.result(end) for end in ends]),
        repeat=last.repeat,
    )
    return Match(name=name, operator=operator, covered=indices, runs_first=True)


def _require_closed(
    view: GraphView, indices: Sequence[int], ends: frozenset[int], inputs: Iterable[Value | None]
) -> None:
    """Raise Mismatch unless what the operators at ``indices`` make stays among them, but for results of ``ends``, and
    what they read comes from outside.
    """
    members = frozenset(indices)
    last = view.operators[indices[-1]]
    for index in indices:
        op = view.operators[index]
        if op.repeat != last.repeat:
            raise Mismatch(f"{op.name} runs {op.repeat} times, {last.name} {last.repeat} times")
        if index in ends:
            continue
        for value in op.outputs:
            if value is None:
                continue
            if value.name in view.outputs:
                raise Mismatch(f"{value.name} is an output of the graph too")
            for reader in view.consumers.get(value.name, ()):
                if reader not in members:
                    raise Mismatch(f"{value.name} is read by {view.name(reader)} too")
    for value in inputs:
        if value is not None and view.producer.get(value.name, -1) in members:
            raise Mismatch(f"{value.name} is made inside the group")
