"""Gathers, scatters, and operators that sort or select by value."""

from __future__ import annotations

from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call, torch_dtype

__all__: list[str] = []


def _from_front(size: int) -> Any:
    """Indices from 0: ONNX also counts from the end, torch's gathers do not."""

    def change(index: Any) -> Any:
        import torch

        index = index.to(torch.int64)
        return torch.where(index < 0, index + size, index)

    return change


def _indices(call: Call, position: int, size: int) -> Any:
    """How the call treats its indices: changed beforehand, or for those made by an earlier call taken as they are
    (an author's own indices count from 0)."""
    if call.is_static(position):
        return call.prepare(position, _from_front(size))
    return lambda index: index


@torch_call("Gather")
def gather(call: Call) -> Run:
    """F.embedding for rows of a table, index_select for a list of indices, a view for one constant index, else
    indexing."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    source = call.tensor(0)
    index = call.tensor(1)
    axis = call.axis("axis", 0, len(source.shape))
    if not index.shape and call.peek(1) is not None:
        chosen = call.scalar(1)
        return lambda x, *_: x.select(axis, chosen)
    ready = _indices(call, 1, source.shape[axis])
    if axis == 0 and len(source.shape) == 2 and source.is_weight and source.dtype.is_floating:
        return lambda x, i: F.embedding(ready(i), x)
    if len(index.shape) == 1:
        return lambda x, i: torch.index_select(x, axis, ready(i))
    if not index.shape:  # indexing by a tensor of one number would ask the device for it
        return lambda x, i: torch.index_select(x, axis, ready(i)).squeeze(axis)
    before = (slice(None),) * axis
    return lambda x, i: x[(*before, ready(i))]


@torch_call("GatherElements")
def gather_elements(call: Call) -> Run:
    """torch.gather."""
    import torch

    axis = call.axis("axis", 0, len(call.shape(0)))
    ready = _indices(call, 1, call.shape(0)[axis])
    return lambda x, i: torch.gather(x, axis, ready(i))


@torch_call("GatherND")
def gather_nd(call: Call) -> Run:
    """Indexing by a list of index tensors."""
    import torch

    batch = int(call.attribute("batch_dims", 0))
    shape = call.shape(0)
    extent = call.shape(1)
    leading = []
    for i in range(batch):
        view = [1] * (len(extent) - 1)
        view[i] = shape[i]
        leading.append((shape[i], view))
    held: dict[Any, Any] = {}

    def run(x: Any, index: Any) -> Any:
        if x.device not in held:
            held[x.device] = tuple(torch.arange(n, device=x.device).reshape(view) for n, view in leading)
        return x[(*held[x.device], *index.unbind(-1))]

    return run


_REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@torch_call("Scatter", "ScatterElements")
def scatter_elements(call: Call) -> Run:
    """torch.scatter, or torch.scatter_reduce."""
    import torch

    axis = call.axis("axis", 0, len(call.shape(0)))
    reduction = str(call.attribute("reduction", "none"))
    ready = _indices(call, 1, call.shape(0)[axis])
    if reduction == "none":
        return lambda x, i, u: torch.scatter(x, axis, ready(i), u)
    kind = _REDUCED[reduction]
    return lambda x, i, u: torch.scatter_reduce(x, axis, ready(i), u, kind)


@torch_call("ScatterND")
def scatter_nd(call: Call) -> Run:
    """Tensor.index_put on a copy. Raises EntryUnsupportedError for reductions other than a sum."""
    reduction = str(call.attribute("reduction", "none"))
    if reduction not in ("none", "add"):
        raise call.unsupported(f"reduction {reduction}, which index_put has not")
    adds = reduction == "add"
    return lambda x, i, u: x.index_put(i.unbind(-1), u, accumulate=adds)


@torch_call("TopK")
def top_k(call: Call) -> Run:
    """torch.topk."""
    import torch

    rank = len(call.shape(0))
    axis = call.axis("axis", -1, rank)
    call.constant(1)  # shapes know it; one that only an earlier operator knows is refused
    k = (call.result(0) if call.wants(0) else call.result(1)).shape[axis]
    largest = bool(call.attribute("largest", 1))
    ordered = bool(call.attribute("sorted", 1))
    return lambda x, *_: torch.topk(x, k, axis, largest, ordered)


@torch_call("NonZero")
def non_zero(call: Call) -> Run:
    """torch.nonzero, turned."""
    import torch

    return lambda x: torch.nonzero(x).t()


@torch_call("Compress")
def compress(call: Call) -> Run:
    """Indexing by truth values."""
    if call.attribute("axis") is None:
        size = int(np.prod(call.shape(0)))
        kept = min(size, call.shape(1)[0])
        return lambda x, c: x.reshape(-1)[:kept][c[:kept]]
    axis = call.axis("axis", 0, len(call.shape(0)))
    before = (slice(None),) * axis
    kept = min(call.shape(0)[axis], call.shape(1)[0])
    part = (*before, slice(0, kept))
    return lambda x, c: x[part][(*before, c[:kept])]


@torch_call("Unique")
def unique(call: Call) -> Run:
    """torch.unique. Raises EntryUnsupportedError for first occurrences and the unsorted form."""
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
    """A comparison with the classes, then a choice of two numbers."""
    import torch

    depth = int(call.scalar(1))
    values = call.constant(2)
    if values is None:
        raise call.unsupported("no values")
    off, on = (float(v) for v in np.asarray(values).reshape(-1))
    rank = len(call.shape(0)) + 1
    axis = call.axis("axis", -1, rank)
    kind = torch_dtype(call.result().dtype)
    shape = [1] * rank
    shape[axis] = depth
    ready = _indices(call, 0, depth)
    held: dict[Any, Any] = {}

    def run(index: Any, *_: Any) -> Any:
        index = ready(index)
        if index.device not in held:
            classes = torch.arange(depth, device=index.device).reshape(shape)
            one = torch.tensor(on, dtype=kind, device=index.device)
            held[index.device] = classes, one, torch.tensor(off, dtype=kind, device=index.device)
        classes, one, zero = held[index.device]
        return torch.where(index.unsqueeze(axis) == classes, one, zero)

    return run
