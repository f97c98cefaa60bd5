"""Shape rules of normalisations and gates whose output has the shape of their input."""

from __future__ import annotations

from gkestimator.operators.shapes.checks import Outputs, axis_of, int_attribute, refuse, same_as_input, tensor
from gkestimator.operators.shapes.registry import ShapeContext, shape_rule

__all__: list[str] = []


@shape_rule("InstanceNormalization", "GroupNormalization", "LRN")
def _per_channel(ctx: ShapeContext) -> Outputs:
    shape = tensor(ctx, 0, min_rank=3).shape
    if ctx.op_type == "GroupNormalization":
        groups = int_attribute(ctx, "num_groups")
        if groups < 1 or shape[1] % groups:
            refuse(ctx, f"{shape[1]} channels do not split into {groups} groups")
    return same_as_input(ctx)


@shape_rule("LpNormalization", "RMSNormalization")
def _along_axis(ctx: ShapeContext) -> Outputs:
    axis_of(ctx, int_attribute(ctx, "axis", -1), len(tensor(ctx, 0, min_rank=1).shape))
    return same_as_input(ctx)


@shape_rule("MeanVarianceNormalization")
def _mean_variance(ctx: ShapeContext) -> Outputs:
    return same_as_input(ctx)


@shape_rule("SwiGLU")
def _gated(ctx: ShapeContext) -> Outputs:
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    if a.shape != b.shape:
        refuse(ctx, f"gate is {list(a.shape)} and value {list(b.shape)}, expected equal shapes")
    return [a]
