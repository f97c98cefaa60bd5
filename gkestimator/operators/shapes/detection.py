"""Shape rules of operators whose output size depends on data: bounds from above, flagged ``bounded``."""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    constant_int,
    declared_tensor,
    has_input,
    int_attribute,
    refuse,
    tensor,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []


@shape_rule("NonZero")
def _non_zero(ctx: ShapeContext) -> Outputs:
    """(rank, number of non-zero elements): exact for a constant, else at most all elements."""
    x = tensor(ctx, 0)
    rank = max(1, len(x.shape))
    value = ctx.values[0] if ctx.values else None
    if value is not None:
        return [TensorType(DType.INT64, (rank, int(np.count_nonzero(value))))]
    return [TensorType(DType.INT64, (rank, math.prod(x.shape)), True)]


@shape_rule("Unique")
def _unique(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    if "axis" in ctx.attributes:
        axis = axis_of(ctx, int_attribute(ctx, "axis"), len(x.shape))
        size = x.shape[axis]
        values = x.shape
    else:
        size = math.prod(x.shape)
        values = (size,)
    index = TensorType(DType.INT64, (size,), True)
    # inverse_indices names every element (or slice) of the input: its size does not depend on data
    inverse = TensorType(DType.INT64, (size,), x.bounded)
    return [TensorType(x.dtype, values, True), index, inverse, index][: ctx.outputs]


@shape_rule("Compress")
def _compress(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    condition = tensor(ctx, 1, rank=1)
    if len(ctx.values) > 1:
        value = ctx.values[1]
    else:
        value = None
    if "axis" in ctx.attributes:
        axis = axis_of(ctx, int_attribute(ctx, "axis"), len(x.shape))
        before = x.shape[:axis]
        size = x.shape[axis]
        after = x.shape[axis + 1 :]
    else:
        before = ()
        size = math.prod(x.shape)
        after = ()
    if value is not None:
        kept = int(np.count_nonzero(np.asarray(value)[:size]))
        return [TensorType(x.dtype, (*before, kept, *after), x.bounded)]
    return [TensorType(x.dtype, (*before, min(size, condition.shape[0]), *after), True)]


@shape_rule("NonMaxSuppression", host_inputs=(2, 3, 4))
def _non_max_suppression(ctx: ShapeContext) -> Outputs:
    """(selected, 3): at most batch x classes x min(boxes, max_output_boxes_per_class)."""
    boxes = tensor(ctx, 0, rank=3)
    scores = tensor(ctx, 1, rank=3)
    if boxes.shape[2] != 4 or scores.shape[0] != boxes.shape[0] or scores.shape[2] != boxes.shape[1]:
        refuse(ctx, f"boxes are {list(boxes.shape)} and scores {list(scores.shape)}")
    most = boxes.shape[1]
    if not has_input(ctx, 2):
        most = 0  # the operator's default: no box is selected
    else:
        known = constant_int(ctx, 2)
        if known is not None:
            most = max(0, min(most, known))
    return [TensorType(DType.INT64, (scores.shape[0] * scores.shape[1] * most, 3), True)]


@shape_rule("TopK", host_inputs=(1,))
def _top_k(ctx: ShapeContext) -> Outputs:
    """Values and indices, K along the axis; an unknown K is the declared size, else bounded by the axis."""
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_of(ctx, int_attribute(ctx, "axis", -1), len(x.shape))
    bounded = x.bounded
    if ctx.version < 10:
        k = int_attribute(ctx, "k")
    else:
        k = constant_int(ctx, 1)
    if k is None:
        declared = declared_tensor(ctx, 0, x.dtype, rank=len(x.shape))
        if declared is None:
            k = x.shape[axis]
        else:
            k = declared.shape[axis]
        bounded = bounded or declared is None
    if bounded:
        k = min(k, x.shape[axis])
    if not 0 <= k <= x.shape[axis]:
        refuse(ctx, f"K is {k}, axis {axis} of {list(x.shape)} has {x.shape[axis]} elements")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [TensorType(x.dtype, shape, bounded), TensorType(DType.INT64, shape, bounded)][: ctx.outputs]
