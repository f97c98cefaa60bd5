"""``com.microsoft`` operators on quantised data: what ONNX Runtime's quantiser and weight-only tools emit."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    elementwise_kernel,
    gemm_kernel,
    input_at,
    memory_kernel,
    operator_axis,
    optional_input,
    output_at,
    present_inputs,
    reduction_kernel,
    scratch,
    softmax_kernel,
    tensor_inputs,
)
from gkestimator.operators.checks import (
    axes_of,
    axis_attribute,
    axis_of,
    broadcast,
    channels_first,
    int_attribute,
    ints_attribute,
    joined,
    optional_tensor,
    tensor,
    with_sizes,
    without_axes,
)
from gkestimator.operators.convolution import conv_result, conv_shape, convolution_kernel
from gkestimator.operators.elementwise import FLOPS
from gkestimator.operators.matmul import gemm_result, gemm_shape, matmul_result, matmul_shape
from gkestimator.operators.microsoft.attention import packed_attention
from gkestimator.operators.microsoft.convolution import nhwc_result
from gkestimator.operators.pooling import pool_kernel, pooled
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS, QUANTIZE_FLOPS
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

# op_type: (variant, FLOPs in floating point, operands that are dequantised)
_ELEMENTWISE = {
    "QLinearAdd": ("add", 1, 2),
    "QLinearMul": ("mul", 1, 2),
    "QLinearSigmoid": ("sigmoid", FLOPS["Sigmoid"][1], 1),
    "QLinearLeakyRelu": ("leaky_relu", FLOPS["LeakyRelu"][1], 1),
    "QLinearWhere": ("where", 1, 2),
}


@shape_rule("MulInteger", domain=MS)
def mul_integer_types(ctx: ShapeContext) -> Outputs:
    """Return operands 0 and 2 broadcast, in int32."""
    shape = broadcast(tensor(ctx, 0).shape, tensor(ctx, 2).shape)
    return [TensorType(DType.INT32, shape)]


@shape_rule("QLinearAdd", "QLinearMul", domain=MS)
def qlinear_binary_types(ctx: ShapeContext) -> Outputs:
    """Return operands 0 and 3 broadcast."""
    a = tensor(ctx, 0)
    shape = broadcast(a.shape, tensor(ctx, 3).shape)
    return [TensorType(a.dtype, shape)]


@shape_rule("QLinearWhere", domain=MS)
def qlinear_where_types(ctx: ShapeContext) -> Outputs:
    """Return the condition and both choices (1 and 4) broadcast."""
    condition = tensor(ctx, 0)
    x = tensor(ctx, 1)
    y = tensor(ctx, 4)
    shape = broadcast(condition.shape, x.shape, y.shape)
    return [TensorType(x.dtype, shape)]


@lowering_rule("QLinearAdd", "QLinearMul", domain=MS, kind="quantised_elementwise", quantised=True)
@lowering_rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearWhere", domain=MS, kind="quantised_elementwise")
def qlinear_elementwise(op: Operator, options: LoweringOptions) -> Lowered:
    """Return dequantise each operand, calculate, quantise, in one kernel."""
    variant, flops, operands = _ELEMENTWISE[op.op_type]
    each = flops + operands * DEQUANTIZE_FLOPS + QUANTIZE_FLOPS
    kernel = elementwise_kernel(variant, tensor_inputs(op), (output_at(op),), flops_per_element=each)
    return launched(kernel)


@lowering_rule("QLinearSoftmax", domain=MS, kind="softmax")
def qlinear_softmax(op: Operator, options: LoweringOptions) -> Lowered:
    """Return softmax on int8 data."""
    source = input_at(op, 0)
    result = output_at(op)
    kernel = softmax_kernel("softmax", source, result, operator_axis(op, len(source.shape), -1))
    return launched(kernel)


@shape_rule("QLinearConcat", domain=MS)
def qlinear_concat_types(ctx: ShapeContext) -> Outputs:
    """Return the parts joined; inputs are Y_scale, Y_zero_point, then (tensor, scale, zero point) for each part."""
    dtype = tensor(ctx, 1).dtype
    count, rest = divmod(len(ctx.types) - 2, 3)
    if rest or count < 1:
        raise ShapeError(f"{len(ctx.types)} inputs, expected 2 and a multiple of 3")
    parts = [tensor(ctx, 2 + 3 * index, min_rank=1).shape for index in range(count)]
    axis = axis_of(int_attribute(ctx, "axis"), len(parts[0]))
    return [TensorType(dtype, joined(parts, axis))]


@lowering_rule("QLinearConcat", domain=MS, kind="copy")
def qlinear_concat(op: Operator, options: LoweringOptions) -> Lowered:
    """Return inputs: result scale and zero point, then (data, scale, zero point) triples; requantised on the way."""
    result = output_at(op)
    data = present_inputs(op, *range(2, len(op.inputs), 3))
    kernel = memory_kernel(
        Family.COPY,
        "concat",
        data,
        (result,),
        flops=(DEQUANTIZE_FLOPS + QUANTIZE_FLOPS) * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


@shape_rule("QLinearAveragePool", "QLinearGlobalAveragePool", domain=MS)
def qlinear_pool_types(ctx: ShapeContext) -> Outputs:
    """Return the pooled input, channels last where its attribute says so."""
    last = bool(int_attribute(ctx, "channels_last", 0))
    return [pooled(ctx, channels_last=last, whole=ctx.op_type == "QLinearGlobalAveragePool")]


@lowering_rule("QLinearAveragePool", domain=MS, kind="pool")
def qlinear_average_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Return average pooling on int8 data: dequantise and add per window element, divide and quantise per result."""
    kernel = pool_kernel(
        op, "average_pool", input_at(op, 0), (output_at(op),), 1 + DEQUANTIZE_FLOPS, 1 + QUANTIZE_FLOPS
    )
    return launched(kernel)


@shape_rule("QLinearReduceMean", "ReduceSumInteger", domain=MS)
def qlinear_reduce_types(ctx: ShapeContext) -> Outputs:
    """Return the shape with the axes reduced; sums of 8-bit integers have 32 bits."""
    x = tensor(ctx, 0)
    axes = ints_attribute(ctx, "axes")
    if axes is None:
        axes = tuple(range(len(x.shape)))
    dtype = x.dtype
    if ctx.op_type == "ReduceSumInteger":
        if x.dtype is DType.INT8:
            dtype = DType.INT32
        else:
            dtype = DType.UINT32
    keep = bool(int_attribute(ctx, "keepdims", 1))
    reduced = without_axes(x.shape, set(axes_of(axes, len(x.shape))), keep)
    return [TensorType(dtype, reduced)]


@lowering_rule("QLinearGlobalAveragePool", "QLinearReduceMean", domain=MS, kind="reduction")
def qlinear_mean(op: Operator, options: LoweringOptions) -> Lowered:
    """Return mean of int8 data over pixels or axes."""
    result = output_at(op)
    kernel = reduction_kernel(
        "mean",
        input_at(op, 0),
        (result,),
        kept=result.elements,
        per_element=1 + DEQUANTIZE_FLOPS,
        per_row=1 + QUANTIZE_FLOPS,
    )
    return launched(kernel)


@shape_rule("QLinearConv", domain=MS)
def qlinear_conv_types(ctx: ShapeContext) -> Outputs:
    """Return the convolution of inputs 0 and 3 in the type of the result's zero point."""
    x = tensor(ctx, 0, min_rank=3).shape
    w = tensor(ctx, 3, min_rank=3).shape
    if int_attribute(ctx, "channels_last", 0):
        shape = nhwc_result(ctx, x, w)
    else:
        shape = conv_result(ctx, x, w)
    return [TensorType(tensor(ctx, 7).dtype, shape)]


@lowering_rule("QLinearConv", domain=MS, kind="integer_convolution")
def qlinear_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return QLinearConv, with channels last where its attribute says so."""
    source = input_at(op, 0)
    weight = input_at(op, 3)
    result = output_at(op)
    image = source.shape
    output = result.shape
    if op.attributes.get("channels_last", 0):
        image = channels_first(image)
        output = channels_first(output)
    others = present_inputs(op, 1, 2, 4, 5, 6, 7, 8)
    each = QUANTIZE_FLOPS + (1 if optional_input(op, 8) is not None else 0)
    kernel = convolution_kernel(
        conv_shape(op, image, weight.shape, output),
        (source, weight, *others),
        result,
        options,
        variant="qlinear",
        epilogue_flops=each * result.elements,
    )
    return launched(kernel)


@shape_rule("QGemm", domain=MS)
def qgemm_types(ctx: ShapeContext) -> Outputs:
    """Return the product of inputs 0 and 3, quantised with y_zero_point, else in the scale's type."""
    dtype = (optional_tensor(ctx, 8) or tensor(ctx, 1)).dtype
    shape = gemm_result(ctx, tensor(ctx, 0).shape, tensor(ctx, 3).shape)
    return [TensorType(dtype, shape)]


@lowering_rule("QGemm", domain=MS, kind="integer_gemm", quantised=True)
def qgemm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 Gemm: A at 0, B at 3, bias at 6; requantised in the epilogue, or scaled to float without a result
    scale.
    """
    moved = Operator(
        name=op.name,
        domain=op.domain,
        op_type=op.op_type,
        version=op.version,
        attributes=op.attributes,
        inputs=(op.inputs[0], op.inputs[3]),
        outputs=op.outputs,
    )
    shape = gemm_shape(moved)
    others = present_inputs(op, 1, 2, 4, 5, 6, 7, 8)
    each = (QUANTIZE_FLOPS if optional_input(op, 7) is not None else 1) + (
        1 if optional_input(op, 6) is not None else 0
    )
    kernel = gemm_kernel(
        shape,
        (input_at(op, 0), input_at(op, 3), *others),
        (output_at(op),),
        options,
        variant="qlinear",
        epilogue_flops=each * shape.m * shape.n,
    )
    return launched(kernel)


@shape_rule("MatMulIntegerToFloat", domain=MS)
def integer_to_float_types(ctx: ShapeContext) -> Outputs:
    """Return the product in the scale's type."""
    shape = matmul_result(tensor(ctx, 0).shape, tensor(ctx, 1).shape)
    return [TensorType(tensor(ctx, 2).dtype, shape)]


@lowering_rule("MatMulIntegerToFloat", domain=MS, kind="integer_gemm", quantised=True)
def matmul_integer_to_float(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 product scaled to float (and biased) in the epilogue."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    result = output_at(op)
    each = 1 + (1 if optional_input(op, 6) is not None else 0)
    kernel = gemm_kernel(
        matmul_shape(a.shape, b.shape),
        tensor_inputs(op),
        (result,),
        options,
        variant="integer_to_float",
        epilogue_flops=each * result.elements,
    )
    return launched(kernel)


@shape_rule("DynamicQuantizeMatMul", domain=MS)
def dynamic_matmul_types(ctx: ShapeContext) -> Outputs:
    """Return the product in A's type."""
    a = tensor(ctx, 0)
    shape = matmul_result(a.shape, tensor(ctx, 1).shape)
    return [TensorType(a.dtype, shape)]


@lowering_rule("DynamicQuantizeMatMul", domain=MS, kind="integer_gemm", quantised=True)
def dynamic_quantize_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a's extrema, its quantisation, then the int8 product scaled to float."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    result = output_at(op)
    scale = scratch(result, "scale", (1,), DType.FLOAT)
    quantised = scratch(result, "quantised", a.shape, DType.UINT8)
    extrema = reduction_kernel("min_max", a, (scale,), kept=1, per_element=2, per_row=8)
    convert = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        (a, scale),
        (quantised,),
        flops=QUANTIZE_FLOPS * a.elements,
        rows=a.elements,
    )
    others = present_inputs(op, 2, 3, 4)
    each = 1 + (1 if optional_input(op, 4) is not None else 0)
    product = gemm_kernel(
        matmul_shape(a.shape, b.shape),
        (quantised, b, *others),
        (result,),
        options,
        variant="integer_to_float",
        epilogue_flops=each * result.elements,
    )
    return launched(extrema, convert, product)


@lowering_rule("QAttention", domain=MS, kind="attention", quantised=True)
def qattention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the packed Q, K, V product in int8, scaled to float; attention itself in float."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    packed = scratch(output_at(op), "qkv", (*source.shape[:-1], weight.shape[-1]))
    product = gemm_kernel(
        matmul_shape(source.shape, weight.shape),
        (source, weight, *present_inputs(op, 2, 3, 4, 6, 7)),
        (packed,),
        options,
        variant="integer_to_float",
        epilogue_flops=2 * packed.elements,
    )
    return launched(
        product, *packed_attention(op, packed, optional_input(op, 5), optional_input(op, 8), options)
    )


@shape_rule("GatherBlockQuantized", domain=MS)
def gather_block_types(ctx: ShapeContext) -> Outputs:
    """Return what Gather does of a block-quantised table.

    uint8 elements of 2 or 4 bits are packed along the last axis.
    """
    data = tensor(ctx, 0, min_rank=1)
    indices = tensor(ctx, 1)
    axis = axis_attribute(ctx, 0, len(data.shape), "gather_axis")
    bits = int_attribute(ctx, "bits", 4)
    if bits not in (2, 4, 8):
        raise ShapeError(f"bits are {bits}, expected 2, 4 or 8")
    shape = data.shape
    if data.dtype is DType.UINT8:
        shape = (*shape[:-1], shape[-1] * (8 // bits))
    result = with_sizes(shape, axis, *indices.shape)
    return [TensorType(tensor(ctx, 2).dtype, result)]


@lowering_rule("GatherBlockQuantized", domain=MS, kind="gather")
def gather_block_quantized(op: Operator, options: LoweringOptions) -> Lowered:
    """Return rows of a block-quantised table, dequantised as they are gathered."""
    table = input_at(op, 0)
    indices = input_at(op, 1)
    result = output_at(op)
    chosen = min(table.nbytes, table.dtype.nbytes(result.elements))
    kernel = memory_kernel(
        Family.GATHER,
        "gather_dequantize",
        tensor_inputs(op),
        (result,),
        flops=DEQUANTIZE_FLOPS * result.elements,
        rows=max(1, indices.elements),
        cols=max(1, result.elements // max(1, indices.elements)),
        read_bytes=chosen + indices.nbytes,
    )
    return launched(kernel)
