"""Loop: its body once with a trip count where shapes repeat, unrolled where the carried shapes change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import LimitError, ShapeError
from gkestimator.core.graph import Value
from gkestimator.onnx_io.binding.expansion import (
    ACTIVATION,
    Mark,
    body_of,
    fact_of,
    output_fact,
    pass_on,
    required,
    scalar,
    scaled_repeat,
    set_slot,
    stack,
    without_value,
)
from gkestimator.onnx_io.binding.facts import Fact
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Block, Node
from gkestimator.operators.registry import TensorType

if TYPE_CHECKING:
    from gkestimator.onnx_io.binding.walk import Binder


def _trip_count(binder: Binder, node: Node, body: Block) -> int:
    maximum = fact_of(binder, node, 0)
    condition = fact_of(binder, node, 1)
    limit = scalar(maximum)
    if condition is not None and scalar(condition) == 0:
        return 0
    if limit is not None and limit <= 0:
        return 0
    endless = condition is None or scalar(condition) == 1
    passes_on = bool(body.outputs) and (
        body.outputs[0] == body.inputs[1] or _constant_true(binder, body.outputs[0])
    )
    if limit is not None and endless and (passes_on or _always_true(binder, body)):
        trips = limit
    elif binder.trip_count is not None:
        if limit is None:
            trips = binder.trip_count
        else:
            trips = min(limit, binder.trip_count)
    else:
        binder.warn(
            f"{node.name}: the trip count depends on data; one trip is counted (--trip-count says how many)"
        )
        return 1
    if trips > limits.MAX_TRIP_COUNT:
        raise LimitError(f"{node}: runs {trips} times; at most {limits.MAX_TRIP_COUNT} are supported")
    return trips


def _constant_true(binder: Binder, slot: int) -> bool:
    return scalar(binder.statics.facts[slot]) == 1


def _always_true(binder: Binder, body: Block) -> bool:
    """Whether the body's condition is passed through Identity nodes, or is a constant that is true."""
    producers = {slot: inner for inner in body.nodes for slot in inner.outputs}
    slot = body.outputs[0] if body.outputs else -1
    for _ in range(len(body.nodes) + 1):
        if slot == body.inputs[1] or _constant_true(binder, slot):
            return True
        producer = producers.get(slot)
        if (
            producer is None
            or producer.op_type not in ("Identity", "Cast")
            or producer.domain
            or not producer.inputs
        ):
            return False
        slot = producer.inputs[0]
    return False


def expand_loop(binder: Binder, node: Node) -> None:
    body = body_of(node, "body")
    carried = len(node.inputs) - 2
    if (
        len(body.inputs) != carried + 2
        or len(body.outputs) < carried + 1
        or len(node.outputs) > len(body.outputs) - 1
    ):
        raise ShapeError(f"{node}: its body takes {len(body.inputs)} values and gives {len(body.outputs)}")
    trips = _trip_count(binder, node, body)
    start = [(required(binder, node, i + 2), node.inputs[i + 2]) for i in range(carried)]
    scans = range(carried, len(node.outputs))
    if trips == 0:
        for (fact, slot), target in zip(start, node.outputs, strict=False):
            del fact
            pass_on(binder, slot, target)
        for index in scans:
            _empty_scan(binder, node, body, index, start)
        return
    if trips > 1 and _run_repeated(binder, node, body, start, trips):
        return
    _run_unrolled(binder, node, body, start, trips)


def _set_trip(binder: Binder, body: Block, trip: int | None) -> None:
    """The body's trip number (known while unrolling) and its condition, which is true inside."""
    intern = binder.inference.pool.intern
    if trip is None:
        number = None
    else:
        number = np.array(trip, dtype=np.int64)
    set_slot(
        binder,
        body.inputs[0],
        intern(TensorType(DType.INT64, ()), number),
        kind=ACTIVATION if number is None else 1,
    )
    set_slot(binder, body.inputs[1], intern(TensorType(DType.BOOL, ()), np.array(True)), kind=1)


def _run_repeated(
    binder: Binder, node: Node, body: Block, start: Sequence[tuple[Fact, int]], trips: int
) -> bool:
    """List the body once with its trip count, if its carried types are the same after a trip.

    Else leave no trace.
    """
    mark = Mark(binder)
    repeat = binder.repeat
    binder.repeat = scaled_repeat(binder, node, trips)
    try:
        _set_trip(binder, body, None)
        for (fact, slot), inner in zip(start, body.inputs[2:], strict=True):
            known = without_value(fact, binder)
            set_slot(binder, inner, known, value=binder.value(slot) if known is fact else None)
        binder.run(body.nodes)
    except ShapeError:
        mark.undo()
        return False
    finally:
        binder.repeat = repeat
    carried = len(start)
    for (fact, _), inner in zip(start, body.outputs[1:], strict=False):
        after = binder.facts[inner]
        if after is None or after.type != fact.type:
            mark.undo()
            return False
    pieces = [binder.value(slot) for slot in body.outputs[1:]]
    for piece in pieces[:carried]:
        binder.keep.add(id(piece))
    for index, target in enumerate(node.outputs):
        if index < carried:
            pass_on(binder, body.outputs[1 + index], target)
        else:
            stack(binder, node, target, [pieces[index]], trips)
    return True


def _run_unrolled(
    binder: Binder, node: Node, body: Block, start: Sequence[tuple[Fact, int]], trips: int
) -> None:
    if trips > limits.MAX_UNROLLED_TRIPS:
        raise LimitError(
            f"{node}: its shapes change from trip to trip and it runs {trips} times; at most "
            f"{limits.MAX_UNROLLED_TRIPS} such trips are supported"
        )
    outer = binder.suffix
    values = [(fact, binder.kinds[slot], binder.value(slot)) for fact, slot in start]
    scanned: list[list[Value]] = [[] for _ in range(len(body.outputs) - 1 - len(start))]
    try:
        for trip in range(trips):
            binder.suffix = f"{outer}@{trip}" if trips > 1 else outer
            _set_trip(binder, body, trip)
            for (fact, kind, value), inner in zip(values, body.inputs[2:], strict=True):
                set_slot(binder, inner, fact, kind=kind, value=value)
            binder.run(body.nodes)
            results = [(output_fact(binder, s), binder.kinds[s], binder.value(s)) for s in body.outputs[1:]]
            values = results[: len(start)]
            for pieces, (_, _, value) in zip(scanned, results[len(start) :], strict=True):
                pieces.append(value)
    finally:
        binder.suffix = outer
    for index, target in enumerate(node.outputs):
        if index < len(start):
            fact, kind, value = values[index]
            set_slot(binder, target, fact, kind=kind, value=value)
        else:
            stack(binder, node, target, scanned[index - len(start)], trips)


def _empty_scan(
    binder: Binder, node: Node, body: Block, index: int, start: Sequence[tuple[Fact, int]]
) -> None:
    """A scan output of no trips.

    The body is walked once for the shape of a piece, and nothing of it is kept.
    """
    mark = Mark(binder)
    _set_trip(binder, body, None)
    for (fact, _), inner in zip(start, body.inputs[2:], strict=True):
        set_slot(binder, inner, without_value(fact, binder))
    binder.run(body.nodes)
    piece = output_fact(binder, body.outputs[1 + index]).type
    mark.undo()
    if not isinstance(piece, TensorType):
        raise ShapeError(f"{node}: a scan output is a sequence")
    set_slot(
        binder, node.outputs[index], binder.inference.pool.intern(TensorType(piece.dtype, (0, *piece.shape)))
    )
