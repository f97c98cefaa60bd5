"""Control flow, sequences, optionals and questions about shapes: the host's part of a model.

Bodies of control flow are expanded before lowering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import memory_kernel, tensor_inputs, tensor_outputs
from gkestimator.operators.checks import (
    all_tensors,
    axis_attribute,
    axis_of,
    constant_int,
    constant_ints,
    dtype_attribute,
    has_input,
    int_attribute,
    joined,
    optional_tensor,
    sequence,
    tensor,
    without_axes,
)
from gkestimator.operators.registry import (
    NO_KERNEL,
    Lowered,
    LoweringOptions,
    Outputs,
    SequenceType,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    same_storage,
    shape_rule,
)


@lowering_rule("If", "Loop", "Scan", "SequenceMap", kind="control_flow")
def control_flow(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one call and no kernel: the host waits for the condition, or drives the iteration."""
    return launched()


@shape_rule("SequenceInsert", host_inputs=(2,))
def insert_types(ctx: ShapeContext) -> Outputs:
    """Return the sequence with one element more.

    At an unknown position the elements are the same, only their order is open: flagged as bounded.
    """
    before = sequence(ctx, 0)
    new = tensor(ctx, 1)
    elements = list(before.elements)
    position = constant_int(ctx, 2)
    bounded = before.bounded
    if position is None:
        bounded = bounded or (has_input(ctx, 2) and any(element != new for element in elements))
        position = len(elements)
    if not -len(elements) <= position <= len(elements):
        raise ShapeError(f"position is {position}, expected {-len(elements)} to {len(elements)}")
    elements.insert(position, new)
    return [before._replace(elements=tuple(elements), bounded=bounded)]


@shape_rule("SequenceErase", host_inputs=(1,))
def erase_types(ctx: ShapeContext) -> Outputs:
    """Return the sequence with one element less, by default the last.

    An unknown position erases the smallest element, which bounds what stays from above.
    """
    before = sequence(ctx, 0)
    elements = list(before.elements)
    if not elements:
        raise ShapeError("the sequence is empty, nothing can be erased")
    place = _position(ctx, 1, len(elements))
    bounded = before.bounded
    if place is None:
        place = len(elements) - 1
        if has_input(ctx, 1) and len(set(elements)) > 1:
            place = min(range(len(elements)), key=lambda at: _bytes(elements[at]))
            bounded = True
    del elements[place]
    return [before._replace(elements=tuple(elements), bounded=bounded)]


@shape_rule("SequenceConstruct")
def construct_types(ctx: ShapeContext) -> Outputs:
    """Return a sequence of the inputs, in order."""
    return [SequenceType(tuple(all_tensors(ctx)))]


@shape_rule("SequenceAt", host_inputs=(1,))
def at_types(ctx: ShapeContext) -> Outputs:
    """Return the element at a position; when that is not known, the largest element as a bound."""
    elements = sequence(ctx, 0).elements
    if not elements:
        raise ShapeError("the sequence is empty")
    position = _position(ctx, 1, len(elements))
    if position is None:
        return [largest(elements)]
    return [elements[position]]


@shape_rule("Optional")
def optional_types(ctx: ShapeContext) -> Outputs:
    """Return an optional that holds the input, or nothing. An optional sequence is the sequence itself."""
    if not has_input(ctx, 0):
        return [SequenceType((), optional=True)]
    inner = ctx.types[0]
    if isinstance(inner, TensorType):
        return [SequenceType((inner,), optional=True)]
    return [inner]


@shape_rule("OptionalGetElement")
def optional_get_types(ctx: ShapeContext) -> Outputs:
    """Return what the optional holds; a value that is no optional is itself."""
    value = ctx.types[0]
    if not isinstance(value, SequenceType) or not value.optional:
        return [value]
    if not value.elements:
        raise ShapeError("the optional is empty")
    return value.elements[:1]


@lowering_rule(
    "SequenceConstruct",
    "SequenceAt",
    "Optional",
    "OptionalGetElement",
    kind="sequence",
    sequence=True,
    keeps_layout=True,
)
@lowering_rule("SequenceInsert", "SequenceErase", kind="sequence", sequence=True)
def move_handles(op: Operator, options: LoweringOptions) -> Lowered:
    """Return no kernel: handles move, elements stay where they are."""
    return same_storage(op)


@shape_rule("Shape")
def shape_types(ctx: ShapeContext) -> Outputs:
    """Return a vector of the number of dims in ``start``..``end`` (clamped)."""
    rank = len(tensor(ctx, 0).shape)
    dims = range(rank)[slice_of_shape(ctx.attributes, rank)]
    return [TensorType(DType.INT64, (len(dims),))]


def slice_of_shape(attributes: Mapping[str, Any], rank: int) -> slice:
    """Return which of ``rank`` dims operator Shape gives."""
    start = attributes.get("start", 0)
    end = attributes.get("end")
    if end is None:
        end = rank

    def clamp(at: int) -> int:
        if at < 0:
            at += rank
        return max(0, min(rank, at))

    return slice(clamp(start), clamp(end))


@shape_rule("Size", "SequenceLength", "OptionalHasElement")
def scalar_types(ctx: ShapeContext) -> Outputs:
    """Return a scalar: a number of elements, or (OptionalHasElement) a bool."""
    if ctx.op_type == "OptionalHasElement":
        return [TensorType(DType.BOOL, ())]
    if ctx.op_type == "Size":
        tensor(ctx, 0)
    else:
        sequence(ctx, 0)
    return [TensorType(DType.INT64, ())]


def _position(ctx: ShapeContext, index: int, length: int) -> int | None:
    """Return the constant position in input ``index``, counted from the front of ``length`` places, else None."""
    position = constant_int(ctx, index)
    if position is None:
        return None
    return axis_of(position, length, what="position")


@shape_rule("SequenceEmpty")
def empty_types(ctx: ShapeContext) -> Outputs:
    """Return a sequence of nothing."""
    dtype_attribute(ctx, "dtype", DType.FLOAT)
    return [SequenceType(())]


@lowering_rule("SequenceEmpty", "SequenceLength", "OptionalHasElement", "Shape", "Size", kind="metadata")
def metadata(op: Operator, options: LoweringOptions) -> Lowered:
    """Return answered on the host from what it knows of the value: no kernel."""
    return NO_KERNEL


def largest(elements: tuple[TensorType, ...]) -> TensorType:
    """Return the common type, or the elementwise maximum of the shapes, marked as a bound."""
    first = elements[0]
    if len(set(elements)) == 1:
        return first
    shapes = [element.shape for element in elements]
    if len(set(map(len, shapes))) > 1:
        raise ShapeError("which element is taken is not known, and their ranks differ")
    return TensorType(first.dtype, tuple(map(max, *shapes)), True)


@shape_rule("SplitToSequence", host_inputs=(1,))
def split_to_sequence_types(ctx: ShapeContext) -> Outputs:
    """Return the pieces along ``axis``: as ``split`` says, else of size 1 (``keepdims``: the axis stays)."""
    data = tensor(ctx, 0)
    axis = axis_attribute(ctx, 0, len(data.shape))
    length = data.shape[axis]
    split = optional_tensor(ctx, 1)
    sizes = constant_ints(ctx, 1)
    if split is None:
        keep = bool(ctx.attributes.get("keepdims", 1))
        piece = TensorType(data.dtype, without_axes(data.shape, (axis,), keep))
        return [SequenceType((piece,) * _pieces(length, 1))]
    if sizes is None:
        # However it is cut, the pieces are together as large as the whole.
        count = 1
        if len(split.shape) == 1 and split.shape[0] <= _MOST_PIECES:
            count = split.shape[0]
        return [SequenceType((TensorType(data.dtype, data.shape, True),) * count, bounded=True)]
    if not split.shape:
        step = sizes[0]
        full = _pieces(length, step)
        sizes = (step,) * full
        if length > step * full:
            sizes += (length - step * full,)
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ShapeError(f"a dimension of {length} cannot be split into {list(sizes)[:8]}")
    before = data.shape[:axis]
    behind = data.shape[axis + 1 :]
    pieces = [TensorType(data.dtype, (*before, size, *behind)) for size in sizes]
    return [SequenceType(tuple(pieces))]


def _pieces(length: int, step: int) -> int:
    """Return how many whole pieces of ``step`` a dimension of ``length`` has; ShapeError for too many."""
    if step < 1 or length // step > _MOST_PIECES:
        raise ShapeError(
            f"cannot split a dimension of {length} into pieces of {step}; at most {_MOST_PIECES} are supported"
        )
    return length // step


_MOST_PIECES = 65_536


@lowering_rule("SplitToSequence", kind="sequence_split", sequence=True, keeps_layout=True)
def split_to_sequence(op: Operator, options: LoweringOptions) -> Lowered:
    """Return views in torch, copies in onnxruntime."""
    if options.runtime == "torch":
        return same_storage(op)
    reads = tensor_inputs(op)[:1]
    writes = tensor_outputs(op)
    rows = sum(t.elements for t in writes)
    kernel = memory_kernel(Family.COPY, "split", reads, writes, flops=0, rows=rows)
    return launched(kernel)


def _bytes(element: TensorType) -> int:
    return element.dtype.nbytes(math.prod(element.shape))


@shape_rule("ConcatFromSequence")
def concat_from_sequence_types(ctx: ShapeContext) -> Outputs:
    """Return the elements joined along ``axis``, which may be a new one."""
    parts = sequence(ctx, 0)
    if not parts.elements:
        raise ShapeError("the sequence is empty, nothing can be joined")
    first = parts.elements[0]
    shapes = [element.shape for element in parts.elements]
    rank = len(first.shape)
    if int_attribute(ctx, "new_axis", 0) == 1:
        axis = axis_of(int_attribute(ctx, "axis"), rank + 1)
        shapes = [(*shape[:axis], 1, *shape[axis:]) for shape in shapes]
    else:
        axis = axis_of(int_attribute(ctx, "axis"), rank)
    bounded = parts.bounded or any(element.bounded for element in parts.elements)
    return [TensorType(first.dtype, joined(shapes, axis), bounded)]


@lowering_rule("ConcatFromSequence", kind="copy")
def concat_from_sequence(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one copy of every element."""
    writes = tensor_outputs(op)
    rows = sum(t.elements for t in writes)
    kernel: Kernel = memory_kernel(Family.COPY, "concat", tensor_inputs(op), writes, flops=0, rows=rows)
    return launched(kernel)
