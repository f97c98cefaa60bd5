"""``com.microsoft`` activations, biases, complex numbers and further operators of ONNX Runtime's own domain."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    elementwise_kernel,
    input_at,
    memory_kernel,
    operator_axis,
    output_at,
    present_inputs,
    softmax_kernel,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.checks import (
    axis_attribute,
    broadcast,
    int_attribute,
    same_as_input,
    tensor,
    with_sizes,
)
from gkestimator.operators.elementwise import FLOPS, GELU_TANH_FLOPS
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
from gkestimator.operators.signal import fft_flops

_QUICK_GELU = 6  # x sigmoid(alpha x): multiply, sigmoid (4), multiply
_ACTIVATIONS = {
    "Gelu": ("gelu", FLOPS["Gelu"][1]),
    "FastGelu": ("gelu_tanh", GELU_TANH_FLOPS),
    "BiasGelu": ("bias_gelu", FLOPS["Gelu"][1] + 1),
    "QuickGelu": ("quick_gelu", _QUICK_GELU),
    "BiasAdd": ("bias_add", 2),
    "BiasDropout": ("bias_add", 2),
}


@shape_rule("UnfoldTensor", domain=MS)
def unfold_types(ctx: ShapeContext) -> Outputs:
    """Return the slices of ``size`` along ``dim`` in a new last dimension."""
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_attribute(ctx, -1, len(x.shape), "dim")
    length = x.shape[axis]
    size = int_attribute(ctx, "size")
    step = int_attribute(ctx, "step", 1)
    if step < 1 or not 1 <= size <= length:
        raise ShapeError(f"slices of {size} every {step} along {length} elements")
    count = (length - size) // step + 1
    shape = (*with_sizes(x.shape, axis, count), size)
    return [TensorType(x.dtype, shape)]


@shape_rule("BiasDropout", "BitmaskDropout", "BitmaskBiasDropout", domain=MS)
def bias_dropout_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type and a mask, of which a bit mask packs 32 elements in each word."""
    x = tensor(ctx, 0)
    mask = TensorType(DType.BOOL, x.shape)
    if ctx.op_type != "BiasDropout":
        words = -(-math.prod(x.shape) // 32)
        mask = TensorType(DType.UINT32, (words,))
    return [x, mask][: ctx.outputs]


@shape_rule("TorchEmbedding", domain=MS)
def embedding_types(ctx: ShapeContext) -> Outputs:
    """Return a row of the weight for every index."""
    weight = tensor(ctx, 0, rank=2)
    shape = (*tensor(ctx, 1).shape, weight.shape[1])
    return [TensorType(weight.dtype, shape)]


@shape_rule("NGramRepeatBlock", domain=MS)
def repeat_block_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the scores."""
    return [tensor(ctx, 1, rank=2)]


@shape_rule("Unique", domain=MS)
def ms_unique_types(ctx: ShapeContext) -> Outputs:
    """Return the distinct values (at most all), where each element's is, and how often each occurs."""
    x = tensor(ctx, 0, rank=1)
    places = TensorType(DType.INT64, x.shape)
    outputs = [x._replace(bounded=True), places, places._replace(bounded=True)]
    return outputs[: ctx.outputs]


@shape_rule("Gelu", "QuickGelu", "FastGelu", "ScaledSiLU", "GroupNorm", "SkipGroupNorm", domain=MS)
@shape_rule("MoE", "QMoE", "LongformerAttention", "RotaryEmbedding", "MRotaryEmbedding", domain=MS)
@shape_rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=MS)
def same_types(ctx: ShapeContext) -> Outputs:
    """Return the first input's type for every output."""
    return same_as_input(ctx)


@lowering_rule("ScaledSiLU", domain=MS, kind="elementwise")
def scaled_silu(op: Operator, options: LoweringOptions) -> Lowered:
    """Return x sigmoid(alpha x) (6), times a scale where there is one."""
    operands = tensor_inputs(op)
    flops = 6 + (1 if len(operands) > 1 else 0)
    kernel = elementwise_kernel("scaled_silu", operands, (output_at(op),), flops_per_element=flops)
    return launched(kernel)


def _require_onesided(ctx: ShapeContext) -> None:
    if int_attribute(ctx, "onesided", 1) != 1:
        raise ShapeError("onesided is 0, expected 1 (the only form the operator has)")


@shape_rule("ComplexMul", "ComplexMulConj", domain=MS)
def complex_product_types(ctx: ShapeContext) -> Outputs:
    """Return the operands broadcast; the last dimension holds real and imaginary part."""
    a = tensor(ctx, 0, min_rank=1)
    b = tensor(ctx, 1, min_rank=1)
    if a.shape[-1] != 2 or b.shape[-1] != 2:
        raise ShapeError(f"inputs are {a} and {b}, expected 2 (complex) at the end")
    return [TensorType(a.dtype, broadcast(a.shape, b.shape))]


@lowering_rule("ComplexMul", "ComplexMulConj", domain=MS, kind="elementwise")
def complex_product(op: Operator, options: LoweringOptions) -> Lowered:
    """Return (a + bi)(c + di): four products and two sums for two result elements."""
    kernel = elementwise_kernel("complex_mul", tensor_inputs(op), (output_at(op),), flops_per_element=3)
    return launched(kernel)


@shape_rule("Rfft", domain=MS)
def rfft_types(ctx: ShapeContext) -> Outputs:
    """Return length // 2 + 1 complex numbers for each row."""
    x = tensor(ctx, 0, min_rank=1)
    _require_onesided(ctx)
    shape = (*x.shape[:-1], x.shape[-1] // 2 + 1, 2)
    return [TensorType(x.dtype, shape)]


@shape_rule("Irfft", domain=MS)
def irfft_types(ctx: ShapeContext) -> Outputs:
    """Return 2 (bins - 1) real numbers for each row."""
    x = tensor(ctx, 0, min_rank=2)
    _require_onesided(ctx)
    *rows, bins, parts = x.shape
    if parts != 2 or bins < 1:
        raise ShapeError(f"input is {x}, expected 2 (complex) in the last dimension")
    shape = (*rows, 2 * (bins - 1))
    return [TensorType(x.dtype, shape)]


@lowering_rule("Rfft", "Irfft", domain=MS, kind="fft")
def real_fft(op: Operator, options: LoweringOptions) -> Lowered:
    """Return real transforms of the last axis (cuFFT); the inverse is scaled by a kernel of its own."""
    source = input_at(op, 0)
    result = output_at(op)
    inverse = op.op_type == "Irfft"
    if inverse:
        length = result.shape[-1]
    else:
        length = source.shape[-1]
    rows = (result if inverse else source).elements // max(1, length)
    kernel = memory_kernel(
        Family.FFT,
        "fft",
        (source,),
        (result,),
        flops=rows * fft_flops(length, real=True),
        rows=max(1, rows),
        cols=max(1, length),
        workspace_bytes=max(source.nbytes, result.nbytes),
    )
    if not inverse:
        return launched(kernel)
    scale = elementwise_kernel("mul", (result,), (result,), flops_per_element=1)
    return launched(kernel, scale)


@lowering_rule(*_ACTIVATIONS, domain=MS, kind="elementwise")
def activation(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel; FastGelu adds its bias when it has one, BiasDropout is an addition (and a residual) at
    inference.
    """
    variant, flops = _ACTIVATIONS[op.op_type]
    operands = tensor_inputs(op)
    if op.op_type == "FastGelu" and len(operands) > 1:
        variant = "bias_gelu_tanh"
        flops = flops + 1
    if op.op_type == "BiasDropout":
        operands = present_inputs(op, 0, 1, 2)
        flops = len(operands) - 1
    kernel = elementwise_kernel(variant, operands, tensor_outputs(op)[:1], flops_per_element=flops)
    return launched(kernel)


@shape_rule("BiasSplitGelu", domain=MS)
def split_gelu_types(ctx: ShapeContext) -> Outputs:
    """Return half of the last dimension."""
    x = tensor(ctx, 0, min_rank=1)
    *rows, width = x.shape
    if width % 2:
        raise ShapeError(f"input is {x}, expected an even last dimension")
    return [TensorType(x.dtype, (*rows, width // 2))]


@lowering_rule("BiasSplitGelu", domain=MS, kind="gated_activation")
def bias_split_gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """Return bias on both halves, GELU of the second, product."""
    flops = FLOPS["Gelu"][1] + 3
    kernel = elementwise_kernel(
        "bias_split_gelu", tensor_inputs(op), (output_at(op),), flops_per_element=flops
    )
    return launched(kernel)


@shape_rule("BiasGelu", "BiasSoftmax", "BiasAdd", domain=MS)
def biased_types(ctx: ShapeContext) -> Outputs:
    """Return the first input's type, to which the bias has to broadcast."""
    return [with_addend(ctx)]


def with_addend(ctx: ShapeContext) -> TensorType:
    """Return the type of input 0; ShapeError unless input 1 broadcasts to its shape."""
    x = tensor(ctx, 0)
    addend = tensor(ctx, 1)
    if broadcast(x.shape, addend.shape) != x.shape:
        raise ShapeError(f"input 1 of {addend} does not fit input 0 of {x}")
    return x


@lowering_rule("BiasSoftmax", domain=MS, kind="softmax")
def bias_softmax(op: Operator, options: LoweringOptions) -> Lowered:
    """Return softmax of data + bias in one kernel."""
    source = input_at(op, 0)
    bias = input_at(op, 1)
    result = output_at(op)
    axis = operator_axis(op, len(source.shape), 1)
    cols = math.prod(source.shape[axis:])
    flat = Tensor(
        name=source.name,
        dtype=source.dtype,
        shape=(source.elements // max(1, cols), cols),
        storage=source.storage,
    )
    base = softmax_kernel("softmax", flat, result, 1)
    kernel = memory_kernel(
        Family.SOFTMAX,
        "bias_softmax",
        (source, bias),
        (result,),
        flops=base.flops + source.elements,
        rows=base.rows,
        cols=base.cols,
    )
    return launched(kernel)


@shape_rule("Inverse", domain=MS)
def inverse_types(ctx: ShapeContext) -> Outputs:
    """Return the type of the matrices, which have to be square."""
    x = tensor(ctx, 0, min_rank=2)
    if x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"input is {x}, expected square matrices")
    return [x]


@lowering_rule("Inverse", domain=MS, kind="matrix_inverse")
def inverse(op: Operator, options: LoweringOptions) -> Lowered:
    """Return LU factorisation and n triangular solves: 2 n^3 FLOPs a matrix."""
    source = input_at(op, 0)
    result = output_at(op)
    n = source.shape[-1]
    matrices = source.elements // max(1, n * n)
    kernel = memory_kernel(
        Family.REDUCTION,
        "inverse",
        (source,),
        (result,),
        flops=2 * n**3 * matrices,
        rows=max(1, matrices),
        cols=max(1, n * n),
        workspace_bytes=source.nbytes,
    )
    return launched(kernel)
