"""Reductions, cumulative sums and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call

Reduction: TypeAlias = "Callable[[Any, list[int], bool], Any]"
"""From a tensor, axes and whether they stay (with length 1) to the reduced tensor."""
_FUNCTIONS = {
    "ReduceLogSumExp": "logsumexp",
    "ReduceMax": "amax",
    "ReduceMean": "mean",
    "ReduceMin": "amin",
}
"""Reductions that torch has as they are."""
_FLOATS_ONLY = frozenset({"ReduceMean", "ReduceLogSumExp", "ReduceLogSum"})
_OF_ONE_NUMBER_ITSELF = frozenset({"ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum", "ReduceProd"})


def _log_sum(x: Any, axes: list[int], keep: bool) -> Any:
    return x.sum(axes, keepdim=keep).log()


def _product(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):  # torch multiplies along one axis at a time
        x = x.prod(axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Any, axes: list[int], keep: bool) -> Any:
    return x.sum(axes, keepdim=keep, dtype=x.dtype)


def _sum_of_squares(x: Any, axes: list[int], keep: bool) -> Any:
    return _sum(x * x, axes, keep)


def _absolute_sum(x: Any, axes: list[int], keep: bool) -> Any:
    import torch

    if x.is_floating_point():
        return torch.linalg.vector_norm(x, 1, axes, keepdim=keep)
    return _sum(x.abs(), axes, keep)


def _norm(x: Any, axes: list[int], keep: bool) -> Any:
    import torch

    if x.is_floating_point():
        return torch.linalg.vector_norm(x, 2, axes, keepdim=keep)
    return torch.sqrt((x * x).sum(axes, keepdim=keep).double()).to(x.dtype)


_COMPOSED: dict[str, Reduction] = {
    "ReduceL1": _absolute_sum,
    "ReduceL2": _norm,
    "ReduceLogSum": _log_sum,
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": _sum_of_squares,
}


def _refuse_what_torch_reduces_otherwise(call: Call, axes: list[int]) -> None:
    kind = call.op_type
    if kind in _FLOATS_ONLY and not call.dtype.is_floating:
        raise call.unsupported(f"whole numbers ({call.dtype.value})")
    if kind in ("ReduceMax", "ReduceMin") and call.rank:
        lengths = [call.shape()[axis] for axis in axes]
        if 0 in lengths:
            raise call.unsupported("the extremum of nothing")


@torch_call(*_FUNCTIONS, *_COMPOSED)
def reduce(call: Call) -> Run:
    """Call torch's reduction of that name over the axes of the attribute or of the constant input."""
    import torch

    kind = call.op_type
    rank = call.rank
    axes = call.integers("axes")
    if axes is None:
        axes = call.numbers(1)
    keep = call.flag("keepdims", 1)
    function = _COMPOSED.get(kind) or getattr(torch, _FUNCTIONS[kind])
    if not axes:
        if call.flag("noop_with_empty_axes"):
            if kind not in _OF_ONE_NUMBER_ITSELF:
                raise call.unsupported("a reduction over no axes that is not the identity")
            return lambda x, *_: x
        axes = list(range(rank))
    chosen = [call.dimension(a) for a in axes]
    _refuse_what_torch_reduces_otherwise(call, chosen)
    if not rank:
        shape = call.result_shape
        return lambda x, *_: function(x.reshape(1), [0], False).reshape(shape)
    return lambda x, *_: function(x, chosen, keep)


@torch_call("ArgMax", "ArgMin")
def arg_reduce(call: Call) -> Run:
    """Call torch.argmax or torch.argmin; the last of equals by a flip."""
    import torch

    shape = call.shape()
    axis = call.axis("axis", 0, len(shape))
    keep = call.flag("keepdims", 1)
    function = torch.argmax if call.op_type == "ArgMax" else torch.argmin
    if call.attribute("select_last_index", 0):
        last = shape[axis] - 1
        return lambda x: last - function(torch.flip(x, [axis]), axis, keepdim=keep)
    return lambda x: function(x, axis, keepdim=keep)


@torch_call("CumSum", "CumProd")
def cumulate(call: Call) -> Run:
    """Call torch.cumsum or torch.cumprod; backwards by flips, exclusive by a shift."""
    import torch

    shape = call.shape()
    axis = call.dimension(int(call.scalar(1)))
    sums = call.op_type == "CumSum"
    function = torch.cumsum if sums else torch.cumprod
    start = 0 if sums else 1
    backwards = call.flag("reverse")
    exclusive = call.flag("exclusive")
    kind = call.result_kind
    if not backwards and not exclusive:
        return lambda x, *_: function(x, axis, dtype=kind)
    first = list(shape)
    first[axis] = 1

    def run(x: Any, *_: Any) -> Any:
        if backwards:
            x = torch.flip(x, [axis])
        if exclusive:
            shifted = x.narrow(axis, 0, shape[axis] - 1)
            x = torch.cat((x.new_full(first, start), shifted), axis)
        total = function(x, axis, dtype=kind)
        if backwards:
            return torch.flip(total, [axis])
        return total

    return run


def _loss(call: Call) -> Run:
    """Return F.nll_loss with the attributes of ``call`` over scores, targets and weights."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    reduction = call.text("reduction", "mean")
    ignore = call.whole("ignore_index", -100)
    target = call.prepare(1, lambda t: t.to(torch.int64))
    return lambda x, t, w=None: F.nll_loss(x, target(t), w, reduction=reduction, ignore_index=ignore)


@torch_call("NegativeLogLikelihoodLoss")
def nll_loss(call: Call) -> Run:
    """Call F.nll_loss."""
    return _loss(call)


@torch_call("SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> Run:
    """Call F.log_softmax, then F.nll_loss: what F.cross_entropy is."""
    import torch.nn.functional as F  # noqa: N812

    loss = _loss(call)
    both = call.wants(1)

    def run(x: Any, t: Any, w: Any = None) -> Any:
        scores = F.log_softmax(x, 1)
        if both:
            return (loss(scores, t, w), scores)
        return loss(scores, t, w)

    return run
