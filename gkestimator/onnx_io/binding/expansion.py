"""What the expansion of all subgraphs shares: slots handed through, trial walks, stacked outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gkestimator.core.errors import LimitError, ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.onnx_io.binding.facts import Fact, check_type
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Block, Node
from gkestimator.operators.registry import TensorType

if TYPE_CHECKING:
    from gkestimator.onnx_io.binding.walk import Binder

ACTIVATION = 0


class Mark:
    """Where a walk stands, to return to when a try is given up."""

    def __init__(self, binder: Binder) -> None:
        self.binder = binder
        self.operators = len(binder.operators)
        self.folded = binder.folded
        self.warnings = len(binder.warnings)
        self.keep = set(binder.keep)

    def undo(self) -> None:
        del self.binder.operators[self.operators :]
        del self.binder.nodes[self.operators :]
        del self.binder.warnings[self.warnings :]
        self.binder.folded = self.folded
        self.binder.keep = self.keep


def fact_of(binder: Binder, node: Node, position: int) -> Fact | None:
    if position >= len(node.inputs) or node.inputs[position] < 0:
        return None
    return binder.facts[node.inputs[position]]


def required(binder: Binder, node: Node, position: int) -> Fact:
    fact = fact_of(binder, node, position)
    if fact is None:
        raise ShapeError(f"{node}: input {position} is missing")
    return fact


def body_of(node: Node, name: str) -> Block:
    block = (node.blocks or {}).get(name)
    if block is None:
        raise ShapeError(f"{node}: attribute {name} (a subgraph) is missing")
    return block


def scalar(fact: Fact | None) -> int | None:
    """The number in a known one-element value."""
    if fact is None or not isinstance(fact.value, np.ndarray) or fact.value.size != 1:
        return None
    return int(fact.value.reshape(()))


def pass_on(binder: Binder, source: int, target: int) -> None:
    """Let slot ``target`` be the value of slot ``source``: same memory, nothing copied."""
    if target < 0:
        return
    if source < 0:
        raise ShapeError("a subgraph passes on an input that was left out")
    value = binder.value(source)
    binder.facts[target] = binder.facts[source]
    binder.kinds[target] = binder.kinds[source]
    binder.values[target] = value


def set_slot(
    binder: Binder, slot: int, fact: Fact, *, kind: int = ACTIVATION, value: Value | None = None
) -> None:
    """Let ``slot`` be ``fact``; ``value`` is the tensor behind it where that exists already."""
    if slot < 0:
        return
    binder.facts[slot] = fact
    binder.kinds[slot] = kind
    binder.values[slot] = value


def scaled_repeat(binder: Binder, node: Node, trips: int) -> int:
    repeat = binder.repeat * trips
    if repeat > limits.MAX_REPEAT:
        raise LimitError(
            f"{node}: its body would run {repeat} times; at most {limits.MAX_REPEAT} are supported"
        )
    return repeat


def without_value(fact: Fact, binder: Binder) -> Fact:
    """``fact`` without its value: what a carried value is after some trip."""
    if fact.value is None:
        return fact
    return binder.inference.pool.intern(fact.type)


def stack(binder: Binder, node: Node, slot: int, pieces: Sequence[Value], count: int, axis: int = 0) -> None:
    """A scan output: ``count`` trips' pieces joined along a new axis; listed as the copy that makes it."""
    if slot < 0:
        return
    first = pieces[0]
    if not isinstance(first, Tensor):
        raise ShapeError(f"{node}: a scan output is a sequence")
    if any(not isinstance(p, Tensor) or p.shape != first.shape for p in pieces):
        raise ShapeError(f"{node}: the pieces of a scan output differ in shape")
    rank = len(first.shape) + 1
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis < rank:
        raise ShapeError(f"{node}: scan output axis {axis} is outside {rank} dimensions")
    type_ = check_type(
        TensorType(first.dtype, (*first.shape[:axis], count, *first.shape[axis:]), first.bounded)
    )
    set_slot(binder, slot, binder.inference.pool.intern(type_))
    value = binder.value(slot)
    binder.append(
        node,
        Operator(
            name=f"{node.name}{binder.suffix}/stack:{binder.program.names[slot]}",
            domain="",
            op_type="Concat",
            version=node.version if not node.domain else 13,
            attributes={"axis": axis},
            inputs=tuple(pieces),
            outputs=(value,),
            repeat=binder.repeat,
        ),
    )


def output_fact(binder: Binder, slot: int) -> Fact:
    fact = binder.facts[slot]
    if fact is None:
        raise ShapeError(f"tensor {binder.program.names[slot]!r} is read before it is written")
    return fact
