"""``com.microsoft`` convolutions and pools: fused by ONNX Runtime's optimiser, channels last, or in blocks.

Files optimised for a CPU hold the blocked layout (com.microsoft.nchwc); shapes are the logical (N, C, spatial).
"""

from __future__ import annotations

import math
from dataclasses import replace

from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    copy_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
)
from gkestimator.operators.checks import (
    channels_first,
    constant_ints,
    has_input,
    int_attribute,
    ints_attribute,
    tensor,
    unknown_value,
)
from gkestimator.operators.convolution import (
    channels_first_result,
    conv_kernels,
    conv_result,
    conv_shape,
    transposed_result,
)
from gkestimator.operators.microsoft.matmul import activation_flops
from gkestimator.operators.pooling import pooled, read_window, slid
from gkestimator.operators.registry import (
    MS,
    NCHWC,
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)


def nhwc_result(ctx: ShapeContext, x: Shape, w: Shape) -> Shape:
    """Return the output shape of a channels-last convolution.

    The weight is (M, C / group, kernel) or channels last too: both are in use, and kernel_shape tells which one it
    is.
    """
    kernel = ints_attribute(ctx, "kernel_shape")
    groups = int_attribute(ctx, "group", 1)
    last = kernel is not None and w[2:] != kernel and w[1:-1] == kernel
    # Only a weight whose channels come last fits the image like this.
    if last and x[-1] == w[-1] * groups:
        w = channels_first(w)
    return conv_result(ctx, x, w, channels_last=True)


@shape_rule("FusedConv", domain=MS)
def fused_conv_types(ctx: ShapeContext) -> Outputs:
    """Return what Conv does."""
    return [TensorType(tensor(ctx, 0).dtype, channels_first_result(ctx))]


@shape_rule("Conv", domain=NCHWC)
def blocked_conv_types(ctx: ShapeContext) -> Outputs:
    """Return what Conv does; the block's padding lets channels of input and weight differ, so nothing compares
    them.
    """
    x = tensor(ctx, 0, min_rank=3)
    w = tensor(ctx, 1, rank=len(x.shape)).shape
    spatial = slid(read_window(ctx, len(w) - 2, w[2:]), x.shape[2:])
    shape = (x.shape[0], w[0], *spatial)
    return [TensorType(x.dtype, shape)]


@lowering_rule("FusedConv", domain=MS, kind="convolution", autocast="half")
@lowering_rule("Conv", domain=NCHWC, kind="convolution", autocast="half", feeds_in_place=True)
def fused_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return cudnnConvolutionBiasActivationForward: bias, residual and activation in the epilogue of one kernel."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    extra = present_inputs(op, 3)
    per_element = activation_flops(op) + len(extra)
    kernels = conv_kernels(
        conv_shape(op, source.shape, weight.shape, result.shape),
        source,
        weight,
        optional_input(op, 2),
        result,
        options,
        fused_bias=True,
        extra_reads=extra,
        epilogue_flops=per_element * result.elements,
    )
    return launched(*kernels)


@shape_rule("NhwcConv", "NhwcFusedConv", domain=MS)
def nhwc_conv_types(ctx: ShapeContext) -> Outputs:
    """Return the channels-last convolution."""
    x = tensor(ctx, 0, min_rank=3)
    w = tensor(ctx, 1, min_rank=3)
    shape = nhwc_result(ctx, x.shape, w.shape)
    return [TensorType(x.dtype, shape)]


@lowering_rule("NhwcConv", domain=MS, kind="convolution", autocast="half")
@lowering_rule("NhwcFusedConv", domain=MS, kind="convolution")
def nhwc_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return input (N, spatial, C), weight (M, spatial, C/group): no layout conversion, so no scratch for one."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    extra = present_inputs(op, 3)
    per_element = activation_flops(op) + len(extra)
    kernels = conv_kernels(
        conv_shape(
            op, channels_first(source.shape), channels_first(weight.shape), channels_first(result.shape)
        ),
        source,
        weight,
        optional_input(op, 2),
        result,
        options,
        fused_bias=True,
        extra_reads=extra,
        epilogue_flops=per_element * result.elements,
        channels_last=True,
    )
    return launched(*(replace(kernel, workspace_bytes=0) for kernel in kernels))


@shape_rule("ConvTransposeWithDynamicPads", domain=MS)
def conv_transpose_pads_types(ctx: ShapeContext) -> Outputs:
    """Return the shape of a transposed convolution whose pads are an input."""
    x = tensor(ctx, 0, min_rank=3)
    pads = constant_ints(ctx, 2)
    if pads is None and has_input(ctx, 2):
        return [unknown_value(ctx, 2, "pads", x.dtype, rank=len(x.shape))]
    if pads is not None and len(pads) != 2 * (len(x.shape) - 2):
        raise ShapeError(f"pads have {len(pads)} items, expected {2 * (len(x.shape) - 2)}")
    return [transposed_result(ctx, pads)]


@lowering_rule("ConvTransposeWithDynamicPads", domain=MS, kind="transposed_convolution")
def conv_transpose_dynamic(op: Operator, options: LoweringOptions) -> Lowered:
    """Return ConvTranspose whose pads are an input; the bias is input 3."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    shape = conv_shape(op, source.shape, weight.shape, result.shape, transposed=True)
    kernels = conv_kernels(shape, source, weight, optional_input(op, 3), result, options, transposed=True)
    return launched(*kernels)


@shape_rule("ReorderInput", domain=NCHWC)
def reorder_input_types(ctx: ShapeContext) -> Outputs:
    """Return the logical (N, C, spatial): the padding of C to the block is in the weights."""
    x = tensor(ctx, 0, min_rank=3)
    if int_attribute(ctx, "channels_last", 0):
        return [TensorType(x.dtype, channels_first(x.shape))]
    return [x]


@shape_rule("ReorderOutput", domain=NCHWC)
def reorder_output_types(ctx: ShapeContext) -> Outputs:
    """Return the tensor out of blocks, with the channels that are no padding."""
    x = tensor(ctx, 0, min_rank=3)
    batch, held, *spatial = x.shape
    channels = int_attribute(ctx, "channels")
    if not 0 < channels <= held:
        raise ShapeError(f"channels are {channels}, the input is {x}")
    if int_attribute(ctx, "channels_last", 0):
        return [TensorType(x.dtype, (batch, *spatial, channels))]
    return [TensorType(x.dtype, (batch, channels, *spatial))]


@lowering_rule("ReorderInput", "ReorderOutput", domain=NCHWC, kind="copy")
def reorder(op: Operator, options: LoweringOptions) -> Lowered:
    """Return into or out of blocked channels."""
    kernel = copy_kernel("reorder", (input_at(op, 0),), (output_at(op),))
    return launched(kernel)


@shape_rule("NhwcMaxPool", domain=MS)
def nhwc_max_pool_types(ctx: ShapeContext) -> Outputs:
    """Return the pooled input, channels last."""
    return [pooled(ctx, channels_last=True)]


@lowering_rule("NhwcMaxPool", domain=MS, kind="pool")
def nhwc_max_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Return max pooling with channels last: one comparison per window element."""
    window = op.attributes.get("kernel_shape")
    if isinstance(window, tuple):
        area = math.prod(int(v) for v in window)
    else:
        area = 1
    result = output_at(op)
    kernel = memory_kernel(
        Family.POOLING,
        "max_pool",
        (input_at(op, 0),),
        (result,),
        flops=area * result.elements,
        rows=result.elements,
        cols=area,
    )
    return launched(kernel)
