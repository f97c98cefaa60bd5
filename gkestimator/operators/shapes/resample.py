"""Shape rules of resampling and cropping: Resize, Upsample, grids, regions of interest, CenterCropPad."""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    axis_of,
    constant_ints,
    has_input,
    int_attribute,
    ints_attribute,
    refuse,
    tensor,
    text_attribute,
    unknown_value,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule


def scaled_shape(
    ctx: ShapeContext, shape: tuple[int, ...], scales: tuple[float, ...], roi: tuple[float, ...] | None = None
) -> tuple[int, ...]:
    """``floor(size * scale)`` for each dimension, in single precision as runtimes do it.

    ``roi`` (starts, then ends, of every axis) narrows each size to its crop first.
    """
    if len(scales) != len(shape):
        refuse(ctx, f"{len(scales)} scales for shape {list(shape)}")
    if any(not math.isfinite(s) or s <= 0 for s in scales):
        refuse(ctx, f"scales are {list(scales)}, expected positive numbers")
    out = []
    for axis, (size, scale) in enumerate(zip(shape, scales, strict=True)):
        if roi is None:
            crop = 1.0
        else:
            crop = roi[axis + len(shape)] - roi[axis]
        with np.errstate(over="ignore"):  # an infinite product is refused below
            product = float(np.float32(size) * np.float32(crop) * np.float32(scale))
        if not 0 <= product < 2**62:
            refuse(ctx, f"size {size} times scale {scale} along axis {axis} is out of range")
        out.append(math.floor(product))
    return tuple(out)


def _floats(ctx: ShapeContext, index: int) -> tuple[float, ...] | None:
    if index < len(ctx.values):
        value = ctx.values[index]
    else:
        value = None
    if value is None:
        return None
    return tuple(float(v) for v in np.asarray(value).reshape(-1).tolist())


def _given(ctx: ShapeContext, index: int) -> bool:
    """True if input ``index`` is present and not the empty tensor that stands for an omitted one."""
    return has_input(ctx, index) and tensor(ctx, index).shape != (0,)


def _resize_to_sizes(
    ctx: ShapeContext, shape: tuple[int, ...], axes: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    if len(sizes) != len(axes) or min(sizes, default=0) < 0:
        refuse(ctx, f"sizes are {list(sizes)}, expected {len(axes)} sizes")
    policy = text_attribute(ctx, "keep_aspect_ratio_policy", "stretch")
    out = list(shape)
    if policy == "stretch":
        for axis, size in zip(axes, sizes, strict=True):
            out[axis] = size
        return tuple(out)
    if policy not in ("not_larger", "not_smaller"):
        refuse(ctx, f"keep_aspect_ratio_policy is {policy!r}, expected stretch, not_larger or not_smaller")
    if any(shape[axis] == 0 for axis in axes):
        refuse(ctx, f"cannot keep the aspect ratio of {list(shape)}")
    ratios = [size / shape[axis] for axis, size in zip(axes, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    for axis in axes:
        out[axis] = math.floor(scale * shape[axis] + 0.5)
    return tuple(out)


@shape_rule("Resize", host_inputs=(1, 2, 3))
def _resize(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    rank = len(x.shape)
    if ctx.version < 11:
        scales = _floats(ctx, 1)
        if scales is None:
            return [unknown_value(ctx, 1, "scales", x.dtype, rank=rank)]
        return [TensorType(x.dtype, scaled_shape(ctx, x.shape, scales))]
    named = ints_attribute(ctx, "axes")
    if named is None:
        axes = tuple(range(rank))
    else:
        axes = tuple(axis_of(ctx, a, rank) for a in named)
    if len(set(axes)) != len(axes):
        refuse(ctx, f"axes are {list(axes)}, expected each once")
    if _given(ctx, 3):
        sizes = constant_ints(ctx, 3)
        if sizes is None:
            return [unknown_value(ctx, 3, "sizes", x.dtype, rank=rank)]
        return [TensorType(x.dtype, _resize_to_sizes(ctx, x.shape, axes, sizes))]
    if not _given(ctx, 2):
        refuse(ctx, "neither scales nor sizes are given")
    scales = _floats(ctx, 2)
    roi = None
    if text_attribute(ctx, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        roi = _floats(ctx, 1)
        if roi is None:
            return [unknown_value(ctx, 1, "roi", x.dtype, rank=rank)]
        if len(roi) != 2 * len(axes):
            refuse(ctx, f"roi has {len(roi)} items, expected {2 * len(axes)}")
    if scales is None:
        return [unknown_value(ctx, 2, "scales", x.dtype, rank=rank)]
    part = scaled_shape(ctx, tuple(x.shape[a] for a in axes), scales, roi)
    out = list(x.shape)
    for axis, size in zip(axes, part, strict=True):
        out[axis] = size
    return [TensorType(x.dtype, tuple(out))]


@shape_rule("Upsample", host_inputs=(1,))
def _upsample(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    if ctx.version < 9:
        found = ctx.attributes.get("scales")
        if found is None:
            refuse(ctx, "attribute scales is missing")
        scales: tuple[float, ...] | None = tuple(float(v) for v in found)
    else:
        scales = _floats(ctx, 1)
    if scales is None:
        return [unknown_value(ctx, 1, "scales", x.dtype, rank=len(x.shape))]
    return [TensorType(x.dtype, scaled_shape(ctx, x.shape, scales))]


@shape_rule("GridSample")
@shape_rule("GridSample", domain="com.microsoft")
def _grid_sample(ctx: ShapeContext) -> Outputs:
    """X (N, C, spatial), grid (N, out spatial, dims) to (N, C, out spatial)."""
    x = tensor(ctx, 0, min_rank=3)
    grid = tensor(ctx, 1, rank=len(x.shape))
    if grid.shape[0] != x.shape[0] or grid.shape[-1] != len(x.shape) - 2:
        refuse(ctx, f"grid is {list(grid.shape)} for input {list(x.shape)}")
    return [TensorType(x.dtype, (*x.shape[:2], *grid.shape[1:-1]))]


@shape_rule("AffineGrid", host_inputs=(1,))
def _affine_grid(ctx: ShapeContext) -> Outputs:
    """theta (N, d, d + 1) and size (N, C, spatial of d dims) to (N, spatial, d)."""
    theta = tensor(ctx, 0, rank=3)
    dims = theta.shape[1]
    if dims not in (2, 3) or theta.shape[2] != dims + 1:
        refuse(ctx, f"theta is {list(theta.shape)}, expected (N, 2, 3) or (N, 3, 4)")
    size = constant_ints(ctx, 1)
    if size is None:
        return [unknown_value(ctx, 1, "size", theta.dtype, rank=dims + 2)]
    if len(size) != dims + 2 or min(size) < 0:
        refuse(ctx, f"size is {list(size)}, expected {dims + 2} sizes")
    return [TensorType(theta.dtype, (size[0], *size[2:], dims))]


@shape_rule("RoiAlign")
def _roi_align(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=4)
    rois = tensor(ctx, 1, rank=2)
    height = int_attribute(ctx, "output_height", 1)
    width = int_attribute(ctx, "output_width", 1)
    if height < 1 or width < 1:
        refuse(ctx, f"output is {height} x {width}, expected positive sizes")
    return [TensorType(x.dtype, (rois.shape[0], x.shape[1], height, width), rois.bounded)]


@shape_rule("MaxRoiPool")
def _max_roi_pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=4)
    rois = tensor(ctx, 1, rank=2)
    pooled = ints_attribute(ctx, "pooled_shape", length=2, low=1)
    if pooled is None:
        refuse(ctx, "attribute pooled_shape is missing")
    return [TensorType(x.dtype, (rois.shape[0], x.shape[1], *pooled), rois.bounded)]


@shape_rule("CropAndResize", domain="com.microsoft")
def _crop_and_resize(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, rank=4)
    rois = tensor(ctx, 1, rank=2)
    size = constant_ints(ctx, 3)
    if size is None:
        return [unknown_value(ctx, 3, "crop_size", x.dtype, rank=4)]
    if len(size) != 2 or min(size) < 1:
        refuse(ctx, f"crop_size is {list(size)}, expected two positive sizes")
    return [TensorType(x.dtype, (rois.shape[0], x.shape[1], *size), rois.bounded)]


@shape_rule("CenterCropPad", host_inputs=(1,))
def _center_crop_pad(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    rank = len(x.shape)
    wanted = constant_ints(ctx, 1)
    if wanted is None:
        return [unknown_value(ctx, 1, "shape", x.dtype, rank=rank)]
    named = ints_attribute(ctx, "axes")
    if named is None:
        axes = tuple(range(rank))
    else:
        axes = tuple(axis_of(ctx, a, rank) for a in named)
    if len(wanted) != len(axes) or min(wanted, default=0) < 0:
        refuse(ctx, f"shape is {list(wanted)}, expected {len(axes)} sizes")
    out = list(x.shape)
    for axis, size in zip(axes, wanted, strict=True):
        out[axis] = size
    return [TensorType(x.dtype, tuple(out))]


@shape_rule("ImageDecoder")
def _image_decoder(ctx: ShapeContext) -> Outputs:
    """Height and width are in the encoded stream: only the file's declaration can name them."""
    tensor(ctx, 0, rank=1)
    return [unknown_value(ctx, 0, "the encoded image", DType.UINT8, rank=3)]
