"""``com.microsoft`` QOrdered operators (int8 transformers on cublasLt)."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.attention import attention_kernels
from gkestimator.operators.builders import (
    LAYERNORM_FLOPS,
    elementwise_kernel,
    gemm_kernel,
    input_at,
    layernorm_kernel,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
    scratch,
    tensor_inputs,
)
from gkestimator.operators.checks import dtype_attribute, tensor
from gkestimator.operators.elementwise import FLOPS
from gkestimator.operators.matmul import matmul_result, matmul_shape
from gkestimator.operators.microsoft.attention import packed_sizes
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

_BOTH = DEQUANTIZE_FLOPS + QUANTIZE_FLOPS


@shape_rule("QuantizeWithOrder", "QOrderedGelu", "QOrderedLayerNormalization", domain=MS)
@shape_rule("QOrderedLongformerAttention", domain=MS)
def ordered_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in int8."""
    return [TensorType(DType.INT8, tensor(ctx, 0).shape)]


@lowering_rule("QuantizeWithOrder", domain=MS, kind="quantize", quantised=True)
def quantize_with_order(op: Operator, options: LoweringOptions) -> Lowered:
    """Return quantisation that also changes the matrix layout."""
    result = output_at(op)
    flops = QUANTIZE_FLOPS * result.elements
    kernel = memory_kernel(
        Family.QUANTIZE, "quantize", tensor_inputs(op), (result,), flops=flops, rows=result.elements
    )
    return launched(kernel)


@shape_rule("DequantizeWithOrder", domain=MS)
def dequantize_ordered_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in the type that ``to`` names."""
    return [TensorType(dtype_attribute(ctx, "to"), tensor(ctx, 0).shape)]


@lowering_rule("DequantizeWithOrder", domain=MS, kind="dequantize")
def dequantize_with_order(op: Operator, options: LoweringOptions) -> Lowered:
    """Return dequantisation that also changes the matrix layout."""
    result = output_at(op)
    flops = DEQUANTIZE_FLOPS * result.elements
    kernel = memory_kernel(
        Family.QUANTIZE, "dequantize", tensor_inputs(op), (result,), flops=flops, rows=result.elements
    )
    return launched(kernel)


@lowering_rule("QOrderedGelu", domain=MS, kind="quantised_elementwise", quantised=True)
def qordered_gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """Return dequantise, exact GELU, quantise."""
    each = FLOPS["Gelu"][1] + _BOTH
    kernel = elementwise_kernel("gelu", (input_at(op, 0),), (output_at(op),), flops_per_element=each)
    return launched(kernel)


@lowering_rule("QOrderedLayerNormalization", domain=MS, kind="layer_norm", quantised=True)
def qordered_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return X, its scale, gamma, beta, the result's scale: layer normalisation of int8 rows in floating point."""
    source = input_at(op, 0)
    result = output_at(op)
    cols = source.shape[-1]
    parameters = present_inputs(op, 2, 3)
    kernel = layernorm_kernel(
        "layer_norm",
        (source, *parameters),
        (result,),
        rows=source.elements // max(1, cols),
        cols=cols,
        affine=len(parameters),
        per_element=LAYERNORM_FLOPS + _BOTH,
    )
    return launched(kernel)


@shape_rule("QOrderedMatMul", domain=MS)
def ordered_matmul_types(ctx: ShapeContext) -> Outputs:
    """Return the product of inputs 0 and 2 in int8."""
    shape = matmul_result(tensor(ctx, 0).shape, tensor(ctx, 2).shape)
    return [TensorType(DType.INT8, shape)]


@lowering_rule("QOrderedMatMul", domain=MS, kind="integer_gemm", quantised=True)
def qordered_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 A (0) times B (2), bias (5) and residual (6) in the requantising epilogue."""
    a = input_at(op, 0)
    b = input_at(op, 2)
    result = output_at(op)
    rest = present_inputs(op, 1, 3, 4, 5, 6, 7)
    each = QUANTIZE_FLOPS + sum(1 for i in (5, 6) if optional_input(op, i) is not None)
    kernel = gemm_kernel(
        matmul_shape(a.shape, b.shape),
        (a, b, *rest),
        (result,),
        options,
        variant="qlinear",
        epilogue_flops=each * result.elements,
    )
    return launched(kernel)


@shape_rule("QOrderedAttention", domain=MS)
def ordered_attention_types(ctx: ShapeContext) -> Outputs:
    """Return (batch, length, width of the values) in int8."""
    batch, length, _ = tensor(ctx, 0, rank=3).shape
    shape = (batch, length, tensor(ctx, 7, rank=2).shape[1])
    return [TensorType(DType.INT8, shape)]


@lowering_rule("QOrderedAttention", domain=MS, kind="attention", quantised=True)
def qordered_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Return three int8 products (weights 5, 6, 7; biases 11, 12, 13), each requantised, then attention on int8."""
    source = input_at(op, 0)
    result = output_at(op)
    batch, length, hidden = source.shape
    parts: list[Tensor] = []
    kernels: list[Kernel] = []
    for place, letter in enumerate("qkv"):
        operands = (source, *present_inputs(op, 5 + place, 11 + place))
        width = operands[1].shape[1]
        part = scratch(result, letter, (batch, length, width), DType.INT8)
        each = QUANTIZE_FLOPS + len(operands) - 2
        product = gemm_kernel(
            GemmShape(batch=1, m=batch * length, n=width, k=hidden),
            operands,
            (part,),
            options,
            variant="qlinear",
            epilogue_flops=each * part.elements,
        )
        kernels.append(product)
        parts.append(part)
    sizes = packed_sizes(
        op,
        batch=batch,
        q_len=length,
        kv_len=length,
        qk_width=parts[0].shape[-1],
        v_width=parts[2].shape[-1],
    )
    kernels += attention_kernels(sizes, parts, result, options)
    return launched(*kernels)
