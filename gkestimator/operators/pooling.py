"""Pooling: windows of a spatial grid reduced to one element each."""

from __future__ import annotations

import math
from dataclasses import replace

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import ConvShape, Family, Kernel
from gkestimator.operators.builders import input_at, memory_kernel, output_at, tensor_outputs
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

_INDEX_BYTES = 8  # torch.max_pool2d always writes int64 indices beside its result
# op_type: (variant, FLOPs per window element, FLOPs per result)
_WINDOWED = {
    "MaxPool": ("max_pool", 1, 0),  # compare
    "AveragePool": ("average_pool", 1, 1),  # add; divide
    "LpPool": ("lp_pool", 4, 3),  # |x|^p (3) and add; the root
}
_GLOBAL = {
    "GlobalMaxPool": ("global_max_pool", 1, 0),
    "GlobalAveragePool": ("global_average_pool", 1, 1),
    "GlobalLpPool": ("global_lp_pool", 4, 3),
}


def _spatial(values: object, rank: int) -> tuple[int, int]:
    if isinstance(values, tuple) and values:
        full = tuple(int(v) for v in values)
    else:
        full = (1,) * rank
    return math.prod(full[:-1]), full[-1]


def pool_kernel(
    op: Operator, variant: str, source: Tensor, writes: tuple[Tensor, ...], per_element: int, per_result: int
) -> Kernel:
    """A windowed pooling; rows = results, cols = window, the window's geometry as a depthwise ConvShape."""
    result = writes[0]
    rank = len(source.shape) - 2
    window = op.attributes.get("kernel_shape")
    kernel_h, kernel_w = _spatial(window, rank)
    stride_h, stride_w = _spatial(op.attributes.get("strides"), rank)
    dilation_h, dilation_w = _spatial(op.attributes.get("dilations"), rank)
    area = kernel_h * kernel_w
    kernel = memory_kernel(
        Family.POOLING,
        variant,
        (source,),
        writes,
        flops=(per_element * area + per_result) * result.elements,
        rows=result.elements,
        cols=area,
    )
    channels = source.shape[1]
    shape = ConvShape(
        batch=source.shape[0],
        in_channels=channels,
        out_channels=channels,
        groups=max(1, channels),
        in_h=math.prod(source.shape[2:-1]),
        in_w=source.shape[-1],
        out_h=math.prod(result.shape[2:-1]),
        out_w=result.shape[-1],
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
    )
    return _with(kernel, conv=shape)


def _with(kernel: Kernel, *, conv: ConvShape | None = None, workspace_bytes: int | None = None) -> Kernel:
    if conv is not None:
        kernel = replace(kernel, conv=conv)
    if workspace_bytes is None:
        return kernel
    return replace(kernel, workspace_bytes=workspace_bytes)


@lowering_rule(*_WINDOWED, kind="pool")
def pool(op: Operator, options: LoweringOptions) -> Lowered:
    """One kernel; torch's max pooling also writes 8-byte indices, which live as scratch memory."""
    variant, per_element, per_result = _WINDOWED[op.op_type]
    kernel = pool_kernel(op, variant, input_at(op, 0), tensor_outputs(op), per_element, per_result)
    if op.op_type == "MaxPool" and options.runtime == "torch" and len(tensor_outputs(op)) == 1:
        kernel = _with(kernel, workspace_bytes=_INDEX_BYTES * output_at(op).elements)
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule(*_GLOBAL, kind="global_pool")
def global_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """A reduction of each channel's pixels: rows = results, cols = pixels."""
    variant, per_element, per_result = _GLOBAL[op.op_type]
    source = input_at(op, 0)
    result = output_at(op)
    kernel = memory_kernel(
        Family.REDUCTION,
        variant,
        (source,),
        (result,),
        flops=per_element * source.elements + per_result * result.elements,
        rows=result.elements,
        cols=max(1, source.elements // max(1, result.elements)),
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("MaxUnpool", kind="unpool")
def max_unpool(op: Operator, options: LoweringOptions) -> Lowered:
    """A fill with zeros and a scatter of the maxima."""
    source = input_at(op, 0)
    indices = input_at(op, 1)
    result = output_at(op)
    fill = memory_kernel(Family.ELEMENTWISE, "fill", (), (result,), flops=0, rows=result.elements)
    scatter = memory_kernel(
        Family.SCATTER, "max_unpool", (source, indices), (source,), flops=0, rows=source.elements
    )
    return Lowered(kernels=(fill, scatter), host_calls=1)


@lowering_rule("MaxRoiPool", kind="roi_pool")
def max_roi_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """At most every pixel of a region is compared once: regions as large as the image bound the work."""
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
    return Lowered(kernels=(kernel,), host_calls=1)
