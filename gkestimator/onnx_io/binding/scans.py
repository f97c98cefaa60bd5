"""Expand Scan: its body once, with the trip count that the scanned inputs' shapes say."""

from __future__ import annotations

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Tensor, Value
from gkestimator.core.records import frozen
from gkestimator.onnx_io.binding.expansion import (
    Mark,
    body_of,
    copy_pieces,
    placed_axis,
    scaled_repeat,
    stack,
)
from gkestimator.onnx_io.binding.facts import Fact
from gkestimator.onnx_io.binding.walk import Binder
from gkestimator.onnx_io.reading.program import Block, Node
from gkestimator.operators.registry import TensorType, ValueType


@frozen
class _Form:
    """Hold how a Scan is written.

    ``sources``: the slots of its inputs, the first ``states`` of which are carried from trip to trip. ``old``: opset
    8, where a batch stands in front of every value, and sequence lengths are the first input.
    """

    body: Block
    old: bool
    sources: tuple[int, ...]
    states: int
    axes: tuple[int, ...]
    out_axes: tuple[int, ...]


@frozen
class _Piece:
    """Hold what one trip of one sample sees of an input: its type, the batch and the trips that it says."""

    type: TensorType
    batch: int = 1
    trips: int | None = None


def _form(node: Node) -> _Form:
    body = body_of(node, "body")
    get = node.attributes.get
    scanned = int(get("num_scan_inputs", 0))
    old = node.version < 9
    if old:
        sources = node.inputs[1:]
    else:
        sources = node.inputs
    states = len(sources) - scanned
    if scanned < 1 or states < 0 or len(body.inputs) != len(sources):
        raise ShapeError(
            f"{node}: {scanned} scan inputs and a body of {len(body.inputs)} for {len(sources)} inputs"
        )
    axes = get("scan_input_axes") or (0,) * scanned
    out_axes = get("scan_output_axes") or (0,) * (len(body.outputs) - states)
    fits = len(axes) == scanned and len(body.outputs) >= len(node.outputs)
    if not fits or len(out_axes) < len(node.outputs) - states:
        raise ShapeError(f"{node}: scan axes do not match its inputs and outputs")
    return _Form(body=body, old=old, sources=sources, states=states, axes=axes, out_axes=out_axes)


def _piece(node: Node, form: _Form, index: int, type_: ValueType) -> _Piece:
    if not isinstance(type_, TensorType):
        raise ShapeError(f"{node}: input {index} is a sequence")
    shape = type_.shape
    batch = 1
    if form.old:
        if not shape:
            raise ShapeError(f"{node}: input {index} has no batch dimension")
        batch, *rest = shape
        shape = tuple(rest)
    if index < form.states:
        return _Piece(type=TensorType(type_.dtype, shape, type_.bounded), batch=batch)
    written = int(form.axes[index - form.states])
    axis = placed_axis(written, len(shape))
    if axis is None:
        if written < 0:
            shown = written + len(shape)
        else:
            shown = written
        raise ShapeError(f"{node}: scan axis {shown} is outside {len(shape)} dimensions")
    inner = (*shape[:axis], *shape[axis + 1 :])
    return _Piece(type=TensorType(type_.dtype, inner, type_.bounded), batch=batch, trips=shape[axis])


def _trips(node: Node, pieces: list[_Piece]) -> int:
    trips = None
    for piece in pieces:
        if piece.trips is None:
            continue
        if trips is not None and trips != piece.trips:
            raise ShapeError(f"{node}: scan inputs of lengths {trips} and {piece.trips}")
        trips = piece.trips
    return trips or 0


def expand_scan(binder: Binder, node: Node) -> None:
    """List the operators of a Scan. Raises ShapeError."""
    form = _form(node)
    first = len(node.inputs) - len(form.sources)
    facts = [binder.required(node, first + i) for i in range(len(form.sources))]
    pieces = [_piece(node, form, i, fact.type) for i, fact in enumerate(facts)]
    count = _trips(node, pieces)
    batch = pieces[-1].batch
    inside = [binder.intern(piece.type) for piece in pieces]
    mark = Mark(binder)
    if count:
        runs = count * batch
    else:
        runs = 1  # walked for the shapes alone, and taken back
    _run_body(binder, node, form, inside, runs)
    results = [binder.output_fact(slot) for slot in form.body.outputs]
    for index in range(form.states):
        if results[index].type != inside[index].type:
            raise ShapeError(f"{node}: state {index} changes its type from trip to trip")
    values = [binder.value(slot) for slot in form.body.outputs]
    binder.keep.update(dict.fromkeys(map(id, values[: form.states])))
    if not count:
        mark.undo()
    for index, target in enumerate(node.outputs):
        if target < 0:
            continue
        if form.old:
            _set_old(binder, node, form, index, results[index].type, values[index], (batch, count))
        elif index >= form.states:
            _set_scanned(binder, node, form, index, results[index].type, values[index], count)
        elif count:
            binder.pass_on(form.body.outputs[index], target)
        else:
            binder.pass_on(form.sources[index], target)


def _run_body(binder: Binder, node: Node, form: _Form, inside: list[Fact], runs: int) -> None:
    repeat = binder.repeat
    binder.repeat = scaled_repeat(binder, node, runs)
    try:
        for index, (fact, slot) in enumerate(zip(inside, form.body.inputs, strict=True)):
            source = form.sources[index]
            value = None
            if index < form.states and not form.old and binder.facts[source] is fact:
                value = binder.value(source)
            binder.set_slot(slot, fact, value=value)
        binder.run(form.body.nodes)
    finally:
        binder.repeat = repeat


def _set_scanned(
    binder: Binder, node: Node, form: _Form, index: int, type_: ValueType, value: Value, count: int
) -> None:
    axis = int(form.out_axes[index - form.states])
    if count:
        stack(binder, node, node.outputs[index], [value], count, axis)
    elif isinstance(type_, TensorType):
        place = axis % (len(type_.shape) + 1)
        shape = (*type_.shape[:place], 0, *type_.shape[place:])
        binder.set_slot(node.outputs[index], binder.intern(TensorType(type_.dtype, shape)))


def _set_old(
    binder: Binder,
    node: Node,
    form: _Form,
    index: int,
    type_: ValueType,
    value: Value,
    extent: tuple[int, int],
) -> None:
    """Copy the pieces of every sample and trip into one tensor, as opset 8 has it."""
    if not isinstance(type_, TensorType) or not isinstance(value, Tensor):
        raise ShapeError(f"{node}: an output is a sequence")
    batch, count = extent
    if index < form.states:
        shape = (batch, *type_.shape)
    else:
        shape = (batch, count, *type_.shape)
    copy_pieces(binder, node, node.outputs[index], [value], 0, TensorType(value.dtype, shape))
