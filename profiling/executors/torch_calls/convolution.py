"""Convolutions, in one, two or three spatial dimensions."""

from __future__ import annotations

from typing import Any

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
    pads = frame(before, after)
    return lambda x, w, b=None: function(F.pad(x, pads), w, b, strides, 0, dilations, groups)


def _explicit_pads(call: Call, rank: int) -> tuple[list[int], list[int]] | None:
    """Return the padding that a ConvTranspose names; None where it follows from the size of the result."""
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "") or call.integers("output_shape") is not None:
        return None
    pads = call.integers("pads") or [0] * (2 * rank)
    return pads[:rank], pads[rank:]


def _pads_for_result(call: Call, totals: list[int]) -> tuple[list[int], list[int]]:
    """Return the padding before and after whose sums are ``totals``."""
    before = []
    for total in totals:
        half = int(total / 2)  # towards zero: what is too short is made longer at the end
        before.append(total - half if call.text("auto_pad", "NOTSET") == "SAME_LOWER" else half)
    after = [total - first for total, first in zip(totals, before, strict=True)]
    return before, after


@torch_call("ConvTranspose")
def conv_transpose(call: Call) -> Run:
    """Call F.conv_transpose1d, 2d or 3d, and an F.pad that crops where torch's padding cannot say it."""
    import torch.nn.functional as F  # noqa: N812

    rank = spatial_rank(call)
    dimensions = range(rank)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    strides = spatial(call, "strides", rank, 1)
    dilations = spatial(call, "dilations", rank, 1)
    extra = spatial(call, "output_padding", rank, 0)
    groups = call.whole("group", 1)
    source = call.shape()[2:]
    window = call.shape(1)[2:]
    result = call.result().shape[2:]
    whole = []  # sizes without padding, and without output_padding
    for i in dimensions:
        reach = dilations[i] * (window[i] - 1) + 1
        whole.append(strides[i] * (source[i] - 1) + reach)
    pads = _explicit_pads(call, rank)
    if pads is None:
        pads = _pads_for_result(call, [whole[i] + extra[i] - result[i] for i in dimensions])
    before, after = pads
    # torch pads both sides alike; what the end lacks is output_padding, which must be less than stride or dilation.
    more = [before[i] - after[i] + extra[i] for i in dimensions]
    sayable = min(before) >= 0
    for i in dimensions:
        sayable = sayable and 0 <= more[i] < max(strides[i], dilations[i])
    if sayable:
        return lambda x, w, b=None: function(x, w, b, strides, before, more, groups, dilations)
    ends = [result[i] - whole[i] + before[i] for i in dimensions]
    crop = frame([-n for n in before], ends)

    def run(x: Any, w: Any, b: Any = None) -> Any:
        return F.pad(function(x, w, b, strides, 0, 0, groups, dilations), crop)

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
