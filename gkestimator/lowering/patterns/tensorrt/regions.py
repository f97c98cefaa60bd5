"""Connected element-wise operators, grown from a value forwards or from an operator backwards, with one way out.

A region with one way out is sound to run as one kernel: nothing outside reads what stays inside, so nothing outside
can lie between two of its operators either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import chain
from typing import TypeAlias

from gkestimator.core.graph import Operator, Tensor
from gkestimator.lowering.memo import lower_operator, memo_of
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch, NotFused, is_scalar
from gkestimator.operators.builders import elementwise_kernel, int_of, output_at, tensor_inputs
from gkestimator.operators.elementwise import FLOPS
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import Lowered, LoweringOptions, Shape, launched, lowering_rule

#: Whether an operator may join a region, by its index and what it reads from outside.
Accepts: TypeAlias = "Callable[[int, list[Tensor]], bool]"

ELEMENTWISE = frozenset(
    {
        *FLOPS,
        "Sum",
        "Max",
        "Min",
        "Mean",
        "BatchNormalization",
        "Cast",
        "CastLike",
        "Identity",
        "Dropout",
        "Expand",
    }
)
"""Operators that a generated kernel calculates element by element (Expand: reads the element that it repeats)."""
_TYPE_INPUTS = {"CastLike": (1,)}
_HIGHEST = 64  # operators of a region; the largest that exporters write (a GELU) has about ten


def only_result(view: GraphView, index: int) -> Tensor | None:
    """Return the only result of an operator that anybody uses; None where there are several, or no tensor."""
    outputs = view.operators[index].outputs
    for value in outputs[1:]:
        if value is not None and (value.name in view.outputs or view.consumers.get(value.name)):
            return None
    if not outputs or not isinstance(outputs[0], Tensor):
        return None
    return outputs[0]


def joins(view: GraphView, index: int, shape: Shape) -> bool:
    """Return True for an element-wise operator that belongs to no group yet and whose only result has ``shape``."""
    op = view.operators[index]
    if op.domain or op.op_type not in ELEMENTWISE or not view.free(index):
        return False
    result = only_result(view, index)
    if result is None or result.shape != shape:
        return False
    if op.op_type == "Dropout":
        return len(op.inputs) < 3  # a third input may ask for training
    return all(value is None or isinstance(value, Tensor) for value in op.inputs)


def _parts(view: GraphView, index: int, shape: Shape) -> Indices:
    """Return the operators that cut a tensor into parts of ``shape``, that at ``index`` among them, as before a gate: a
    Split, or Slices that nothing else reads the tensor beside. A kernel that reads all parts reads the whole.
    """
    op = view.operators[index]
    if op.key == ("", "Split"):
        together = [index]
    elif op.key == ("", "Slice") and op.inputs[0] is not None:
        together = view.consumers[op.inputs[0].name]
    else:
        return []
    elements = 0
    for member in together:
        if view.operators[member].key != op.key or not view.free(member):
            return []
        for value in view.operators[member].outputs:
            if not isinstance(value, Tensor) or value.shape != shape:
                return []
            elements += value.elements
    if elements != view.operand(index, 0).elements:
        return []
    return together


def _stay_inside(view: GraphView, together: Indices, members: set[int]) -> bool:
    """Return whether the results of ``together`` are read by ``members`` alone, and are no outputs of the graph."""
    names = [
        value.name for member in together for value in view.operators[member].outputs if value is not None
    ]
    readers = chain.from_iterable(view.consumers.get(name, ()) for name in names)
    return view.outputs.isdisjoint(names) and members.issuperset(readers)


def grown_backwards(
    view: GraphView, start: Iterable[int], values: Iterable[Tensor], shape: Shape
) -> set[int]:
    """Return the element-wise operators behind ``values`` that only ``start`` and they themselves read.

    The last is decided first, so that all readers of an operator are decided before it.
    """
    members = set(start)
    first = len(members)
    repeat = view.operators[min(members)].repeat
    heap: list[int] = []
    seen: set[int] = set()

    def push(value: object) -> None:
        if isinstance(value, Tensor):
            index = view.producer.get(value.name)
            if index is not None and index not in seen:
                seen.add(index)
                heappush(heap, -index)

    for value in values:
        push(value)
    while heap and len(members) < first + _HIGHEST:
        index = -heappop(heap)
        op = view.operators[index]
        if op.repeat != repeat:
            continue
        together = [index] if joins(view, index, shape) else _parts(view, index, shape)
        if not together or not _stay_inside(view, together, members):
            continue
        members.update(together)
        for member in together:
            for read in view.operators[member].inputs:
                push(read)
    return members.difference(start)


def grown_forwards(view: GraphView, value: Tensor, accepts: Accepts) -> Indices:
    """Return the longest run of element-wise operators that starts at ``value`` and has one way out, its last; none
    where there is none.
    """
    members: Indices = []
    maker = view.producer.get(value.name)
    repeat = None if maker is None else view.operators[maker].repeat
    inside = {value.name}
    waiting = {value.name: _readers(view, value)}
    heap = list(view.consumers.get(value.name, ()))
    seen = set(heap)
    best = 0
    while heap and len(members) < _HIGHEST:
        index = heappop(heap)
        op = view.operators[index]
        if repeat not in (None, op.repeat) or not joins(view, index, value.shape):
            continue
        read = {v.name: v for v in op.inputs if isinstance(v, Tensor)}
        outside = [v for name, v in read.items() if name not in inside]
        if not accepts(index, outside):
            continue
        members.append(index)
        for name in read.keys() & inside:
            waiting[name] -= 1
            if not waiting[name]:
                del waiting[name]
        result = view.result(index)
        inside.add(result.name)
        waiting[result.name] = _readers(view, result)
        if len(waiting) == 1:
            best = len(members)
        for reader in view.consumers.get(result.name, ()):
            if reader not in seen:
                seen.add(reader)
                heappush(heap, reader)
    return members[:best]


def _readers(view: GraphView, value: Tensor) -> int:
    """Return how many operators read ``value``; the graph counts as one where it is an output, or nothing reads it."""
    count = len(view.consumers.get(value.name, ())) + (value.name in view.outputs)
    return max(1, count)


def constants_alone(index: int, outside: list[Tensor]) -> bool:
    """Return True where an operator reads nothing from outside but one-element constants, as an activation does."""
    return all(is_scalar(value) for value in outside)


def read_from_outside(view: GraphView, members: Iterable[int]) -> tuple[Tensor, ...]:
    """Return the tensors that ``members`` read and do not make, each once, without one-element constants, which travel
    as arguments of a kernel, and without shapes and types, which the compiler knows.
    """
    inside = set(members)
    values: dict[str, Tensor] = {}
    for index in sorted(inside):
        op = view.operators[index]
        known = _TYPE_INPUTS.get(op.op_type, traits_of(op.key).host_inputs)
        for place, value in enumerate(op.inputs):
            if not isinstance(value, Tensor) or is_scalar(value) or place in known:
                continue
            if view.producer.get(value.name, -1) not in inside:
                values[value.name] = value
    return tuple(values.values())


def flops_of(view: GraphView, members: Iterable[int], options: LoweringOptions) -> int:
    """Return the FLOPs of ``members`` as their own rules count them."""
    memo = memo_of(options)
    kernels = [
        kernel for index in members for kernel in lower_operator(view.operators[index], options, memo).kernels
    ]
    return sum([kernel.flops for kernel in kernels])


def match_pointwise(view: GraphView, last: int, options: LoweringOptions) -> Match:
    """Return the chain of element-wise operators that ends at index ``last`` ("PWN" in the names of layers)."""
    result = only_result(view, last)
    if result is None or not joins(view, last, result.shape):
        raise view.mismatch(last, "gives several results, or belongs to a group")
    op = view.operators[last]
    values = [value for value in op.inputs if isinstance(value, Tensor)]
    members = sorted({last, *grown_backwards(view, (last,), values, result.shape)})
    if len(members) == 1:
        raise _apart(view, last, values)
    return fused(
        view,
        "pointwise",
        members,
        op_type="Pointwise",
        domain=FUSED_DOMAIN,
        inputs=read_from_outside(view, members),
        attributes={"flops": flops_of(view, members, options)},
    )


def _apart(view: GraphView, index: int, values: Iterable[Tensor]) -> Mismatch:
    """Return why the element-wise operator at ``index``, which reads ``values``, is a kernel of its own."""
    op = view.operators[index]
    if op.op_type in ("Identity", "Dropout"):
        return view.mismatch(index, "is no kernel")
    made = [value for value in values if value.name in view.producer]
    reason = "reads inputs and weights alone"
    if made:
        maker = view.operators[view.producer[made[0].name]]
        reason = f"the {maker.op_type} before it takes none in"
    if any(value.shape != view.result(index).shape for value in made):
        reason = "reads a result of another shape"
    if made and not any(view.sole_reader(value) is not None for value in made):
        reason = "what it reads is read elsewhere too"
    return NotFused(op.op_type, reason)


@lowering_rule("Pointwise", domain=FUSED_DOMAIN, kind="fused")
def lower_pointwise(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel that reads what comes from outside once and writes the last result alone."""
    result = output_at(op)
    per_element = int_of(op, "flops", 0) // max(1, result.elements)
    kernel = elementwise_kernel("pointwise", tensor_inputs(op), (result,), flops_per_element=per_element)
    return launched(kernel)
