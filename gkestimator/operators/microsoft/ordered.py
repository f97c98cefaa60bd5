"""``com.microsoft`` QOrdered operators (int8 transformers on cublasLt) and float8 products."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.attention import AttentionShape, attention_kernels
from gkestimator.operators.builders import (
    LAYERNORM_FLOPS,
    elementwise_kernel,
    gemm_kernel,
    input_at,
    layernorm_kernel,
    memory_kernel,
    optional_input,
    output_at,
    tensor_inputs,
)
from gkestimator.operators.elementwise import FLOPS
from gkestimator.operators.matmul import gemm_shape, matmul_shape
from gkestimator.operators.microsoft.attention import MS, heads_of
from gkestimator.operators.microsoft.floating import activation_flops
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS, QUANTIZE_FLOPS
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []

_BOTH = DEQUANTIZE_FLOPS + QUANTIZE_FLOPS


def _one(kernel: Kernel) -> Lowered:
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QuantizeWithOrder", domain=MS, kind="quantize", quantised=True)
def quantize_with_order(op: Operator, options: LoweringOptions) -> Lowered:
    """Quantisation that also changes the matrix layout."""
    result = output_at(op)
    flops = QUANTIZE_FLOPS * result.elements
    return _one(
        memory_kernel(
            Family.QUANTIZE, "quantize", tensor_inputs(op), (result,), flops=flops, rows=result.elements
        )
    )


@lowering_rule("DequantizeWithOrder", domain=MS, kind="dequantize")
def dequantize_with_order(op: Operator, options: LoweringOptions) -> Lowered:
    """Dequantisation that also changes the matrix layout."""
    result = output_at(op)
    flops = DEQUANTIZE_FLOPS * result.elements
    return _one(
        memory_kernel(
            Family.QUANTIZE, "dequantize", tensor_inputs(op), (result,), flops=flops, rows=result.elements
        )
    )


@lowering_rule("QOrderedGelu", domain=MS, kind="quantised_elementwise", quantised=True)
def qordered_gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """Dequantise, exact GELU, quantise."""
    each = FLOPS["Gelu"][1] + _BOTH
    return _one(elementwise_kernel("gelu", (input_at(op, 0),), (output_at(op),), flops_per_element=each))


@lowering_rule("QOrderedLayerNormalization", domain=MS, kind="layer_norm", quantised=True)
def qordered_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """X, its scale, gamma, beta, the result's scale: layer normalisation of int8 rows in floating point."""
    source = input_at(op, 0)
    result = output_at(op)
    cols = source.shape[-1]
    parameters = tuple(t for i in (2, 3) if (t := optional_input(op, i)) is not None)
    return _one(
        layernorm_kernel(
            "layer_norm",
            (source, *parameters),
            (result,),
            rows=source.elements // max(1, cols),
            cols=cols,
            affine=len(parameters),
            per_element=LAYERNORM_FLOPS + _BOTH,
        )
    )


@lowering_rule("QOrderedMatMul", domain=MS, kind="integer_gemm", quantised=True)
def qordered_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """int8 A (0) times B (2), bias (5) and residual (6) in the requantising epilogue."""
    a = input_at(op, 0)
    b = input_at(op, 2)
    result = output_at(op)
    rest = tuple(t for i in (1, 3, 4, 5, 6, 7) if (t := optional_input(op, i)) is not None)
    each = QUANTIZE_FLOPS + sum(1 for i in (5, 6) if optional_input(op, i) is not None)
    return _one(
        gemm_kernel(
            matmul_shape(a.shape, b.shape),
            (a, b, *rest),
            (result,),
            options,
            variant="qlinear",
            epilogue_flops=each * result.elements,
        )
    )


@lowering_rule("QOrderedAttention", domain=MS, kind="attention", quantised=True)
def qordered_attention(op: Operator, options: LoweringOptions) -> Lowered:
    """Three int8 products (weights 5, 6, 7; biases 11, 12, 13), each requantised, then attention on int8."""
    source = input_at(op, 0)
    result = output_at(op)
    batch, length, hidden = source.shape
    heads = heads_of(op, "num_heads")
    projected: list[Tensor] = []
    kernels: list[Kernel] = []
    for letter, weight_at, bias_at in (("q", 5, 11), ("k", 6, 12), ("v", 7, 13)):
        weight = input_at(op, weight_at)
        bias = optional_input(op, bias_at)
        name = f"{result.name}#{letter}"
        part = Tensor(name=name, dtype=DType.INT8, shape=(batch, length, weight.shape[1]), storage=name)
        if bias is None:
            operands = (source, weight)
        else:
            operands = (source, weight, bias)
        each = QUANTIZE_FLOPS + (0 if bias is None else 1)
        shape = GemmShape(batch=1, m=batch * length, n=weight.shape[1], k=hidden)
        kernels.append(
            gemm_kernel(
                shape, operands, (part,), options, variant="qlinear", epilogue_flops=each * part.elements
            )
        )
        projected.append(part)
    sizes = AttentionShape(
        batch=batch,
        heads=heads,
        kv_heads=heads,
        q_len=length,
        kv_len=length,
        qk_dim=projected[0].shape[-1] // heads,
        v_dim=projected[2].shape[-1] // heads,
    )
    kernels.extend(attention_kernels(sizes, projected, result, options))
    return Lowered(kernels=tuple(kernels), host_calls=1)


@lowering_rule("GemmFloat8", domain=MS, kind="gemm")
def gemm_float8(op: Operator, options: LoweringOptions) -> Lowered:
    """Gemm on float8 operands with scales, bias and activation in the epilogue."""
    shape = gemm_shape(op)
    result = output_at(op)
    per_element = 1 + (1 if optional_input(op, 2) is not None else 0) + activation_flops(op)
    return _one(
        gemm_kernel(
            shape,
            tensor_inputs(op),
            (result,),
            options,
            variant="fused",
            epilogue_flops=per_element * shape.m * shape.n,
        )
    )
