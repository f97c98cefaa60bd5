"""Conversion of element types: casts, and between floating point and quantised integers."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, OperatorGraph
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    cast_kernel,
    input_at,
    memory_kernel,
    output_at,
    reduction_kernel,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.checks import dtype_attribute, optional_tensor, tensor
from gkestimator.operators.records import declare_traits, traits_of
from gkestimator.operators.registry import (
    MS,
    SAME_STORAGE,
    Lowered,
    LoweringOptions,
    Outputs,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

QUANTIZE_FLOPS = 5  # divide, round, add the zero point, saturate at both ends
DEQUANTIZE_FLOPS = 2  # subtract the zero point, multiply

# TensorRT's developer guide: "Q/DQ Layer-Placement Recommendations" (layers that commute with them, layers that run in
# 8 bits where both sides are quantised) and "Layer Fusion" (pointwise layers, which take and give any type).
declare_traits("Conv", "ConvTranspose", "MatMul", "Gemm", few_bits="product")
declare_traits(
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", few_bits="moves"
)
declare_traits("Concat", "Split", "Slice", "Expand", "Tile", "Pad", few_bits="moves")
declare_traits("DepthToSpace", "SpaceToDepth", "MaxPool", "GlobalMaxPool", few_bits="moves")
declare_traits("AveragePool", "GlobalAveragePool", "ReduceMean", few_bits="pools")
declare_traits("Add", "Sub", "Mul", "Sum", "Max", "Min", "BatchNormalization", few_bits="pointwise")
declare_traits("Relu", "LeakyRelu", "PRelu", "Clip", "Elu", few_bits="pointwise")
declare_traits("Sigmoid", "HardSigmoid", "HardSwish", "Swish", few_bits="pointwise")
declare_traits("LayerNormalization", "Gelu", "GroupNormalization", few_bits="writes")
declare_traits("SkipLayerNormalization", "Gelu", "BiasGelu", "FastGelu", domain=MS, few_bits="writes")


@shape_rule("QuantizeLinear")
@shape_rule("QuantizeLinear", domain=MS)
def quantize_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in the type of the zero point, or the one that an attribute names."""
    zero_point = optional_tensor(ctx, 2)
    if zero_point is None:
        default = DType.UINT8
    else:
        default = zero_point.dtype
    return [TensorType(dtype_attribute(ctx, "output_dtype", default), tensor(ctx, 0).shape)]


def is_quantised(graph: OperatorGraph) -> bool:
    """Return True when ``graph`` holds operators on quantised activations (QDQ pairs, QOperators, dynamic ones).

    Weights alone in few bits do not count: they are still multiplied in floating point.
    """
    return any(traits_of(op.key).quantised for op in graph.operators)


@lowering_rule("QuantizeLinear", kind="quantize", autocast="declared", quantised=True)
@lowering_rule("QuantizeLinear", domain=MS, kind="quantize", autocast="declared", quantised=True)
def quantize(op: Operator, options: LoweringOptions) -> Lowered:
    """Return x / scale, rounded, shifted, saturated."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        tensor_inputs(op),
        (result,),
        flops=QUANTIZE_FLOPS * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


# No view, but runtimes fuse it into its reader: what stays on the GPU is the quantised weight.
@shape_rule("DequantizeLinear", weight_view=True)
@shape_rule("DequantizeLinear", domain=MS, weight_view=True)
def dequantize_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in the scale's type, or the one that an attribute names."""
    scale = tensor(ctx, 1).dtype
    return [TensorType(dtype_attribute(ctx, "output_dtype", scale), tensor(ctx, 0).shape)]


@lowering_rule("DequantizeLinear", kind="dequantize", autocast="declared")
@lowering_rule("DequantizeLinear", domain=MS, kind="dequantize", autocast="declared")
def dequantize(op: Operator, options: LoweringOptions) -> Lowered:
    """Return (x - zero point) x scale."""
    result = output_at(op)
    kernel = memory_kernel(
        Family.QUANTIZE,
        "dequantize",
        tensor_inputs(op),
        (result,),
        flops=DEQUANTIZE_FLOPS * result.elements,
        rows=result.elements,
    )
    return launched(kernel)


@shape_rule("DynamicQuantizeLinear")
def dynamic_quantize_types(ctx: ShapeContext) -> Outputs:
    """Return the quantised tensor, its scale and its zero point."""
    shape = tensor(ctx, 0).shape
    return [TensorType(DType.UINT8, shape), TensorType(DType.FLOAT, ()), TensorType(DType.UINT8, ())]


@lowering_rule("DynamicQuantizeLinear", kind="quantize", autocast="declared", quantised=True)
def dynamic_quantize(op: Operator, options: LoweringOptions) -> Lowered:
    """Return minimum and maximum of the tensor (2 an element), then quantisation with the scale that follows (8
    FLOPs once).
    """
    source = input_at(op, 0)
    writes = tensor_outputs(op)
    extrema = reduction_kernel("min_max", source, writes[1:], kept=1, per_element=2, per_row=8)
    kernel = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        (source, *writes[1:]),
        writes[:1],
        flops=QUANTIZE_FLOPS * source.elements,
        rows=source.elements,
    )
    return launched(extrema, kernel)


@shape_rule("Cast")
def cast_types(ctx: ShapeContext) -> Outputs:
    """Return the shape of the input in element type ``to``: a number, before opset 6 a word."""
    word = ctx.attributes.get("to")
    if isinstance(word, str):
        target = DType(word.lower())
    else:
        target = dtype_attribute(ctx, "to")
    return [TensorType(target, tensor(ctx, 0).shape)]


@shape_rule("CastLike")
def cast_like_types(ctx: ShapeContext) -> Outputs:
    """Return the shape of the first input in the element type of the second."""
    return [TensorType(tensor(ctx, 1).dtype, tensor(ctx, 0).shape)]


@lowering_rule("Cast", kind="cast", autocast="declared", keeps_layout=True)
@lowering_rule("CastLike", kind="cast", keeps_layout=True)
def cast(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a conversion; to the type it already has it is the source itself."""
    source = input_at(op, 0)
    result = output_at(op)
    if source.dtype is result.dtype:
        return SAME_STORAGE
    return launched(cast_kernel(source, result.dtype))
