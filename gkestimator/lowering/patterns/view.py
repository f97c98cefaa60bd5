"""A graph seen by its edges: who makes a value, who reads it, and small questions that patterns ask.

Built in one pass. The questions raise :class:`Mismatch` with a reason, so that a pattern reads as the chain
of operators it expects and every refusal says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

from gkestimator.core.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.core.records import frozen
from gkestimator.operators.builders import optional_input
from gkestimator.operators.registry import Shape

#: Places of operators in their graph.
Indices: TypeAlias = "list[int]"
Operands: TypeAlias = "tuple[Tensor, Tensor]"
#: A value, and the operators passed on the way to it.
Traced: TypeAlias = "tuple[Tensor, Indices]"

Key = tuple[str, str]


_VIEWS: WeakKeyDictionary[object, GraphView] = WeakKeyDictionary()


class Mismatch(Exception):  # noqa: N818  (an answer, not an error)
    """Say that a pattern does not apply here, and why. Never leaves the package."""


class NotFused(Mismatch):
    """Say that a kernel stays apart that a user could expect in a group: told where kernels are listed.

    ``what`` is in words what stays apart; the reason names no operator, so that equal ones can be counted, and
    ``detail`` says more of this one.
    """

    def __init__(self, what: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{what}: {detail or reason}")
        self.what = what
        self.reason = reason


@frozen
class GraphView:
    """Hold the edges of a graph.

    ``consumers`` lists each reading operator once, in execution order; ``weights`` are the bytes that each storage
    of weights has. ``taken`` marks the operators that belong to a group already, where a search keeps count.
    """

    operators: tuple[Operator, ...]
    producer: dict[str, int]
    consumers: dict[str, Indices]
    outputs: frozenset[str]
    by_key: dict[Key, Indices]
    weights: Mapping[str, int]
    taken: bytearray = field(default_factory=bytearray, compare=False, repr=False)

    @classmethod
    def of(cls, graph: OperatorGraph) -> GraphView:
        """Return the edges of ``graph``; those of an earlier graph of the same structure where there is one."""
        if graph.structure is None:
            return cls._of(graph)
        known = _VIEWS.get(graph.structure)
        if known is None:
            view = cls._of(graph)
            # without its operators, which hold on to a whole binding
            _VIEWS[graph.structure] = replace(view, operators=())
            return view
        return replace(known, operators=graph.operators)

    @classmethod
    def _of(cls, graph: OperatorGraph) -> GraphView:
        producer: dict[str, int] = {}
        consumers: dict[str, Indices] = {}
        by_key: dict[Key, Indices] = {}
        for index, op in enumerate(graph.operators):
            by_key.setdefault((op.domain, op.op_type), []).append(index)
            for value in op.inputs:
                if value is not None:
                    readers = consumers.get(value.name)
                    if readers is None:
                        consumers[value.name] = [index]
                    elif readers[-1] != index:
                        readers.append(index)
            for value in op.outputs:
                if value is not None:
                    producer[value.name] = index
        return cls(
            operators=graph.operators,
            producer=producer,
            consumers=consumers,
            outputs=frozenset(v.name for v in graph.outputs),
            by_key=by_key,
            weights=graph.weights,
        )

    def free(self, index: int) -> bool:
        """Return True for an operator that belongs to no group yet."""
        return not (self.taken and self.taken[index])

    def name(self, index: int) -> str:
        """Return the name of an operator."""
        return self.operators[index].name

    def result(self, index: int) -> Tensor:
        """Return output 0 of an operator."""
        op = self.operators[index]
        if op.outputs:
            value = op.outputs[0]
        else:
            value = None
        if not isinstance(value, Tensor):
            raise Mismatch(f"{op.name} has no tensor as its output 0")
        return value

    def operand(self, index: int, position: int) -> Tensor:
        """Return input ``position`` of an operator."""
        op = self.operators[index]
        value = None
        if position < len(op.inputs):
            value = op.inputs[position]
        if not isinstance(value, Tensor):
            raise Mismatch(f"{op.name} has no tensor as its input {position}")
        return value

    def added_bias(self, value: Tensor) -> tuple[int, Tensor, Tensor] | None:
        """Return the Add that makes ``value`` of a tensor of its shape and a one-dimensional weight, and those two.

        None where nothing does.
        """
        add = self.made_by(value, "Add")
        if add is None:
            return None
        for source, bias in self.either_order(add):
            if source.shape != value.shape:
                continue
            if bias.is_weight and bias.shape == value.shape[-1:]:
                return add, source, bias
        return None

    def made_by(self, value: Value | None, *op_types: str, domain: str = "") -> int | None:
        """Return the index of the operator that makes ``value`` if it is one of ``op_types``, else None."""
        if value is None:
            return None
        index = self.producer.get(value.name)
        if index is None:
            return None
        op = self.operators[index]
        if op.domain != domain or op.op_type not in op_types:
            return None
        return index

    def source(self, value: Value | None, *op_types: str) -> int:
        """Return what :meth:`made_by` does; anything else is a mismatch."""
        index = self.made_by(value, *op_types)
        if index is None:
            raise Mismatch(
                f"{_named(value)} comes from {self._maker(value)}, expected {' or '.join(op_types)}"
            )
        return index

    def sole_reader(self, value: Value) -> int | None:
        """Return the operator that reads ``value``, None when several do or it is an output of the graph."""
        readers = self.consumers.get(value.name, ())
        if len(readers) == 1 and value.name not in self.outputs:
            return readers[0]
        return None

    def reader(self, value: Value, *op_types: str) -> int:
        """Return the sole reader of ``value``, which must be one of ``op_types``."""
        index = self.sole_reader(value)
        if index is None:
            raise Mismatch(f"{value.name} is read by several operators or leaves the graph")
        op = self.operators[index]
        if op.domain != "" or op.op_type not in op_types:
            raise Mismatch(
                f"{value.name} is read by {op.op_type} {op.name}, expected {' or '.join(op_types)}"
            )
        return index

    def optional_reader(self, value: Value, *op_types: str) -> int | None:
        """Return the sole reader of ``value`` if it is one of ``op_types``, else None."""
        index = self.sole_reader(value)
        if index is None:
            return None
        op = self.operators[index]
        if op.domain == "" and op.op_type in op_types:
            return index
        return None

    def reads(self, index: int, position: int, value: Value) -> bool:
        """Return True when input ``position`` of an operator is ``value``."""
        return self.operand(index, position).name == value.name

    def either_order(self, index: int) -> tuple[Operands, Operands]:
        """Return the operands of a two-input operator, and the two the other way round."""
        first = self.operand(index, 0)
        second = self.operand(index, 1)
        return (first, second), (second, first)

    def other(self, index: int, value: Value) -> Tensor:
        """Return the operand of a two-input operator that is not ``value`` (``value`` itself where it is both)."""
        for operand, other in self.either_order(index):
            if operand.name == value.name:
                return other
        raise Mismatch(f"{self.operators[index].name} does not read {value.name}")

    def next(self, index: int, *op_types: str) -> int:
        """Return the sole reader of an operator's result, which must be one of ``op_types``."""
        return self.reader(self.result(index), *op_types)

    def partner(self, index: int, source: int) -> Tensor:
        """Return the operand of a two-input operator that is not the result of the operator ``source``."""
        return self.other(index, self.result(source))

    def mismatch(self, index: int, problem: str) -> Mismatch:
        """Return the error that says what is wrong with an operator."""
        return Mismatch(f"{self.name(index)} {problem}")

    def past_casts(self, value: Tensor) -> Traced:
        """Return ``value`` before conversions between floating-point types (and copies), with those operators."""
        passed: Indices = []
        while True:
            index = self.made_by(value, "Cast", "CastLike", "Identity")
            if index is None:
                return value, passed
            before = self.operand(index, 0)
            if not (before.dtype.is_floating and value.dtype.is_floating):
                return value, passed
            passed.append(index)
            value = before

    def through_casts(self, value: Tensor) -> Traced:
        """Return ``value`` after conversions between floating types that alone read it, with those operators."""
        passed: Indices = []
        while True:
            index = self.optional_reader(value, "Cast", "CastLike", "Identity")
            if index is None:
                return value, passed
            after = self.result(index)
            if self.operand(index, 0).name != value.name or not (
                after.dtype.is_floating and value.dtype.is_floating
            ):
                return value, passed
            passed.append(index)
            value = after

    def common_source(self, first: Tensor, second: Tensor) -> Traced:
        """Return the tensor that both are, up to conversions between floating types, with those conversions."""
        steps: dict[str, int] = {first.name: 0}
        _, passed = self.past_casts(first)
        for count, index in enumerate(passed, start=1):
            steps[self.operand(index, 0).name] = count
        behind = self.past_casts(second)[1]
        for count, value in enumerate([second, *(self.operand(index, 0) for index in behind)]):
            if value.name in steps:
                return value, [*passed[: steps[value.name]], *behind[:count]]
        raise Mismatch(f"{first.name} and {second.name} are different tensors, expected one")

    def split_scalar(self, index: int) -> Operands:
        """Return the operands of a two-input operator as (tensor, one-element constant)."""
        for operand, scalar in self.either_order(index):
            if is_scalar(scalar):
                return operand, scalar
        raise Mismatch(f"{self.operators[index].name} has no one-element constant operand")

    def _maker(self, value: Value | None) -> str:
        index = None
        if value is not None:
            index = self.producer.get(value.name)
        if index is None:
            return "no operator"
        op = self.operators[index]
        return f"{op.op_type} {op.name}"


def _named(value: Value | None) -> str:
    if value is None:
        return "an omitted input"
    return value.name


def is_scalar(tensor: Tensor) -> bool:
    """Return True for a one-element constant, its value known or not (a weight kept outside the file)."""
    return tensor.elements == 1 and (tensor.is_weight or tensor.value is not None)


def require_value(tensor: Tensor, expected: float, *, tolerance: float = 2e-3) -> None:
    """Raise Mismatch unless the constant is ``expected`` within a relative ``tolerance`` (half precision rounds by
    1e-3).

    A constant whose value lies outside the file passes: only patterns whose structure is unambiguous ask this.
    """
    if tensor.value is None:
        if is_scalar(tensor):
            return
        raise Mismatch(f"{tensor.name} is no constant, expected {expected:g}")
    if tensor.value.size != 1:
        raise Mismatch(f"{tensor.name} has {tensor.value.size} elements, expected the constant {expected:g}")
    value = float(tensor.value.item())
    if not math.isclose(value, expected, rel_tol=tolerance):
        raise Mismatch(f"{tensor.name} is {value:g}, expected {expected:g}")


def is_per_channel(tensor: Tensor, channels: int, rank: int) -> bool:
    """Return True for a weight of shape (1, C, 1, ...) or (C, 1, ...): a number per channel of ``rank`` dimensions."""
    shape = tensor.shape
    if not tensor.is_weight or tensor.elements != channels:
        return False
    if rank < 2 or len(shape) not in (rank - 1, rank):
        return False
    return shape[1 - rank] == channels


def require_last_axis(op: Operator, rank: int) -> None:
    """Raise Mismatch unless a Softmax over ``rank`` dimensions runs along the last of them."""
    if op.version >= 13:
        default = -1
    else:
        default = 1
    axis = op.attributes.get("axis", default)
    if not isinstance(axis, int) or axis % max(1, rank) != rank - 1:
        raise Mismatch(f"{op.name} runs along axis {axis}, expected the last")


def scalar_value(tensor: Tensor) -> float | None:
    """Return the value of a one-element constant, None where it is not known."""
    if tensor.value is None or tensor.value.size != 1:
        return None
    return float(tensor.value.item())


def reduced_axes(view: GraphView, index: int) -> Shape:
    """Return the axes of a reduction that keeps dimensions, as non-negative numbers in order; else a mismatch."""
    op = view.operators[index]
    rank = len(view.operand(index, 0).shape)
    if rank == 0:
        raise Mismatch(f"{op.name} reduces a scalar")
    if op.attributes.get("keepdims", 1) != 1:
        raise Mismatch(f"{op.name} drops the reduced dimensions, expected them kept")
    axes: object = op.attributes.get("axes")
    named = optional_input(op, 1)
    if axes is None and named is not None:
        if named.value is None:
            raise Mismatch(f"{op.name} has axes that are not constant")
        axes = tuple(named.value.reshape(-1).tolist())
    if not isinstance(axes, tuple) or not axes:
        raise Mismatch(f"{op.name} reduces over all axes, expected the last ones")
    return tuple(sorted(int(a) % rank for a in axes))


def require_trailing(axes: Shape, rank: int, name: str) -> int:
    """Return the first of ``axes`` if they are the last ones of ``rank``; else a mismatch."""
    first = rank - len(axes)
    if axes != tuple(range(first, rank)):
        raise Mismatch(f"{name} reduces over axes {list(axes)} of {rank}, expected the last ones")
    return axes[0]
