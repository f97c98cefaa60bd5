"""``com.microsoft`` operators that ONNX Runtime has CPU kernels for alone: a model on the GPU leaves it for them."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.operators.builders import input_at, output_at
from gkestimator.operators.checks import constant_ints, int_attribute, tensor, unknown_value
from gkestimator.operators.host import host_kernel
from gkestimator.operators.matmul import matmul_result
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS
from gkestimator.operators.recurrent import cell_flops, directions_of
from gkestimator.operators.registry import (
    MS,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)


@shape_rule("CropAndResize", domain=MS)
def crop_and_resize_types(ctx: ShapeContext) -> Outputs:
    """Return (regions, C, height, width) of the crops."""
    x = tensor(ctx, 0, rank=4)
    rois = tensor(ctx, 1, rank=2)
    size = constant_ints(ctx, 3)
    if size is None:
        return [unknown_value(ctx, 3, "crop_size", x.dtype, rank=4)]
    if len(size) != 2 or min(size) < 1:
        raise ShapeError(f"crop_size is {list(size)}, expected two positive sizes")
    shape = (rois.shape[0], x.shape[1], *size)
    return [TensorType(x.dtype, shape, rois.bounded)]


@shape_rule("Tokenizer", domain=MS)
def tokenizer_types(ctx: ShapeContext) -> Outputs:
    """Return what the file declares: how many tokens there are depends on the text."""
    rank = len(tensor(ctx, 0, min_rank=1).shape) + 1
    return [unknown_value(ctx, 0, "the text", DType.STRING, rank=rank)]


@shape_rule("MurmurHash3", domain=MS)
def hash_types(ctx: ShapeContext) -> Outputs:
    """Return a number for each element."""
    positive = int_attribute(ctx, "positive", 1) == 1
    if positive:
        dtype = DType.UINT32
    else:
        dtype = DType.INT32
    return [TensorType(dtype, tensor(ctx, 0).shape)]


@shape_rule("CDist", domain=MS)
def distances_types(ctx: ShapeContext) -> Outputs:
    """Return a distance for every pair of rows."""
    a = tensor(ctx, 0, rank=2)
    b = tensor(ctx, 1, rank=2)
    if a.shape[1] != b.shape[1]:
        raise ShapeError(f"inputs {a} and {b} differ in their last dimension")
    shape = (a.shape[0], b.shape[0])
    return [TensorType(a.dtype, shape)]


@lowering_rule("CDist", domain=MS, kind="host_microsoft")
def distances(op: Operator, options: LoweringOptions) -> Lowered:
    """Return every row of A against every row of B: subtract, square, add per column; a root per pair (euclidean)."""
    a = input_at(op, 0)
    result = output_at(op)
    if op.attributes.get("metric", "sqeuclidean") == "euclidean":
        root = 1
    else:
        root = 0
    kernel = host_kernel(op, "cdist", flops=result.elements * (3 * a.shape[1] + root))
    return launched(kernel)


@shape_rule("DynamicQuantizeLSTM", domain=MS)
def lstm_types(ctx: ShapeContext) -> Outputs:
    """Return what LSTM does; weights are stored transposed: W (dirs, input, 4 hidden), R (dirs, hidden, 4 hidden)."""
    x = tensor(ctx, 0, rank=3)
    r = tensor(ctx, 2, rank=3)
    directions = directions_of(ctx)
    hidden = int_attribute(ctx, "hidden_size", r.shape[1])
    if r.shape != (directions, hidden, 4 * hidden):
        raise ShapeError(f"recurrent weight is {r}, expected {[directions, hidden, 4 * hidden]}")
    steps, batch, _ = x.shape
    every = TensorType(x.dtype, (steps, directions, batch, hidden))
    last = TensorType(x.dtype, (directions, batch, hidden))
    return [every, last, last][: ctx.outputs]


@lowering_rule("DynamicQuantizeLSTM", domain=MS, kind="host_microsoft", quantised=True)
def dynamic_quantise_lstm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return an LSTM whose weights are int8, stored (directions, inputs, 4 hidden): the float cell's operations."""
    source = input_at(op, 0)
    recurrence = input_at(op, 2)
    steps, batch, inputs = source.shape
    directions = recurrence.shape[0]
    hidden = recurrence.shape[1]
    per_step = cell_flops(
        "LSTM",
        batch=batch,
        hidden=hidden,
        inputs=inputs,
        bias=len(op.inputs) > 3 and op.inputs[3] is not None,
        peepholes=len(op.inputs) > 7 and op.inputs[7] is not None,
    )
    kernel = host_kernel(op, "dynamic_quantise_lstm", flops=steps * directions * per_step)
    return launched(kernel)


@shape_rule("MatMulFpQ4", domain=MS)
def q4_product_types(ctx: ShapeContext) -> Outputs:
    """Return A times a weight whose shape is input 2."""
    a = tensor(ctx, 0)
    weight = constant_ints(ctx, 2)
    if weight is None:
        return [unknown_value(ctx, 2, "B_shape", a.dtype, rank=len(a.shape))]
    if min(weight, default=0) < 0:
        raise ShapeError(f"B_shape is {list(weight)}, expected sizes")
    return [TensorType(a.dtype, matmul_result(a.shape, weight))]


@lowering_rule("MatMulFpQ4", domain=MS, kind="host_microsoft")
def matmul_q4(op: Operator, options: LoweringOptions) -> Lowered:
    """Return A times a blob of 4-bit weights whose shape is input 2: the product, and each weight dequantised once."""
    a = input_at(op, 0)
    result = output_at(op)
    k = a.shape[-1]
    n = result.shape[-1]
    flops = 2 * result.elements * k + DEQUANTIZE_FLOPS * k * n
    return launched(host_kernel(op, "matmul_q4", flops=flops))
