"""Operators that make tensors out of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import (
    Call,
    Late,
    Run,
    python_number,
    torch_call,
    torch_dtype,
)

__all__: list[str] = []


@torch_call("ConstantOfShape")
def constant_of_shape(call: Call) -> Late:
    """torch.full."""
    import torch

    call.host.update(range(len(call.op.inputs)))
    value = call.attribute("value")
    number = 0.0 if value is None else python_number(np.asarray(value))
    shape = call.result().shape
    kind = torch_dtype(call.result().dtype)

    def make(inputs: list[Any], device: Any) -> Run:
        del inputs
        return lambda *_: torch.full(shape, number, dtype=kind, device=device)

    return Late(make)


@torch_call("EyeLike")
def eye_like(call: Call) -> Run:
    """torch.eye, its diagonal moved by a view. Raises EntryUnsupportedError for a moved diagonal."""
    import torch

    if call.attribute("k", 0):
        raise call.unsupported("a diagonal that is not the main one")
    rows, cols = call.result().shape
    kind = torch_dtype(call.result().dtype)
    return lambda x: torch.eye(rows, cols, dtype=kind, device=x.device)


@torch_call("Range")
def arange(call: Call) -> Late:
    """torch.arange."""
    import torch

    start, stop, step = (call.scalar(i) for i in range(3))
    kind = torch_dtype(call.result().dtype)

    def make(inputs: list[Any], device: Any) -> Run:
        del inputs
        return lambda *_: torch.arange(start, stop, step, dtype=kind, device=device)

    return Late(make)


@torch_call("RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike")
def random_numbers(call: Call) -> Late:
    """Tensor.uniform_ or Tensor.normal_."""
    import torch

    shape = call.result().shape
    kind = torch_dtype(call.result().dtype)
    uniform = "Uniform" in call.op.op_type
    first = float(call.attribute("low" if uniform else "mean", 0.0))
    second = float(call.attribute("high" if uniform else "scale", 1.0))

    def make(inputs: list[Any], device: Any) -> Run:
        del inputs

        def run(*_: Any) -> Any:
            empty = torch.empty(shape, dtype=kind, device=device)
            if uniform:
                return empty.uniform_(first, second)
            return empty.normal_(first, second)

        return run

    return Late(make)


@torch_call("Bernoulli")
def bernoulli(call: Call) -> Run:
    """torch.bernoulli."""
    import torch

    kind = torch_dtype(call.result().dtype)
    return lambda x: torch.bernoulli(x).to(kind)
