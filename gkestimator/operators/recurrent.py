"""Layers that keep a state between steps: LSTM, GRU, RNN as one cuDNN call per layer, and causal convolutions."""

from __future__ import annotations

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel
from gkestimator.operators.attention import windowed
from gkestimator.operators.builders import (
    distinct,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
    tensor_inputs,
    tensor_outputs,
    total_bytes,
    weight_bytes,
)
from gkestimator.operators.checks import int_attribute, tensor, text_attribute
from gkestimator.operators.convolution import convolution_kernel
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.registry import (
    MS,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    matrix_precision,
    shape_rule,
)

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Per hidden unit and step, beyond the products and biases.
# LSTM: 4 additions of the two products, 3 sigmoids (4 each), 2 tanh, c' = f c + i g (3), h = o tanh(c') (1).
# GRU: 3 additions, 2 sigmoids, 1 tanh, r (.) Uh (1), h' = (1 - z) n + z h (4). RNN: 1 addition, 1 tanh.
_CELL = {"LSTM": 22, "GRU": 17, "RNN": 2}


@shape_rule("CausalConvWithState")
def causal_conv_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type (batch, channels, length); the state holds the last kernel - 1 positions."""
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, rank=3)
    batch, channels, _ = x.shape
    if w.shape[:2] != (channels, 1) or w.shape[2] < 1:
        raise ShapeError(f"weight is {w}, expected {[channels, 1]} and the kernel size")
    outputs = [x, TensorType(x.dtype, (batch, channels, w.shape[2] - 1))]
    return outputs[: ctx.outputs]


@shape_rule("CausalConvWithState", domain=MS)
def ms_causal_conv_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type, channels first or last; the state holds the last kernel - 1 positions."""
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, min_rank=3)
    if int_attribute(ctx, "ndim", 1) != 1:
        raise ShapeError("ndim is not 1, expected one spatial dimension")
    held = (w.shape[-1] - 1) * int_attribute(ctx, "dilation", 1)
    state: tuple[int, ...] = (*x.shape[:2], held)
    if int_attribute(ctx, "channels_last", 0):
        state = (x.shape[0], held, x.shape[2])
    outputs = [x, TensorType(x.dtype, windowed(ctx, state))]
    return outputs[: ctx.outputs]


@lowering_rule("CausalConvWithState", domain=MS, kind="convolution")
@lowering_rule("CausalConvWithState", kind="convolution")
def causal_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return depthwise causal convolution over (state, x): the new state is a slice of the two, the activation an
    epilogue.
    """
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    bias = optional_input(op, 2)
    channels = source.shape[1]
    length = source.shape[-1]
    taps = weight.shape[-1]
    shape = ConvShape(
        batch=source.shape[0],
        in_channels=channels,
        out_channels=channels,
        groups=channels,
        in_h=1,
        in_w=length,
        out_h=1,
        out_w=length,
        kernel_h=1,
        kernel_w=taps,
        stride_h=1,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
    )
    reads = present_inputs(op, 0, 1, 2, 3)
    activation = op.attributes.get("activation", "none")
    per_element = (1 if bias is not None else 0) + (5 if activation in ("silu", "swish") else 0)
    main = convolution_kernel(
        shape, reads, result, options, variant="causal", epilogue_flops=per_element * result.elements
    )
    kernels: tuple[Kernel, ...] = (main,)
    if len(op.outputs) > 1:
        new_state = op.outputs[1]
    else:
        new_state = None
    if isinstance(new_state, Tensor) and new_state.elements:
        kernels = (
            main,
            memory_kernel(Family.COPY, "slice", (new_state,), (new_state,), flops=0, rows=new_state.elements),
        )
    return launched(*kernels, calls=len(kernels))


@shape_rule("LSTM", "GRU", "RNN")
def recurrent_types(ctx: ShapeContext) -> Outputs:
    """Return Y (steps, dirs, batch, hidden), then the final states (dirs, batch, hidden); batch first in layout 1."""
    x = tensor(ctx, 0, rank=3)
    w = tensor(ctx, 1, rank=3)
    r = tensor(ctx, 2, rank=3)
    directions = directions_of(ctx)
    hidden = int_attribute(ctx, "hidden_size", r.shape[2])
    rows = _GATES[ctx.op_type] * hidden
    if r.shape != (directions, rows, hidden):
        raise ShapeError(f"recurrent weight is {r}, expected {[directions, rows, hidden]}")
    if w.shape != (directions, rows, x.shape[2]):
        raise ShapeError(f"weight is {w}, expected {[directions, rows, x.shape[2]]}")
    if int_attribute(ctx, "layout", 0) == 1:
        batch, steps, _ = x.shape
        every = TensorType(x.dtype, (batch, steps, directions, hidden))
        last = TensorType(x.dtype, (batch, directions, hidden))
    else:
        steps, batch, _ = x.shape
        every = TensorType(x.dtype, (steps, directions, batch, hidden))
        last = TensorType(x.dtype, (directions, batch, hidden))
    return [every, *[last] * (ctx.outputs - 1)]


def directions_of(ctx: ShapeContext) -> int:
    """Return 2 for a bidirectional layer, else 1."""
    if text_attribute(ctx, "direction", "forward") == "bidirectional":
        return 2
    return 1


def cell_flops(op_type: str, *, batch: int, hidden: int, inputs: int, bias: bool, peepholes: bool) -> int:
    """Return FLOPs of one step of one direction: the two products, biases (two a gate), peepholes (2 a unit,
    three), the cell.
    """
    gates = _GATES[op_type]
    products = 2 * gates * hidden * (inputs + hidden)
    if bias:
        biases = 2 * gates * hidden
    else:
        biases = 0
    if peepholes:
        peeps = 3 * 2 * hidden
    else:
        peeps = 0
    return batch * (products + biases + peeps + _CELL[op_type] * hidden)


@lowering_rule("LSTM", "GRU", "RNN", kind="recurrent", autocast="half")
def recurrent(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel for all steps and directions; ``gemm.batch`` = steps x directions products of (batch,
    inputs + hidden).
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
        read_bytes=total_bytes(reads),
        write_bytes=total_bytes(writes),
        weight_bytes=weight_bytes(reads),
        rows=steps,
        cols=batch * hidden,
        element_bytes=source.dtype.bits / 8,
        inputs=len(reads),
        gemm=GemmShape(batch=steps * directions, m=batch, n=gates * hidden, k=source.shape[2] + hidden),
        # The gates' pre-activations of every step are kept between the input products and the recurrence.
        workspace_bytes=steps * directions * batch * gates * hidden * source.dtype.bits // 8,
    )
    return launched(*casts, kernel, calls=1 + len(casts))
