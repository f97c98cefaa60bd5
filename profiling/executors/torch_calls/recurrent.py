"""Recurrent layers: torch.nn.LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import Call, Late, Run, torch_call
from gkestimator.profiling.type_names import Fields

# Position of torch's gates among ONNX's: (input, forget, cell, output) of iofc; (reset, update, new) of zrh.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@torch_call("LSTM", "GRU", "RNN")
def recurrent(call: Call) -> Late:
    """Call one layer of torch's module, its weights packed beforehand. Raises EntryUnsupportedError for cells that
    torch lacks: peepholes, clipping, other activations, backwards alone, reset before the product."""
    kind = call.op_type
    directions, _, hidden = call.shape(2)
    nonlinearity = _nonlinearity(call, directions)
    batch_first = call.flag("layout")
    _refuse_what_torch_lacks(call, call.shape()[1 if batch_first else 0])
    biased = call.has(3)
    order = list(_ORDER[kind])

    def packed(matrix: Any) -> Any:
        gates = matrix.reshape(len(order), hidden, *matrix.shape[1:])
        return gates[order].reshape(matrix.shape)

    def make(inputs: list[Any], device: Any) -> Run:
        import torch

        _, w, r, b, *_rest = [*inputs, None]
        options: Fields = {"nonlinearity": nonlinearity} if kind == "RNN" else {}
        module = getattr(torch.nn, kind)(
            w.shape[-1],
            hidden,
            1,
            bias=biased,
            batch_first=batch_first,
            bidirectional=directions == 2,
            device=device,
            dtype=w.dtype,
            **options,
        )
        # A module's parameters refuse to be written to while autograd watches.
        with torch.no_grad():
            for d in range(directions):
                suffix = "_l0_reverse" if d else "_l0"
                parts = {"weight_ih": w[d], "weight_hh": r[d]}
                if biased:
                    parts["bias_ih"], parts["bias_hh"] = b[d].reshape(2, -1)
                for name, part in parts.items():
                    getattr(module, name + suffix).copy_(packed(part))
        module.eval()
        # cuDNN wants one block of weights, and would copy them together at every call.
        module.flatten_parameters()
        return _run(module, kind, directions, hidden, batch_first)

    return Late(make, keeps=(1, 2, 3))


def _nonlinearity(call: Call, directions: int) -> str:
    """Return what an RNN of torch is asked for. Raises EntryUnsupportedError for activations that torch lacks."""
    kind = call.op_type
    activations = call.attribute("activations")
    if activations is None:
        return "tanh"
    names = tuple(str(a).capitalize() for a in activations)
    if kind == "RNN" and set(names) == {"Relu"}:
        return "relu"
    if names != _USUAL[kind] * directions:
        raise call.unsupported(f"activations {', '.join(names)}")
    return "tanh"


def _refuse_what_torch_lacks(call: Call, steps: int) -> None:
    if call.text("direction", "forward") == "reverse":
        raise call.unsupported("backwards alone")
    if call.attribute("clip") is not None or call.flag("input_forget") or call.has(7):
        raise call.unsupported("clipping, coupled gates or peepholes")
    if call.op_type == "GRU" and not call.flag("linear_before_reset"):
        raise call.unsupported("the reset gate before the product (linear_before_reset = 0)")
    for position in (1, 2, 3):
        if call.has(position) and not call.is_static(position):
            raise call.unsupported("weights that an earlier operator makes")
    lengths = call.numbers(4) or ()
    if any(n != steps for n in lengths):
        raise call.unsupported("sequences of several lengths")


def _run(module: Any, kind: str, directions: int, hidden: int, batch_first: bool) -> Run:
    def states(tensor: Any) -> Any:
        if batch_first and tensor is not None:
            return tensor.transpose(0, 1)
        return tensor

    def first_state(tensor: Any) -> Any:
        if tensor is None:
            return None
        return states(tensor).contiguous()

    def run(
        x: Any, _w: Any, _r: Any, _b: Any = None, _n: Any = None, h: Any = None, c: Any = None, *_: Any
    ) -> Any:
        h = first_state(h)
        first = h
        if kind == "LSTM":
            c = first_state(c)
            if h is None and c is not None:
                first = (c.new_zeros(c.shape), c)
            elif h is not None:
                first = (h, h.new_zeros(h.shape) if c is None else c)
        result, last = module(x, first)
        result = result.unflatten(-1, (directions, hidden))
        if not batch_first:
            result = result.transpose(1, 2)
        if kind == "LSTM":
            return result, states(last[0]), states(last[1])
        return result, states(last)

    return run
