"""Resampling of images and regions: every result element interpolates a few source elements."""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import input_at, memory_kernel, optional_input, output_at
from gkestimator.operators.checks import (
    axes_of,
    constant_floats,
    constant_ints,
    has_input,
    ints_attribute,
    tensor,
    text_attribute,
    unknown_value,
)
from gkestimator.operators.registry import (
    MS,
    NCHWC,
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)


@lowering_rule("MaxRoiPool", kind="roi_pool")
def max_roi_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Return comparisons of at most every pixel of a region: regions as large as the image bound the work."""
    source = input_at(op, 0)
    rois = input_at(op, 1)
    result = output_at(op)
    pixels = math.prod(source.shape[1:])
    kernel = memory_kernel(
        Family.POOLING,
        "max_roi_pool",
        (source, rois),
        (result,),
        flops=rois.shape[0] * pixels,
        rows=result.elements,
        cols=max(1, rois.shape[0] * pixels // max(1, result.elements)),
    )
    return launched(kernel)


def scaled_shape(shape: Shape, scales: tuple[float, ...], roi: tuple[float, ...] | None = None) -> Shape:
    """Return ``floor(size * scale)`` for each dimension, in single precision as runtimes do it.

    ``roi`` (starts, then ends, of every axis) narrows each size to its crop first.
    """
    rank = len(shape)
    if len(scales) != rank:
        raise ShapeError(f"{len(scales)} scales for shape {list(shape)}")
    if roi is None:
        roi = (0.0,) * rank + (1.0,) * rank
    sizes = []
    for axis, (size, scale) in enumerate(zip(shape, scales, strict=True)):
        if not math.isfinite(scale) or scale <= 0:
            raise ShapeError(f"scales are {list(scales)}, expected positive numbers")
        crop = roi[axis + rank] - roi[axis]
        with np.errstate(over="ignore"):  # an infinite product is refused below
            product = float(np.float32(size) * np.float32(crop) * np.float32(scale))
        if not 0 <= product < 2**62:
            raise ShapeError(f"size {size} times scale {scale} along axis {axis} is out of range")
        sizes.append(math.floor(product))
    return tuple(sizes)


def _has_elements(ctx: ShapeContext, index: int) -> bool:
    """Return True if input ``index`` is present and not the empty tensor that stands for an omitted one."""
    return has_input(ctx, index) and tensor(ctx, index).shape != (0,)


def _to_sizes(ctx: ShapeContext, sizes: Shape, chosen: Shape) -> Shape:
    """Return what dimensions of ``sizes`` become that are to be ``chosen``, by the policy about their ratio."""
    if len(chosen) != len(sizes) or min(chosen, default=0) < 0:
        raise ShapeError(f"sizes are {list(chosen)}, expected {len(sizes)} sizes")
    policy = text_attribute(ctx, "keep_aspect_ratio_policy", "stretch", choices=_POLICIES)
    if policy == "stretch":
        return chosen
    if 0 in sizes:
        raise ShapeError(f"cannot keep the aspect ratio of {list(sizes)}")
    ratios = [size / before for size, before in zip(chosen, sizes, strict=True)]
    if policy == "not_larger":
        scale = min(ratios)
    else:
        scale = max(ratios)
    return tuple([math.floor(scale * size + 0.5) for size in sizes])


_POLICIES = ("stretch", "not_larger", "not_smaller")


@shape_rule("Resize", host_inputs=(1, 2, 3))
def resize_types(ctx: ShapeContext) -> Outputs:
    """Return the sizes that are named, or the input's times the scales, along ``axes`` (all by default)."""
    x = tensor(ctx, 0)
    if ctx.version < 11:
        return upsample_types(ctx)
    rank = len(x.shape)
    named = ints_attribute(ctx, "axes")
    if named is None:
        axes = tuple(range(rank))
    else:
        axes = axes_of(named, rank)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"axes are {list(axes)}, expected each once")
    before = tuple([x.shape[axis] for axis in axes])
    if _has_elements(ctx, 3):
        sizes = constant_ints(ctx, 3)
        if sizes is None:
            return [unknown_value(ctx, 3, "sizes", x.dtype, rank=rank)]
        after = _to_sizes(ctx, before, sizes)
    else:
        if not _has_elements(ctx, 2):
            raise ShapeError("neither scales nor sizes are given")
        scales = constant_floats(ctx, 2)
        roi = None
        if text_attribute(ctx, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
            roi = constant_floats(ctx, 1)
            if roi is None:
                return [unknown_value(ctx, 1, "roi", x.dtype, rank=rank)]
            if len(roi) != 2 * len(axes):
                raise ShapeError(f"roi has {len(roi)} items, expected {2 * len(axes)}")
        if scales is None:
            return [unknown_value(ctx, 2, "scales", x.dtype, rank=rank)]
        after = scaled_shape(before, scales, roi)
    shape = list(x.shape)
    for axis, size in zip(axes, after, strict=True):
        shape[axis] = size
    return [TensorType(x.dtype, tuple(shape))]


@shape_rule("Upsample", host_inputs=(1,))
@shape_rule("Upsample", domain=NCHWC)
def upsample_types(ctx: ShapeContext) -> Outputs:
    """Return every size times its scale, an input or (before opset 9 and in blocked layout) an attribute."""
    x = tensor(ctx, 0)
    scales = constant_floats(ctx, 1)
    if ctx.op_type == "Upsample" and (ctx.domain or ctx.version < 9):
        named = ctx.attributes.get("scales")
        if named is None:
            raise ShapeError("attribute scales is missing")
        scales = tuple([float(scale) for scale in named])
    if scales is None:
        return [unknown_value(ctx, 1, "scales", x.dtype, rank=len(x.shape))]
    return [TensorType(x.dtype, scaled_shape(x.shape, scales))]


def interpolation_flops(mode: str, axes: int) -> int:
    """Return FLOPs per result of interpolating along ``axes`` axes: taps = (1 | 2 | 4)^axes, a multiply-add each,
    less the first add.

    Linear weights cost 1 an axis (1 - t), cubic ones 16 (four cubics by Horner with shared powers).
    """
    taps: int = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}.get(mode, 1) ** axes
    if taps == 1:
        return 0
    weights = axes * (1 if mode in ("linear", "bilinear") else 16)
    return 2 * taps - 1 + weights


@lowering_rule("Upsample", domain=NCHWC, kind="resample")
# torch.autocast interpolates in fp32 since torch 2.3 (timm's HRNets are 2 to 10 % slower in torch 2.4 than in 2.1).
@lowering_rule("Resize", "Upsample", kind="resample", autocast="fp32")
def resize(op: Operator, options: LoweringOptions) -> Lowered:
    """Return interpolation along the axes whose size changes; nearest is a copy."""
    source = input_at(op, 0)
    result = output_at(op)
    mode = str(op.attributes.get("mode", "nearest"))
    changed = 0
    for before, after in zip(source.shape, result.shape, strict=False):
        changed += before != after
    kernel = memory_kernel(
        Family.RESAMPLE,
        mode,
        (source,),
        (result,),
        flops=interpolation_flops(mode, changed) * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


@shape_rule("GridSample")
@shape_rule("GridSample", domain=MS)
def grid_sample_types(ctx: ShapeContext) -> Outputs:
    """Return (N, C, out spatial) for X (N, C, spatial) and a grid (N, out spatial, dims)."""
    x = tensor(ctx, 0, min_rank=3)
    grid = tensor(ctx, 1, rank=len(x.shape)).shape
    batch = x.shape[0]
    dims = len(x.shape) - 2
    if (grid[0], grid[-1]) != (batch, dims):
        raise ShapeError(f"grid is {list(grid)} for input {x}")
    shape = x.shape[:2] + grid[1:-1]
    return [TensorType(x.dtype, shape)]


@lowering_rule("GridSample", domain=MS, kind="resample")
@lowering_rule("GridSample", kind="resample")
def grid_sample(op: Operator, options: LoweringOptions) -> Lowered:
    """Return samples at the grid's points: coordinates cost 2 an axis and point, then interpolation per channel."""
    source = input_at(op, 0)
    grid = input_at(op, 1)
    result = output_at(op)
    axes = max(1, len(source.shape) - 2)
    mode = str(op.attributes.get("mode", "linear"))
    flops = interpolation_flops(mode, axes) * result.elements + 2 * grid.elements
    kernel = memory_kernel(
        Family.RESAMPLE, "grid_sample", (source, grid), (result,), flops=flops, rows=result.elements
    )
    return launched(kernel)


@lowering_rule("AffineGrid", kind="affine_grid", host_inputs=(1,))
def affine_grid(op: Operator, options: LoweringOptions) -> Lowered:
    """Return theta (d x d+1) times homogeneous coordinates: d multiply-adds an output coordinate."""
    theta = input_at(op, 0)
    result = output_at(op)
    d = theta.shape[1]
    kernel = memory_kernel(
        Family.ELEMENTWISE,
        "affine_grid",
        (theta,),
        (result,),
        flops=2 * d * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


@lowering_rule("RoiAlign", kind="roi_align")
def roi_align(op: Operator, options: LoweringOptions) -> Lowered:
    """Return bilinear samples per bin, averaged.

    ``sampling_ratio`` 0 means bin-sized sampling: the image over the bins bounds it.
    """
    source = input_at(op, 0)
    rois = input_at(op, 1)
    result = output_at(op)
    ratio = op.attributes.get("sampling_ratio", 0)
    if isinstance(ratio, int) and ratio > 0:
        samples = ratio * ratio
    else:
        # Regions are data: one as large as the image is the bound.
        samples = math.ceil(source.shape[2] / max(1, result.shape[2])) * math.ceil(
            source.shape[3] / max(1, result.shape[3])
        )
    indices = optional_input(op, 2)
    reads: tuple[Tensor, ...] = (source, rois) if indices is None else (source, rois, indices)
    flops = (samples * (interpolation_flops("linear", 2) + 1) + 1) * result.elements
    kernel = memory_kernel(
        Family.RESAMPLE,
        "roi_align",
        reads,
        (result,),
        flops=flops,
        rows=result.elements,
        cols=max(1, samples),
    )
    return launched(kernel)
