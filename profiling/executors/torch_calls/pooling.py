"""Poolings."""

from __future__ import annotations

import math
from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Run,
    frame,
    spatial,
    torch_call,
    window_pads,
)

__all__: list[str] = []

_MOST_SPATIAL = 3


def _rank(call: Call) -> int:
    rank = len(call.shape(0)) - 2
    if not 1 <= rank <= _MOST_SPATIAL:
        raise call.unsupported(f"{rank} spatial dimensions, expected 1 to {_MOST_SPATIAL}")
    return rank


def _geometry(call: Call) -> tuple[list[int], list[int], list[int], list[int], list[int], bool]:
    rank = _rank(call)
    window = call.integers("kernel_shape")
    if window is None or len(window) != rank:
        raise call.unsupported(f"kernel_shape {window}, expected {rank} numbers")
    strides = spatial(call, "strides", rank, 1)
    dilations = spatial(call, "dilations", rank, 1)
    before, after = window_pads(call, call.shape(0)[2:], window, strides, dilations)
    return window, strides, dilations, before, after, bool(call.attribute("ceil_mode", 0))


def _one_sided(call: Call, window: list[int], before: list[int], after: list[int]) -> bool:
    """Whether torch's own padding cannot say it: the sides differ, or more than half a window."""
    return before != after or any(2 * p > w for p, w in zip(before, window, strict=True))


@torch_call("MaxPool")
def max_pool(call: Call) -> Run:
    """F.max_pool1d, 2d or 3d; padding that differs between the sides is an F.pad with the lowest number before."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    window, strides, dilations, before, after, ceil = _geometry(call)
    rank = len(window)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    if call.wants(1):
        if call.attribute("storage_order", 0) or _one_sided(call, window, before, after):
            raise call.unsupported("indices in column order, or of an image that is padded on one side")
        plane = math.prod(call.shape(0)[2:])
        batch, channels = call.shape(0)[:2]

        def with_indices(x: Any) -> Any:
            values, indices = pool(x, window, strides, before, dilations, ceil, return_indices=True)
            # ONNX counts over the whole tensor, torch over a plane.
            first = torch.arange(batch * channels, device=x.device) * plane
            return values, indices + first.reshape(batch, channels, *(1,) * rank)

        return with_indices
    if not _one_sided(call, window, before, after):
        return lambda x: pool(x, window, strides, before, dilations, ceil)
    pads = frame(before, after)
    lowest = -math.inf if call.tensor(0).dtype.is_floating else 0
    return lambda x: pool(F.pad(x, pads, value=lowest), window, strides, 0, dilations, ceil)


@torch_call("AveragePool")
def average_pool(call: Call) -> Run:
    """F.avg_pool1d, 2d or 3d. Raises EntryUnsupportedError for windows that torch's call cannot say."""
    import torch.nn.functional as F  # noqa: N812

    window, strides, dilations, before, after, ceil = _geometry(call)
    rank = len(window)
    if any(d != 1 for d in dilations):
        raise call.unsupported("dilated windows")
    count = bool(call.attribute("count_include_pad", 0))
    pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    if not _one_sided(call, window, before, after):
        return lambda x: pool(x, window, strides, before, ceil, count)
    if not count or ceil:
        raise call.unsupported(f"padding {before} and {after} that is not counted")
    pads = frame(before, after)
    return lambda x: pool(F.pad(x, pads), window, strides, 0, False, True)


@torch_call("LpPool")
def lp_pool(call: Call) -> Run:
    """F.lp_pool1d, 2d or 3d. Raises EntryUnsupportedError for padded or dilated windows, and for odd orders, whose
    magnitudes torch does not take."""
    import torch.nn.functional as F  # noqa: N812

    window, strides, dilations, before, after, ceil = _geometry(call)
    if any(before) or any(after) or any(d != 1 for d in dilations):
        raise call.unsupported("padded or dilated windows")
    order = float(call.attribute("p", 2))
    if order % 2:
        raise call.unsupported(f"order {order:g}, expected an even one")
    if len(window) == 1:
        size = window[0]
        step = strides[0]
        return lambda x: F.lp_pool1d(x, order, size, step, ceil)
    pool: Any = (F.lp_pool2d, F.lp_pool3d)[len(window) - 2]
    return lambda x: pool(x, order, window, strides, ceil)


@torch_call("GlobalAveragePool")
def global_average_pool(call: Call) -> Run:
    """F.adaptive_avg_pool to one pixel, which is a mean."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    rank = len(call.shape(0)) - 2
    if 1 <= rank <= _MOST_SPATIAL:
        pool: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
        return lambda x: pool(x, 1)
    axes = list(range(2, rank + 2))
    return lambda x: torch.mean(x, axes, keepdim=True)


@torch_call("GlobalMaxPool")
def global_max_pool(call: Call) -> Run:
    """torch.amax over the pixels."""
    import torch

    axes = list(range(2, len(call.shape(0))))
    return lambda x: torch.amax(x, axes, keepdim=True)


@torch_call("GlobalLpPool")
def global_lp_pool(call: Call) -> Run:
    """torch.linalg.vector_norm over the pixels."""
    import torch

    axes = list(range(2, len(call.shape(0))))
    order = float(call.attribute("p", 2))
    return lambda x: torch.linalg.vector_norm(x, order, axes, keepdim=True)


@torch_call("MaxUnpool")
def max_unpool(call: Call) -> Run:
    """F.max_unpool1d, 2d or 3d; ONNX's indices count over the whole tensor, torch's over a plane."""
    import torch.nn.functional as F  # noqa: N812

    rank = _rank(call)
    window = call.integers("kernel_shape") or []
    strides = spatial(call, "strides", rank, 1)
    pads = call.integers("pads") or [0] * (2 * rank)
    if any(pads):
        raise call.unsupported("padded windows")
    if call.has(2):
        call.constant(2)
    extent = list(call.result().shape[2:])
    if call.has(2) and extent != [
        (n - 1) * s + w for n, s, w in zip(call.shape(0)[2:], strides, window, strict=True)
    ]:
        raise call.unsupported(
            "an output of another size than the windows give, whose indices count otherwise"
        )
    plane = math.prod(extent)
    local = call.prepare(1, lambda i: i % plane)
    pool: Any = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[rank - 1]
    return lambda x, i, *_: pool(x, local(i), window, strides, 0, extent)
