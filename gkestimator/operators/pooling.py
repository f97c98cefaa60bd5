"""Pooling: windows of a spatial grid reduced to one element each, and the arithmetic of sliding windows.

The formulas are those of ONNX's operator specification (MaxPool, Conv).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import ConvShape, Family, Kernel
from gkestimator.operators.builders import fill_kernel, input_at, memory_kernel, output_at, tensor_outputs
from gkestimator.operators.checks import (
    constant_ints,
    has_input,
    int_attribute,
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


@shape_rule("MaxPool", "AveragePool", "LpPool")
@shape_rule("MaxPool", "AveragePool", domain=NCHWC)
@shape_rule("MaxpoolWithMask", domain=MS)
def pool_types(ctx: ShapeContext) -> Outputs:
    """Return the pooled input; MaxPool's second output holds indices."""
    result = pooled(ctx)
    outputs = [result, TensorType(DType.INT64, result.shape)]
    return outputs[: ctx.outputs]


def _spatial(values: object, rank: int) -> tuple[int, int]:
    if isinstance(values, tuple) and values:
        full = tuple(int(v) for v in values)
    else:
        full = (1,) * rank
    return math.prod(full[:-1]), full[-1]


def pool_kernel(
    op: Operator, variant: str, source: Tensor, writes: tuple[Tensor, ...], per_element: int, per_result: int
) -> Kernel:
    """Return a windowed pooling; rows = results, cols = window, the window's geometry as a depthwise ConvShape."""
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


@lowering_rule("MaxPool", "AveragePool", domain=NCHWC, kind="pool")
@lowering_rule(*_WINDOWED, kind="pool")
def pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel; torch's max pooling also writes 8-byte indices, which live as scratch memory."""
    variant, per_element, per_result = _WINDOWED[op.op_type]
    kernel = pool_kernel(op, variant, input_at(op, 0), tensor_outputs(op), per_element, per_result)
    alone = op.op_type == "MaxPool" and not op.domain and len(tensor_outputs(op)) == 1
    if alone and options.runtime == "torch":
        kernel = _with(kernel, workspace_bytes=_INDEX_BYTES * output_at(op).elements)
    return launched(kernel)


@shape_rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
@shape_rule("GlobalMaxPool", "GlobalAveragePool", domain=NCHWC)
def global_pool_types(ctx: ShapeContext) -> Outputs:
    """Return the shape with every spatial dimension reduced to 1."""
    return [pooled(ctx, whole=True)]


@lowering_rule("GlobalAveragePool", "GlobalMaxPool", domain=NCHWC, kind="global_pool")
@lowering_rule(*_GLOBAL, kind="global_pool")
def global_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a reduction of each channel's pixels: rows = results, cols = pixels."""
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
    return launched(kernel)


class Window(NamedTuple):
    """Hold a window over ``len(kernel)`` spatial dimensions; ``pads`` are all begins, then all ends."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: Shape
    padded_to_fit: bool

    def span(self, axis: int) -> int:
        """Return the elements that the dilated kernel spans along spatial ``axis``."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def padding(self, axis: int) -> int:
        """Return the elements padded before and behind spatial ``axis`` together."""
        return self.pads[axis] + self.pads[axis + len(self.kernel)]


def read_window(ctx: ShapeContext, rank: int, kernel: Shape | None = None) -> Window:
    """Return the window that the attributes state over ``rank`` spatial dimensions.

    ``kernel`` comes from the weight, if there is one. Raises ShapeError where attributes contradict each other.
    """
    named = ints_attribute(ctx, "kernel_shape", length=rank, low=1)
    if kernel is None:
        kernel = named
    elif named is not None and named != kernel:
        raise ShapeError(f"kernel_shape is {list(named)}, the weight's is {list(kernel)}")
    if kernel is None:
        raise ShapeError("attribute kernel_shape is missing")
    auto_pad = text_attribute(ctx, "auto_pad", "NOTSET", choices=_AUTO_PADS)
    pads = ints_attribute(ctx, "pads", length=2 * rank)
    if pads is None or auto_pad not in ("NOTSET", ""):
        pads = (0,) * (2 * rank)
    ones = (1,) * rank
    return Window(
        kernel=kernel,
        strides=ints_attribute(ctx, "strides", length=rank, low=1) or ones,
        dilations=ints_attribute(ctx, "dilations", length=rank, low=1) or ones,
        pads=pads,
        padded_to_fit=auto_pad.startswith("SAME"),
    )


_AUTO_PADS = ("NOTSET", "", "SAME_UPPER", "SAME_LOWER", "VALID")


def slid(window: Window, spatial: Shape, ceil_mode: bool = False) -> Shape:
    """Return how often ``window`` fits along each dimension of ``spatial``.

    With ``ceil_mode`` a window may reach beyond the end, but has to begin inside the input or the padding before
    it.
    """
    sizes = []
    for axis, size in enumerate(spatial):
        stride = window.strides[axis]
        if window.padded_to_fit:
            sizes.append(-(-size // stride))
            continue
        padded = size + window.padding(axis)
        room = padded - window.span(axis)
        if room < 0 and size > 0:
            raise ShapeError(
                f"the window spans {window.span(axis)} elements along spatial axis {axis}, "
                f"the padded input only {padded}"
            )
        if room < 0:
            sizes.append(0)  # an empty input gives an empty result
            continue
        steps = room // stride
        if ceil_mode:
            steps = -(-room // stride)
            if steps * stride >= size + window.pads[axis]:
                steps -= 1
        sizes.append(steps + 1)
    return tuple(sizes)


def pool_spatial(ctx: ShapeContext, spatial: Shape) -> Shape:
    """Return the spatial output shape of a pool over ``spatial``, ``ceil_mode`` and dilations respected."""
    return slid(read_window(ctx, len(spatial)), spatial, bool(int_attribute(ctx, "ceil_mode", 0)))


def pooled(ctx: ShapeContext, *, channels_last: bool = False, whole: bool = False) -> TensorType:
    """Return the type of the pooled input 0; ``whole``: the window is the image."""
    if whole:
        min_rank = 2
    else:
        min_rank = 3
    x = tensor(ctx, 0, min_rank=min_rank)
    if channels_last:
        spatial = x.shape[1:-1]
    else:
        spatial = x.shape[2:]
    if whole:
        sizes = (1,) * len(spatial)
    else:
        sizes = pool_spatial(ctx, spatial)
    if channels_last:
        shape = (x.shape[0], *sizes, x.shape[-1])
        return TensorType(x.dtype, shape)
    return TensorType(x.dtype, x.shape[:2] + sizes)


@shape_rule("MaxUnpool", host_inputs=(2,))
def max_unpool_types(ctx: ShapeContext) -> Outputs:
    """Return the shape that the third input names, else the one that the window covers."""
    x = tensor(ctx, 0, min_rank=3)
    rank = len(x.shape)
    named = constant_ints(ctx, 2)
    if named is not None:
        if len(named) != rank or min(named) < 0:
            raise ShapeError(f"output_shape is {list(named)}, expected {rank} sizes")
        return [TensorType(x.dtype, named)]
    if has_input(ctx, 2):
        return [unknown_value(ctx, 2, "output_shape", x.dtype, rank=rank)]
    window = read_window(ctx, rank - 2)
    sizes = []
    for axis, size in enumerate(x.shape[2:]):
        covered = (size - 1) * window.strides[axis] + window.kernel[axis]
        sizes.append(covered - window.padding(axis))
    shape = x.shape[:2] + not_negative(sizes)
    return [TensorType(x.dtype, shape)]


def not_negative(sizes: Sequence[int]) -> Shape:
    """Return spatial ``sizes``; ShapeError where padding leaves less than nothing."""
    if min(sizes, default=0) < 0:
        raise ShapeError(f"pads leave the spatial sizes {list(sizes)}")
    return tuple(sizes)


@lowering_rule("MaxUnpool", kind="unpool")
def max_unpool(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a fill with zeros and a scatter of the maxima."""
    source = input_at(op, 0)
    indices = input_at(op, 1)
    result = output_at(op)
    fill = fill_kernel(result)
    scatter = memory_kernel(
        Family.SCATTER, "max_unpool", (source, indices), (source,), flops=0, rows=source.elements
    )
    return launched(fill, scatter)
