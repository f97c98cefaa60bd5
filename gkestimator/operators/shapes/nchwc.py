"""Shape rules of ONNX Runtime's blocked CPU layout (com.microsoft.nchwc).

Files optimised for a CPU hold these; shapes are the logical (N, C, spatial), the padding of C to the block is
in the weights.
"""

from __future__ import annotations

from gkestimator.operators.shapes.checks import Outputs, int_attribute, ints_attribute, refuse, tensor
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule
from gkestimator.operators.shapes.windows import pool_spatial, window_spatial

__all__: list[str] = []

_NCHWC = "com.microsoft.nchwc"


@shape_rule("ReorderInput", domain=_NCHWC)
def _reorder_input(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    if int_attribute(ctx, "channels_last", 0):
        return [TensorType(x.dtype, (x.shape[0], x.shape[-1], *x.shape[1:-1]))]
    return [x]


@shape_rule("ReorderOutput", domain=_NCHWC)
def _reorder_output(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    channels = int_attribute(ctx, "channels")
    if not 0 < channels <= x.shape[1]:
        refuse(ctx, f"channels are {channels}, the input is {list(x.shape)}")
    if int_attribute(ctx, "channels_last", 0):
        return [TensorType(x.dtype, (x.shape[0], *x.shape[2:], channels))]
    return [TensorType(x.dtype, (x.shape[0], channels, *x.shape[2:]))]


@shape_rule("Conv", domain=_NCHWC)
def _conv(ctx: ShapeContext) -> Outputs:
    """As Conv; the block's padding lets channels of input and weight differ, so they are not compared."""
    x = tensor(ctx, 0, min_rank=3)
    w = tensor(ctx, 1)
    if len(w.shape) != len(x.shape):
        refuse(ctx, f"input {list(x.shape)} and weight {list(w.shape)} differ in rank")
    return [TensorType(x.dtype, (x.shape[0], w.shape[0], *window_spatial(ctx, x.shape[2:], w.shape[2:])))]


@shape_rule("MaxPool", "AveragePool", domain=_NCHWC)
def _pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    return [TensorType(x.dtype, (*x.shape[:2], *pool_spatial(ctx, x.shape[2:])))]


@shape_rule("GlobalMaxPool", "GlobalAveragePool", domain=_NCHWC)
def _global_pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    return [TensorType(x.dtype, (*x.shape[:2], *(1 for _ in x.shape[2:])))]


@shape_rule("Upsample", domain=_NCHWC)
def _upsample(ctx: ShapeContext) -> Outputs:
    """Whole-number scales of all dimensions, as an attribute."""
    x = tensor(ctx, 0, min_rank=3)
    scales = ints_attribute(ctx, "scales", length=len(x.shape), default=(1,) * len(x.shape), low=1) or ()
    return [TensorType(x.dtype, tuple(d * s for d, s in zip(x.shape, scales, strict=True)))]
