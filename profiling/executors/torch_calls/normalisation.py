"""Softmax and normalisations."""

from __future__ import annotations

import math
from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call, torch_dtype

__all__: list[str] = []

_SOFTMAX_ANY_AXIS = 13  # before, everything from the axis on was one row


@torch_call("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call) -> Run:
    """F.softmax or F.log_softmax; the hard one is an argmax and a scatter of ones."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    kind = call.op.op_type
    shape = call.shape(0)
    rank = len(shape)

    def hard(x: Any, axis: int) -> Any:
        return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1.0)

    functions: dict[str, Run] = {"Softmax": F.softmax, "LogSoftmax": F.log_softmax, "Hardmax": hard}
    function = functions[kind]
    if call.op.version >= _SOFTMAX_ANY_AXIS:
        axis = call.axis("axis", -1, rank)
        return lambda x: function(x, axis)
    axis = call.axis("axis", 1, rank)
    if math.prod(shape[axis:]) == (shape[-1] if shape else 1):
        # What else belongs to the row has length 1: the same numbers without a reshape.
        return lambda x: function(x, rank - 1)
    rows = math.prod(shape[:axis])
    cols = math.prod(shape[axis:])
    return lambda x: function(x.reshape(rows, cols), 1).reshape(shape)


@torch_call("LayerNormalization")
def layer_norm(call: Call) -> Run:
    """F.layer_norm over the last dimensions; with its statistics where they are outputs."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    shape = call.shape(0)
    extent = list(shape[call.axis("axis", -1, len(shape)) :])
    epsilon = float(call.attribute("epsilon", 1e-5))
    laid = [call.prepare(i, lambda w: w.expand(extent).contiguous()) if call.has(i) else None for i in (1, 2)]

    def parameter(i: int, w: Any) -> Any:
        change = laid[i]
        if w is None or change is None:
            return w
        return change(w)

    if call.wants(1) or call.wants(2):
        return lambda x, w, b=None: torch.native_layer_norm(
            x, extent, parameter(0, w), parameter(1, b), epsilon
        )
    return lambda x, w=None, b=None: F.layer_norm(x, extent, parameter(0, w), parameter(1, b), epsilon)


@torch_call("RMSNormalization")
def rms_norm(call: Call) -> Run:
    """F.rms_norm over the last dimensions."""
    import torch.nn.functional as F  # noqa: N812

    shape = call.shape(0)
    extent = list(shape[call.axis("axis", -1, len(shape)) :])
    epsilon = float(call.attribute("epsilon", 1e-5))
    laid = call.prepare(1, lambda w: w.expand(extent).contiguous())
    return lambda x, w: F.rms_norm(x, extent, laid(w), epsilon)


@torch_call("InstanceNormalization")
def instance_norm(call: Call) -> Run:
    """F.instance_norm on the statistics of the input."""
    import torch.nn.functional as F  # noqa: N812

    epsilon = float(call.attribute("epsilon", 1e-5))
    return lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=epsilon)


@torch_call("GroupNormalization")
def group_norm(call: Call) -> Run:
    """F.group_norm; parameters of one number a group (opset 18) are spread over its channels beforehand."""
    import torch.nn.functional as F  # noqa: N812

    channels = call.shape(0)[1]
    groups = int(call.attribute("num_groups", 1))
    epsilon = float(call.attribute("epsilon", 1e-5))

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
    """F.batch_norm with stored statistics. Raises EntryUnsupportedError for the training form."""
    import torch.nn.functional as F  # noqa: N812

    if call.attribute("training_mode", 0) or any(call.wants(i) for i in range(1, 5)):
        raise call.unsupported("training mode")
    if call.op.version < 9 and not call.attribute("spatial", 1):
        raise call.unsupported("statistics per activation (spatial = 0)")
    epsilon = float(call.attribute("epsilon", 1e-5))
    kind = call.tensor(0).dtype
    mixed = any(call.tensor(i).dtype is not kind for i in range(1, 5))
    if mixed:
        wanted = torch_dtype(kind)
        laid = [call.prepare(i, lambda w: w.to(wanted)) for i in range(1, 5)]
        return lambda x, w, b, m, v: F.batch_norm(
            x, laid[2](m), laid[3](v), laid[0](w), laid[1](b), eps=epsilon
        )
    return lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, eps=epsilon)


@torch_call("LpNormalization")
def lp_norm(call: Call) -> Run:
    """F.normalize. A row of zeros gives zeros, as in ONNX."""
    import torch.nn.functional as F  # noqa: N812

    axis = call.axis("axis", -1, len(call.shape(0)))
    order = float(call.attribute("p", 2))
    return lambda x: F.normalize(x, p=order, dim=axis)


@torch_call("MeanVarianceNormalization")
def mean_variance_norm(call: Call) -> Run:
    """torch.var_mean, then the arithmetic."""
    import torch

    rank = len(call.shape(0))
    axes = [call.dimension(a, rank) for a in call.integers("axes") or [0, 2, 3]]

    def run(x: Any) -> Any:
        variance, mean = torch.var_mean(x, dim=axes, correction=0, keepdim=True)
        return (x - mean) / (torch.sqrt(variance) + 1e-9)

    return run


@torch_call("LRN")
def lrn(call: Call) -> Run:
    """F.local_response_norm. Raises EntryUnsupportedError for even sizes, which torch centres elsewhere."""
    import torch.nn.functional as F  # noqa: N812

    size = int(call.attribute("size", 5))
    if size % 2 == 0:
        raise call.unsupported(f"a neighbourhood of {size}, expected an odd number")
    alpha = float(call.attribute("alpha", 1e-4))
    beta = float(call.attribute("beta", 0.75))
    bias = float(call.attribute("bias", 1.0))
    return lambda x: F.local_response_norm(x, size, alpha, beta, bias)
