"""``com.microsoft`` operators on quantised data: what ONNX Runtime's quantiser and weight-only tools emit."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape
from gkestimator.operators.builders import (
    elementwise_kernel,
    gemm_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    reduction_kernel,
    softmax_kernel,
    tensor_inputs,
)
from gkestimator.operators.convolution import conv_shape, convolution_kernel
from gkestimator.operators.elementwise import FLOPS
from gkestimator.operators.matmul import gemm_shape, matmul_shape
from gkestimator.operators.microsoft.attention import MS, packed_attention
from gkestimator.operators.normalisation import axis_of
from gkestimator.operators.pooling import pool_kernel
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS, QUANTIZE_FLOPS
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []


def _scratch(base: Tensor, suffix: str, dtype: DType, shape: tuple[int, ...]) -> Tensor:
    name = f"{base.name}#{suffix}"
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name)


# op_type: (variant, FLOPs in floating point, operands that are dequantised)
_ELEMENTWISE = {
    "QLinearAdd": ("add", 1, 2),
    "QLinearMul": ("mul", 1, 2),
    "QLinearSigmoid": ("sigmoid", FLOPS["Sigmoid"][1], 1),
    "QLinearLeakyRelu": ("leaky_relu", FLOPS["LeakyRelu"][1], 1),
    "QLinearWhere": ("where", 1, 2),
}


@lowering_rule("QLinearAdd", "QLinearMul", domain=MS, kind="quantised_elementwise", quantised=True)
@lowering_rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearWhere", domain=MS, kind="quantised_elementwise")
def qlinear_elementwise(op: Operator, options: LoweringOptions) -> Lowered:
    """Dequantise each operand, calculate, quantise, in one kernel."""
    variant, flops, operands = _ELEMENTWISE[op.op_type]
    each = flops + operands * DEQUANTIZE_FLOPS + QUANTIZE_FLOPS
    kernel = elementwise_kernel(variant, tensor_inputs(op), (output_at(op),), flops_per_element=each)
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QLinearSoftmax", domain=MS, kind="softmax")
def qlinear_softmax(op: Operator, options: LoweringOptions) -> Lowered:
    """Softmax on int8 data."""
    source = input_at(op, 0)
    result = output_at(op)
    kernel = softmax_kernel("softmax", source, result, axis_of(op, len(source.shape), -1))
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QLinearConcat", domain=MS, kind="copy")
def qlinear_concat(op: Operator, options: LoweringOptions) -> Lowered:
    """Inputs: result scale and zero point, then (data, scale, zero point) triples; requantised on the way."""
    result = output_at(op)
    data = tuple(t for i in range(2, len(op.inputs), 3) if (t := optional_input(op, i)) is not None)
    kernel = memory_kernel(
        Family.COPY,
        "concat",
        data,
        (result,),
        flops=(DEQUANTIZE_FLOPS + QUANTIZE_FLOPS) * result.elements,
        rows=result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QLinearAveragePool", domain=MS, kind="pool")
def qlinear_average_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Average pooling on int8 data: dequantise and add per window element, divide and quantise per result."""
    kernel = pool_kernel(
        op, "average_pool", input_at(op, 0), (output_at(op),), 1 + DEQUANTIZE_FLOPS, 1 + QUANTIZE_FLOPS
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QLinearGlobalAveragePool", "QLinearReduceMean", domain=MS, kind="reduction")
def qlinear_mean(op: Operator, options: LoweringOptions) -> Lowered:
    """Mean of int8 data over pixels or axes."""
    result = output_at(op)
    kernel = reduction_kernel(
        "mean",
        input_at(op, 0),
        (result,),
        kept=result.elements,
        per_element=1 + DEQUANTIZE_FLOPS,
        per_row=1 + QUANTIZE_FLOPS,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QLinearConv", domain=MS, kind="integer_convolution")
def qlinear_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """QLinearConv, with channels last where its attribute says so."""
    source = input_at(op, 0)
    weight = input_at(op, 3)
    result = output_at(op)
    image = source.shape
    output = result.shape
    if op.attributes.get("channels_last", 0):
        image = (image[0], image[-1], *image[1:-1])
        output = (output[0], output[-1], *output[1:-1])
    others = tuple(t for i in (1, 2, 4, 5, 6, 7, 8) if (t := optional_input(op, i)) is not None)
    each = QUANTIZE_FLOPS + (1 if optional_input(op, 8) is not None else 0)
    kernel = convolution_kernel(
        conv_shape(op, image, weight.shape, output),
        (source, weight, *others),
        result,
        options,
        variant="qlinear",
        epilogue_flops=each * result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QGemm", domain=MS, kind="integer_gemm", quantised=True)
def qgemm(op: Operator, options: LoweringOptions) -> Lowered:
    """int8 Gemm: A at 0, B at 3, bias at 6; requantised in the epilogue, or scaled to float without a result
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
    others = tuple(t for i in (1, 2, 4, 5, 6, 7, 8) if (t := optional_input(op, i)) is not None)
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
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("MatMulIntegerToFloat", domain=MS, kind="integer_gemm", quantised=True)
def matmul_integer_to_float(op: Operator, options: LoweringOptions) -> Lowered:
    """int8 product scaled to float (and biased) in the epilogue."""
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
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("DynamicQuantizeMatMul", domain=MS, kind="integer_gemm", quantised=True)
def dynamic_quantize_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """A's extrema, its quantisation, then the int8 product scaled to float."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    result = output_at(op)
    scale = _scratch(result, "scale", DType.FLOAT, (1,))
    quantised = _scratch(result, "quantised", DType.UINT8, a.shape)
    extrema = reduction_kernel("min_max", a, (scale,), kept=1, per_element=2, per_row=8)
    convert = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        (a, scale),
        (quantised,),
        flops=QUANTIZE_FLOPS * a.elements,
        rows=a.elements,
    )
    others = tuple(t for i in (2, 3, 4) if (t := optional_input(op, i)) is not None)
    each = 1 + (1 if optional_input(op, 4) is not None else 0)
    product = gemm_kernel(
        matmul_shape(a.shape, b.shape),
        (quantised, b, *others),
        (result,),
        options,
        variant="integer_to_float",
        epilogue_flops=each * result.elements,
    )
    return Lowered(kernels=(extrema, convert, product), host_calls=1)


@lowering_rule("MatMulNBits", "MatMulBnb4", domain=MS, kind="weight_only_gemm")
def matmul_nbits(op: Operator, options: LoweringOptions) -> Lowered:
    """Weights of a few bits, dequantised (2 FLOPs each) on their way into a product in A's type."""
    a = input_at(op, 0)
    result = output_at(op)
    size_k = op.attributes.get("K")
    size_n = op.attributes.get("N")
    if isinstance(size_k, int):
        k = size_k
    else:
        k = a.shape[-1]
    if isinstance(size_n, int):
        n = size_n
    else:
        n = result.shape[-1]
    rows = a.elements // max(1, k)
    kernel = gemm_kernel(
        GemmShape(batch=1, m=rows, n=n, k=k),
        tensor_inputs(op),
        (result,),
        options,
        variant="weight_only",
        epilogue_flops=DEQUANTIZE_FLOPS * n * k,
        operand_dtype=a.dtype,
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QAttention", domain=MS, kind="attention", quantised=True)
def qattention(op: Operator, options: LoweringOptions) -> Lowered:
    """The packed Q, K, V product in int8, scaled to float; attention itself in float."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    others = tuple(t for i in (2, 3, 4, 6, 7) if (t := optional_input(op, i)) is not None)
    packed = _scratch(result, "qkv", result.dtype, (*source.shape[:-1], weight.shape[-1]))
    product = gemm_kernel(
        matmul_shape(source.shape, weight.shape),
        (source, weight, *others),
        (packed,),
        options,
        variant="integer_to_float",
        epilogue_flops=2 * packed.elements,
    )
    kernels = (
        product,
        *packed_attention(op, packed, result, optional_input(op, 5), optional_input(op, 8), options),
    )
    return Lowered(kernels=kernels, host_calls=1)


@lowering_rule("GatherBlockQuantized", domain=MS, kind="gather")
def gather_block_quantized(op: Operator, options: LoweringOptions) -> Lowered:
    """Rows of a block-quantised table, dequantised as they are gathered."""
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
    return Lowered(kernels=(kernel,), host_calls=1)
