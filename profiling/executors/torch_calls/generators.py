"""Operators that make tensors out of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Late,
    Run,
    python_number,
    torch_call,
)


def _made_anew(make: Callable[[Any], Any]) -> Late:
    """Return a call that makes a tensor on the device that the inputs lie on, out of nothing but that."""
    return Late(lambda inputs, device: lambda *_: make(device))


@torch_call("ConstantOfShape")
def constant_of_shape(call: Call) -> Late:
    """Call torch.full."""
    import torch

    # The shape is known by now: a tensor of it would only be copied back from the device.
    call.drop_inputs(0)
    value = call.attribute("value")
    number = 0.0 if value is None else python_number(np.asarray(value))
    shape = call.result_shape
    kind = call.result_kind
    return _made_anew(lambda device: torch.full(shape, number, dtype=kind, device=device))


@torch_call("EyeLike")
def eye_like(call: Call) -> Run:
    """Call torch.eye, its diagonal moved by a view. Raises EntryUnsupportedError for a moved diagonal."""
    import torch

    if call.attribute("k", 0):
        raise call.unsupported("a diagonal that is not the main one")
    rows, cols = call.result_shape
    kind = call.result_kind
    return lambda x: torch.eye(rows, cols, dtype=kind, device=x.device)


@torch_call("Range")
def arange(call: Call) -> Late:
    """Call torch.arange."""
    import torch

    start, stop, step = (call.scalar(i) for i in range(3))
    kind = call.result_kind
    return _made_anew(lambda device: torch.arange(start, stop, step, dtype=kind, device=device))


_RANDOM = {
    "RandomUniform": ("uniform_", "low", "high"),
    "RandomNormal": ("normal_", "mean", "scale"),
}


@torch_call(*_RANDOM, *(f"{name}Like" for name in _RANDOM))
def random_numbers(call: Call) -> Late:
    """Call Tensor.uniform_ or Tensor.normal_."""
    import torch

    fill, first_name, second_name = _RANDOM[call.op_type.removesuffix("Like")]
    first = call.real(first_name, 0.0)
    second = call.real(second_name, 1.0)
    shape = call.result_shape
    kind = call.result_kind

    def make(device: Any) -> Any:
        empty = torch.empty(shape, dtype=kind, device=device)
        return getattr(empty, fill)(first, second)

    return _made_anew(make)


@torch_call("Bernoulli")
def bernoulli(call: Call) -> Run:
    """Call torch.bernoulli."""
    import torch

    kind = call.result_kind
    return lambda x: torch.bernoulli(x).to(kind)
