"""Views, copies and conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor
from gkestimator.profiling.executors.torch_calls.registry import Call, Run, frame, torch_call, torch_dtype

__all__: list[str] = []


@torch_call("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def reshape(call: Call) -> Run:
    """Tensor.reshape: a view, or a copy where no stride can say it."""
    shape = call.result().shape
    for position in range(1, len(call.op.inputs)):
        call.host.add(position)
    return lambda x, *_: x.reshape(shape)


@torch_call("Identity", "Dropout")
def identity(call: Call) -> Run:
    """Nothing, at inference."""
    if call.op.op_type == "Dropout":
        if bool(call.scalar(2)):
            raise call.unsupported("training mode")
        call.host.update(range(1, len(call.op.inputs)))
        if call.wants(1):
            import torch

            return lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool))
    return lambda x, *_: x


@torch_call("Transpose")
def transpose(call: Call) -> Run:
    """Tensor.permute: a view."""
    order = call.integers("perm") or list(range(len(call.shape(0)) - 1, -1, -1))
    return lambda x: x.permute(order)


@torch_call("Expand")
def expand(call: Call) -> Run:
    """Tensor.expand: a view."""
    call.host.add(1)
    shape = call.result().shape
    return lambda x, *_: x.expand(shape)


@torch_call("Slice")
def slice_(call: Call) -> Run:
    """Python's slicing: a view; a negative step is a flip, which copies."""
    import torch

    shape = call.shape(0)
    rank = len(shape)
    if call.op.version < 10:
        starts = call.integers("starts")
        ends = call.integers("ends")
        axes = call.integers("axes")
        steps = None
    else:
        starts, ends, axes, steps = (call.numbers(i) for i in range(1, 5))
    if starts is None or ends is None:
        raise call.unsupported("no starts or no ends")
    index = [slice(None)] * rank
    flips = []
    if axes is None:
        chosen = list(range(len(starts)))
    else:
        chosen = [call.dimension(a, rank) for a in axes]
    for place, axis in enumerate(chosen):
        step = 1 if steps is None else steps[place]
        numbers = range(*slice(starts[place], ends[place], step).indices(shape[axis]))
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
    """torch.split: views."""
    import torch

    axis = call.axis("axis", 0, len(call.shape(0)))
    sizes = [out.shape[axis] for out in call.op.outputs if isinstance(out, Tensor)]
    call.host.update(range(1, len(call.op.inputs)))
    return lambda x, *_: torch.split(x, sizes, axis)


@torch_call("Concat")
def concat(call: Call) -> Run:
    """torch.cat."""
    import torch

    axis = call.axis("axis", 1, len(call.result().shape))
    return lambda *operands: torch.cat(operands, axis)


@torch_call("Tile")
def tile(call: Call) -> Run:
    """Tensor.repeat."""
    repeats = call.numbers(1)
    if call.op.version < 6 or repeats is None:
        raise call.unsupported("the form before opset 6")
    return lambda x, *_: x.repeat(repeats)


@torch_call("DepthToSpace")
def depth_to_space(call: Call) -> Run:
    """F.pixel_shuffle, or the reshape, permute, reshape of the other order of blocks."""
    import torch.nn.functional as F  # noqa: N812

    size = int(call.attribute("blocksize", 1))
    if str(call.attribute("mode", "DCR")) == "CRD":
        return lambda x: F.pixel_shuffle(x, size)
    batch, depth, height, width = call.shape(0)
    blocks = (batch, size, size, depth // (size * size), height, width)
    shape = call.result().shape
    return lambda x: x.reshape(blocks).permute(0, 3, 4, 1, 5, 2).reshape(shape)


@torch_call("SpaceToDepth")
def space_to_depth(call: Call) -> Run:
    """A reshape, a permute and the reshape that copies, or F.pixel_unshuffle for the other order of blocks."""
    import torch.nn.functional as F  # noqa: N812

    size = int(call.attribute("blocksize", 1))
    if str(call.attribute("mode", "DCR")) == "CRD":
        return lambda x: F.pixel_unshuffle(x, size)
    batch, depth, height, width = call.shape(0)
    blocks = (batch, depth, height // size, size, width // size, size)
    shape = call.result().shape
    return lambda x: x.reshape(blocks).permute(0, 3, 5, 1, 2, 4).reshape(shape)


@torch_call("Trilu")
def trilu(call: Call) -> Run:
    """torch.triu or torch.tril."""
    import torch

    diagonal = int(call.scalar(1) or 0)
    function = torch.triu if call.attribute("upper", 1) else torch.tril
    return lambda x, *_: function(x, diagonal)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
_MOST_MIRRORED = 3  # dimensions that torch reflects, repeats or wraps


@torch_call("Pad")
def pad(call: Call) -> Run:
    """F.pad. Raises EntryUnsupportedError for dimensions that torch does not reflect, repeat or wrap."""
    import torch.nn.functional as F  # noqa: N812

    rank = len(call.shape(0))
    mode = str(call.attribute("mode", "constant"))
    if mode not in _PAD_MODES:
        raise call.unsupported(f"mode {mode!r}")
    if call.op.version < 11:
        pads = call.integers("pads") or []
        value = call.attribute("value", 0.0)
        axes = None
    else:
        pads = call.numbers(1) or []
        value = call.scalar(2)
        axes = call.numbers(3)
    if axes is None:
        named = list(range(rank))
    else:
        named = [call.dimension(a, rank) for a in axes]
    before = [0] * rank
    after = [0] * rank
    for place, axis in enumerate(named):
        before[axis], after[axis] = pads[place], pads[place + len(named)]
    first = next((i for i in range(rank) if before[i] or after[i]), rank - 1)
    if mode == "constant":
        sides = frame(before[first:], after[first:])
        number = 0 if value is None else value
        return lambda x, *_: F.pad(x, sides, value=number)
    spatial = rank - first
    if min(before) < 0 or min(after) < 0 or spatial > _MOST_MIRRORED:
        raise call.unsupported(f"mode {mode} over {spatial} dimensions, or cropping")
    sides = frame(before[first:], after[first:])
    extra = spatial + 2 - rank  # F.pad wants (N, C, spatial...), or without N
    kind = _PAD_MODES[mode]
    if extra <= 0:
        lead = rank - spatial - 2
        shape = call.shape(0)
        if lead:
            flat = (int(np.prod(shape[: lead + 1])), *shape[lead + 1 :])
            result = call.result().shape
            return lambda x, *_: F.pad(x.reshape(flat), sides, mode=kind).reshape(result)
        return lambda x, *_: F.pad(x, sides, mode=kind)
    ones = (1,) * extra
    result = call.result().shape
    wide = (*ones, *call.shape(0))
    return lambda x, *_: F.pad(x.reshape(wide), sides, mode=kind).reshape(result)


@torch_call("CenterCropPad")
def center_crop_pad(call: Call) -> Run:
    """F.pad, with negative sides where it crops."""
    import torch.nn.functional as F  # noqa: N812

    call.host.add(1)
    before = []
    after = []
    for size, wanted in zip(call.shape(0), call.result().shape, strict=True):
        if wanted >= size:
            first = (wanted - size) // 2
            before.append(first)
            after.append(wanted - size - first)
        else:
            first = (size - wanted) // 2
            before.append(-first)
            after.append(-(size - wanted - first))
    sides = frame(before, after)
    return lambda x, *_: F.pad(x, sides)


@torch_call("Cast", "CastLike")
def cast(call: Call) -> Run:
    """Tensor.to another element type."""
    result = call.result().dtype
    if call.tensor(0).dtype is DType.STRING or result is DType.STRING:
        raise call.unsupported("strings")
    kind = torch_dtype(result)
    return lambda x, *_: x.to(kind)


@torch_call("ReverseSequence")
def reverse_sequence(call: Call) -> Run:
    """torch.gather along time by positions that are made beforehand."""
    import torch

    lengths = call.numbers(1) or []
    batch_axis = int(call.attribute("batch_axis", 1))
    time_axis = int(call.attribute("time_axis", 0))
    shape = call.shape(0)
    positions = np.arange(shape[time_axis])[:, None].repeat(shape[batch_axis], axis=1)
    for b, length in enumerate(lengths):
        positions[:length, b] = positions[:length, b][::-1]
    if time_axis > batch_axis:
        positions = positions.T
    order = torch.from_numpy(np.ascontiguousarray(positions))
    order = order.reshape(*order.shape, *(1,) * (len(shape) - 2))
    held: dict[Any, Any] = {}

    def run(x: Any, *_: Any) -> Any:
        if x.device not in held:
            held[x.device] = order.to(x.device).expand(shape)
        return torch.gather(x, time_axis, held[x.device])

    return run
