"""Shape rules of LSTM, GRU and RNN, layout 0 (sequence first) and layout 1 (batch first)."""

from __future__ import annotations

from gkestimator.operators.shapes.checks import Outputs, int_attribute, refuse, tensor, text_attribute
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@shape_rule("LSTM", "GRU", "RNN")
def _recurrent(ctx: ShapeContext) -> Outputs:
    """Y (seq, dirs, batch, hidden), then the final states (dirs, batch, hidden); batch first in layout 1."""
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, rank=3)
    r = tensor(ctx, 2, rank=3)
    batch_first = int_attribute(ctx, "layout", 0) == 1
    direction = text_attribute(ctx, "direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    hidden = int_attribute(ctx, "hidden_size", r.shape[2])
    gates = _GATES[ctx.op_type]
    if r.shape != (directions, gates * hidden, hidden):
        refuse(ctx, f"recurrent weight is {list(r.shape)}, expected {[directions, gates * hidden, hidden]}")
    if w.shape != (directions, gates * hidden, x.shape[2]):
        refuse(ctx, f"weight is {list(w.shape)}, expected {[directions, gates * hidden, x.shape[2]]}")
    if batch_first:
        batch, steps = x.shape[:2]
        every = (batch, steps, directions, hidden)
        last = (batch, directions, hidden)
    else:
        steps, batch = x.shape[:2]
        every = (steps, directions, batch, hidden)
        last = (directions, batch, hidden)
    return [TensorType(x.dtype, every), *[TensorType(x.dtype, last)] * (ctx.outputs - 1)]
