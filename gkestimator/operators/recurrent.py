"""Layers that keep a state between steps: LSTM, GRU, RNN as one cuDNN call per layer, and causal convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.attention import windowed
from gkestimator.operators.builders import (
    copy_kernel,
    distinct,
    gemm_kernel,
    input_at,
    memory_kernel,
    optional_input,
    optional_output,
    output_at,
    present_inputs,
    scratch,
    tensor_inputs,
    tensor_outputs,
    total_bytes,
    weight_bytes,
)
from gkestimator.operators.checks import int_attribute, tensor, text_attribute
from gkestimator.operators.convolution import convolution_kernel
from gkestimator.operators.host import host_kernel
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.registry import (
    MS,
    Kernels,
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

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Products of (batch, hidden) x (hidden, hidden) that a step of each cell makes."""
# What ONNX Runtime takes for supported, of both directions one after the other.
_ACTIVATIONS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
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
    rows = GATES[ctx.op_type] * hidden
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
    gates = GATES[op_type]
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
    """Return, for each direction, the products of the inputs of all steps at once, and one kernel for the steps.

    That is how cuDNN runs a layer (Appleyard, Kocisky and Blunsom, 2016), for torch and for ONNX Runtime, which goes
    to the CPU with cells that cuDNN lacks. ``gemm`` of the second kernel: ``batch`` = steps products of (batch,
    hidden) x (hidden, gates x hidden). Lengths of sequences are not looked at: every step counts.
    """
    layer = _layer_of(op)
    if options.runtime == "onnxruntime" and _lacks_cudnn(op):
        kernel = host_kernel(op, op.op_type.lower(), flops=layer.flops)
        return launched(kernel)
    casts, operands = autocast_kernels(tensor_inputs(op), options)
    source, weight, *others = operands
    gates = scratch(source, "gates", (layer.steps, layer.batch, layer.gate_rows))
    product = _input_product(layer, source, weight, gates, options)
    steps = _steps_kernel(op, layer, gates, others, options)
    copies = _rearrangements(op, options)
    kernels = (*casts, *(product,) * layer.directions, *(steps,) * layer.directions, *copies)
    return launched(*kernels, calls=1 + len(casts) + len(copies))


@frozen
class _Layer:
    """Hold the sizes of a recurrent layer; ``flops`` are those of all its steps and directions."""

    cell: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    directions: int
    input_flops: int
    step_flops: int

    @property
    def gate_rows(self) -> int:
        """Return how many rows the matrices of one direction have."""
        return GATES[self.cell] * self.hidden

    @property
    def flops(self) -> int:
        """Return the operations of the whole layer."""
        return self.directions * (self.input_flops + self.steps * self.step_flops)


def _layer_of(op: Operator) -> _Layer:
    source = input_at(op, 0)
    recurrence = input_at(op, 2)
    steps, batch, inputs = source.shape
    if op.attributes.get("layout", 0):
        steps, batch = batch, steps
    hidden = recurrence.shape[2]
    step_flops = cell_flops(
        op.op_type,
        batch=batch,
        hidden=hidden,
        inputs=0,
        bias=optional_input(op, 3) is not None,
        peepholes=_has_peepholes(op),
    )
    return _Layer(
        cell=op.op_type,
        steps=steps,
        batch=batch,
        inputs=inputs,
        hidden=hidden,
        directions=recurrence.shape[0],
        input_flops=2 * steps * batch * GATES[op.op_type] * hidden * inputs,
        step_flops=step_flops,
    )


def _has_peepholes(op: Operator) -> bool:
    return op.op_type == "LSTM" and optional_input(op, 7) is not None


def _lacks_cudnn(op: Operator) -> bool:
    """Return whether ONNX Runtime finds that cuDNN lacks the cell (``RNNNeedFallbackToCPU`` of
    onnxruntime/core/providers/cuda/cuda_execution_provider.cc): clipping, other activations than sigmoid and tanh,
    coupled gates, peepholes, and a reset gate that is said to come before the product.
    """
    if any(name in op.attributes for name in ("clip", "activation_alpha", "activation_beta")):
        return True
    usual = _ACTIVATIONS[op.op_type]
    names = op.attributes.get("activations")
    if isinstance(names, tuple):
        for place, name in enumerate(names):
            if str(name).lower() != usual[place % len(usual)]:
                return True
    coupled = op.op_type == "LSTM" and op.attributes.get("input_forget", 0) != 0
    resets_first = op.op_type == "GRU" and op.attributes.get("linear_before_reset", 1) != 1
    return coupled or resets_first or _has_peepholes(op)


def _input_product(
    layer: _Layer, source: Tensor, weight: Tensor, gates: Tensor, options: LoweringOptions
) -> Kernel:
    """Return the products of the inputs of one direction, all steps at once, in cuDNN's precision."""
    shape = GemmShape(batch=1, m=layer.steps * layer.batch, n=layer.gate_rows, k=layer.inputs)
    one_direction = replace(weight, shape=weight.shape[1:], value=None)
    kernel = gemm_kernel(shape, (source, one_direction), (gates,), options)
    return replace(kernel, precision=matrix_precision(source.dtype, options, convolution=True))


def _steps_kernel(
    op: Operator, layer: _Layer, gates: Tensor, others: Sequence[Tensor], options: LoweringOptions
) -> Kernel:
    """Return the steps of one direction; ``others`` are the recurrent weights, biases and states of all."""
    weights = weight_bytes(distinct(others)) // layer.directions
    reads = gates.nbytes + total_bytes(distinct(others)) // layer.directions
    # What the inputs contribute is kept for every step and direction. ONNX Runtime also keeps the weights a second
    # time, in cuDNN's order.
    workspace = layer.directions * gates.nbytes
    if options.runtime == "onnxruntime":
        workspace += weight_bytes(tensor_inputs(op))
    return Kernel(
        name=f"rnn.{op.op_type.lower()}",
        family=Family.RNN,
        variant=op.op_type.lower(),
        precision=matrix_precision(gates.dtype, options, convolution=True),
        flops=layer.steps * layer.step_flops,
        read_bytes=reads,
        write_bytes=total_bytes(tensor_outputs(op)) // layer.directions,
        weight_bytes=weights,
        rows=layer.steps,
        cols=layer.batch * layer.hidden,
        element_bytes=gates.dtype.bits / 8,
        inputs=len(distinct(others)) + 1,
        gemm=GemmShape(batch=layer.steps, m=layer.batch, n=layer.gate_rows, k=layer.hidden),
        workspace_bytes=workspace,
    )


def _rearrangements(op: Operator, options: LoweringOptions) -> Kernels:
    """Return the copies around cuDNN's call: it runs no layer backwards alone, and keeps the directions of a step side
    by side, where ONNX Runtime wants them one after the other.
    """
    direction = op.attributes.get("direction", "forward")
    source = input_at(op, 0)
    result = optional_output(op, 0)
    kernels = []
    if direction == "reverse":
        kernels.append(copy_kernel("reverse", (source,), (source,)))
    moved = direction == "reverse" or (direction == "bidirectional" and options.runtime == "onnxruntime")
    if moved and result is not None:
        kernels.append(copy_kernel("reverse", (result,), (result,)))
    return tuple(kernels)
