"""Poolings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call
from gkestimator.profiling.executors.torch_calls.windows import (
    MOST_SPATIAL,
    frame,
    spatial,
    spatial_rank,
    window_pads,
)


@dataclass
class _Windows:
    """Hold the windows of a pooling, each field by spatial dimension."""

    size: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def dilated(self) -> bool:
        return any(d != 1 for d in self.dilations)

    @property
    def one_sided(self) -> bool:
        """Return True where torch's own padding cannot say it: the sides differ, or more than half a window."""
        if self.before != self.after:
            return True
        return any(2 * pad > size for pad, size in zip(self.before, self.size, strict=True))


def _windows(call: Call) -> _Windows:
    rank = spatial_rank(call)
    size = call.integers("kernel_shape")
    if size is None or len(size) != rank:
        raise call.unsupported(f"kernel_shape {size}, expected {rank} numbers")
    strides = spatial(call, "strides", rank, 1)
    dilations = spatial(call, "dilations", rank, 1)
    before, after = window_pads(call, call.shape()[2:], size, strides, dilations)
    return _Windows(size, strides, dilations, before, after)


@torch_call("MaxPool")
def max_pool(call: Call) -> Run:
    """Call F.max_pool1d, 2d or 3d; padding that differs between the sides is an F.pad with the lowest number before."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    w = _windows(call)
    size, strides, dilations = w.size, w.strides, w.dilations
    ceil = call.flag("ceil_mode")
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[w.rank - 1]
    if call.wants(1):
        if call.flag("storage_order") or w.one_sided:
            raise call.unsupported("indices in column order, or of an image that is padded on one side")
        plane = math.prod(call.shape()[2:])
        batch, channels = call.shape()[:2]
        planes = (batch, channels, *(1,) * w.rank)

        def with_indices(x: Any) -> Any:
            values, indices = pool(x, size, strides, w.before, dilations, ceil, return_indices=True)
            # ONNX counts over the whole tensor, torch over a plane.
            first = torch.arange(batch * channels, device=x.device) * plane
            return values, indices + first.reshape(planes)

        return with_indices
    if not w.one_sided:
        before = w.before
        return lambda x: pool(x, size, strides, before, dilations, ceil)
    pads = frame(w.before, w.after)
    lowest = -math.inf if call.dtype.is_floating else 0
    return lambda x: pool(F.pad(x, pads, value=lowest), size, strides, 0, dilations, ceil)


@torch_call("AveragePool")
def average_pool(call: Call) -> Run:
    """Call F.avg_pool1d, 2d or 3d. Raises EntryUnsupportedError for windows that torch's call cannot say."""
    import torch.nn.functional as F  # noqa: N812

    w = _windows(call)
    size, strides = w.size, w.strides
    ceil = call.flag("ceil_mode")
    if w.dilated:
        raise call.unsupported("dilated windows")
    count = call.flag("count_include_pad")
    pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[w.rank - 1]
    if not w.one_sided:
        before = w.before
        return lambda x: pool(x, size, strides, before, ceil, count)
    if not count or ceil:
        raise call.unsupported(f"padding {w.before} and {w.after} that is not counted")
    pads = frame(w.before, w.after)
    return lambda x: pool(F.pad(x, pads), size, strides, 0, False, True)


@torch_call("LpPool")
def lp_pool(call: Call) -> Run:
    """Call F.lp_pool1d, 2d or 3d. Raises EntryUnsupportedError for padded or dilated windows, and for odd orders, whose
    magnitudes torch does not take."""
    import torch.nn.functional as F  # noqa: N812

    w = _windows(call)
    size, strides = w.size, w.strides
    ceil = call.flag("ceil_mode")
    if any(w.before) or any(w.after) or w.dilated:
        raise call.unsupported("padded or dilated windows")
    order = call.real("p", 2)
    if order % 2:
        raise call.unsupported(f"order {order:g}, expected an even one")
    if w.rank == 1:
        length = size[0]
        step = strides[0]
        return lambda x: F.lp_pool1d(x, order, length, step, ceil)
    pool: Any = (F.lp_pool2d, F.lp_pool3d)[w.rank - 2]
    return lambda x: pool(x, order, size, strides, ceil)


@torch_call("GlobalAveragePool")
def global_average_pool(call: Call) -> Run:
    """Call F.adaptive_avg_pool to one pixel, which is a mean."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    rank = call.rank - 2
    if 1 <= rank <= MOST_SPATIAL:
        pool: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[rank - 1]
        return lambda x: pool(x, 1)
    axes = _pixels(call)
    return lambda x: torch.mean(x, axes, keepdim=True)


def _pixels(call: Call) -> list[int]:
    return list(range(2, call.rank))


@torch_call("GlobalMaxPool")
def global_max_pool(call: Call) -> Run:
    """Call torch.amax over the pixels."""
    import torch

    axes = _pixels(call)
    return lambda x: torch.amax(x, axes, keepdim=True)


@torch_call("GlobalLpPool")
def global_lp_pool(call: Call) -> Run:
    """Call torch.linalg.vector_norm over the pixels."""
    import torch

    axes = _pixels(call)
    order = call.real("p", 2)
    return lambda x: torch.linalg.vector_norm(x, order, axes, keepdim=True)


@torch_call("MaxUnpool")
def max_unpool(call: Call) -> Run:
    """Call F.max_unpool1d, 2d or 3d; ONNX's indices count over the whole tensor, torch's over a plane."""
    import torch.nn.functional as F  # noqa: N812

    rank = spatial_rank(call)
    window = call.integers("kernel_shape") or []
    strides = spatial(call, "strides", rank, 1)
    if any(call.integers("pads") or ()):
        raise call.unsupported("padded windows")
    extent = list(call.result_shape[2:])
    if call.constant(2) is not None:
        usual = (np.array(call.shape()[2:]) - 1) * strides + window
        if extent != usual.tolist():
            raise call.unsupported(
                "an output of another size than the windows give, whose indices count otherwise"
            )
    plane = math.prod(extent)
    local = call.prepare(1, lambda i: i % plane)
    pool: Any = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[rank - 1]
    return lambda x, i, *_: pool(x, local(i), window, strides, 0, extent)
