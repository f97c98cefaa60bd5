"""Gathers, scatters, and operators that sort or select by value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call


def _count_from_front(call: Call, position: int, size: int) -> None:
    """Have indices that are there beforehand count from 0: ONNX also counts from the end, torch's gathers do not.

    Indices made by an earlier call stay: they are an author's own, which count from 0.
    """

    def from_front(index: Any) -> Any:
        import torch

        index = index.to(torch.int64)
        return torch.where(index < 0, index + size, index)

    if call.is_static(position):
        # Once, before the measurement: eager models hold their indices ready.
        call.prepare(position, from_front)


@torch_call("Gather")
def gather(call: Call) -> Run:
    """Call F.embedding for rows of a table, index_select for a list of indices, a view for one constant index, else
    indexing."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    source = call.tensor(0)
    index = call.tensor(1)
    axis = call.axis("axis", 0, len(source.shape))
    if not index.shape and call.peek(1) is not None:
        chosen = call.scalar(1)
        return lambda x, *_: x.select(axis, chosen)
    _count_from_front(call, 1, source.shape[axis])
    if axis == 0 and len(source.shape) == 2 and source.is_weight and source.dtype.is_floating:
        return lambda x, i: F.embedding(i, x)
    if len(index.shape) == 1:
        return lambda x, i: torch.index_select(x, axis, i)
    if not index.shape:  # indexing by a tensor of one number would ask the device for it
        return lambda x, i: torch.index_select(x, axis, i).squeeze(axis)
    before = (slice(None),) * axis
    return lambda x, i: x[(*before, i)]


@torch_call("GatherElements")
def gather_elements(call: Call) -> Run:
    """Call torch.gather."""
    import torch

    axis = call.axis("axis", 0)
    _count_from_front(call, 1, call.shape()[axis])
    return lambda x, i: torch.gather(x, axis, i)


@torch_call("GatherND")
def gather_nd(call: Call) -> Run:
    """Call indexing by a list of index tensors."""
    import torch

    batch = call.whole("batch_dims", 0)
    sizes = call.shape()[:batch]
    last = len(call.shape(1)) - 1
    on_device: dict[Any, Any] = {}

    def positions(device: Any) -> tuple[Any, ...]:
        """Return the indices of the batch's dimensions, each along its own."""
        made = []
        for i, size in enumerate(sizes):
            view = [1] * last
            view[i] = size
            made.append(torch.arange(size, device=device).reshape(view))
        return tuple(made)

    def run(x: Any, index: Any) -> Any:
        if x.device not in on_device:
            on_device[x.device] = positions(x.device)
        return x[(*on_device[x.device], *index.unbind(-1))]

    return run


_REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@torch_call("Scatter", "ScatterElements")
def scatter_elements(call: Call) -> Run:
    """Call torch.scatter, or torch.scatter_reduce."""
    import torch

    axis = call.axis("axis", 0)
    reduction = call.text("reduction", "none")
    _count_from_front(call, 1, call.shape()[axis])
    if reduction == "none":
        return lambda x, i, u: torch.scatter(x, axis, i, u)
    kind = _REDUCED[reduction]
    return lambda x, i, u: torch.scatter_reduce(x, axis, i, u, kind)


@torch_call("ScatterND")
def scatter_nd(call: Call) -> Run:
    """Call Tensor.index_put on a copy. Raises EntryUnsupportedError for reductions other than a sum."""
    reduction = call.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise call.unsupported(f"reduction {reduction}, which index_put has not")
    adds = reduction == "add"
    return lambda x, i, u: x.index_put(i.unbind(-1), u, accumulate=adds)


@torch_call("TopK")
def top_k(call: Call) -> Run:
    """Call torch.topk."""
    import torch

    axis = call.axis("axis", -1)
    call.constant(1)  # shapes know it; one that only an earlier operator knows is refused
    result = call.result(0 if call.wants(0) else 1)
    k = result.shape[axis]
    largest = call.flag("largest", 1)
    ordered = call.flag("sorted", 1)
    return lambda x, *_: torch.topk(x, k, axis, largest, ordered)


@torch_call("NonZero")
def non_zero(call: Call) -> Run:
    """Call torch.nonzero, turned."""
    import torch

    return lambda x: torch.nonzero(x).t()


@torch_call("Compress")
def compress(call: Call) -> Run:
    """Call indexing by truth values."""
    count = call.shape(1)[0]
    if call.attribute("axis") is None:
        length = min(math.prod(call.shape()), count)
        return lambda x, c: x.reshape(-1)[:length][c[:length]]
    axis = call.axis("axis", 0)
    length = min(call.shape()[axis], count)
    before = (slice(None),) * axis
    part = (*before, slice(0, length))
    return lambda x, c: x[part][(*before, c[:length])]


@torch_call("Unique")
def unique(call: Call) -> Run:
    """Call torch.unique. Raises EntryUnsupportedError for first occurrences and the unsorted form."""
    import torch

    if call.wants(1) or not call.attribute("sorted", 1):
        raise call.unsupported("indices of first occurrences, or results in order of appearance")
    axis = call.attribute("axis")

    def run(x: Any) -> Any:
        values, inverse, counts = torch.unique(x, True, True, True, axis)
        return values, None, inverse.reshape(-1), counts

    return run


@torch_call("OneHot")
def one_hot(call: Call) -> Run:
    """Call a comparison with the classes, then a choice of two numbers."""
    import torch

    depth = int(call.scalar(1))
    values = call.constant(2)
    if values is None:
        raise call.unsupported("no values")
    off_number, on_number = np.asarray(values).reshape(-1).tolist()
    rank = call.rank + 1
    axis = call.axis("axis", -1, rank)
    kind = call.result_kind
    shape = [1] * rank
    shape[axis] = depth
    _count_from_front(call, 0, depth)
    on_device: dict[Any, Any] = {}

    def constants(device: Any) -> tuple[Any, ...]:
        classes = torch.arange(depth, device=device).reshape(shape)
        off = torch.tensor(float(off_number), dtype=kind, device=device)
        return classes, torch.tensor(float(on_number), dtype=kind, device=device), off

    def run(index: Any, *_: Any) -> Any:
        if index.device not in on_device:
            on_device[index.device] = constants(index.device)
        classes, on, off = on_device[index.device]
        return torch.where(index.unsqueeze(axis) == classes, on, off)

    return run
