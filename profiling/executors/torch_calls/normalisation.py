"""Softmax and normalisations."""

from __future__ import annotations

import math
from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Run,
    as_it_is,
    torch_call,
    torch_dtype,
)

_SOFTMAX_ANY_AXIS = 13  # before, everything from the axis on was one row


@torch_call("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call) -> Run:
    """Call F.softmax or F.log_softmax; the hard one is an argmax and a scatter of ones."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    shape = call.shape()

    def hard(x: Any, axis: int) -> Any:
        return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1.0)

    functions: dict[str, Run] = {"Softmax": F.softmax, "LogSoftmax": F.log_softmax, "Hardmax": hard}
    function = functions[call.op_type]
    if call.version >= _SOFTMAX_ANY_AXIS:
        axis = call.axis("axis", -1)
        return lambda x: function(x, axis)
    axis = call.axis("axis", 1)
    columns = math.prod(shape[axis:])
    if columns == math.prod(shape[-1:]):
        # What else belongs to the row has length 1: the same numbers without a reshape.
        last = len(shape) - 1
        return lambda x: function(x, last)
    rows = math.prod(shape[:axis])
    return lambda x: function(x.reshape(rows, columns), 1).reshape(shape)


def _extent(call: Call) -> list[int]:
    """Return the sizes of the dimensions that a row consists of, from ``axis`` on."""
    return list(call.shape()[call.axis("axis", -1) :])


@torch_call("LayerNormalization")
def layer_norm(call: Call) -> Run:
    """Call F.layer_norm over the last dimensions; with its statistics where they are outputs."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    extent = _extent(call)
    epsilon = call.real("epsilon", 1e-5)

    def spread(w: Any) -> Any:
        return w.expand(extent).contiguous()

    scale = call.prepare(1, spread) if call.has(1) else as_it_is
    shift = call.prepare(2, spread) if call.has(2) else as_it_is
    if call.wants(1) or call.wants(2):
        return lambda x, w, b=None: torch.native_layer_norm(
            x, extent, scale(w), b if b is None else shift(b), epsilon
        )
    return lambda x, w=None, b=None: F.layer_norm(
        x, extent, w if w is None else scale(w), b if b is None else shift(b), epsilon
    )


@torch_call("RMSNormalization")
def rms_norm(call: Call) -> Run:
    """Call F.rms_norm over the last dimensions."""
    import torch.nn.functional as F  # noqa: N812

    extent = _extent(call)
    epsilon = call.real("epsilon", 1e-5)
    scale = call.prepare(1, lambda w: w.expand(extent).contiguous())
    return lambda x, w: F.rms_norm(x, extent, scale(w), epsilon)


@torch_call("InstanceNormalization")
def instance_norm(call: Call) -> Run:
    """Call F.instance_norm on the statistics of the input."""
    import torch.nn.functional as F  # noqa: N812

    epsilon = call.real("epsilon", 1e-5)
    return lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=epsilon)


@torch_call("GroupNormalization")
def group_norm(call: Call) -> Run:
    """Call F.group_norm; parameters of one number a group (opset 18) are spread over its channels beforehand."""
    import torch.nn.functional as F  # noqa: N812

    channels = call.shape()[1]
    groups = call.whole("num_groups", 1)
    epsilon = call.real("epsilon", 1e-5)

    # Opset 18 stored one number a group, torch one a channel.
    def per_channel(w: Any) -> Any:
        flat = w.reshape(-1)
        if flat.numel() == channels:
            return flat
        return flat.repeat_interleave(channels // flat.numel())

    scale = call.prepare(1, per_channel)
    shift = call.prepare(2, per_channel)
    return lambda x, w, b: F.group_norm(x, groups, scale(w), shift(b), epsilon)


@torch_call("BatchNormalization")
def batch_norm(call: Call) -> Run:
    """Call F.batch_norm with stored statistics. Raises EntryUnsupportedError for the training form."""
    import torch.nn.functional as F  # noqa: N812

    if call.flag("training_mode") or any(call.wants(i) for i in range(1, 5)):
        raise call.unsupported("training mode")
    if call.version < 9 and not call.flag("spatial", 1):
        raise call.unsupported("statistics per activation (spatial = 0)")
    epsilon = call.real("epsilon", 1e-5)
    if all(call.tensor(i).dtype is call.dtype for i in range(1, 5)):
        return lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, eps=epsilon)
    kind = torch_dtype(call.dtype)

    def typed(w: Any) -> Any:
        return w.to(kind)

    scale = call.prepare(1, typed)
    shift = call.prepare(2, typed)
    mean = call.prepare(3, typed)
    variance = call.prepare(4, typed)
    return lambda x, w, b, m, v: F.batch_norm(x, mean(m), variance(v), scale(w), shift(b), eps=epsilon)


@torch_call("LpNormalization")
def lp_norm(call: Call) -> Run:
    """Call F.normalize. A row of zeros gives zeros, as in ONNX."""
    import torch.nn.functional as F  # noqa: N812

    axis = call.axis("axis", -1)
    order = call.real("p", 2)
    return lambda x: F.normalize(x, p=order, dim=axis)


@torch_call("MeanVarianceNormalization")
def mean_variance_norm(call: Call) -> Run:
    """Call torch.var_mean, then the arithmetic."""
    import torch

    axes = [call.dimension(a) for a in call.integers("axes") or [0, 2, 3]]

    def run(x: Any) -> Any:
        variance, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
        return (x - mean) / (torch.sqrt(variance) + 1e-9)

    return run


@torch_call("LRN")
def lrn(call: Call) -> Run:
    """Call F.local_response_norm. Raises EntryUnsupportedError for even sizes, which torch centres elsewhere."""
    import torch.nn.functional as F  # noqa: N812

    size = call.whole("size", 5)
    if size % 2 == 0:
        raise call.unsupported(f"a neighbourhood of {size}, expected an odd number")
    alpha = call.real("alpha", 1e-4)
    beta = call.real("beta", 0.75)
    bias = call.real("bias", 1.0)
    return lambda x: F.local_response_norm(x, size, alpha, beta, bias)
