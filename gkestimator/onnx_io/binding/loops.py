"""Expand Loop: its body once with a trip count where shapes repeat, unrolled where the carried shapes change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Value
from gkestimator.onnx_io.binding.expansion import Mark, body_of, scalar, scaled_repeat, stack, without_value
from gkestimator.onnx_io.binding.facts import Fact
from gkestimator.onnx_io.binding.walk import ACTIVATION, FOLDED, Binder
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Block, Node
from gkestimator.operators.registry import TensorType


def _trip_count(binder: Binder, node: Node, body: Block) -> int:
    condition = binder.input_fact(node, 1)
    known = scalar(condition)
    limit = scalar(binder.input_fact(node, 0))
    if known == 0:
        return 0
    if limit is not None and limit <= 0:
        return 0
    endless = condition is None or known == 1
    if limit is not None and endless and _goes_on(binder, body):
        trips = limit
    elif binder.trip_count is None:
        binder.warn_of_data(
            node, "the trip count depends on data, one trip is counted (option trip_count says how many)"
        )
        return 1
    elif limit is None:
        trips = binder.trip_count
    else:
        trips = min(limit, binder.trip_count)
    limits.check("trip_count", trips, str(node))
    return trips


def _goes_on(binder: Binder, body: Block) -> bool:
    """Return whether the body's condition is passed on through Identity nodes, or is a constant that is true."""
    if not body.outputs:
        return False
    producers = {slot: inner for inner in body.nodes for slot in inner.outputs}
    slot = body.outputs[0]
    # A cycle cannot be longer than the body.
    for _ in range(len(body.nodes) + 1):
        if slot == body.inputs[1] or scalar(binder.statics.facts[slot]) == 1:
            return True
        producer = producers.get(slot)
        if producer is None or producer.domain or not producer.inputs:
            return False
        if producer.op_type not in ("Identity", "Cast"):
            return False
        slot = producer.inputs[0]
    return False


def expand_loop(binder: Binder, node: Node) -> None:
    """List the operators of a Loop. Raises ShapeError and LimitError."""
    body = body_of(node, "body")
    carried = len(node.inputs) - 2
    fits = len(body.inputs) == carried + 2 and len(body.outputs) > carried
    if not fits or len(node.outputs) > len(body.outputs) - 1:
        raise ShapeError(f"{node}: its body takes {len(body.inputs)} values and gives {len(body.outputs)}")
    trips = _trip_count(binder, node, body)
    start = [(binder.required(node, i + 2), node.inputs[i + 2]) for i in range(carried)]
    if trips == 0:
        for (_, slot), target in zip(start, node.outputs, strict=False):
            binder.pass_on(slot, target)
        for index in range(carried, len(node.outputs)):
            _empty_scan(binder, node, body, index, start)
        return
    if trips > 1 and _run_repeated(binder, node, body, start, trips):
        return
    _run_unrolled(binder, node, body, start, trips)


def _set_trip(binder: Binder, body: Block, trip: int | None) -> None:
    """Set the body's trip number (known while unrolling) and its condition, which is true inside."""
    number = None
    kind = ACTIVATION
    if trip is not None:
        number = np.array(trip, dtype=np.int64)
        kind = FOLDED
    binder.set_slot(body.inputs[0], binder.intern(TensorType(DType.INT64, ()), number), kind=kind)
    true = binder.intern(TensorType(DType.BOOL, ()), np.array(True))
    binder.set_slot(body.inputs[1], true, kind=FOLDED)


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
            value = None
            if known is fact:
                value = binder.value(slot)
            binder.set_slot(inner, known, value=value)
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
    binder.keep.update(dict.fromkeys(map(id, pieces[:carried])))
    for index, target in enumerate(node.outputs):
        if index < carried:
            binder.pass_on(body.outputs[1 + index], target)
        else:
            stack(binder, node, target, [pieces[index]], trips)
    return True


def _run_unrolled(
    binder: Binder, node: Node, body: Block, start: Sequence[tuple[Fact, int]], trips: int
) -> None:
    limits.check("unrolled_trips", trips, f"{node}: its shapes change from trip to trip")
    outer = binder.suffix
    carried = len(start)
    values = [(fact, binder.kinds[slot], binder.value(slot)) for fact, slot in start]
    scanned: list[list[Value]] = [[] for _ in body.outputs[1 + carried :]]
    try:
        for trip in range(trips):
            if trips > 1:
                binder.suffix = f"{outer}@{trip}"
            _set_trip(binder, body, trip)
            for (fact, kind, value), inner in zip(values, body.inputs[2:], strict=True):
                binder.set_slot(inner, fact, kind=kind, value=value)
            binder.run(body.nodes)
            results = [(binder.output_fact(s), binder.kinds[s], binder.value(s)) for s in body.outputs[1:]]
            values = results[:carried]
            for pieces, (_, _, value) in zip(scanned, results[carried:], strict=True):
                pieces.append(value)
    finally:
        binder.suffix = outer
    for index, target in enumerate(node.outputs):
        if index < carried:
            fact, kind, value = values[index]
            binder.set_slot(target, fact, kind=kind, value=value)
        else:
            stack(binder, node, target, scanned[index - carried], trips)


def _empty_scan(
    binder: Binder, node: Node, body: Block, index: int, start: Sequence[tuple[Fact, int]]
) -> None:
    """Set a scan output of no trips.

    The body is walked once for the shape of a piece, and nothing of it is kept.
    """
    mark = Mark(binder)
    _set_trip(binder, body, None)
    for (fact, _), inner in zip(start, body.inputs[2:], strict=True):
        binder.set_slot(inner, without_value(fact, binder))
    binder.run(body.nodes)
    piece = binder.output_fact(body.outputs[1 + index]).type
    mark.undo()
    if not isinstance(piece, TensorType):
        raise ShapeError(f"{node}: a scan output is a sequence")
    binder.set_slot(node.outputs[index], binder.intern(TensorType(piece.dtype, (0, *piece.shape))))
