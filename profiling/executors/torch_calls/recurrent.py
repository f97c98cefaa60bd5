"""Recurrent layers: torch.nn.LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

from gkestimator.profiling.executors.torch_calls.registry import Call, Late, Run, torch_call

__all__: list[str] = []

# Position of torch's gates among ONNX's: (input, forget, cell, output) of iofc; (reset, update, new) of zrh.
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@torch_call("LSTM", "GRU", "RNN")
def recurrent(call: Call) -> Late:
    """One layer of torch's module, its weights packed beforehand. Raises EntryUnsupportedError for cells that torch
    does not have: peepholes, clipping, other activations, backwards alone, reset before the product."""
    kind = call.op.op_type
    directions = call.shape(2)[0]
    hidden = call.shape(2)[2]
    direction = str(call.attribute("direction", "forward"))
    if direction == "reverse":
        raise call.unsupported("backwards alone")
    activations = call.attribute("activations")
    nonlinearity = "tanh"
    if activations is not None:
        given = tuple(str(a).capitalize() for a in activations)
        if kind == "RNN" and set(given) == {"Relu"}:
            nonlinearity = "relu"
        elif given != _USUAL[kind] * directions:
            raise call.unsupported(f"activations {', '.join(given)}")
    if call.attribute("clip") is not None or call.attribute("input_forget", 0) or call.has(7):
        raise call.unsupported("clipping, coupled gates or peepholes")
    if kind == "GRU" and not call.attribute("linear_before_reset", 0):
        raise call.unsupported("the reset gate before the product (linear_before_reset = 0)")
    if any(not call.is_static(i) for i in (1, 2, 3) if call.has(i)):
        raise call.unsupported("weights that an earlier operator makes")
    batch_first = bool(call.attribute("layout", 0))
    steps = call.shape(0)[1 if batch_first else 0]
    lengths = call.numbers(4)
    if lengths is not None and any(n != steps for n in lengths):
        raise call.unsupported("sequences of several lengths")
    biased = call.has(3)

    def make(inputs: list[Any], device: Any) -> Run:
        import torch

        w = inputs[1]
        r = inputs[2]
        b: Any = inputs[3] if biased else None

        classes: dict[str, Any] = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU, "RNN": torch.nn.RNN}
        options: dict[str, Any] = {"nonlinearity": nonlinearity} if kind == "RNN" else {}
        module = classes[kind](
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

        def packed(matrix: Any) -> Any:
            gates = matrix.reshape(len(_ORDER[kind]), hidden, *matrix.shape[1:])
            return gates[list(_ORDER[kind])].reshape(matrix.shape)

        with torch.no_grad():
            for d in range(directions):
                suffix = "_l0" + ("_reverse" if d else "")
                getattr(module, f"weight_ih{suffix}").copy_(packed(w[d]))
                getattr(module, f"weight_hh{suffix}").copy_(packed(r[d]))
                if biased:
                    both = b[d].reshape(2, -1)
                    getattr(module, f"bias_ih{suffix}").copy_(packed(both[0]))
                    getattr(module, f"bias_hh{suffix}").copy_(packed(both[1]))
        module.eval()
        module.flatten_parameters()
        return _run(module, kind, directions, hidden, batch_first)

    return Late(make, keeps=(1, 2, 3))


def _run(module: Any, kind: str, directions: int, hidden: int, batch_first: bool) -> Run:
    def states(tensor: Any) -> Any:
        if batch_first and tensor is not None:
            return tensor.transpose(0, 1)
        return tensor

    def run(
        x: Any, _w: Any, _r: Any, _b: Any = None, _n: Any = None, h: Any = None, c: Any = None, *_: Any
    ) -> Any:
        first = None
        if h is not None:
            h = states(h).contiguous()
            first = h
        if kind == "LSTM" and (h is not None or c is not None):
            if c is not None:
                c = states(c).contiguous()
            else:
                c = h.new_zeros(h.shape)
            first = (h if h is not None else c.new_zeros(c.shape), c)
        result, last = module(x, first)
        result = result.unflatten(-1, (directions, hidden))
        result = result if batch_first else result.transpose(1, 2)
        if kind == "LSTM":
            return result, states(last[0]), states(last[1])
        return result, states(last)

    return run
