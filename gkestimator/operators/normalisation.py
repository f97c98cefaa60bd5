"""Softmax and normalisation operators: statistics over rows, then one pass over the elements."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    LAYERNORM_FLOPS,
    RMSNORM_FLOPS,
    batchnorm_kernel,
    cast_kernel,
    input_at,
    int_of,
    layernorm_kernel,
    memory_kernel,
    output_at,
    present_inputs,
    softmax_kernel,
    tensor_outputs,
)
from gkestimator.operators.checks import axis_attribute, int_attribute, optional_tensor, tensor
from gkestimator.operators.matmul import autocast_kernels
from gkestimator.operators.registry import (
    MS,
    Kernels,
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

_SOFTMAX = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}
_AXIS_SINCE = 13  # before, everything from the axis on was one row


def operator_axis(op: Operator, rank: int, default: int) -> int:
    """Return the attribute ``axis`` as a non-negative index into ``rank`` dimensions."""
    axis = int_of(op, "axis", default)
    if axis < 0:
        return axis + rank
    return axis


def autocast_to_float(source: Tensor, options: LoweringOptions) -> tuple[Kernels, Tensor]:
    """Return return, under ``amp`` the cast of a half tensor to float32 that torch makes before a normalisation,
    and its result.
    """
    if options.dtype != "amp" or source.dtype not in (DType.FLOAT16, DType.BFLOAT16):
        return (), source
    wide = Tensor(
        name=f"{source.name}#float", dtype=DType.FLOAT, shape=source.shape, storage=f"{source.name}#float"
    )
    return (cast_kernel(source, DType.FLOAT),), wide


def autocast_norm(source: Tensor, result: Tensor, options: LoweringOptions) -> tuple[Kernels, Tensor]:
    """Return, under ``amp``, the cast of a normalisation's input to what it calculates in, and its result.

    torch.autocast makes it float32. Applications that turn autocast off around their normalisations (Apex, timm's fast
    norm) convert to half instead: the option ``amp_norms``, which has decided about the type of ``result``.
    """
    if result.dtype is DType.FLOAT:
        return autocast_to_float(source, options)
    casts, (converted,) = autocast_kernels((source,), options)
    return casts, converted


@lowering_rule("Softmax", "LogSoftmax", kind="softmax", autocast="fp32", in_place=("onnxruntime",))
@lowering_rule("Hardmax", kind="softmax")
def softmax(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel over rows along one axis; before opset 13 everything from the axis on is one row."""
    source = input_at(op, 0)
    result = output_at(op)
    casts, source = autocast_to_float(source, options)
    rank = len(source.shape)
    if op.version < _AXIS_SINCE:
        axis = operator_axis(op, rank, 1)
        flat = (math.prod(source.shape[:axis]), math.prod(source.shape[axis:]))
        source = Tensor(
            name=source.name,
            dtype=source.dtype,
            shape=flat,
            storage=source.storage,
            is_weight=source.is_weight,
        )
        axis = 1
    else:
        axis = operator_axis(op, rank, -1)
    kernel = softmax_kernel(_SOFTMAX[op.op_type], source, result, axis)
    return launched(*casts, kernel, calls=1 + len(casts))


@shape_rule("LayerNormalization")
@shape_rule("LayerNormalization", domain=MS)
def layer_norm_types(ctx: ShapeContext) -> Outputs:
    """Return the data's type, then mean and inverse deviation over the trailing axes in float."""
    data = tensor(ctx, 0, min_rank=1)
    axis = axis_attribute(ctx, -1, len(data.shape))
    statistics = TensorType(DType.FLOAT, rows_of(data.shape, axis))
    return [data, statistics, statistics][: ctx.outputs]


def rows_of(shape: Shape, axis: int) -> Shape:
    """Return ``shape`` with 1 in place of every dimension from ``axis`` on."""
    return shape[:axis] + (1,) * (len(shape) - axis)


@shape_rule("LpNormalization", "RMSNormalization", "MeanVarianceNormalization")
def along_axis_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type."""
    x = tensor(ctx, 0, min_rank=1)
    axis_attribute(ctx, -1, len(x.shape))
    return [x]


def normalised_extent(shape: Shape, axis: int) -> tuple[int, int]:
    """Return (rows, columns) of a normalisation over all dimensions from ``axis`` on."""
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def layernorm_kernels(
    variant: str,
    source: Tensor,
    parameters: tuple[Tensor, ...],
    writes: tuple[Tensor, ...],
    options: LoweringOptions,
    *,
    axis: int,
) -> Kernels:
    """Return layer (``layer_norm``) or root-mean-square (``rms_norm``) normalisation from ``axis`` on, with
    autocast's cast.
    """
    casts, source = autocast_norm(source, writes[0], options)
    rows, cols = normalised_extent(source.shape, axis)
    if variant == "rms_norm":
        per_element = RMSNORM_FLOPS
    else:
        per_element = LAYERNORM_FLOPS
    kernel = layernorm_kernel(
        variant,
        (source, *parameters),
        writes,
        rows=rows,
        cols=cols,
        affine=len(parameters),
        per_element=per_element,
    )
    return (*casts, kernel)


@lowering_rule("LayerNormalization", domain=MS, kind="layer_norm", autocast="norm")
@lowering_rule("LayerNormalization", "RMSNormalization", kind="layer_norm", autocast="norm")
def layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel over rows of all dimensions from ``axis`` on."""
    source = input_at(op, 0)
    parameters = present_inputs(op, 1, 2)
    if op.op_type == "RMSNormalization":
        variant = "rms_norm"
    else:
        variant = "layer_norm"
    axis = operator_axis(op, len(source.shape), -1)
    kernels = layernorm_kernels(variant, source, parameters, tensor_outputs(op), options, axis=axis)
    return launched(*kernels, calls=len(kernels))


@shape_rule("InstanceNormalization", "GroupNormalization", "LRN")
def per_channel_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type (N, C, spatial)."""
    x = tensor(ctx, 0, min_rank=3)
    channels = x.shape[1]
    if ctx.op_type == "GroupNormalization":
        groups = int_attribute(ctx, "num_groups")
        if groups < 1 or channels % groups:
            raise ShapeError(f"{channels} channels do not split into {groups} groups")
    return [x]


@lowering_rule("GroupNormalization", kind="group_norm", autocast="norm")
@lowering_rule("InstanceNormalization", kind="group_norm")
def group_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel whose rows are (sample, group) pairs; instance normalisation has one channel per group."""
    source = input_at(op, 0)
    result = output_at(op)
    casts, source = autocast_norm(source, result, options)
    batch = source.shape[0]
    channels = source.shape[1]
    groups = channels
    if op.op_type == "GroupNormalization":
        attribute = op.attributes.get("num_groups", 1)
        if isinstance(attribute, int):
            groups = attribute
        else:
            groups = 1
    rows = batch * groups
    kernel = layernorm_kernel(
        "group_norm" if op.op_type == "GroupNormalization" else "instance_norm",
        (source, input_at(op, 1), input_at(op, 2)),
        (result,),
        rows=rows,
        cols=source.elements // max(1, rows),
        affine=2,
    )
    return launched(*casts, kernel, calls=1 + len(casts))


@shape_rule("BatchNormalization")
def batch_norm_types(ctx: ShapeContext) -> Outputs:
    """Return the data's type; further outputs (training) are per channel."""
    data = tensor(ctx, 0)
    channels = data.shape[1:2] or (1,)
    statistics = optional_tensor(ctx, 3) or TensorType(data.dtype, channels)
    per_channel = ctx.attributes.get("spatial", 1)  # before opset 9, 0 meant statistics per element
    if per_channel and len(data.shape) > 1 and statistics.shape not in (channels, ()):
        raise ShapeError(f"{channels[0]} channels but statistics of shape {list(statistics.shape)}")
    return [data, *[statistics] * (ctx.outputs - 1)]


@lowering_rule("BatchNormalization", kind="batch_norm", autocast="first", feeds_in_place=True)
def batch_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return inference: scale and shift per channel.

    Training mode (statistics are outputs): a normalisation over each channel.
    """
    source = input_at(op, 0)
    result = output_at(op)
    parameters = tuple(input_at(op, i) for i in range(1, 5))
    if op.attributes.get("training_mode", 0) or len(tensor_outputs(op)) > 1:
        channels = source.shape[1]
        kernel = layernorm_kernel(
            "batch_norm_training",
            (source, *parameters),
            tensor_outputs(op),
            rows=channels,
            cols=source.elements // max(1, channels),
            affine=2,
        )
    else:
        kernel = batchnorm_kernel(source, result, parameters)
    return launched(kernel)


@lowering_rule("LpNormalization", kind="lp_norm", autocast="fp32")
def lp_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the norm of each row (magnitude or square, sum), then a division: 3 per element."""
    source = input_at(op, 0)
    result = output_at(op)
    axis = operator_axis(op, len(source.shape), -1)
    if source.shape:
        cols = source.shape[axis]
    else:
        cols = 1
    kernel = layernorm_kernel(
        "lp_norm",
        (source,),
        (result,),
        rows=source.elements // max(1, cols),
        cols=cols,
        affine=0,
        per_element=3,
    )
    return launched(kernel)


@lowering_rule("MeanVarianceNormalization", kind="layer_norm")
def mean_variance_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return mean and variance over ``axes`` (default 0, 2, 3), no affine part."""
    source = input_at(op, 0)
    result = output_at(op)
    axes = op.attributes.get("axes", (0, 2, 3))
    rank = len(source.shape)
    if isinstance(axes, tuple) and rank:
        chosen = {int(a) % rank for a in axes}
    else:
        chosen = set()
    cols = math.prod(source.shape[a] for a in chosen)
    kernel = layernorm_kernel(
        "mean_variance_norm", (source,), (result,), rows=source.elements // max(1, cols), cols=cols, affine=0
    )
    return launched(kernel)


@lowering_rule("LRN", kind="local_response_norm")
def lrn(op: Operator, options: LoweringOptions) -> Lowered:
    """Return x / (bias + alpha / size x sum of squares over ``size`` channels)^beta: 2 a neighbour, then multiply,
    add, power (log, multiply, exp), divide.
    """
    source = input_at(op, 0)
    result = output_at(op)
    size = op.attributes.get("size", 5)
    if isinstance(size, int):
        neighbours = size
    else:
        neighbours = 5
    kernel = memory_kernel(
        Family.LAYERNORM,
        "lrn",
        (source,),
        (result,),
        flops=(2 * neighbours + 6) * source.elements,
        rows=source.elements,
        cols=neighbours,
    )
    return launched(kernel)
