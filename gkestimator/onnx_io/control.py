"""Control flow: If, Loop, Scan and SequenceMap are expanded into the operators of their subgraphs.

A trip whose shapes repeat is listed once with its trip count; one whose carried shapes change from trip to trip is
unrolled. The branch of an If is taken when its condition is known; otherwise the branch whose nodes produce more
elements stands for both (a heuristic for the costlier one), with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gkestimator.dtypes import DType
from gkestimator.errors import LimitError, ShapeError
from gkestimator.graph import Operator, Tensor, Value
from gkestimator.graph import Sequence as TensorSequence
from gkestimator.onnx_io import limits
from gkestimator.onnx_io.facts import Fact, check_type
from gkestimator.onnx_io.program import Block, Node
from gkestimator.onnx_io.shapes.registry import SequenceType, TensorType

if TYPE_CHECKING:
    from gkestimator.onnx_io.binding import Binder

__all__ = ["CONTROL"]

ACTIVATION = 0


class _Mark:
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


def _fact(binder: Binder, node: Node, position: int) -> Fact | None:
    if position >= len(node.inputs) or node.inputs[position] < 0:
        return None
    return binder.facts[node.inputs[position]]


def _required(binder: Binder, node: Node, position: int) -> Fact:
    fact = _fact(binder, node, position)
    if fact is None:
        raise ShapeError(f"{node}: input {position} is missing")
    return fact


def _body(node: Node, name: str) -> Block:
    block = (node.blocks or {}).get(name)
    if block is None:
        raise ShapeError(f"{node}: attribute {name} (a subgraph) is missing")
    return block


def _scalar(fact: Fact | None) -> int | None:
    """The number in a known one-element value."""
    if fact is None or not isinstance(fact.value, np.ndarray) or fact.value.size != 1:
        return None
    return int(fact.value.reshape(()))


def _pass(binder: Binder, source: int, target: int) -> None:
    """Let slot ``target`` be the value of slot ``source``: same memory, nothing copied."""
    if target < 0:
        return
    if source < 0:
        raise ShapeError("a subgraph passes on an input that was left out")
    value = binder.value(source)
    binder.facts[target] = binder.facts[source]
    binder.kinds[target] = binder.kinds[source]
    binder.values[target] = value


def _set(binder: Binder, slot: int, fact: Fact, *, kind: int = ACTIVATION, value: Value | None = None) -> None:
    """Let ``slot`` be ``fact``; ``value`` is the tensor behind it where that exists already."""
    if slot < 0:
        return
    binder.facts[slot] = fact
    binder.kinds[slot] = kind
    binder.values[slot] = value


def _elements(operators: Sequence[Operator]) -> int:
    total = 0
    for operator in operators:
        for value in operator.outputs:
            if value is not None:
                tensors = (value,) if isinstance(value, Tensor) else value.elements_
                total += operator.repeat * sum(t.elements for t in tensors)
    return total


def _if(binder: Binder, node: Node) -> None:
    branches = {name: _body(node, name) for name in ("then_branch", "else_branch")}
    for block in branches.values():
        if len(block.outputs) < len(node.outputs):
            raise ShapeError(f"{node}: has {len(node.outputs)} outputs; a branch gives {len(block.outputs)}")
    condition = _scalar(_required(binder, node, 0))
    if condition is not None:
        chosen = branches["then_branch" if condition else "else_branch"]
        binder.run(chosen.nodes)
    else:
        # every subgraph has slots of its own, so both can be walked and one of them be taken back
        taken: dict[str, tuple[int, list[Operator], list[Node]]] = {}
        errors = []
        at = len(binder.operators)
        for name, block in branches.items():
            try:
                binder.run(block.nodes)
                taken[name] = (_elements(binder.operators[at:]), binder.operators[at:], binder.nodes[at:])
            except ShapeError as e:
                errors.append(e)
            del binder.operators[at:]
            del binder.nodes[at:]
        if not taken:
            raise errors[0]
        best = max(taken, key=lambda name: taken[name][0])
        binder.warn(f"{node.name}: the condition depends on data; its {best} is counted")
        chosen = branches[best]
        binder.operators.extend(taken[best][1])
        binder.nodes.extend(taken[best][2])
    for source, target in zip(chosen.outputs, node.outputs, strict=False):
        _pass(binder, source, target)


def _scaled(binder: Binder, node: Node, trips: int) -> int:
    repeat = binder.repeat * trips
    if repeat > limits.MAX_REPEAT:
        raise LimitError(f"{node}: its body would run {repeat} times; at most {limits.MAX_REPEAT} are supported")
    return repeat


def _unknown(fact: Fact, binder: Binder) -> Fact:
    """``fact`` without its value: what a carried value is after some trip."""
    return fact if fact.value is None else binder.inference.pool.intern(fact.type)


def _stack(binder: Binder, node: Node, slot: int, pieces: Sequence[Value], count: int, axis: int = 0) -> None:
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
    type_ = check_type(TensorType(first.dtype, (*first.shape[:axis], count, *first.shape[axis:]), first.bounded))
    _set(binder, slot, binder.inference.pool.intern(type_))
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


def _trip_count(binder: Binder, node: Node, body: Block) -> int:
    maximum, condition = _fact(binder, node, 0), _fact(binder, node, 1)
    limit = _scalar(maximum)
    if condition is not None and _scalar(condition) == 0:
        return 0
    if limit is not None and limit <= 0:
        return 0
    endless = condition is None or _scalar(condition) == 1
    passes_on = bool(body.outputs) and (body.outputs[0] == body.inputs[1] or _constant_true(binder, body.outputs[0]))
    if limit is not None and endless and (passes_on or _always_true(binder, body)):
        trips = limit
    elif binder.trip_count is not None:
        trips = binder.trip_count if limit is None else min(limit, binder.trip_count)
    else:
        binder.warn(f"{node.name}: the trip count depends on data; one trip is counted (--trip-count says how many)")
        return 1
    if trips > limits.MAX_TRIP_COUNT:
        raise LimitError(f"{node}: runs {trips} times; at most {limits.MAX_TRIP_COUNT} are supported")
    return trips


def _constant_true(binder: Binder, slot: int) -> bool:
    return _scalar(binder.statics.facts[slot]) == 1


def _always_true(binder: Binder, body: Block) -> bool:
    """Whether the body's condition is passed through Identity nodes, or made from constants alone and true."""
    producers = {slot: inner for inner in body.nodes for slot in inner.outputs}
    slot = body.outputs[0] if body.outputs else -1
    for _ in range(len(body.nodes) + 1):
        if slot == body.inputs[1] or _constant_true(binder, slot):
            return True
        producer = producers.get(slot)
        if producer is None or producer.op_type not in ("Identity", "Cast") or producer.domain or not producer.inputs:
            return False
        slot = producer.inputs[0]
    return False


def _loop(binder: Binder, node: Node) -> None:
    body = _body(node, "body")
    carried = len(node.inputs) - 2
    if len(body.inputs) != carried + 2 or len(body.outputs) < carried + 1 or len(node.outputs) > len(body.outputs) - 1:
        raise ShapeError(f"{node}: its body takes {len(body.inputs)} values and gives {len(body.outputs)}")
    trips = _trip_count(binder, node, body)
    start = [(_required(binder, node, i + 2), node.inputs[i + 2]) for i in range(carried)]
    scans = range(carried, len(node.outputs))
    if trips == 0:
        for (fact, slot), target in zip(start, node.outputs, strict=False):
            del fact
            _pass(binder, slot, target)
        for index in scans:
            _empty_scan(binder, node, body, index, start)
        return
    if trips > 1 and _run_repeated(binder, node, body, start, trips):
        return
    _run_unrolled(binder, node, body, start, trips)


def _set_trip(binder: Binder, body: Block, trip: int | None) -> None:
    """The body's trip number (known while unrolling) and its condition, which is true inside."""
    intern = binder.inference.pool.intern
    number = None if trip is None else np.array(trip, dtype=np.int64)
    _set(binder, body.inputs[0], intern(TensorType(DType.INT64, ()), number), kind=ACTIVATION if number is None else 1)
    _set(binder, body.inputs[1], intern(TensorType(DType.BOOL, ()), np.array(True)), kind=1)


def _run_repeated(
    binder: Binder, node: Node, body: Block, start: Sequence[tuple[Fact, int]], trips: int
) -> bool:
    """List the body once with its trip count, if its carried types are the same after a trip; else leave no trace."""
    mark, repeat = _Mark(binder), binder.repeat
    binder.repeat = _scaled(binder, node, trips)
    try:
        _set_trip(binder, body, None)
        for (fact, slot), inner in zip(start, body.inputs[2:], strict=True):
            known = _unknown(fact, binder)
            _set(binder, inner, known, value=binder.value(slot) if known is fact else None)
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
            _pass(binder, body.outputs[1 + index], target)
        else:
            _stack(binder, node, target, [pieces[index]], trips)
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
                _set(binder, inner, fact, kind=kind, value=value)
            binder.run(body.nodes)
            results = [(_output_fact(binder, s), binder.kinds[s], binder.value(s)) for s in body.outputs[1:]]
            values = results[: len(start)]
            for pieces, (_, _, value) in zip(scanned, results[len(start) :], strict=True):
                pieces.append(value)
    finally:
        binder.suffix = outer
    for index, target in enumerate(node.outputs):
        if index < len(start):
            fact, kind, value = values[index]
            _set(binder, target, fact, kind=kind, value=value)
        else:
            _stack(binder, node, target, scanned[index - len(start)], trips)


def _output_fact(binder: Binder, slot: int) -> Fact:
    fact = binder.facts[slot]
    if fact is None:
        raise ShapeError(f"tensor {binder.program.names[slot]!r} is read before it is written")
    return fact


def _empty_scan(binder: Binder, node: Node, body: Block, index: int, start: Sequence[tuple[Fact, int]]) -> None:
    """A scan output of no trips: the body is walked once for the shape of a piece, and nothing of it is kept."""
    mark = _Mark(binder)
    _set_trip(binder, body, None)
    for (fact, _), inner in zip(start, body.inputs[2:], strict=True):
        _set(binder, inner, _unknown(fact, binder))
    binder.run(body.nodes)
    piece = _output_fact(binder, body.outputs[1 + index]).type
    mark.undo()
    if not isinstance(piece, TensorType):
        raise ShapeError(f"{node}: a scan output is a sequence")
    _set(binder, node.outputs[index], binder.inference.pool.intern(TensorType(piece.dtype, (0, *piece.shape))))


def _scan(binder: Binder, node: Node) -> None:
    body = _body(node, "body")
    get = node.attributes.get
    scanned = int(get("num_scan_inputs", 0))
    old = node.version < 9  # opset 8: a batch in front of every value, and sequence lengths as the first input
    positions = list(range(1 if old else 0, len(node.inputs)))
    states = len(positions) - scanned
    if scanned < 1 or states < 0 or len(body.inputs) != len(positions):
        raise ShapeError(f"{node}: {scanned} scan inputs and a body of {len(body.inputs)} for {len(positions)} inputs")
    facts = [_required(binder, node, p) for p in positions]
    axes = get("scan_input_axes") or (0,) * scanned
    out_axes = get("scan_output_axes") or (0,) * (len(body.outputs) - states)
    if len(axes) != scanned or len(body.outputs) < len(node.outputs) or len(out_axes) < len(node.outputs) - states:
        raise ShapeError(f"{node}: scan axes do not match its inputs and outputs")
    intern = binder.inference.pool.intern
    trips, batch = None, 1
    inner_facts = []
    for index, fact in enumerate(facts):
        type_ = fact.type
        if not isinstance(type_, TensorType):
            raise ShapeError(f"{node}: input {index} is a sequence")
        shape = type_.shape
        if old:
            if not shape:
                raise ShapeError(f"{node}: input {index} has no batch dimension")
            batch, shape = shape[0], shape[1:]
        if index >= states:
            axis = int(axes[index - states])
            axis = axis + len(shape) if axis < 0 else axis
            if not 0 <= axis < len(shape):
                raise ShapeError(f"{node}: scan axis {axis} is outside {len(shape)} dimensions")
            if trips is not None and trips != shape[axis]:
                raise ShapeError(f"{node}: scan inputs of lengths {trips} and {shape[axis]}")
            trips, shape = shape[axis], (*shape[:axis], *shape[axis + 1 :])
        inner_facts.append(intern(TensorType(type_.dtype, shape, type_.bounded)))
    count = trips or 0
    mark, repeat = _Mark(binder), binder.repeat
    binder.repeat = _scaled(binder, node, count * batch) if count else repeat
    try:
        for index, (fact, slot) in enumerate(zip(inner_facts, body.inputs, strict=True)):
            same = index < states and not old and binder.facts[node.inputs[positions[index]]] is fact
            _set(binder, slot, fact, value=binder.value(node.inputs[positions[index]]) if same else None)
        binder.run(body.nodes)
    finally:
        binder.repeat = repeat
    results = [_output_fact(binder, s) for s in body.outputs]
    for index in range(states):
        if results[index].type != inner_facts[index].type:
            raise ShapeError(f"{node}: state {index} changes its type from trip to trip")
    pieces = [binder.value(s) for s in body.outputs]
    binder.keep.update(id(p) for p in pieces[:states])
    if not count:
        mark.undo()
    for index, target in enumerate(node.outputs):
        fact = results[index]
        if target < 0:
            continue
        if index < states and not old and count:
            _pass(binder, body.outputs[index], target)
        elif index < states and not old:
            _pass(binder, node.inputs[positions[index]], target)
        elif old and isinstance(fact.type, TensorType):
            shape = fact.type.shape if index < states else (count, *fact.type.shape)
            _stack_shape(binder, node, target, pieces[index], (batch, *shape))
        elif count:
            _stack(binder, node, target, [pieces[index]], count, int(out_axes[index - states]))
        elif isinstance(fact.type, TensorType):
            axis = int(out_axes[index - states]) % (len(fact.type.shape) + 1)
            shape = (*fact.type.shape[:axis], 0, *fact.type.shape[axis:])
            _set(binder, target, intern(TensorType(fact.type.dtype, shape)))


def _stack_shape(binder: Binder, node: Node, slot: int, piece: Value, shape: tuple[int, ...]) -> None:
    """Scan of opset 8: the pieces of every sample and trip are copied into one tensor of ``shape``."""
    if not isinstance(piece, Tensor):
        raise ShapeError(f"{node}: an output is a sequence")
    _set(binder, slot, binder.inference.pool.intern(check_type(TensorType(piece.dtype, shape))))
    name = f"{node.name}{binder.suffix}/stack:{binder.program.names[slot]}"
    operator = Operator(
        name=name, domain="", op_type="Concat", version=node.version, attributes={"axis": 0}, inputs=(piece,),
        outputs=(binder.value(slot),), repeat=binder.repeat,
    )  # fmt: skip
    binder.append(node, operator)


def _sequence_map(binder: Binder, node: Node) -> None:
    body = _body(node, "body")
    facts = [_required(binder, node, i) for i in range(len(node.inputs))]
    if not facts or not isinstance(facts[0].type, SequenceType) or len(body.inputs) != len(facts):
        raise ShapeError(f"{node}: {len(facts)} inputs for a body of {len(body.inputs)}")
    count = len(facts[0].type.elements)
    if count > limits.MAX_UNROLLED_TRIPS:
        raise LimitError(f"{node}: maps {count} elements; at most {limits.MAX_UNROLLED_TRIPS} are supported")
    outer = binder.suffix
    intern = binder.inference.pool.intern
    results: list[list[TensorType]] = [[] for _ in node.outputs]
    values: list[list[Tensor]] = [[] for _ in node.outputs]
    inputs = [binder.value(slot) for slot in node.inputs]
    try:
        for trip in range(count):
            binder.suffix = f"{outer}@{trip}"
            for fact, value, slot in zip(facts, inputs, body.inputs, strict=True):
                if isinstance(fact.type, SequenceType) and not isinstance(value, Tensor):
                    if trip >= len(fact.type.elements):
                        raise ShapeError(f"{node}: sequences of {count} and {len(fact.type.elements)} elements")
                    _set(binder, slot, intern(fact.type.elements[trip]), value=value.elements_[trip])
                else:
                    _set(binder, slot, fact, value=value)
            binder.run(body.nodes)
            for index, slot in enumerate(body.outputs[: len(node.outputs)]):
                type_, value = _output_fact(binder, slot).type, binder.value(slot)
                if not isinstance(type_, TensorType) or not isinstance(value, Tensor):
                    raise ShapeError(f"{node}: its body gives a sequence")
                results[index].append(type_)
                values[index].append(value)
                binder.keep.add(id(value))
    finally:
        binder.suffix = outer
    for index, slot in enumerate(node.outputs):
        if slot >= 0:
            name = binder.program.names[slot] + outer
            whole = TensorSequence(name=name, elements_=tuple(values[index]))
            _set(binder, slot, intern(SequenceType(tuple(results[index]))), value=whole)


CONTROL: dict[tuple[str, str], Callable[[Binder, Node], None]] = {
    ("", "If"): _if,
    ("", "Loop"): _loop,
    ("", "Scan"): _scan,
    ("", "SequenceMap"): _sequence_map,
}
"""How control flow operators are expanded, by ``(domain, op_type)``."""
