"""Scan: its body once, with the trip count that the scanned inputs' shapes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.onnx_io.binding.expansion import (
    Mark,
    body_of,
    output_fact,
    pass_on,
    required,
    scaled_repeat,
    set_slot,
    stack,
)
from gkestimator.onnx_io.binding.facts import check_type
from gkestimator.onnx_io.reading.program import Node
from gkestimator.operators.registry import TensorType

if TYPE_CHECKING:
    from gkestimator.onnx_io.binding.walk import Binder


def expand_scan(binder: Binder, node: Node) -> None:
    body = body_of(node, "body")
    get = node.attributes.get
    scanned = int(get("num_scan_inputs", 0))
    old = (
        node.version < 9
    )  # opset 8: a batch in front of every value, and sequence lengths as the first input
    positions = list(range(1 if old else 0, len(node.inputs)))
    states = len(positions) - scanned
    if scanned < 1 or states < 0 or len(body.inputs) != len(positions):
        raise ShapeError(
            f"{node}: {scanned} scan inputs and a body of {len(body.inputs)} for {len(positions)} inputs"
        )
    facts = [required(binder, node, p) for p in positions]
    axes = get("scan_input_axes") or (0,) * scanned
    out_axes = get("scan_output_axes") or (0,) * (len(body.outputs) - states)
    if (
        len(axes) != scanned
        or len(body.outputs) < len(node.outputs)
        or len(out_axes) < len(node.outputs) - states
    ):
        raise ShapeError(f"{node}: scan axes do not match its inputs and outputs")
    intern = binder.inference.pool.intern
    trips = None
    batch = 1
    inner_facts = []
    for index, fact in enumerate(facts):
        type_ = fact.type
        if not isinstance(type_, TensorType):
            raise ShapeError(f"{node}: input {index} is a sequence")
        shape = type_.shape
        if old:
            if not shape:
                raise ShapeError(f"{node}: input {index} has no batch dimension")
            batch = shape[0]
            shape = shape[1:]
        if index >= states:
            axis = int(axes[index - states])
            axis = axis + len(shape) if axis < 0 else axis
            if not 0 <= axis < len(shape):
                raise ShapeError(f"{node}: scan axis {axis} is outside {len(shape)} dimensions")
            if trips is not None and trips != shape[axis]:
                raise ShapeError(f"{node}: scan inputs of lengths {trips} and {shape[axis]}")
            trips = shape[axis]
            shape = (*shape[:axis], *shape[axis + 1 :])
        inner_facts.append(intern(TensorType(type_.dtype, shape, type_.bounded)))
    count = trips or 0
    mark = Mark(binder)
    repeat = binder.repeat
    if count:
        binder.repeat = scaled_repeat(binder, node, count * batch)
    else:
        binder.repeat = repeat
    try:
        for index, (fact, slot) in enumerate(zip(inner_facts, body.inputs, strict=True)):
            same = index < states and not old and binder.facts[node.inputs[positions[index]]] is fact
            set_slot(binder, slot, fact, value=binder.value(node.inputs[positions[index]]) if same else None)
        binder.run(body.nodes)
    finally:
        binder.repeat = repeat
    results = [output_fact(binder, s) for s in body.outputs]
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
            pass_on(binder, body.outputs[index], target)
        elif index < states and not old:
            pass_on(binder, node.inputs[positions[index]], target)
        elif old and isinstance(fact.type, TensorType):
            if index < states:
                shape = fact.type.shape
            else:
                shape = (count, *fact.type.shape)
            _stack_shape(binder, node, target, pieces[index], (batch, *shape))
        elif count:
            stack(binder, node, target, [pieces[index]], count, int(out_axes[index - states]))
        elif isinstance(fact.type, TensorType):
            axis = int(out_axes[index - states]) % (len(fact.type.shape) + 1)
            shape = (*fact.type.shape[:axis], 0, *fact.type.shape[axis:])
            set_slot(binder, target, intern(TensorType(fact.type.dtype, shape)))


def _stack_shape(binder: Binder, node: Node, slot: int, piece: Value, shape: tuple[int, ...]) -> None:
    """Scan of opset 8: the pieces of every sample and trip are copied into one tensor of ``shape``."""
    if not isinstance(piece, Tensor):
        raise ShapeError(f"{node}: an output is a sequence")
    set_slot(binder, slot, binder.inference.pool.intern(check_type(TensorType(piece.dtype, shape))))
    name = f"{node.name}{binder.suffix}/stack:{binder.program.names[slot]}"
    operator = Operator(
        name=name,
        domain="",
        op_type="Concat",
        version=node.version,
        attributes={"axis": 0},
        inputs=(piece,),
        outputs=(binder.value(slot),),
        repeat=binder.repeat,
    )
    binder.append(node, operator)
