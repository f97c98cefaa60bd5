"""Control flow: If, Loop, Scan and SequenceMap are expanded into the operators of their subgraphs.

A trip whose shapes repeat is listed once with its trip count; one whose carried shapes change from trip to
trip is unrolled. The branch of an If is taken when its condition is known; otherwise the branch whose nodes
produce more elements stands for both (a heuristic for the costlier one), with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gkestimator.core.errors import LimitError, ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.graph import Sequence as TensorSequence
from gkestimator.onnx_io.binding.expansion import (
    body_of,
    output_fact,
    pass_on,
    required,
    scalar,
    set_slot,
)
from gkestimator.onnx_io.binding.loops import expand_loop
from gkestimator.onnx_io.binding.scans import expand_scan
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Node
from gkestimator.operators.registry import SequenceType, TensorType

if TYPE_CHECKING:
    from gkestimator.onnx_io.binding.walk import Binder


def _elements(operators: Sequence[Operator]) -> int:
    total = 0
    for operator in operators:
        for value in operator.outputs:
            if value is not None:
                tensors = (value,) if isinstance(value, Tensor) else value.elements_
                total += operator.repeat * sum(t.elements for t in tensors)
    return total


def _if(binder: Binder, node: Node) -> None:
    branches = {name: body_of(node, name) for name in ("then_branch", "else_branch")}
    for block in branches.values():
        if len(block.outputs) < len(node.outputs):
            raise ShapeError(f"{node}: has {len(node.outputs)} outputs; a branch gives {len(block.outputs)}")
    condition = scalar(required(binder, node, 0))
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
        pass_on(binder, source, target)


def _sequence_map(binder: Binder, node: Node) -> None:
    body = body_of(node, "body")
    facts = [required(binder, node, i) for i in range(len(node.inputs))]
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
                        raise ShapeError(
                            f"{node}: sequences of {count} and {len(fact.type.elements)} elements"
                        )
                    set_slot(binder, slot, intern(fact.type.elements[trip]), value=value.elements_[trip])
                else:
                    set_slot(binder, slot, fact, value=value)
            binder.run(body.nodes)
            for index, slot in enumerate(body.outputs[: len(node.outputs)]):
                type_ = output_fact(binder, slot).type
                value = binder.value(slot)
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
            set_slot(binder, slot, intern(SequenceType(tuple(results[index]))), value=whole)


CONTROL: dict[tuple[str, str], Callable[[Binder, Node], None]] = {
    ("", "If"): _if,
    ("", "Loop"): expand_loop,
    ("", "Scan"): expand_scan,
    ("", "SequenceMap"): _sequence_map,
}
"""How control flow operators are expanded, by ``(domain, op_type)``."""
