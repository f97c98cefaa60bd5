"""Shape rules of sequences and optionals."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import (
    SequenceType,
    ShapeContext,
    TensorType,
    ValueType,
    shape_rule,
)
from gkestimator.operators.shapes.support import axis_of, has, integers, sequence, tensor


@shape_rule("SequenceConstruct")
def construct(ctx: ShapeContext) -> list[ValueType | None]:
    """The inputs, in order."""
    return [SequenceType(tuple(tensor(ctx, i) for i in range(len(ctx.types))))]


@shape_rule("SequenceAt", host_inputs=(1,))
def at(ctx: ShapeContext) -> list[ValueType | None]:
    """The element at a position; when that is not known, the largest element as a bound."""
    elements = sequence(ctx, 0).elements
    if not elements:
        raise ShapeError("the sequence is empty")
    position = integers(ctx, 1)
    if position is not None:
        return [elements[axis_of(position[0], len(elements))]]
    return [largest(elements)]


def largest(elements: tuple[TensorType, ...]) -> TensorType:
    """The common type, or the elementwise maximum of the shapes, marked as a bound."""
    if all(e == elements[0] for e in elements[1:]):
        return elements[0]
    if len({len(e.shape) for e in elements}) > 1:
        raise ShapeError("which element is taken is not known, and their ranks differ")
    return TensorType(elements[0].dtype, tuple(map(max, *(e.shape for e in elements))), True)


@shape_rule("SplitToSequence", host_inputs=(1,))
def split_to_sequence(ctx: ShapeContext) -> list[ValueType | None]:
    """Pieces along ``axis``.

    Of size 1 by default (``keepdims`` says whether the axis stays), else as ``split`` says.
    """
    data = tensor(ctx, 0)
    axis = axis_of(int(ctx.attributes.get("axis", 0)), len(data.shape))
    before = data.shape[:axis]
    length = data.shape[axis]
    behind = data.shape[axis + 1 :]
    if not has(ctx, 1):
        kept = (1,) if ctx.attributes.get("keepdims", 1) else ()
        if length > 65_536:
            raise ShapeError(
                f"splits a dimension of {length} into single elements; at most 65536 are supported"
            )
        return [SequenceType((TensorType(data.dtype, (*before, *kept, *behind)),) * length)]
    sizes = integers(ctx, 1)
    split = tensor(ctx, 1)
    if sizes is None and len(split.shape) == 1 and split.shape[0] <= 65_536:
        # as many pieces as there are sizes, none of them larger than the whole
        piece = TensorType(data.dtype, data.shape, True)
        return [SequenceType((piece,) * split.shape[0], bounded=True)]
    if sizes is None:  # however it is cut, the pieces are together as large as the whole
        return [SequenceType((data._replace(bounded=True),), True)]
    if not split.shape:
        step = sizes[0]
        if step < 1 or length // step > 65_536:
            raise ShapeError(f"cannot split a dimension of {length} into pieces of {step}")
        sizes = (step,) * (length // step) + ((length % step,) if length % step else ())
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ShapeError(f"a dimension of {length} cannot be split into {list(sizes)[:8]}")
    return [SequenceType(tuple(TensorType(data.dtype, (*before, s, *behind)) for s in sizes))]


@shape_rule("Optional")
def optional(ctx: ShapeContext) -> list[ValueType | None]:
    """An optional that holds the input, or nothing. An optional sequence is the sequence itself."""
    if not has(ctx, 0):
        return [SequenceType((), optional=True)]
    inner = ctx.types[0]
    return [SequenceType((inner,), optional=True) if isinstance(inner, TensorType) else inner]


@shape_rule("OptionalGetElement")
def optional_get(ctx: ShapeContext) -> list[ValueType | None]:
    """What the optional holds; a value that is no optional is itself."""
    held = ctx.types[0]
    if isinstance(held, SequenceType) and held.optional:
        if not held.elements:
            raise ShapeError("the optional is empty")
        return [held.elements[0]]
    return [held]


@shape_rule("OptionalHasElement")
def optional_has(ctx: ShapeContext) -> list[ValueType | None]:
    """A bool."""
    return [TensorType(DType.BOOL, ())]
