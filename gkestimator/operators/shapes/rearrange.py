"""Shape rules of scattering, one-hot coding, triangles, blocks and other rearrangements."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    constant_int,
    declared_tensor,
    dtype_attribute,
    int_attribute,
    refuse,
    same_as_input,
    tensor,
    unknown_value,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []


@shape_rule("Scatter", "ScatterElements")
def _scatter(ctx: ShapeContext) -> Outputs:
    data = tensor(ctx, 0, min_rank=1)
    indices = tensor(ctx, 1)
    updates = tensor(ctx, 2)
    axis_of(ctx, int_attribute(ctx, "axis", 0), len(data.shape))
    if indices.shape != updates.shape or len(indices.shape) != len(data.shape):
        refuse(ctx, f"data {list(data.shape)}, indices {list(indices.shape)}, updates {list(updates.shape)}")
    return [data]


@shape_rule("ScatterND")
def _scatter_nd(ctx: ShapeContext) -> Outputs:
    data = tensor(ctx, 0, min_rank=1)
    indices = tensor(ctx, 1, min_rank=1)
    updates = tensor(ctx, 2)
    depth = indices.shape[-1]
    if depth > len(data.shape):
        refuse(ctx, f"indices {list(indices.shape)} name {depth} dimensions of data {list(data.shape)}")
    if not indices.bounded and updates.shape != (*indices.shape[:-1], *data.shape[depth:]):
        refuse(ctx, f"data {list(data.shape)}, indices {list(indices.shape)}, updates {list(updates.shape)}")
    return [data]


@shape_rule("OneHot", host_inputs=(1,))
def _one_hot(ctx: ShapeContext) -> Outputs:
    indices = tensor(ctx, 0)
    values = tensor(ctx, 2)
    rank = len(indices.shape) + 1
    axis = axis_of(ctx, int_attribute(ctx, "axis", -1), rank)
    depth = constant_int(ctx, 1)
    if depth is None:
        depth = unknown_value(ctx, 1, "depth", values.dtype, rank=rank).shape[axis]
    if depth < 0:
        refuse(ctx, f"depth is {depth}, expected a positive number")
    return [TensorType(values.dtype, (*indices.shape[:axis], depth, *indices.shape[axis:]), indices.bounded)]


@shape_rule("EyeLike")
def _eye(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=2)
    return [TensorType(dtype_attribute(ctx, "dtype", x.dtype), x.shape)]


@shape_rule("Trilu", host_inputs=(1,))
@shape_rule("Trilu", domain="com.microsoft")
def _triangle(ctx: ShapeContext) -> Outputs:
    tensor(ctx, 0, min_rank=2)
    return same_as_input(ctx)


@shape_rule("Det")
def _determinant(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=2)
    if x.shape[-1] != x.shape[-2]:
        refuse(ctx, f"input is {list(x.shape)}, expected square matrices")
    return [TensorType(x.dtype, x.shape[:-2])]


@shape_rule("Inverse", domain="com.microsoft")
def _inverse(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=2)
    if x.shape[-1] != x.shape[-2]:
        refuse(ctx, f"input is {list(x.shape)}, expected square matrices")
    return [x]


@shape_rule("DepthToSpace")
def _depth_to_space(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=4)
    n, c, h, w = x.shape
    side = int_attribute(ctx, "blocksize")
    if side < 1 or c % (side * side):
        refuse(ctx, f"{c} channels do not split into blocks of {side} x {side}")
    return [TensorType(x.dtype, (n, c // (side * side), h * side, w * side))]


@shape_rule("SpaceToDepth")
def _space_to_depth(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=4)
    n, c, h, w = x.shape
    side = int_attribute(ctx, "blocksize")
    if side < 1 or h % side or w % side:
        refuse(ctx, f"{h} x {w} does not split into blocks of {side} x {side}")
    return [TensorType(x.dtype, (n, c * side * side, h // side, w // side))]


@shape_rule("ReverseSequence")
def _reverse(ctx: ShapeContext) -> Outputs:
    tensor(ctx, 0, min_rank=2)
    return same_as_input(ctx)


@shape_rule("BitCast")
def _bit_cast(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    target = dtype_attribute(ctx, "to")
    if target.bits != x.dtype.bits or DType.STRING in (target, x.dtype):
        refuse(ctx, f"cannot reinterpret {x.dtype} as {target}, expected a type of {x.dtype.bits} bits")
    return [TensorType(target, x.shape)]


@shape_rule("UnfoldTensor", domain="com.microsoft")
def _unfold(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_of(ctx, int_attribute(ctx, "dim", -1), len(x.shape), what="dim")
    size = int_attribute(ctx, "size")
    step = int_attribute(ctx, "step", 1)
    if step < 1 or not 1 <= size <= x.shape[axis]:
        refuse(ctx, f"slices of {size} every {step} along {x.shape[axis]} elements")
    return [
        TensorType(x.dtype, (*x.shape[:axis], (x.shape[axis] - size) // step + 1, *x.shape[axis + 1 :], size))
    ]


@shape_rule("ExpandDims", domain="com.microsoft")
def _expand_dims(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    rank = len(x.shape) + 1
    axis = constant_int(ctx, 1)
    if axis is None:
        declared = declared_tensor(ctx, 0, x.dtype, rank=rank)
        if declared is None:
            refuse(ctx, "the axis is not a constant")
        return [declared]
    axis = axis_of(ctx, axis, rank)
    return [TensorType(x.dtype, (*x.shape[:axis], 1, *x.shape[axis:]))]
