"""Expand control flow: If, Loop, Scan and SequenceMap become the operators of their subgraphs.

A trip whose shapes repeat is listed once with its trip count; one whose carried shapes change from trip to
trip is unrolled. The branch of an If is taken when its condition is known; otherwise the branch whose nodes
produce more elements stands for both (a heuristic for the costlier one), with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.core.graph import Sequence as TensorSequence
from gkestimator.core.records import frozen
from gkestimator.onnx_io.binding.expansion import body_of, scalar
from gkestimator.onnx_io.binding.facts import Fact
from gkestimator.onnx_io.binding.loops import expand_loop
from gkestimator.onnx_io.binding.scans import expand_scan
from gkestimator.onnx_io.binding.walk import Binder, Control, tensors_of
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Block, Node
from gkestimator.operators.registry import SequenceType, TensorType


@frozen
class _Branch:
    """Hold what one branch of an If would run, and how many elements its operators write."""

    block: Block
    elements: int
    operators: list[Operator]
    nodes: list[Node]


def _elements(operators: Sequence[Operator]) -> int:
    total = 0
    for operator in operators:
        for value in operator.outputs:
            if value is not None:
                total += operator.repeat * sum(t.elements for t in tensors_of(value))
    return total


def _expand_if(binder: Binder, node: Node) -> None:
    branches = {name: body_of(node, name) for name in ("then_branch", "else_branch")}
    for block in branches.values():
        if len(block.outputs) < len(node.outputs):
            raise ShapeError(f"{node}: has {len(node.outputs)} outputs; a branch gives {len(block.outputs)}")
    condition = scalar(binder.required(node, 0))
    if condition is None:
        chosen = _costlier(binder, node, branches)
    else:
        chosen = branches["then_branch" if condition else "else_branch"]
        binder.run(chosen.nodes)
    for source, target in zip(chosen.outputs, node.outputs, strict=False):
        binder.pass_on(source, target)


def _costlier(binder: Binder, node: Node, branches: dict[str, Block]) -> Block:
    """Run the branch that writes more, and return it."""
    # Every subgraph has slots of its own, so both can be walked and one be taken back.
    walked: dict[str, _Branch] = {}
    errors = []
    at = len(binder.operators)
    for name, block in branches.items():
        try:
            binder.run(block.nodes)
            operators = binder.operators[at:]
            walked[name] = _Branch(
                block=block, elements=_elements(operators), operators=operators, nodes=binder.nodes[at:]
            )
        except ShapeError as e:
            errors.append(e)
        del binder.operators[at:]
        del binder.nodes[at:]
    if not walked:
        raise errors[0]
    best = max(walked, key=lambda name: walked[name].elements)
    binder.warn_of_data(node, f"the condition depends on data, its {best} is counted")
    binder.operators.extend(walked[best].operators)
    binder.nodes.extend(walked[best].nodes)
    return walked[best].block


def _expand_sequence_map(binder: Binder, node: Node) -> None:
    body = body_of(node, "body")
    facts = [binder.required(node, i) for i in range(len(node.inputs))]
    if not facts or not isinstance(facts[0].type, SequenceType) or len(body.inputs) != len(facts):
        raise ShapeError(f"{node}: {len(facts)} inputs for a body of {len(body.inputs)}")
    count = len(facts[0].type.elements)
    limits.check("unrolled_trips", count, f"{node}: maps a sequence element by element")
    outer = binder.suffix
    inputs = [binder.value(slot) for slot in node.inputs]
    rows: list[list[Tensor]] = []
    try:
        for trip in range(count):
            binder.suffix = f"{outer}@{trip}"
            _set_elements(binder, node, body, facts, inputs, trip)
            binder.run(body.nodes)
            rows.append([_mapped(binder, node, slot) for slot in body.outputs[: len(node.outputs)]])
    finally:
        binder.suffix = outer
    for index, slot in enumerate(node.outputs):
        if slot < 0:
            continue
        elements = tuple(row[index] for row in rows)
        types = tuple(TensorType(t.dtype, t.shape, t.bounded) for t in elements)
        whole = TensorSequence(name=binder.program.names[slot] + outer, elements_=elements)
        binder.set_slot(slot, binder.intern(SequenceType(types)), value=whole)


def _set_elements(
    binder: Binder, node: Node, body: Block, facts: list[Fact], inputs: list[Value], trip: int
) -> None:
    """Give the body element ``trip`` of every sequence, and every other input whole."""
    if isinstance(inputs[0], TensorSequence):
        count = len(inputs[0].elements_)
    else:
        count = 0
    for fact, value, slot in zip(facts, inputs, body.inputs, strict=True):
        if isinstance(value, Tensor) or not isinstance(fact.type, SequenceType):
            binder.set_slot(slot, fact, value=value)
            continue
        elements = fact.type.elements
        if trip >= len(elements):
            raise ShapeError(f"{node}: sequences of {count} and {len(elements)} elements")
        binder.set_slot(slot, binder.intern(elements[trip]), value=value.elements_[trip])


def _mapped(binder: Binder, node: Node, slot: int) -> Tensor:
    type_ = binder.output_fact(slot).type
    value = binder.value(slot)
    if not isinstance(type_, TensorType) or not isinstance(value, Tensor):
        raise ShapeError(f"{node}: its body gives a sequence")
    binder.keep[id(value)] = None
    return value


CONTROL: Control = {
    ("", "If"): _expand_if,
    ("", "Loop"): expand_loop,
    ("", "Scan"): expand_scan,
    ("", "SequenceMap"): _expand_sequence_map,
}
