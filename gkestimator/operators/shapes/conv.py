"""Shape rules of convolution and pooling."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, ValueType, shape_rule
from gkestimator.operators.shapes.support import tensor


def window_dims(
    ctx: ShapeContext, spatial: tuple[int, ...], kernel: tuple[int, ...], *, ceil_mode: bool = False
) -> tuple[int, ...]:
    """Output sizes of a window that slides over ``spatial``, by strides, dilations, pads or auto_pad."""
    rank = len(spatial)
    get = ctx.attributes.get
    strides = get("strides") or (1,) * rank
    dilations = get("dilations") or (1,) * rank
    pads = get("pads") or (0,) * (2 * rank)
    auto = get("auto_pad", "NOTSET")
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        raise ShapeError(f"kernel {list(kernel)}, strides, dilations or pads do not have {rank} dimensions")
    if min(*strides, *dilations, *kernel, 1) < 1:
        raise ShapeError("kernel, strides and dilations must be positive")
    out = []
    for i, (size, width, stride, dilation) in enumerate(
        zip(spatial, kernel, strides, dilations, strict=True)
    ):
        reach = (width - 1) * dilation + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            out.append(-(-size // stride))
            continue
        before, behind = (0, 0) if auto == "VALID" else (pads[i], pads[i + rank])
        room = size + before + behind - reach
        if room < 0:
            if size == 0:
                out.append(0)
                continue
            raise ShapeError(
                f"a window of {reach} does not fit a dimension of {size} padded by {before} and {behind}"
            )
        if ceil_mode:
            steps = -(-room // stride)
        else:
            steps = room // stride
        if ceil_mode and steps * stride >= size + before:
            steps -= 1  # a window must begin inside the input or its padding before
        out.append(steps + 1)
    return tuple(out)


@shape_rule("Conv")
def conv(ctx: ShapeContext) -> list[ValueType | None]:
    """(N, C, ...) with weights (M, C / group, ...) gives (N, M, ...)."""
    data = tensor(ctx, 0)
    weight = tensor(ctx, 1)
    group = int(ctx.attributes.get("group", 1))
    if len(data.shape) < 3 or len(data.shape) != len(weight.shape):
        raise ShapeError(
            f"input {list(data.shape)} and weights {list(weight.shape)} do not fit a convolution"
        )
    if group < 1 or data.shape[1] != weight.shape[1] * group or weight.shape[0] % group:
        raise ShapeError(
            f"input {list(data.shape)} has {data.shape[1]} channels; weights {list(weight.shape)} in {group} "
            f"groups expect {weight.shape[1] * group}"
        )
    kernel = ctx.attributes.get("kernel_shape") or weight.shape[2:]
    if tuple(kernel) != weight.shape[2:]:
        raise ShapeError(f"kernel_shape {list(kernel)} and weights {list(weight.shape)} differ")
    return [
        TensorType(data.dtype, (data.shape[0], weight.shape[0], *window_dims(ctx, data.shape[2:], kernel)))
    ]


@shape_rule("MaxPool", "AveragePool")
def pool(ctx: ShapeContext) -> list[ValueType | None]:
    """A window over the spatial dimensions; MaxPool's second output holds indices."""
    data = tensor(ctx, 0)
    kernel = ctx.attributes["kernel_shape"]
    dims = window_dims(ctx, data.shape[2:], kernel, ceil_mode=bool(ctx.attributes.get("ceil_mode")))
    out = TensorType(data.dtype, (*data.shape[:2], *dims))
    if ctx.outputs > 1:
        return [out, TensorType(DType.INT64, out.shape)]
    return [out]


@shape_rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(ctx: ShapeContext) -> list[ValueType | None]:
    """All spatial dimensions become 1."""
    data = tensor(ctx, 0)
    if len(data.shape) < 2:
        raise ShapeError(f"input {list(data.shape)} has no channels")
    return [TensorType(data.dtype, (*data.shape[:2], *(1,) * (len(data.shape) - 2)))]
