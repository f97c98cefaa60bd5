"""Shape rules of the random generators."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    dtype_attribute,
    int_attribute,
    ints_attribute,
    refuse,
    tensor,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []


@shape_rule("RandomNormal", "RandomUniform", random=True)
def _generate(ctx: ShapeContext) -> Outputs:
    if "shape" not in ctx.attributes:
        refuse(ctx, "attribute shape is missing")
    shape = ints_attribute(ctx, "shape", default=(), low=0)
    return [TensorType(dtype_attribute(ctx, "dtype", DType.FLOAT), shape or ())]


@shape_rule("RandomNormalLike", "RandomUniformLike", "Bernoulli", random=True)
def _like(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    return [TensorType(dtype_attribute(ctx, "dtype", x.dtype), x.shape, x.bounded)]


@shape_rule("Multinomial", random=True)
def _multinomial(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=2)
    count = int_attribute(ctx, "sample_size", 1)
    if count < 1:
        refuse(ctx, f"sample_size is {count}, expected at least 1")
    return [TensorType(dtype_attribute(ctx, "dtype", DType.INT32), (x.shape[0], count))]
