"""Shape rules of quantisation: QuantizeLinear and its inverse, and the operators of the QOperator form."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    dtype_attribute,
    matmul_shape,
    optional_tensor,
    tensor,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule
from gkestimator.operators.shapes.windows import conv_channels_first

__all__: list[str] = []


@shape_rule("QuantizeLinear")
@shape_rule("QuantizeLinear", domain="com.microsoft")
def _quantize(ctx: ShapeContext) -> Outputs:
    zero_point = optional_tensor(ctx, 2)
    default = DType.UINT8 if zero_point is None else zero_point.dtype
    return [TensorType(dtype_attribute(ctx, "output_dtype", default), tensor(ctx, 0).shape)]


# No view, but runtimes fuse it into its reader: what stays on the GPU is the quantised weight.
@shape_rule("DequantizeLinear", weight_view=True)
@shape_rule("DequantizeLinear", domain="com.microsoft", weight_view=True)
def _dequantize(ctx: ShapeContext) -> Outputs:
    scale = tensor(ctx, 1).dtype
    return [TensorType(dtype_attribute(ctx, "output_dtype", scale), tensor(ctx, 0).shape)]


@shape_rule("DynamicQuantizeLinear")
def _dynamic_quantize(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    return [TensorType(DType.UINT8, x.shape), TensorType(DType.FLOAT, ()), TensorType(DType.UINT8, ())]


@shape_rule("QLinearConv")
def _qlinear_conv(ctx: ShapeContext) -> Outputs:
    return [TensorType(tensor(ctx, 7).dtype, conv_channels_first(ctx, 0, 3))]


@shape_rule("QLinearMatMul")
def _qlinear_matmul(ctx: ShapeContext) -> Outputs:
    shape = matmul_shape(ctx, tensor(ctx, 0).shape, tensor(ctx, 3).shape)
    return [TensorType(tensor(ctx, 7).dtype, shape)]


@shape_rule("MatMulInteger")
def _matmul_integer(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.INT32, matmul_shape(ctx, tensor(ctx, 0).shape, tensor(ctx, 1).shape))]


@shape_rule("ConvInteger")
def _conv_integer(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.INT32, conv_channels_first(ctx))]
