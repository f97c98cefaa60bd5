"""Convolutions, in one, two or three spatial dimensions."""

from __future__ import annotations

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


@torch_call("Conv")
def conv(call: Call) -> Run:
    """F.conv1d, conv2d or conv3d; padding that differs between the sides is an F.pad before, as authors write it."""
    import torch.nn.functional as F  # noqa: N812

    rank = _rank(call)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    strides = spatial(call, "strides", rank, 1)
    dilations = spatial(call, "dilations", rank, 1)
    before, after = window_pads(call, call.shape(0)[2:], call.shape(1)[2:], strides, dilations)
    groups = int(call.attribute("group", 1))
    if before == after:
        return lambda x, w, b=None: function(x, w, b, strides, before, dilations, groups)
    pads = frame(before, after)
    return lambda x, w, b=None: function(F.pad(x, pads), w, b, strides, 0, dilations, groups)


@torch_call("ConvTranspose")
def conv_transpose(call: Call) -> Run:
    """F.conv_transpose1d, 2d or 3d. Raises EntryUnsupportedError for paddings that torch's call cannot say."""
    import torch.nn.functional as F  # noqa: N812

    rank = _rank(call)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    strides = spatial(call, "strides", rank, 1)
    dilations = spatial(call, "dilations", rank, 1)
    groups = int(call.attribute("group", 1))
    source = call.shape(0)[2:]
    window = call.shape(1)[2:]
    result = call.result().shape[2:]
    whole = [
        strides[i] * (source[i] - 1) + dilations[i] * (window[i] - 1) + 1 for i in range(rank)
    ]  # without padding, and without output_padding
    extra = spatial(call, "output_padding", rank, 0)
    mode = str(call.attribute("auto_pad", "NOTSET"))
    explicit = call.integers("pads")
    if mode in ("NOTSET", "") and call.integers("output_shape") is None:
        explicit = explicit or [0] * (2 * rank)
        before = explicit[:rank]
        after = explicit[rank:]
    else:
        before = [0] * rank
        after = [0] * rank
        for i in range(rank):
            total = whole[i] + extra[i] - result[i]
            half = int(total / 2)  # towards zero: what is too short is made longer at the end
            before[i] = total - half if mode == "SAME_LOWER" else half
            after[i] = total - before[i]
    # torch pads both sides alike; what the end lacks is output_padding, which must be less than stride or dilation.
    more = [before[i] - after[i] + extra[i] for i in range(rank)]
    if min(before) >= 0 and all(0 <= m < max(s, d) for m, s, d in zip(more, strides, dilations, strict=True)):
        return lambda x, w, b=None: function(x, w, b, strides, before, more, groups, dilations)
    crop = frame([-n for n in before], [result[i] - whole[i] + before[i] for i in range(rank)])

    def run(x: Any, w: Any, b: Any = None) -> Any:
        return F.pad(function(x, w, b, strides, 0, 0, groups, dilations), crop)

    return run


@torch_call("Col2Im")
def col2im(call: Call) -> Run:
    """F.fold, for images."""
    import torch.nn.functional as F  # noqa: N812

    image = tuple(call.numbers(1) or ())
    block = tuple(call.numbers(2) or ())
    rank = len(image)
    pads = call.integers("pads") or [0] * (2 * rank)
    if rank != 2 or pads[:2] != pads[2:]:
        raise call.unsupported("torch folds two spatial dimensions with the same padding on both sides")
    strides, dilations = (tuple(spatial(call, name, rank, 1)) for name in ("strides", "dilations"))
    before = tuple(pads[:2])
    return lambda x, *_: F.fold(x, image, block, dilations, before, strides)
