"""Shape rules of the sequence operators that insert, erase, count and join."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    constant_int,
    dtype_attribute,
    has_input,
    int_attribute,
    refuse,
    sequence,
    tensor,
)
from gkestimator.operators.shapes.registry import SequenceType, ShapeContext, TensorType, shape_rule

__all__: list[str] = []


def _position(ctx: ShapeContext, length: int, high: int, default: int) -> int:
    """The constant position in input 'position' from the front; ``default`` when absent or unknown."""
    index = 2 if ctx.op_type == "SequenceInsert" else 1
    found = constant_int(ctx, index)
    if found is None:
        return default
    if not -length <= found <= high:
        refuse(ctx, f"position is {found}, expected {-length} to {high}")
    if found < 0:
        return found + length
    return found


@shape_rule("SequenceEmpty")
def _empty(ctx: ShapeContext) -> Outputs:
    dtype_attribute(ctx, "dtype", DType.FLOAT)
    return [SequenceType(())]


@shape_rule("SequenceInsert", host_inputs=(2,))
def _insert(ctx: ShapeContext) -> Outputs:
    """At an unknown position the elements are the same, only their order is open: flagged as bounded."""
    found = sequence(ctx, 0)
    new = tensor(ctx, 1)
    length = len(found.elements)
    place = _position(ctx, length, length, length)
    unordered = has_input(ctx, 2) and constant_int(ctx, 2) is None and any(e != new for e in found.elements)
    elements = (*found.elements[:place], new, *found.elements[place:])
    return [found._replace(elements=elements, bounded=found.bounded or unordered)]


@shape_rule("SequenceErase", host_inputs=(1,))
def _erase(ctx: ShapeContext) -> Outputs:
    """An unknown position erases the smallest element, which bounds what stays from above."""
    found = sequence(ctx, 0)
    length = len(found.elements)
    if length == 0:
        refuse(ctx, "the sequence is empty, nothing can be erased")
    unknown = has_input(ctx, 1) and constant_int(ctx, 1) is None
    place = _position(ctx, length, length - 1, length - 1)
    if unknown and len(set(found.elements)) > 1:
        place = min(range(length), key=lambda i: _bytes(found.elements[i]))
        found = found._replace(bounded=True)
    return [found._replace(elements=(*found.elements[:place], *found.elements[place + 1 :]))]


def _bytes(element: TensorType) -> int:
    count = 1
    for size in element.shape:
        count *= size
    return element.dtype.nbytes(count)


@shape_rule("SequenceLength")
def _length(ctx: ShapeContext) -> Outputs:
    sequence(ctx, 0)
    return [TensorType(DType.INT64, ())]


@shape_rule("ConcatFromSequence")
def _concat(ctx: ShapeContext) -> Outputs:
    found = sequence(ctx, 0)
    if not found.elements:
        refuse(ctx, "the sequence is empty, nothing can be joined")
    first = found.elements[0]
    rank = len(first.shape)
    new_axis = int_attribute(ctx, "new_axis", 0) == 1
    axis = axis_of(ctx, int_attribute(ctx, "axis"), rank + 1 if new_axis else rank)
    total = 0
    for other in found.elements:
        if new_axis:
            same = other.shape
        else:
            same = (*other.shape[:axis], *other.shape[axis + 1 :])
        if new_axis:
            expected = first.shape
        else:
            expected = (*first.shape[:axis], *first.shape[axis + 1 :])
        if same != expected or other.dtype != first.dtype:
            refuse(ctx, f"elements {list(first.shape)} and {list(other.shape)} do not join along axis {axis}")
        total += 1 if new_axis else other.shape[axis]
    if new_axis:
        tail = first.shape[axis:]
    else:
        tail = first.shape[axis + 1 :]
    bounded = found.bounded or any(e.bounded for e in found.elements)
    return [TensorType(first.dtype, (*first.shape[:axis], total, *tail), bounded)]
