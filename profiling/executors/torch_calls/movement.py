"""Views, copies and conversions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor
from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call, torch_dtype
from gkestimator.profiling.executors.torch_calls.windows import frame

_SLICE_TAKES_INPUTS = 10
_PAD_TAKES_INPUTS = 11
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
_MOST_MIRRORED = 3  # dimensions that torch reflects, repeats or wraps


@torch_call("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def reshape(call: Call) -> Run:
    """Call Tensor.reshape: a view, or a copy where no stride can say it."""
    shape = call.result_shape
    call.drop_inputs()
    return lambda x, *_: x.reshape(shape)


@torch_call("Identity", "Dropout")
def identity(call: Call) -> Run:
    """Nothing, at inference."""
    if call.op_type == "Dropout":
        if call.scalar(2):
            raise call.unsupported("training mode")
        call.drop_inputs()
        if call.wants(1):
            import torch

            return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool))
    return lambda x, *_: x


@torch_call("Transpose")
def transpose(call: Call) -> Run:
    """Call Tensor.permute: a view."""
    order = call.integers("perm") or list(range(call.rank - 1, -1, -1))
    return lambda x: x.permute(order)


@torch_call("Expand")
def expand(call: Call) -> Run:
    """Call Tensor.expand: a view."""
    call.host.add(1)
    shape = call.result_shape
    return lambda x, *_: x.expand(shape)


def _slice_bounds(call: Call) -> tuple[list[int] | None, ...]:
    """Return starts, ends, axes and steps, attributes before opset 10; None for what is omitted."""
    if call.version < _SLICE_TAKES_INPUTS:
        return (*(call.integers(name) for name in ("starts", "ends", "axes")), None)
    return tuple(call.numbers(position) for position in range(1, 5))


@torch_call("Slice")
def slice_(call: Call) -> Run:
    """Call Python's slicing: a view; a negative step is a flip, which copies."""
    import torch

    shape = call.shape()
    starts, ends, axes, steps = _slice_bounds(call)
    if starts is None or ends is None:
        raise call.unsupported("no starts or no ends")
    index = [slice(None)] * len(shape)
    flips = []
    for place, start in enumerate(starts):
        axis = place if axes is None else call.dimension(axes[place])
        step = 1 if steps is None else steps[place]
        numbers = range(*slice(start, ends[place], step).indices(shape[axis]))
        if step < 0:
            flips.append(axis)
            numbers = numbers[::-1]
        index[axis] = slice(numbers.start, max(numbers.stop, numbers.start), numbers.step)
    key = tuple(index)
    if flips:
        return lambda x, *_: torch.flip(x[key], flips)
    return lambda x, *_: x[key]


@torch_call("Split")
def split(call: Call) -> Run:
    """Call torch.split: views."""
    import torch

    axis = call.axis("axis", 0)
    sizes = [out.shape[axis] for out in call.op.outputs if isinstance(out, Tensor)]
    call.drop_inputs()
    return lambda x, *_: torch.split(x, sizes, axis)


@torch_call("Concat")
def concat(call: Call) -> Run:
    """Call torch.cat."""
    import torch

    axis = call.axis("axis", 1, len(call.result_shape))
    return lambda *operands: torch.cat(operands, axis)


@torch_call("Tile")
def tile(call: Call) -> Run:
    """Call Tensor.repeat."""
    repeats = call.numbers(1)
    if call.version < 6 or repeats is None:
        raise call.unsupported("the form before opset 6")
    return lambda x, *_: x.repeat(repeats)


_SHUFFLES = {
    "DepthToSpace": ("pixel_shuffle", (0, 3, 4, 1, 5, 2)),
    "SpaceToDepth": ("pixel_unshuffle", (0, 3, 5, 1, 2, 4)),
}
"""torch's function for one order of blocks, and how dimensions are permuted for the other."""


@torch_call(*_SHUFFLES)
def shuffle(call: Call) -> Run:
    """Call F.pixel_shuffle or F.pixel_unshuffle, or reshape, permute and reshape for the other order of blocks."""
    import torch.nn.functional as F  # noqa: N812

    name, order = _SHUFFLES[call.op_type]
    size = call.whole("blocksize", 1)
    if call.text("mode", "DCR") == "CRD":
        function = getattr(F, name)
        return lambda x: function(x, size)
    batch, depth, height, width = call.shape()
    if call.op_type == "DepthToSpace":
        blocks = (batch, size, size, depth // (size * size), height, width)
    else:
        blocks = (batch, depth, height // size, size, width // size, size)
    shape = call.result_shape
    return lambda x: x.reshape(blocks).permute(order).reshape(shape)


@torch_call("Trilu")
def trilu(call: Call) -> Run:
    """Call torch.triu or torch.tril."""
    import torch

    diagonal = int(call.scalar(1) or 0)
    function = torch.triu if call.attribute("upper", 1) else torch.tril
    return lambda x, *_: function(x, diagonal)


def _pad_sides(call: Call) -> tuple[list[int], list[int], Any]:
    """Return what goes before and after each dimension, and the value of what is put there; None where omitted."""
    if call.version < _PAD_TAKES_INPUTS:
        pads = call.integers("pads") or []
        value = call.attribute("value", 0.0)
        axes = None
    else:
        pads = call.numbers(1) or []
        value = call.scalar(2)
        axes = call.numbers(3)
    if axes is None:
        axes = list(range(call.rank))
    named = [call.dimension(axis) for axis in axes]
    before = [0] * call.rank
    after = [0] * call.rank
    for place, axis in enumerate(named):
        before[axis] = pads[place]
        after[axis] = pads[place + len(named)]
    return before, after, value


@torch_call("Pad")
def pad(call: Call) -> Run:
    """Call F.pad. Raises EntryUnsupportedError for dimensions that torch does not reflect, repeat or wrap."""
    import torch.nn.functional as F  # noqa: N812

    rank = call.rank
    mode = call.text("mode", "constant")
    if mode not in _PAD_MODES:
        raise call.unsupported(f"mode {mode!r}")
    before, after, value = _pad_sides(call)
    first = 0  # the first dimension that changes; the last where none does
    while first < rank - 1 and not before[first] and not after[first]:
        first += 1
    sides = frame(before[first:], after[first:])
    if mode == "constant":
        number = 0 if value is None else value
        return lambda x, *_: F.pad(x, sides, value=number)
    spatial = rank - first
    if min(before) < 0 or min(after) < 0 or spatial > _MOST_MIRRORED:
        raise call.unsupported(f"mode {mode} over {spatial} dimensions, or cropping")
    kind = _PAD_MODES[mode]
    # F.pad wants (N, C, spatial...) here, or that without N.
    lead = rank - spatial - 2
    if lead == 0:
        return lambda x, *_: F.pad(x, sides, mode=kind)
    shape = call.shape()
    if lead > 0:
        wanted = (math.prod(shape[: lead + 1]), *shape[lead + 1 :])
    else:
        wanted = (*(1,) * -lead, *shape)
    result = call.result_shape
    return lambda x, *_: F.pad(x.reshape(wanted), sides, mode=kind).reshape(result)


@torch_call("CenterCropPad")
def center_crop_pad(call: Call) -> Run:
    """Call F.pad, with negative sides where it crops."""
    import torch.nn.functional as F  # noqa: N812

    call.host.add(1)
    more = np.subtract(call.result_shape, call.shape())
    before = np.trunc(more / 2).astype(int)  # towards zero, also where it crops
    sides = frame(before.tolist(), (more - before).tolist())
    return lambda x, *_: F.pad(x, sides)


@torch_call("Cast", "CastLike")
def cast(call: Call) -> Run:
    """Call Tensor.to another element type."""
    result = call.result().dtype
    if call.dtype is DType.STRING or result is DType.STRING:
        raise call.unsupported("strings")
    kind = torch_dtype(result)
    return lambda x, *_: x.to(kind)


@torch_call("ReverseSequence")
def reverse_sequence(call: Call) -> Run:
    """Call torch.gather along time by positions that are made beforehand."""
    import torch

    lengths = call.numbers(1) or []
    batch_axis = call.whole("batch_axis", 1)
    time_axis = call.whole("time_axis", 0)
    shape = call.shape()
    times = np.arange(shape[time_axis])[:, None]
    positions = times.repeat(shape[batch_axis], axis=1)
    for sample, length in enumerate(lengths):
        positions[:length, sample] = positions[:length, sample][::-1]
    if time_axis > batch_axis:
        positions = positions.T
    order = torch.from_numpy(np.ascontiguousarray(positions))
    order = order.reshape(*order.shape, *(1,) * (len(shape) - 2))
    on_device: dict[Any, Any] = {}

    def run(x: Any, *_: Any) -> Any:
        if x.device not in on_device:
            on_device[x.device] = order.to(x.device).expand(shape)
        return torch.gather(x, time_axis, on_device[x.device])

    return run
