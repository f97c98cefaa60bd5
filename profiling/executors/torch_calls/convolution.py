"""Convolutions, in one, two or three spatial dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call
from gkestimator.profiling.executors.torch_calls.windows import frame, spatial, spatial_rank, window_pads


@torch_call("Conv")
def conv(call: Call) -> Run:
    """Call F.conv1d, conv2d or conv3d; padding that differs between the sides is an F.pad before, as authors do."""
    import torch.nn.functional as F  # noqa: N812

    rank = spatial_rank(call)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    strides = spatial(call, "strides", rank, 1)
    dilations = spatial(call, "dilations", rank, 1)
    before, after = window_pads(call, call.shape()[2:], call.shape(1)[2:], strides, dilations)
    groups = call.whole("group", 1)
    if before == after:
        return lambda x, w, b=None: function(x, w, b, strides, before, dilations, groups)
    # torch pads both sides alike; authors of such models write the padding themselves.
    pads = frame(before, after)
    return lambda x, w, b=None: function(F.pad(x, pads), w, b, strides, 0, dilations, groups)


def _transposed_pads(call: Call, totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the padding of a ConvTranspose before and after each dimension: the file's, or what sums to ``totals``."""
    mode = call.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", "") and call.integers("output_shape") is None:
        pads = np.array(call.integers("pads") or [0] * (2 * len(totals)))
        return pads[: len(totals)], pads[len(totals) :]
    half = np.trunc(totals / 2).astype(int)  # towards zero: what is too short is made longer at the end
    before = totals - half if mode == "SAME_LOWER" else half
    return before, totals - before


@torch_call("ConvTranspose")
def conv_transpose(call: Call) -> Run:
    """Call F.conv_transpose1d, 2d or 3d, and an F.pad that crops where torch's padding cannot say it."""
    import torch.nn.functional as F  # noqa: N812

    rank = spatial_rank(call)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    stride = spatial(call, "strides", rank, 1)
    dilation = spatial(call, "dilations", rank, 1)
    groups = call.whole("group", 1)
    steps = np.array(call.shape()[2:]) - 1
    reach = np.array(dilation) * (np.array(call.shape(1)[2:]) - 1)
    whole = np.array(stride) * steps + reach + 1  # sizes without padding, and without output_padding
    result = np.array(call.result_shape[2:])
    extra = np.array(spatial(call, "output_padding", rank, 0))
    before, after = _transposed_pads(call, whole + extra - result)
    # torch pads both sides alike; what the end lacks is output_padding, which must be less than stride or dilation.
    lacking = before - after + extra
    if before.min() >= 0 and lacking.min() >= 0 and (lacking < np.maximum(stride, dilation)).all():
        pads = before.tolist()
        more = lacking.tolist()
        return lambda x, w, b=None: function(x, w, b, stride, pads, more, groups, dilation)
    crop = frame((-before).tolist(), (result - whole + before).tolist())

    def run(x: Any, w: Any, b: Any = None) -> Any:
        return F.pad(function(x, w, b, stride, 0, 0, groups, dilation), crop)

    return run


@torch_call("Col2Im")
def col2im(call: Call) -> Run:
    """Call F.fold, for images."""
    import torch.nn.functional as F  # noqa: N812

    image = tuple(call.numbers(1) or ())
    block = tuple(call.numbers(2) or ())
    rank = len(image)
    pads = call.integers("pads") or [0] * (2 * rank)
    if rank != 2 or pads[:2] != pads[2:]:
        raise call.unsupported("torch folds two spatial dimensions with the same padding on both sides")
    strides = tuple(spatial(call, "strides", rank, 1))
    dilations = tuple(spatial(call, "dilations", rank, 1))
    before = tuple(pads[:2])
    return lambda x, *_: F.fold(x, image, block, dilations, before, strides)
