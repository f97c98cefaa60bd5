"""Shape rules of normalisations whose output has the shape of their input."""

from __future__ import annotations

from gkestimator.onnx_io.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.onnx_io.shapes.support import axis_of, int_attribute, refuse, same_as_input, tensor

__all__: list[str] = []


@shape_rule("InstanceNormalization", "GroupNormalization", "LRN")
def _per_channel(ctx: ShapeContext) -> list[ValueType | None]:
    shape = tensor(ctx, 0, min_rank=3).shape
    if ctx.op_type == "GroupNormalization":
        groups = int_attribute(ctx, "num_groups")
        if groups < 1 or shape[1] % groups:
            refuse(ctx, f"{shape[1]} channels do not split into {groups} groups")
    return list(same_as_input(ctx))


@shape_rule("LpNormalization", "RMSNormalization")
def _along_axis(ctx: ShapeContext) -> list[ValueType | None]:
    axis_of(ctx, int_attribute(ctx, "axis", -1), len(tensor(ctx, 0, min_rank=1).shape))
    return list(same_as_input(ctx))


@shape_rule("MeanVarianceNormalization")
def _mean_variance(ctx: ShapeContext) -> list[ValueType | None]:
    return list(same_as_input(ctx))


@shape_rule("Hardmax", "LogSoftmax")
def _softmax_like(ctx: ShapeContext) -> list[ValueType | None]:
    x = tensor(ctx, 0)
    if x.shape:
        axis_of(ctx, int_attribute(ctx, "axis", 1 if ctx.version < 13 else -1), len(x.shape))
    return [TensorType(x.dtype, x.shape, x.bounded)]
