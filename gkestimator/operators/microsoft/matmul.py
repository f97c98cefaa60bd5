"""``com.microsoft`` matrix products: fused, transposed, in float8, and on weights of a few bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import ShapeError, UnsupportedOperatorError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import GemmShape
from gkestimator.operators.builders import (
    gemm_kernel,
    input_at,
    int_of,
    optional_input,
    output_at,
    tensor_inputs,
)
from gkestimator.operators.checks import dtype_attribute, int_attribute, tensor
from gkestimator.operators.elementwise import FLOPS, GELU_TANH_FLOPS
from gkestimator.operators.matmul import gemm_result, gemm_shape, matmul_kernels, matmul_result, matmul_shape
from gkestimator.operators.narrow import weight_only_kernels
from gkestimator.operators.registry import (
    HALF_TYPES,
    MS,
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    matrix_precision,
    shape_rule,
)


@shape_rule("FusedGemm", "GemmFloat8", domain=MS)
def fused_gemm_types(ctx: ShapeContext) -> Outputs:
    """Return the product of two matrices in the type that ``dtype`` names, A's (float8: float) by default."""
    a = tensor(ctx, 0)
    if ctx.op_type == "GemmFloat8":
        default = DType.FLOAT
    else:
        default = a.dtype
    shape = gemm_result(ctx, a.shape, tensor(ctx, 1).shape)
    return [TensorType(dtype_attribute(ctx, "dtype", default), shape)]


_FLOPS_BY_NAME = {key.upper(): flops for key, (_, flops, _) in FLOPS.items()}


def activation_flops(op: Operator) -> int:
    """Return FLOPs per element of the attribute ``activation`` of a fused operator (0 without one).

    Raises UnsupportedOperatorError for an activation that no elementwise rule knows.
    """
    name = op.attributes.get("activation")
    if not isinstance(name, str) or name.upper() in ("", "NONE"):
        return 0
    known = _FLOPS_BY_NAME.get(name.upper())
    if known is None:
        raise UnsupportedOperatorError(
            f"{op.op_type} {op.name!r}: activation {name!r} is not known, expected an elementwise operator's name"
        )
    return known


@lowering_rule("FusedGemm", domain=MS, kind="gemm", autocast="half")
def fused_gemm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return gemm with bias and activation in the epilogue."""
    shape = gemm_shape(op)
    per_element = activation_flops(op) + (1 if optional_input(op, 2) is not None else 0)
    kernels = matmul_kernels(
        shape,
        tensor_inputs(op),
        output_at(op),
        options,
        variant="fused",
        epilogue_flops=per_element * shape.m * shape.n,
    )
    return launched(*kernels)


def product_result(ctx: ShapeContext, a: Shape, b: Shape) -> Shape:
    """Return the shape of a matrix product with transA, transB, transBatchA and transBatchB.

    transBatch: the first dimension moves behind the batch.
    """
    return matmul_result(turned(ctx.attributes, a, "A"), turned(ctx.attributes, b, "B"))


def turned(attributes: Mapping[str, Any], shape: Shape, side: str) -> Shape:
    """Return ``shape`` with the dimensions moved that the attributes of operand ``side`` say."""
    if attributes.get(f"transBatch{side}") and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    if attributes.get(f"trans{side}") and len(shape) > 1:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


@shape_rule("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", domain=MS)
@shape_rule("SparseToDenseMatMul", "GemmFastGelu", domain=MS)
def product_types(ctx: ShapeContext) -> Outputs:
    """Return the product in A's type."""
    a = tensor(ctx, 0)
    shape = product_result(ctx, a.shape, tensor(ctx, 1).shape)
    return [TensorType(a.dtype, shape)]


@lowering_rule("FusedMatMul", domain=MS, kind="gemm", autocast="half")
@lowering_rule("TransposeMatMul", "FusedMatMulActivation", domain=MS, kind="gemm")
def fused_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """Return MatMul that reads its operands transposed (last two dimensions, or batch before rows) and scales by
    alpha.
    """
    a = input_at(op, 0)
    b = input_at(op, 1)
    shape = matmul_shape(turned(op.attributes, a.shape, "A"), turned(op.attributes, b.shape, "B"))
    per_element = activation_flops(op)
    if op.attributes.get("alpha", 1.0) != 1.0:
        per_element += 1
    epilogue = per_element * shape.batch * shape.m * shape.n
    return launched(*matmul_kernels(shape, (a, b), output_at(op), options, epilogue_flops=epilogue))


@lowering_rule("GemmFastGelu", domain=MS, kind="gemm")
def gemm_fast_gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """Return MatMul, bias and tanh-GELU in the epilogue."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    shape = matmul_shape(a.shape, b.shape)
    per_element = GELU_TANH_FLOPS + (1 if optional_input(op, 2) is not None else 0)
    kernels = matmul_kernels(
        shape,
        tensor_inputs(op),
        output_at(op),
        options,
        variant="fused",
        epilogue_flops=per_element * shape.batch * shape.m * shape.n,
    )
    return launched(*kernels)


@lowering_rule("GemmFloat8", domain=MS, kind="gemm")
def gemm_float8(op: Operator, options: LoweringOptions) -> Lowered:
    """Return gemm on float8 operands with scales, bias and activation in the epilogue."""
    shape = gemm_shape(op)
    result = output_at(op)
    per_element = 1 + (1 if optional_input(op, 2) is not None else 0) + activation_flops(op)
    kernel = gemm_kernel(
        shape,
        tensor_inputs(op),
        (result,),
        options,
        variant="fused",
        epilogue_flops=per_element * shape.m * shape.n,
    )
    return launched(kernel)


@shape_rule("MatMulNBits", "MatMulBnb4", domain=MS)
def nbits_product_types(ctx: ShapeContext) -> Outputs:
    """Return A (..., K) times a packed weight of N columns; K and N are attributes."""
    a = tensor(ctx, 0, min_rank=1)
    k = int_attribute(ctx, "K")
    n = int_attribute(ctx, "N")
    if n < 1 or a.shape[-1] != k:
        raise ShapeError(f"input is {a}, K is {k} and N {n}")
    shape = (*a.shape[:-1], n)
    return [TensorType(a.dtype, shape)]


_FEW_BITS = 4


@lowering_rule("MatMulNBits", "MatMulBnb4", domain=MS, kind="weight_only_gemm")
def matmul_nbits(op: Operator, options: LoweringOptions) -> Lowered:
    """Return weights of a few bits, dequantised (2 FLOPs each) on their way into a product in A's type."""
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
    shape = GemmShape(batch=1, m=rows, n=n, k=k)
    precision = matrix_precision(a.dtype, options)
    if a.dtype in HALF_TYPES:
        precision = Precision.W8A16
        if int_of(op, "bits", 4) <= _FEW_BITS:
            precision = Precision.W4A16
    return launched(*weight_only_kernels(shape, tensor_inputs(op), result, options, precision))
