"""``com.microsoft`` normalisations that ONNX Runtime's optimiser fuses and transformers exports use."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family
from gkestimator.operators.builders import (
    LAYERNORM_FLOPS,
    RMSNORM_FLOPS,
    input_at,
    layernorm_kernel,
    memory_kernel,
    operator_axis,
    optional_input,
    output_at,
    present_inputs,
    tensor_inputs,
    tensor_outputs,
    total_bytes,
)
from gkestimator.operators.checks import axis_attribute, tensor
from gkestimator.operators.microsoft.elementwise import with_addend
from gkestimator.operators.normalisation import rows_of
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


@shape_rule("SimplifiedLayerNormalization", domain=MS)
@shape_rule("SimplifiedLayerNormalization")  # ONNX Runtime registers its RMS norm in the standard domain
def simplified_layer_norm_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in the scale's type, and the inverse root mean square per row."""
    x = tensor(ctx, 0, min_rank=1)
    axis = axis_attribute(ctx, -1, len(x.shape))
    rows = TensorType(DType.FLOAT, rows_of(x.shape, axis))
    outputs = [TensorType(tensor(ctx, 1).dtype, x.shape), rows]
    return outputs[: ctx.outputs]


@lowering_rule("SimplifiedLayerNormalization", kind="layer_norm")
@lowering_rule("SimplifiedLayerNormalization", domain=MS, kind="layer_norm")
def simplified_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return RMS normalisation. ONNX Runtime keeps it in the standard domain; both are known."""
    source = input_at(op, 0)
    scale = input_at(op, 1)
    axis = operator_axis(op, len(source.shape), -1)
    rows = math.prod(source.shape[:axis])
    cols = math.prod(source.shape[axis:])
    kernel = layernorm_kernel(
        "rms_norm",
        (source, scale),
        tensor_outputs(op),
        rows=rows,
        cols=cols,
        affine=1,
        per_element=RMSNORM_FLOPS,
    )
    return launched(kernel)


@shape_rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MS)
def skip_layer_norm_types(ctx: ShapeContext) -> Outputs:
    """Return output, mean and inverse deviation per row, and the sum of input, skip and bias."""
    x = with_addend(ctx)
    row = TensorType(DType.FLOAT, rows_of(x.shape, len(x.shape) - 1))
    return [x, row, row, x][: ctx.outputs]


@lowering_rule(
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MS, kind="skip_layer_norm"
)
def skip_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return input + skip (+ bias), then the normalisation, in one kernel."""
    simplified = op.op_type == "SkipSimplifiedLayerNormalization"
    source = input_at(op, 0)
    cols = source.shape[-1]
    bias = optional_input(op, 3 if simplified else 4)
    if simplified or optional_input(op, 3) is None:
        affine = 1
    else:
        affine = 2
    additions = 1 if bias is None else 2
    kernel = layernorm_kernel(
        "skip_rms_norm" if simplified else "skip_layer_norm",
        tensor_inputs(op),
        tensor_outputs(op),
        rows=source.elements // max(1, cols),
        cols=cols,
        affine=affine,
        per_element=(RMSNORM_FLOPS if simplified else LAYERNORM_FLOPS) + additions,
    )
    return launched(kernel)


@shape_rule("EmbedLayerNormalization", "QEmbedLayerNormalization", domain=MS)
def embed_layer_norm_types(ctx: ShapeContext) -> Outputs:
    """Return (batch, length, hidden) for ids (batch, length), a mask index per sequence, the sum of embeddings."""
    ids = tensor(ctx, 0, rank=2).shape
    words = tensor(ctx, 2, rank=2)
    dtype = words.dtype
    if ctx.op_type == "QEmbedLayerNormalization":
        dtype = tensor(ctx, 8).dtype
    result = TensorType(dtype, (*ids, words.shape[1]))
    outputs = [result, TensorType(DType.INT32, ids[:1]), result]
    return outputs[: ctx.outputs]


@lowering_rule("EmbedLayerNormalization", domain=MS, kind="embedding_layer_norm")
def embed_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return word, position and segment rows gathered and added, then layer normalisation; the tables are read by
    row.
    """
    ids = input_at(op, 0)
    result = output_at(op)
    tables = present_inputs(op, 2, 3, 4)
    parameters = present_inputs(op, 5, 6)
    cols = result.shape[-1]
    rows = result.elements // max(1, cols)
    kernel = memory_kernel(
        Family.LAYERNORM,
        "embed_layer_norm",
        tensor_inputs(op),
        tensor_outputs(op),
        flops=(LAYERNORM_FLOPS + len(parameters) + len(tables) - 1) * result.elements,
        rows=rows,
        cols=cols,
        read_bytes=sum(min(t.nbytes, result.nbytes) for t in tables)
        + 2 * ids.nbytes
        + total_bytes(parameters),
    )
    return launched(kernel)


@lowering_rule("GroupNorm", "SkipGroupNorm", domain=MS, kind="group_norm")
def group_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Return group normalisation (NHWC by default) with an optional SiLU, and a residual sum in the Skip form."""
    source = input_at(op, 0)
    groups = op.attributes.get("groups", 1)
    if isinstance(groups, int):
        count = groups
    else:
        count = 1
    rows = source.shape[0] * count
    if op.attributes.get("activation", 0):
        silu = 5
    else:
        silu = 0
    additions = sum(1 for i in (3, 4) if optional_input(op, i) is not None)
    kernel = layernorm_kernel(
        "group_norm",
        tensor_inputs(op),
        tensor_outputs(op),
        rows=rows,
        cols=source.elements // max(1, rows),
        affine=2,
        per_element=LAYERNORM_FLOPS + silu + additions,
    )
    return launched(kernel)
