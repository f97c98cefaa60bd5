"""Convolutions as implicit GEMMs, in one, two or three spatial dimensions.

The formulas of result shapes are those of ONNX's operator specification (Conv, ConvTranspose).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.operators.builders import (
    distinct,
    elementwise_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
    scratch,
    total_bytes,
    weight_bytes,
)
from gkestimator.operators.checks import channels_first, int_attribute, ints_attribute, tensor
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.pooling import not_negative, read_window, slid
from gkestimator.operators.registry import (
    Kernels,
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

_TENSOR_CORES = frozenset({Precision.TF32, Precision.FP16, Precision.BF16})
_WINOGRAD_CHANNELS = 128  # below, cuDNN prefers other algorithms (RECIPE, part two, memory)
_APART_IN_NHWC = {
    "conv": "channels_last",
    "batch_norm": "batch_norm.channels_last",
    "max_pool": "max_pool.channels_last",
    "average_pool": "average_pool.channels_last",
}


@shape_rule("Conv")
def conv_types(ctx: ShapeContext) -> Outputs:
    """Return (N, M, ...) for an image (N, C, ...) and weights (M, C / group, ...)."""
    return [TensorType(tensor(ctx, 0).dtype, channels_first_result(ctx))]


def _flat(values: Sequence[int], default: int, rank: int) -> tuple[int, int]:
    """Return (product of all but the last, last) of a spatial attribute, padded to ``rank`` with ``default``."""
    if values:
        full = tuple(values)
    else:
        full = (default,) * rank
    return math.prod(full[:-1]), full[-1]


def _ints(op: Operator, name: str) -> Shape:
    value = op.attributes.get(name)
    if isinstance(value, tuple):
        return tuple(int(v) for v in value)
    return ()


def conv_shape(
    op: Operator,
    source: Shape,
    weight: Shape,
    result: Shape,
    *,
    transposed: bool = False,
) -> ConvShape:
    """Return the shape record of a convolution in NC+ layout with weights (M, C/group, kernel...); transposed: (C,
    M/group, ...).
    """
    rank = len(source) - 2
    if rank < 1 or len(weight) != rank + 2 or len(result) != rank + 2:
        raise ShapeError(
            f"{op.op_type} {op.name!r}: expected input, weight and output of one rank of at least 3, "
            f"found {list(source)}, {list(weight)} and {list(result)}"
        )
    group = op.attributes.get("group", 1)
    if isinstance(group, int):
        groups = group
    else:
        groups = 1
    in_h, in_w = _flat(source[2:], 1, rank)
    out_h, out_w = _flat(result[2:], 1, rank)
    kernel_h, kernel_w = _flat(weight[2:], 1, rank)
    stride_h, stride_w = _flat(_ints(op, "strides"), 1, rank)
    dilation_h, dilation_w = _flat(_ints(op, "dilations"), 1, rank)
    if transposed:
        out_channels = weight[1] * groups
    else:
        out_channels = weight[0]
    return ConvShape(
        batch=source[0],
        in_channels=source[1],
        out_channels=out_channels,
        groups=groups,
        in_h=in_h,
        in_w=in_w,
        out_h=out_h,
        out_w=out_w,
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
    )


def _implicit_gemm(shape: ConvShape, *, transposed: bool) -> GemmShape:
    kernel = shape.kernel_h * shape.kernel_w
    if transposed:
        # Each input pixel scatters a kernel per output channel: (pixels, C/g) x (C/g, M/g x kernel).
        return GemmShape(
            batch=shape.groups,
            m=shape.batch * shape.in_h * shape.in_w,
            n=shape.out_channels // shape.groups * kernel,
            k=shape.in_channels // shape.groups,
        )
    return GemmShape(
        batch=shape.groups,
        m=shape.batch * shape.out_h * shape.out_w,
        n=shape.out_channels // shape.groups,
        k=shape.in_channels // shape.groups * kernel,
    )


def _workspace(shape: ConvShape, precision: Precision, source: Tensor, weight: Tensor, result: Tensor) -> int:
    """Return cuDNN's scratch: about 2.25 (in + out) + 4 weights for FP32 Winograd, the NHWC copies on tensor cores,
    else none.
    """
    area = shape.kernel_h * shape.kernel_w
    if precision is Precision.FP32:
        transformed = winograd_bytes(shape, source, weight, result)
        if transformed:
            return transformed
    depthwise = shape.groups > 1 and shape.groups == shape.in_channels
    if precision in _TENSOR_CORES and area > 1 and not depthwise:
        return source.nbytes + weight.nbytes + result.nbytes
    return 0


def winograd_bytes(shape: ConvShape, source: Tensor, weight: Tensor, result: Tensor) -> int:
    """Return the scratch of a Winograd convolution that transforms in kernels of its own; 0 where there is none."""
    if (shape.kernel_h, shape.kernel_w) != (3, 3) or shape.groups != 1:
        return 0
    unit = (shape.stride_h, shape.stride_w, shape.dilation_h, shape.dilation_w) == (1, 1, 1, 1)
    if not unit or min(shape.in_channels, shape.out_channels) < _WINOGRAD_CHANNELS:
        return 0
    return (source.nbytes + result.nbytes) * 9 // 4 + 4 * weight.nbytes


def _one_pixel(shape: ConvShape) -> bool:
    """Return whether every image gives one pixel from all of itself: the matrix product (batch, C x area) x (C x
    area, M) of data that lie flat already, and measured as such by the thousand, where no public table has such
    convolutions.
    """
    whole = (shape.in_h, shape.in_w) == (shape.kernel_h, shape.kernel_w)
    return whole and (shape.out_h, shape.out_w, shape.groups) == (1, 1, 1)


def convolution_kernel(
    shape: ConvShape,
    reads: Sequence[Tensor],
    result: Tensor,
    options: LoweringOptions,
    *,
    transposed: bool = False,
    variant: str = "conv",
    epilogue_flops: int = 0,
) -> Kernel:
    """Return one convolution of ``reads[0]`` by ``reads[1]`` (further reads: bias, residual).

    FLOPs 2 x groups x m x n x k.
    """
    gemm = _implicit_gemm(shape, transposed=transposed)
    depthwise = shape.groups > 1 and shape.groups == shape.in_channels
    if depthwise:
        untransposed = Family.DEPTHWISE
    else:
        untransposed = Family.CONV
    if transposed:
        family = Family.CONV_TRANSPOSE
    else:
        family = untransposed
    if not transposed and variant == "conv" and _one_pixel(shape):
        family = Family.LINEAR
    precision = matrix_precision(reads[0].dtype, options, convolution=True)
    operands = distinct(reads)
    return Kernel(
        name=("conv" if family is Family.LINEAR else family.value)
        if variant == "conv"
        else f"{family.value}.{variant}",
        family=family,
        variant=variant,
        precision=precision,
        flops=2 * gemm.batch * gemm.m * gemm.n * gemm.k + epilogue_flops,
        read_bytes=total_bytes(operands),
        write_bytes=result.nbytes,
        weight_bytes=weight_bytes(operands),
        rows=gemm.batch * gemm.m,
        cols=gemm.n,
        element_bytes=result.dtype.bits / 8,
        inputs=len(operands),
        gemm=gemm,
        conv=shape,
        workspace_bytes=_workspace(shape, precision, reads[0], reads[1], result),
    )


def conv_kernels(
    shape: ConvShape,
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    result: Tensor,
    options: LoweringOptions,
    *,
    transposed: bool = False,
    fused_bias: bool = False,
    extra_reads: tuple[Tensor, ...] = (),
    epilogue_flops: int = 0,
    channels_last: bool = False,
) -> Kernels:
    """Return a convolution as the runtimes launch it.

    Casts under autocast; the convolution, brought into NHWC and back where tensor cores need that
    (:mod:`gkestimator.kernel_models.features.tensor_convolutions`); the bias apart (cuDNN) unless ``fused_bias``.
    """
    separate = bias is not None and not (fused_bias or runtime_traits(options.runtime).library)
    reads = (source, weight, *(() if separate or bias is None else (bias,)), *extra_reads)
    casts, reads = autocast_kernels(reads, options)
    epilogue = epilogue_flops + (result.elements if bias is not None and not separate else 0)
    if extra_reads or epilogue_flops:
        variant = "fused"
    else:
        variant = "conv"
    main = convolution_kernel(
        shape,
        reads,
        result,
        options,
        transposed=transposed,
        variant=variant,
        epilogue_flops=epilogue,
    )
    kernels = [*casts]
    if channels_last:
        kernels += in_channels_last((main,))
    else:
        kernels.append(main)
    if separate and bias is not None:
        kernels.append(elementwise_kernel("bias_add", (result, bias), (result,), flops_per_element=1))
    return tuple(kernels)


def in_channels_last(kernels: Kernels) -> Kernels:
    """Return ``kernels`` of an operator on images as the library has them where the image lies in NHWC."""
    changed = []
    for kernel in kernels:
        if kernel.variant in _APART_IN_NHWC:
            variant = _APART_IN_NHWC[kernel.variant]
            kernel = replace(kernel, variant=variant, name=f"{kernel.name}.channels_last")
        changed.append(kernel)
    return tuple(changed)


@lowering_rule("Conv", kind="convolution", autocast="half", feeds_in_place=True)
def conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return convolution, then its bias."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    shape = conv_shape(op, source.shape, weight.shape, result.shape)
    kernels = conv_kernels(shape, source, weight, optional_input(op, 2), result, options)
    casts = sum(1 for k in kernels if k.variant == "cast")
    return launched(*kernels, calls=1 + casts)


def transposed_result(ctx: ShapeContext, pads: Shape | None = None) -> TensorType:
    """Return the type of ConvTranspose of input 0 (N, C, spatial) with input 1 (C, M / group, kernel).

    ``pads`` (all begins, then all ends) override the attribute.
    """
    image = tensor(ctx, 0, min_rank=3)
    x = image.shape
    w = tensor(ctx, 1, rank=len(x)).shape
    groups = int_attribute(ctx, "group", 1)
    if w[0] != x[1] or groups < 1:
        raise ShapeError(f"input {list(x)}, weight {list(w)} and group {groups} do not fit together")
    rank = len(x) - 2
    window = read_window(ctx, rank, w[2:])
    if pads is not None:
        window = window._replace(pads=pads)
    extra = ints_attribute(ctx, "output_padding", length=rank, low=0) or (0,) * rank
    named = ints_attribute(ctx, "output_shape", low=1)
    sizes = []
    for axis, size in enumerate(x[2:]):
        if window.padded_to_fit:
            sizes.append(size * window.strides[axis])
        else:
            covered = window.strides[axis] * (size - 1) + window.span(axis)
            sizes.append(covered + extra[axis] - window.padding(axis))
    if named is not None:
        if len(named) not in (rank, rank + 2):
            raise ShapeError(f"output_shape has {len(named)} items, expected {rank}")
        sizes = list(named[-rank:])
    shape = (x[0], w[1] * groups, *not_negative(sizes))
    return TensorType(image.dtype, shape)


@shape_rule("ConvTranspose")
def conv_transpose_types(ctx: ShapeContext) -> Outputs:
    """Return the shape that a convolution would make the input from."""
    return [transposed_result(ctx)]


@lowering_rule("ConvTranspose", kind="transposed_convolution", autocast="half")
def conv_transpose(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the data gradient of a convolution, then its bias."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    shape = conv_shape(op, source.shape, weight.shape, result.shape, transposed=True)
    kernels = conv_kernels(shape, source, weight, optional_input(op, 2), result, options, transposed=True)
    casts = sum(1 for k in kernels if k.variant == "cast")
    return launched(*kernels, calls=1 + casts)


@shape_rule("ConvInteger")
def conv_integer_types(ctx: ShapeContext) -> Outputs:
    """Return the convolution in int32."""
    return [TensorType(DType.INT32, channels_first_result(ctx))]


@lowering_rule("ConvInteger", kind="integer_convolution", quantised=True)
def conv_integer(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 convolution to int32; zero points go into its prologue."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    shape = conv_shape(op, source.shape, weight.shape, result.shape)
    others = present_inputs(op, 2, 3)
    kernel = convolution_kernel(shape, (source, weight, *others), result, options, variant="integer")
    return launched(kernel)


@shape_rule("QLinearConv")
def qlinear_conv_types(ctx: ShapeContext) -> Outputs:
    """Return the convolution of inputs 0 and 3 in the type of the result's zero point."""
    return [TensorType(tensor(ctx, 7).dtype, channels_first_result(ctx, 0, 3))]


@lowering_rule("QLinearConv", kind="integer_convolution", quantised=True)
def qlinear_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 convolution, requantised in its epilogue: multiply, round, add the zero point, saturate twice,
    and the bias.
    """
    source = input_at(op, 0)
    weight = input_at(op, 3)
    result = output_at(op)
    shape = conv_shape(op, source.shape, weight.shape, result.shape)
    others = present_inputs(op, 1, 2, 4, 5, 6, 7, 8)
    per_element = 5 + (1 if optional_input(op, 8) is not None else 0)
    kernel = convolution_kernel(
        shape,
        (source, weight, *others),
        result,
        options,
        variant="qlinear",
        epilogue_flops=per_element * result.elements,
    )
    return launched(kernel)


def conv_result(ctx: ShapeContext, x: Shape, w: Shape, *, channels_last: bool = False) -> Shape:
    """Return the output shape of a convolution of ``x`` (N, C, spatial) with ``w`` (M, C / group, kernel).

    ``channels_last``: x and the output are (N, spatial, C); the weight keeps its layout.
    """
    if len(x) < 3 or len(w) != len(x):
        raise ShapeError(f"input {list(x)} and weights {list(w)} do not fit a convolution")
    if channels_last:
        x = channels_first(x)
    groups = int_attribute(ctx, "group", 1)
    if groups < 1 or x[1] != w[1] * groups or w[0] % groups:
        raise ShapeError(
            f"input {list(x)} has {x[1]} channels; weights {list(w)} in {groups} groups do not fit together"
            f" with them"
        )
    spatial = slid(read_window(ctx, len(x) - 2, w[2:]), x[2:])
    if channels_last:
        return (x[0], *spatial, w[0])
    return (x[0], w[0], *spatial)


def channels_first_result(ctx: ShapeContext, x: int = 0, w: int = 1) -> Shape:
    """Return :func:`conv_result` of the inputs number ``x`` and ``w``."""
    return conv_result(ctx, tensor(ctx, x).shape, tensor(ctx, w).shape)


@shape_rule("DeformConv")
def deform_conv_types(ctx: ShapeContext) -> Outputs:
    """Return the shape of the convolution without offsets."""
    return [TensorType(tensor(ctx, 0).dtype, channels_first_result(ctx))]


@lowering_rule("DeformConv", kind="deformable_convolution", autocast="half")
def deform_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a bilinear gathering of the columns, then a GEMM."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    offset = input_at(op, 2)
    bias = optional_input(op, 3)
    masks = present_inputs(op, 4)
    shape = conv_shape(op, source.shape, weight.shape, result.shape)
    area = shape.kernel_h * shape.kernel_w
    samples = shape.batch * shape.in_channels * area * shape.out_h * shape.out_w
    columns = scratch(result, "columns", (samples,), source.dtype)
    # 4 weights of 2 each, 4 multiply-adds less one, and the factor of a mask.
    per_sample = 11 + len(masks)
    sample = memory_kernel(
        Family.RESAMPLE,
        "deform_columns",
        (source, offset, *masks),
        (columns,),
        flops=per_sample * samples,
        rows=samples,
        workspace_bytes=columns.nbytes,
    )
    kernels = conv_kernels(shape, source, weight, bias, result, options)
    return launched(sample, *kernels)
