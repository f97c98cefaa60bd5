"""Reductions and cumulative sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, calling, torch_call, torch_dtype

__all__: list[str] = []


def _functions() -> dict[str, Callable[[Any, list[int], bool], Any]]:
    import torch

    def prod(x: Any, axes: list[int], keep: bool) -> Any:
        for axis in sorted(axes, reverse=True):
            x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
        return x

    return {
        "ReduceL1": lambda x, axes, keep: _norm(x, 1, axes, keep),
        "ReduceL2": lambda x, axes, keep: _norm(x, 2, axes, keep),
        "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keepdim=keep)),
        "ReduceLogSumExp": torch.logsumexp,
        "ReduceMax": torch.amax,
        "ReduceMean": torch.mean,
        "ReduceMin": torch.amin,
        "ReduceProd": prod,
        "ReduceSum": lambda x, axes, keep: torch.sum(x, axes, keepdim=keep, dtype=x.dtype),
        "ReduceSumSquare": lambda x, axes, keep: torch.sum(x * x, axes, keepdim=keep, dtype=x.dtype),
    }


def _norm(x: Any, order: int, axes: list[int], keep: bool) -> Any:
    import torch

    if x.is_floating_point():
        return torch.linalg.vector_norm(x, order, axes, keepdim=keep)
    if order == 1:
        return torch.sum(torch.abs(x), axes, keepdim=keep, dtype=x.dtype)
    return torch.sqrt(torch.sum(x * x, axes, keepdim=keep).double()).to(x.dtype)


@torch_call(
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
def reduce(call: Call) -> Run:
    """torch's reduction of that name over the axes of the attribute or of the constant input."""
    kind = call.op.op_type
    rank = len(call.shape(0))
    axes = call.integers("axes")
    if axes is None:
        axes = call.numbers(1)
    keep = bool(call.attribute("keepdims", 1))
    function = _functions()[kind]
    if not axes:
        if call.attribute("noop_with_empty_axes", 0):
            axes = []
            keep = True
            if kind not in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd"):
                raise call.unsupported("a reduction over no axes that is not the identity")
            return lambda x, *_: x
        axes = list(range(rank))
    chosen = [call.dimension(a, rank) for a in axes]
    if kind in ("ReduceMean", "ReduceLogSumExp", "ReduceLogSum") and not call.tensor(0).dtype.is_floating:
        raise call.unsupported(f"whole numbers ({call.tensor(0).dtype.value})")
    if kind in ("ReduceMax", "ReduceMin") and any(call.shape(0)[a] == 0 for a in chosen if rank):
        raise call.unsupported("the extremum of nothing")
    if not rank:
        one = call.result().shape
        return lambda x, *_: function(x.reshape(1), [0], False).reshape(one)
    return lambda x, *_: function(x, chosen, keep)


@torch_call("ArgMax", "ArgMin")
def arg_reduce(call: Call) -> Run:
    """torch.argmax or torch.argmin; the last of equals by a flip."""
    import torch

    shape = call.shape(0)
    axis = call.axis("axis", 0, len(shape))
    keep = bool(call.attribute("keepdims", 1))
    function = torch.argmax if call.op.op_type == "ArgMax" else torch.argmin
    if call.attribute("select_last_index", 0):
        last = shape[axis] - 1
        return lambda x: last - function(torch.flip(x, [axis]), axis, keepdim=keep)
    return lambda x: function(x, axis, keepdim=keep)


@torch_call("CumSum", "CumProd")
def cumulate(call: Call) -> Run:
    """torch.cumsum or torch.cumprod; backwards by flips, exclusive by a shift."""
    import torch

    shape = call.shape(0)
    axis = call.dimension(int(call.scalar(1)), len(shape))
    function = torch.cumsum if call.op.op_type == "CumSum" else torch.cumprod
    start = 0 if call.op.op_type == "CumSum" else 1
    backwards = call.attribute("reverse", 0)
    exclusive = call.attribute("exclusive", 0)
    kind = torch_dtype(call.result().dtype)
    if not backwards and not exclusive:
        return lambda x, *_: function(x, axis, dtype=kind)
    first = list(shape)
    first[axis] = 1

    def run(x: Any, *_: Any) -> Any:
        x = torch.flip(x, [axis]) if backwards else x
        if exclusive:
            x = torch.cat((x.new_full(first, start), x.narrow(axis, 0, shape[axis] - 1)), axis)
        total = function(x, axis, dtype=kind)
        if backwards:
            return torch.flip(total, [axis])
        return total

    return run


@torch_call("Det")
def determinant(call: Call) -> Run:
    """torch.linalg.det."""
    import torch

    return calling(torch.linalg.det)
