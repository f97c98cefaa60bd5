"""Operators that sort or select by value: the size of their results depends on data.

Shapes are bounds from above then, flagged ``bounded``.
"""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    input_at,
    memory_kernel,
    operator_axis,
    optional_input,
    present_inputs,
    tensor_outputs,
)
from gkestimator.operators.checks import (
    axis_attribute,
    constant,
    constant_int,
    declared_tensor,
    has_input,
    int_attribute,
    tensor,
    with_sizes,
)
from gkestimator.operators.registry import (
    MS,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)


@shape_rule("TopK", host_inputs=(1,))
def top_k_types(ctx: ShapeContext) -> Outputs:
    """Return values and indices, K along the axis; an unknown K is the declared size, else bounded by the axis."""
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_attribute(ctx, -1, len(x.shape))
    most = x.shape[axis]
    bounded = x.bounded
    if ctx.version < 10:
        k: int | None = int_attribute(ctx, "k")
    else:
        k = constant_int(ctx, 1)
    if k is None:
        declared = declared_tensor(ctx, 0, x.dtype, rank=len(x.shape))
        bounded = bounded or declared is None
        if declared is None:
            k = most
        else:
            k = declared.shape[axis]
    if bounded:
        k = min(k, most)
    if not 0 <= k <= most:
        raise ShapeError(f"K is {k}, axis {axis} of {x} has {most} elements")
    shape = with_sizes(x.shape, axis, k)
    outputs = [TensorType(x.dtype, shape, bounded), TensorType(DType.INT64, shape, bounded)]
    return outputs[: ctx.outputs]


def _log2(n: int) -> int:
    return max(1, math.ceil(math.log2(max(2, n))))


@lowering_rule("TopK", kind="top_k")
def top_k(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a radix select: each element is compared once per 8-bit digit; the k best are sorted (k log2 k)."""
    source = input_at(op, 0)
    writes = tensor_outputs(op)
    axis = operator_axis(op, len(source.shape), -1)
    if source.shape:
        cols = source.shape[axis]
    else:
        cols = 1
    rows = source.elements // max(1, cols)
    if writes[0].shape:
        k = writes[0].shape[axis]
    else:
        k = 1
    digits = max(1, source.dtype.bits // 8)
    flops = digits * source.elements + rows * k * _log2(k)
    kernel = memory_kernel(
        Family.SORT, "top_k", (source,), writes, flops=flops, rows=max(1, rows), cols=max(1, cols)
    )
    return launched(kernel)


@shape_rule("Unique")
def unique_types(ctx: ShapeContext) -> Outputs:
    """Return at most as many elements, or slices along ``axis``, as the input has; places and counts of each.

    The third output names every element (or slice) of the input: its size does not depend on data.
    """
    x = tensor(ctx, 0)
    size = math.prod(x.shape)
    values: tuple[int, ...] = (size,)
    if "axis" in ctx.attributes:
        size = x.shape[axis_attribute(ctx, 0, len(x.shape))]
        values = x.shape
    places = TensorType(DType.INT64, (size,), True)
    inverse = TensorType(DType.INT64, (size,), x.bounded)
    outputs = [TensorType(x.dtype, values, True), places, inverse, places]
    return outputs[: ctx.outputs]


@lowering_rule("Unique", domain=MS, kind="sort")
@lowering_rule("Unique", kind="sort")
def unique(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a sort (n log2 n comparisons), neighbours compared, a compaction; the count goes back to the host."""
    source = input_at(op, 0)
    n = source.elements
    kernel = memory_kernel(
        Family.SORT,
        "unique",
        (source,),
        tensor_outputs(op),
        flops=n * _log2(n) + n,
        rows=1,
        cols=max(1, n),
        workspace_bytes=2 * source.nbytes + 8 * n,
    )
    return launched(kernel, calls=2)


@shape_rule("NonZero")
def non_zero_types(ctx: ShapeContext) -> Outputs:
    """Return (rank, number of non-zero elements): exact for a constant, else at most all elements."""
    x = tensor(ctx, 0)
    rank = max(1, len(x.shape))
    value = constant(ctx, 0)
    if value is None:
        shape = (rank, math.prod(x.shape))
        return [TensorType(DType.INT64, shape, True)]
    shape = (rank, int(np.count_nonzero(value)))
    return [TensorType(DType.INT64, shape)]


@shape_rule("Compress")
def compress_types(ctx: ShapeContext) -> Outputs:
    """Return the elements, or the slices along ``axis``, that the condition selects; at most all of them."""
    x = tensor(ctx, 0)
    condition = tensor(ctx, 1, rank=1)
    shape = x.shape
    axis = 0
    if "axis" in ctx.attributes:
        axis = axis_attribute(ctx, 0, len(shape))
    else:
        shape = (math.prod(shape),)
    size = min(shape[axis], condition.shape[0])
    bounded = True
    value = constant(ctx, 1)
    if value is not None:
        size = int(np.count_nonzero(value[: shape[axis]]))
        bounded = x.bounded
    return [TensorType(x.dtype, with_sizes(shape, axis, size), bounded)]


@lowering_rule("NonZero", "Compress", kind="selection")
def select(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a test and a prefix sum over the flags (2 an element), then the selected elements are written; host
    waits for the count.
    """
    source = input_at(op, 0)
    condition = optional_input(op, 1)
    if condition is None:
        variant = "non_zero"
        flags = source.elements
    else:
        variant = "compress"
        flags = condition.elements
    kernel = memory_kernel(
        Family.SORT,
        variant,
        present_inputs(op, 0, 1),
        tensor_outputs(op),
        flops=2 * flags,
        rows=1,
        cols=max(1, flags),
        workspace_bytes=4 * flags,
    )
    return launched(kernel, calls=2)


@shape_rule("NonMaxSuppression", host_inputs=(2, 3, 4))
def non_max_suppression_types(ctx: ShapeContext) -> Outputs:
    """Return (selected, 3): at most batch x classes x min(boxes, max_output_boxes_per_class)."""
    boxes = tensor(ctx, 0, rank=3).shape
    scores = tensor(ctx, 1, rank=3).shape
    batch, count, corners = boxes
    if corners != 4 or (scores[0], scores[2]) != (batch, count):
        raise ShapeError(f"boxes are {list(boxes)} and scores {list(scores)}")
    most = count
    limit = constant_int(ctx, 2)
    if not has_input(ctx, 2):
        most = 0  # the operator's default: no box is selected
    elif limit is not None:
        most = max(0, min(most, limit))
    shape = (scores[0] * scores[1] * most, 3)
    return [TensorType(DType.INT64, shape, True)]


@lowering_rule("NonMaxSuppression", kind="non_max_suppression")
def non_max_suppression(op: Operator, options: LoweringOptions) -> Lowered:
    """Return sort the scores of each class, then every pair's overlap: 14 FLOPs (4 min/max, 2 differences, 2 clips,
    area, union, ratio).

    The pairs bound the work; n(n-1)/2 a class.
    """
    boxes = input_at(op, 0)
    scores = input_at(op, 1)
    batch, classes, count = scores.shape
    pairs = count * (count - 1) // 2
    flops = batch * classes * (count * _log2(count) + 14 * pairs)
    kernel = memory_kernel(
        Family.SORT,
        "non_max_suppression",
        (boxes, scores),
        tensor_outputs(op),
        flops=flops,
        rows=max(1, batch * classes),
        cols=max(1, count),
        workspace_bytes=batch * classes * count * (8 + (count + 63) // 64 * 8),
    )
    return launched(kernel, calls=2)
