"""What shape rules share.

Typed access to inputs, axes, broadcasting, and the last resort of declared shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import SequenceType, ShapeContext, TensorType


def has(ctx: ShapeContext, index: int) -> bool:
    """Whether input ``index`` is given."""
    return index < len(ctx.types) and ctx.types[index] is not None


def tensor(ctx: ShapeContext, index: int) -> TensorType:
    """Type of tensor input ``index``; ShapeError when it is left out or is a sequence."""
    if index < len(ctx.types):
        found = ctx.types[index]
    else:
        found = None
    if type(found) is TensorType:
        return found
    raise ShapeError(
        f"input {index} is {'missing' if found is None else 'a sequence'}; a tensor was expected"
    )


def sequence(ctx: ShapeContext, index: int) -> SequenceType:
    """Type of sequence input ``index``; ShapeError when it is left out or is a tensor."""
    if index < len(ctx.types):
        found = ctx.types[index]
    else:
        found = None
    if type(found) is SequenceType:
        return found
    raise ShapeError(
        f"input {index} is {'missing' if found is None else 'a tensor'}; a sequence was expected"
    )


def integers(ctx: ShapeContext, index: int, attribute: str | None = None) -> tuple[int, ...] | None:
    """Integers of input ``index``, or of ``attribute`` in older opsets; None when unknown or absent.

    Use :func:`has` to tell an absent input from one whose value is not known.
    """
    if index < len(ctx.values) and ctx.types[index] is not None:
        value = ctx.values[index]
        if value is None:
            return None
        return tuple(int(v) for v in np.ravel(value))
    found = ctx.attributes.get(attribute) if attribute is not None else None
    if found is None:
        return None
    if isinstance(found, tuple):
        return tuple(found)
    return (int(found),)


def axis_of(axis: int, rank: int) -> int:
    """``axis`` counted from the front; ShapeError when it is outside ``rank`` dimensions."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside {rank} dimensions")
    if axis < 0:
        return axis + rank
    return axis


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """``axes`` counted from the front; ShapeError when one is outside ``rank`` dimensions."""
    return tuple(axis_of(a, rank) for a in axes)


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that ``shapes`` broadcast to (NumPy's rules); ShapeError when they do not."""
    first = shapes[0]
    if all(s == first for s in shapes[1:]):
        return tuple(first)
    rank = max(map(len, shapes))
    out = []
    for position in range(-rank, 0):
        size = 1
        for shape in shapes:
            if -position <= len(shape):
                dim = shape[position]
            else:
                dim = 1
            if dim != 1 and size != dim:
                if size != 1:
                    raise ShapeError(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
                size = dim
        out.append(size)
    return tuple(out)


def element_count(shape: Sequence[int]) -> int:
    """Product of the dims."""
    return math.prod(shape)


def declared_tensor(ctx: ShapeContext, output: int, dtype: DType | None, why: str) -> TensorType:
    """What the file declares of an output whose shape depends on data.

    ShapeError saying ``why`` where it does not.
    """
    if output < len(ctx.declared):
        said = ctx.declared[output]
    else:
        said = None
    if said is not None and said.shape is not None and all(isinstance(d, int) for d in said.shape):
        dtype = dtype if dtype is not None else said.dtype
        if dtype is not None:
            return TensorType(dtype, tuple(d for d in said.shape if isinstance(d, int)))
    raise ShapeError(f"its output shape depends on {why}, which is not known before the model runs")
