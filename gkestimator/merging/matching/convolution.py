"""What a convolution's attributes say, checked: strangers write them."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.records import frozen
from gkestimator.merging.editing import EditNode


@frozen
class SlidingWindow:
    """How a convolution slides: one number per spatial dimension; pads: all before, then all behind."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int


def window_of(node: EditNode, weight: Sequence[int], spatial: Sequence[int | None]) -> SlidingWindow | None:
    """The window of a Conv by a weight of shape [M, C / groups, *kernel] over the sizes ``spatial``.

    ``auto_pad`` becomes explicit pads. None where that needs a size that is not known (SAME_* with a stride), or
    where an attribute does not fit the weight or is not ONNX's.
    """
    rank = len(weight) - 2
    known = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
    if rank < 1 or node.opaque or not set(node.attributes) <= known or len(spatial) != rank:
        return None
    kernel = tuple(weight[2:])
    groups = node.attributes.get("group", 1)
    strides = _numbers(node, "strides", (1,) * rank, least=1)
    dilations = _numbers(node, "dilations", (1,) * rank, least=1)
    pads = _numbers(node, "pads", (0,) * (2 * rank), least=0)
    if strides is None or dilations is None or pads is None:
        return None
    if type(groups) is not int or groups < 1 or weight[0] % groups:
        return None
    if _numbers(node, "kernel_shape", kernel, least=1) != kernel:
        return None
    auto = node.attributes.get("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        found = [_same(*sizes) for sizes in zip(spatial, kernel, strides, dilations, strict=True)]
        same = [n for n in found if n is not None]
        if len(same) < rank:
            return None
        less = [n // 2 for n in same]
        more = [n - n // 2 for n in same]
        if auto == "SAME_UPPER":
            pads = (*less, *more)
        else:
            pads = (*more, *less)
    elif auto not in ("NOTSET", ""):
        return None
    return SlidingWindow(kernel=kernel, strides=strides, dilations=dilations, pads=pads, groups=groups)


def _same(size: int | None, kernel: int, stride: int, dilation: int) -> int | None:
    """Zeros that make ceil(size / stride) positions; with stride 1 the size does not matter."""
    reach = (kernel - 1) * dilation + 1
    if stride == 1:
        return reach - 1
    if size is None:
        return None
    return max((-(-size // stride) - 1) * stride + reach - size, 0)


def _numbers(node: EditNode, key: str, default: tuple[int, ...], *, least: int) -> tuple[int, ...] | None:
    value = node.attributes.get(key, default)
    if not isinstance(value, tuple) or len(value) != len(default):
        return None
    numbers = tuple(n for n in value if type(n) is int and n >= least)
    if len(numbers) == len(default):
        return numbers
    return None
