"""Shape rules of reductions and of normalisation over trailing axes."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.operators.shapes.support import axes_of, axis_of, declared_tensor, has, integers, tensor


@shape_rule(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
    host_inputs=(1,),
)
def reduce(ctx: ShapeContext) -> list[ValueType | None]:
    """Reduced axes become 1, or vanish without ``keepdims``.

    No axes: all, unless ``noop_with_empty_axes``.
    """
    data = tensor(ctx, 0)
    rank = len(data.shape)
    axes = integers(ctx, 1, "axes")
    if axes is None and has(ctx, 1):
        count = math.prod(tensor(ctx, 1).shape)
        if count:
            return [_unknown_axes(ctx, data, count)]
        axes = ()
    if not axes:
        if ctx.attributes.get("noop_with_empty_axes"):
            return [data]
        axes = tuple(range(rank))
    gone = set(axes_of(axes, rank))
    if ctx.attributes.get("keepdims", 1):
        return [TensorType(data.dtype, tuple(1 if i in gone else d for i, d in enumerate(data.shape)))]
    return [TensorType(data.dtype, tuple(d for i, d in enumerate(data.shape) if i not in gone))]


def _unknown_axes(ctx: ShapeContext, data: TensorType, count: int) -> TensorType:
    """What the file declares, else a bound over every choice of ``count`` axes to reduce."""
    said = ctx.declared[0]
    if said is not None and said.shape is not None and all(isinstance(d, int) for d in said.shape):
        return declared_tensor(ctx, 0, data.dtype, "the value of its axes")
    shape = data.shape
    if ctx.attributes.get("keepdims", 1):
        return TensorType(data.dtype, tuple(max(d, 1) for d in shape), True)
    # with ``count`` dims gone, dim i of the rest is one of the input's dims i to i + count
    left = max(0, len(shape) - count)
    return TensorType(data.dtype, tuple(max(shape[i : i + count + 1]) for i in range(left)), True)


@shape_rule("ArgMax", "ArgMin")
def arg_reduce(ctx: ShapeContext) -> list[ValueType | None]:
    """One axis reduced to an index."""
    data = tensor(ctx, 0)
    axis = axis_of(int(ctx.attributes.get("axis", 0)), len(data.shape))
    kept = (1,) if ctx.attributes.get("keepdims", 1) else ()
    return [TensorType(DType.INT64, (*data.shape[:axis], *kept, *data.shape[axis + 1 :]))]


@shape_rule("LayerNormalization")
def layer_normalization(ctx: ShapeContext) -> list[ValueType | None]:
    """The data's type, then mean and inverse deviation over the trailing axes in float."""
    data = tensor(ctx, 0)
    axis = axis_of(int(ctx.attributes.get("axis", -1)), len(data.shape))
    stat = TensorType(DType.FLOAT, (*data.shape[:axis], *(1,) * (len(data.shape) - axis)))
    outputs: list[ValueType | None] = [data, stat, stat]
    return outputs[: max(1, ctx.outputs)]
