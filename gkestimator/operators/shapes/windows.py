"""Sliding windows: the spatial arithmetic of convolutions and pools, and the rules of the less common ones.

The formulas are those of ONNX's operator specification (Conv, MaxPool, ConvTranspose).
"""

from __future__ import annotations

from typing import NamedTuple

from gkestimator.operators.shapes.checks import (
    Outputs,
    constant_ints,
    int_attribute,
    ints_attribute,
    optional_tensor,
    refuse,
    tensor,
    text_attribute,
    unknown_value,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule


class Window(NamedTuple):
    """A window over ``len(kernel)`` spatial dimensions; pads are (begin, end) for each of them."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    auto_pad: str

    def extent(self, axis: int) -> int:
        """Elements that the dilated kernel spans along spatial ``axis``."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1


def read_window(ctx: ShapeContext, rank: int, kernel: tuple[int, ...] | None = None) -> Window:
    """The window attributes over ``rank`` spatial dimensions; ``kernel`` comes from the weight, if any."""
    named = ints_attribute(ctx, "kernel_shape", length=rank, low=1)
    if kernel is None:
        if named is None:
            refuse(ctx, "attribute kernel_shape is missing")
        kernel = named
    elif named is not None and named != kernel:
        refuse(ctx, f"kernel_shape is {list(named)}, the weight's is {list(kernel)}")
    auto_pad = text_attribute(ctx, "auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "", "SAME_UPPER", "SAME_LOWER", "VALID"):
        refuse(ctx, f"auto_pad is {auto_pad!r}, expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    flat = ints_attribute(ctx, "pads", length=2 * rank, default=(0,) * (2 * rank)) or ()
    if auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        flat = (0,) * (2 * rank)
    return Window(
        kernel=kernel,
        strides=ints_attribute(ctx, "strides", length=rank, default=(1,) * rank, low=1) or (),
        dilations=ints_attribute(ctx, "dilations", length=rank, default=(1,) * rank, low=1) or (),
        pads=tuple(zip(flat[:rank], flat[rank:], strict=True)),
        auto_pad=auto_pad,
    )


def _slid(ctx: ShapeContext, window: Window, spatial: tuple[int, ...], ceil_mode: bool) -> tuple[int, ...]:
    result = []
    for axis, size in enumerate(spatial):
        stride = window.strides[axis]
        if window.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            result.append(-(-size // stride))
            continue
        begin, end = window.pads[axis]
        room = size + begin + end - window.extent(axis)
        if room < 0:
            refuse(
                ctx,
                f"the window spans {window.extent(axis)} elements along spatial axis {axis}, "
                f"the padded input only {size + begin + end}",
            )
        count = (-(-room // stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= size + begin:
            count -= 1  # a window that would start in the end padding is left out
        result.append(count)
    return tuple(result)


def pool_spatial(ctx: ShapeContext, spatial: tuple[int, ...]) -> tuple[int, ...]:
    """Spatial output shape of a pool over ``spatial``, ``ceil_mode`` and dilations respected."""
    window = read_window(ctx, len(spatial))
    return _slid(ctx, window, spatial, bool(int_attribute(ctx, "ceil_mode", 0)))


def window_spatial(ctx: ShapeContext, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Spatial output shape of a convolution with ``kernel`` over ``spatial``."""
    return _slid(ctx, read_window(ctx, len(spatial), kernel), spatial, False)


def conv_shape(
    ctx: ShapeContext, x: tuple[int, ...], w: tuple[int, ...], *, channels_last: bool = False
) -> tuple[int, ...]:
    """Output shape of a convolution of ``x`` (N, C, spatial) with ``w`` (M, C / group, kernel).

    ``channels_last``: x and the output are (N, spatial, C); the weight keeps its layout.
    """
    if len(x) < 3 or len(w) != len(x):
        refuse(ctx, f"input {list(x)} and weight {list(w)}, expected both (N, C, spatial...) of one rank")
    channels, spatial = (x[-1], x[1:-1]) if channels_last else (x[1], x[2:])
    groups = int_attribute(ctx, "group", 1)
    if groups < 1 or channels != w[1] * groups or w[0] % groups:
        refuse(ctx, f"input {list(x)}, weight {list(w)} and group {groups} do not fit together")
    out = window_spatial(ctx, spatial, w[2:])
    if channels_last:
        return (x[0], *out, w[0])
    return (x[0], w[0], *out)


def conv_channels_first(ctx: ShapeContext, x: int = 0, w: int = 1) -> tuple[int, ...]:
    """``conv_shape`` of the inputs number ``x`` and ``w``."""
    return conv_shape(ctx, tensor(ctx, x).shape, tensor(ctx, w).shape)


@shape_rule("DeformConv")
def _deform_conv(ctx: ShapeContext) -> Outputs:
    return [TensorType(tensor(ctx, 0).dtype, conv_channels_first(ctx))]


def transposed_shape(ctx: ShapeContext, pads: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Output shape of ConvTranspose of x (N, C, spatial) and w (C, M / group, kernel).

    ``pads`` (all begins, then all ends) override the attribute.
    """
    x = tensor(ctx, 0, min_rank=3).shape
    w = tensor(ctx, 1, min_rank=3).shape
    groups = int_attribute(ctx, "group", 1)
    if len(w) != len(x) or w[0] != x[1] or groups < 1:
        refuse(ctx, f"input {list(x)}, weight {list(w)} and group {groups} do not fit together")
    rank = len(x) - 2
    window = read_window(ctx, rank, w[2:])
    extra = ints_attribute(ctx, "output_padding", length=rank, default=(0,) * rank, low=0) or ()
    wanted = ints_attribute(ctx, "output_shape", low=1)
    if wanted is not None:
        if len(wanted) not in (rank, rank + 2):
            refuse(ctx, f"output_shape has {len(wanted)} items, expected {rank}")
        return (x[0], w[1] * groups, *wanted[-rank:])
    out = []
    for axis, size in enumerate(x[2:]):
        begin, end = window.pads[axis] if pads is None else (pads[axis], pads[axis + rank])
        if window.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            out.append(size * window.strides[axis])
        else:
            out.append(window.strides[axis] * (size - 1) + extra[axis] + window.extent(axis) - begin - end)
        if out[-1] < 0:
            refuse(ctx, f"pads leave a negative size along spatial axis {axis}")
    return (x[0], w[1] * groups, *out)


@shape_rule("ConvTranspose")
def _conv_transpose(ctx: ShapeContext) -> Outputs:
    return [TensorType(tensor(ctx, 0).dtype, transposed_shape(ctx))]


@shape_rule("ConvTransposeWithDynamicPads", domain="com.microsoft")
def _conv_transpose_pads(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    pads = constant_ints(ctx, 2)
    if pads is None and optional_tensor(ctx, 2) is not None:
        return [unknown_value(ctx, 2, "pads", x.dtype, rank=len(x.shape))]
    if pads is not None and len(pads) != 2 * (len(x.shape) - 2):
        refuse(ctx, f"pads have {len(pads)} items, expected {2 * (len(x.shape) - 2)}")
    return [TensorType(x.dtype, transposed_shape(ctx, pads))]


@shape_rule("LpPool")
def _lp_pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    return [TensorType(x.dtype, (*x.shape[:2], *pool_spatial(ctx, x.shape[2:])))]


@shape_rule("GlobalLpPool")
def _global_lp_pool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    return [TensorType(x.dtype, (*x.shape[:2], *(1 for _ in x.shape[2:])))]


@shape_rule("MaxUnpool", host_inputs=(2,))
def _max_unpool(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=3)
    wanted = constant_ints(ctx, 2)
    if wanted is not None:
        if len(wanted) != len(x.shape) or min(wanted) < 0:
            refuse(ctx, f"output_shape is {list(wanted)}, expected {len(x.shape)} sizes")
        return [TensorType(x.dtype, wanted)]
    if optional_tensor(ctx, 2) is not None:
        return [unknown_value(ctx, 2, "output_shape", x.dtype, rank=len(x.shape))]
    window = read_window(ctx, len(x.shape) - 2)
    out = []
    for axis, size in enumerate(x.shape[2:]):
        out.append((size - 1) * window.strides[axis] + window.kernel[axis] - sum(window.pads[axis]))
        if out[-1] < 0:
            refuse(ctx, f"pads leave a negative size along spatial axis {axis}")
    return [TensorType(x.dtype, (*x.shape[:2], *out))]


@shape_rule("Col2Im", host_inputs=(1, 2))
def _col2im(ctx: ShapeContext) -> Outputs:
    """(N, C x prod(block), L) to (N, C, image)."""
    x = tensor(ctx, 0, rank=3)
    image = constant_ints(ctx, 1)
    block = constant_ints(ctx, 2)
    if image is None or block is None:
        return [unknown_value(ctx, 1 if image is None else 2, "a shape", x.dtype)]
    size = 1
    for side in block:
        size *= side
    if size < 1 or x.shape[1] % size or min(image, default=0) < 0:
        refuse(ctx, f"block {list(block)} does not divide the columns of {list(x.shape)}")
    return [TensorType(x.dtype, (x.shape[0], x.shape[1] // size, *image))]
