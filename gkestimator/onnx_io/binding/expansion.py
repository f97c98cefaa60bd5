"""Share what the expansion of all subgraphs needs: trial walks, and outputs stacked from pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import LimitError, ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.onnx_io.binding.facts import Fact, check_type
from gkestimator.onnx_io.binding.walk import Binder
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Block, Node
from gkestimator.operators.registry import TensorType


class Mark:
    """Remember where a walk stands, to return to when a try is given up."""

    def __init__(self, binder: Binder) -> None:
        self.binder = binder
        self.operators = len(binder.operators)
        self.folded = binder.folded
        self.warnings = len(binder.warnings)
        self.keep = len(binder.keep)

    def undo(self) -> None:
        """Forget everything since the mark was set."""
        binder = self.binder
        del binder.operators[self.operators :]
        del binder.nodes[self.operators :]
        binder.folded = self.folded
        for growing, before in ((binder.keep, self.keep), (binder.warnings, self.warnings)):
            while len(growing) > before:
                growing.popitem()


def body_of(node: Node, name: str) -> Block:
    """Return a subgraph of ``node``. Raises ShapeError where it is missing."""
    block = (node.blocks or {}).get(name)
    if block is None:
        raise ShapeError(f"{node}: attribute {name} (a subgraph) is missing")
    return block


def scalar(fact: Fact | None) -> int | None:
    """Return the number in a known one-element value, None for any other."""
    if fact is None or not isinstance(fact.value, np.ndarray) or fact.value.size != 1:
        return None
    return int(fact.value.reshape(()))


def scaled_repeat(binder: Binder, node: Node, trips: int) -> int:
    """Return how often a body runs in all that runs ``trips`` times each time. Raises LimitError."""
    repeat = binder.repeat * trips
    if repeat > limits.MAX_REPEAT:
        raise LimitError(
            f"{node}: its body would run {repeat} times; at most {limits.MAX_REPEAT} are supported"
        )
    return repeat


def without_value(fact: Fact, binder: Binder) -> Fact:
    """Return ``fact`` without its value: what a carried value is after some trip."""
    if fact.value is None:
        return fact
    return binder.intern(fact.type)


def placed_axis(axis: int, rank: int) -> int | None:
    """Return ``axis``, counted from the end where it is negative; None where ``rank`` dimensions have no such one."""
    if axis < 0:
        axis += rank
    if 0 <= axis < rank:
        return axis
    return None


def copy_pieces(
    binder: Binder, node: Node, slot: int, pieces: Sequence[Value], axis: int, type_: TensorType
) -> None:
    """Let ``slot`` be ``pieces`` joined, which is listed as the copy that makes it."""
    binder.set_slot(slot, binder.intern(check_type(type_)))
    if node.domain:
        version = 13
    else:
        version = node.version
    operator = Operator(
        name=f"{node.name}{binder.suffix}/stack:{binder.program.names[slot]}",
        domain="",
        op_type="Concat",
        version=version,
        attributes={"axis": axis},
        inputs=tuple(pieces),
        outputs=(binder.value(slot),),
        repeat=binder.repeat,
    )
    binder.append(node, operator)


def stack(binder: Binder, node: Node, slot: int, pieces: Sequence[Value], count: int, axis: int = 0) -> None:
    """Let ``slot`` be a scan output: the pieces of ``count`` trips joined along a new axis."""
    if slot < 0:
        return
    first = pieces[0]
    if not isinstance(first, Tensor):
        raise ShapeError(f"{node}: a scan output is a sequence")
    for piece in pieces:
        if not isinstance(piece, Tensor) or piece.shape != first.shape:
            raise ShapeError(f"{node}: the pieces of a scan output differ in shape")
    rank = len(first.shape) + 1
    place = placed_axis(axis, rank)
    if place is None:
        if axis < 0:
            shown = axis + rank
        else:
            shown = axis
        raise ShapeError(f"{node}: scan output axis {shown} is outside {rank} dimensions")
    shape = (*first.shape[:place], count, *first.shape[place:])
    copy_pieces(binder, node, slot, pieces, place, TensorType(first.dtype, shape, first.bounded))
