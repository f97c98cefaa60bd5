"""Resampling of images and regions: every result element interpolates a few source elements."""

from __future__ import annotations

import math

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import input_at, memory_kernel, optional_input, output_at
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule


def interpolation_flops(mode: str, axes: int) -> int:
    """FLOPs per result of interpolating along ``axes`` axes: taps = (1 | 2 | 4)^axes, a multiply-add each,
    less the first add.

    Linear weights cost 1 an axis (1 - t), cubic ones 16 (four cubics by Horner with shared powers).
    """
    taps: int = {"linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}.get(mode, 1) ** axes
    if taps == 1:
        return 0
    weights = axes * (1 if mode in ("linear", "bilinear") else 16)
    return 2 * taps - 1 + weights


@lowering_rule("Resize", "Upsample", kind="resample")
def resize(op: Operator, options: LoweringOptions) -> Lowered:
    """Interpolation along the axes whose size changes; nearest is a copy."""
    source = input_at(op, 0)
    result = output_at(op)
    mode = str(op.attributes.get("mode", "nearest"))
    changed = sum(1 for a, b in zip(source.shape, result.shape, strict=False) if a != b)
    kernel = memory_kernel(
        Family.RESAMPLE,
        mode,
        (source,),
        (result,),
        flops=interpolation_flops(mode, changed) * result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("GridSample", kind="resample")
def grid_sample(op: Operator, options: LoweringOptions) -> Lowered:
    """Samples at the grid's points: coordinates cost 2 an axis and point, then interpolation per channel."""
    source = input_at(op, 0)
    grid = input_at(op, 1)
    result = output_at(op)
    axes = max(1, len(source.shape) - 2)
    mode = str(op.attributes.get("mode", "linear"))
    flops = interpolation_flops(mode, axes) * result.elements + 2 * grid.elements
    kernel = memory_kernel(
        Family.RESAMPLE, "grid_sample", (source, grid), (result,), flops=flops, rows=result.elements
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("AffineGrid", kind="affine_grid")
def affine_grid(op: Operator, options: LoweringOptions) -> Lowered:
    """theta (d x d+1) times homogeneous coordinates: d multiply-adds an output coordinate."""
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
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("RoiAlign", kind="roi_align")
def roi_align(op: Operator, options: LoweringOptions) -> Lowered:
    """Bilinear samples per bin, averaged. ``sampling_ratio`` 0 means bin-sized sampling: the image over the
    bins bounds it.
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
    return Lowered(kernels=(kernel,), host_calls=1)
