"""Recurrent layers: LSTM, GRU, RNN as one cuDNN call per layer."""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.builders import distinct, input_at, optional_input, tensor_inputs, tensor_outputs
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.precision import matrix_precision
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Per hidden unit and step, beyond the products and biases.
# LSTM: 4 additions of the two products, 3 sigmoids (4 each), 2 tanh, c' = f c + i g (3), h = o tanh(c') (1).
# GRU: 3 additions, 2 sigmoids, 1 tanh, r (.) Uh (1), h' = (1 - z) n + z h (4). RNN: 1 addition, 1 tanh.
_CELL = {"LSTM": 4 + 12 + 2 + 3 + 1, "GRU": 3 + 8 + 1 + 1 + 4, "RNN": 1 + 1}


def cell_flops(op_type: str, *, batch: int, hidden: int, inputs: int, bias: bool, peepholes: bool) -> int:
    """FLOPs of one step of one direction: the two products, biases (two a gate), peepholes (2 a unit, three),
    the cell.
    """
    gates = _GATES[op_type]
    products = 2 * gates * hidden * (inputs + hidden)
    biases = 2 * gates * hidden if bias else 0
    peeps = 3 * 2 * hidden if peepholes else 0
    return batch * (products + biases + peeps + _CELL[op_type] * hidden)


@lowering_rule("LSTM", "GRU", "RNN", kind="recurrent", autocast="half")
def recurrent(op: Operator, options: LoweringOptions) -> Lowered:
    """One kernel for all steps and directions; ``gemm.batch`` = steps x directions products of (batch, inputs
    + hidden).
    """
    source = input_at(op, 0)
    recurrence = input_at(op, 2)
    steps = source.shape[0]
    batch = source.shape[1]
    if op.attributes.get("layout", 0):
        steps, batch = batch, steps
    directions = recurrence.shape[0]
    hidden = recurrence.shape[2]
    gates = _GATES[op.op_type]
    per_step = cell_flops(
        op.op_type,
        batch=batch,
        hidden=hidden,
        inputs=source.shape[2],
        bias=optional_input(op, 3) is not None,
        peepholes=op.op_type == "LSTM" and optional_input(op, 7) is not None,
    )
    casts, operands = autocast_kernels(tensor_inputs(op), options)
    reads = distinct(operands)
    writes = tensor_outputs(op)
    kernel = Kernel(
        name=f"rnn.{op.op_type.lower()}",
        family=Family.RNN,
        variant=op.op_type.lower(),
        precision=matrix_precision(reads[0].dtype, options),
        flops=steps * directions * per_step,
        read_bytes=sum(t.nbytes for t in reads),
        write_bytes=sum(t.nbytes for t in writes),
        weight_bytes=sum(t.nbytes for t in reads if t.is_weight),
        rows=steps,
        cols=batch * hidden,
        element_bytes=source.dtype.bits / 8,
        inputs=len(reads),
        gemm=GemmShape(batch=steps * directions, m=batch, n=gates * hidden, k=source.shape[2] + hidden),
        # The gates' pre-activations of every step are kept between the input products and the recurrence.
        workspace_bytes=steps * directions * batch * gates * hidden * source.dtype.bits // 8,
    )
    return Lowered(kernels=(*casts, kernel), host_calls=1 + len(casts))
