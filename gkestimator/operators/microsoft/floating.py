"""``com.microsoft`` operators in floating point: what ONNX Runtime's graph optimiser fuses and transformers
exports use.
"""

from __future__ import annotations

import math

from gkestimator.core.errors import UnsupportedOperatorError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.attention import linear_attention
from gkestimator.operators.builders import (
    LAYERNORM_FLOPS,
    RMSNORM_FLOPS,
    copy_kernel,
    elementwise_kernel,
    input_at,
    layernorm_kernel,
    memory_kernel,
    optional_input,
    output_at,
    softmax_kernel,
    tensor_inputs,
    tensor_outputs,
)
from gkestimator.operators.convolution import causal_conv, conv_kernels, conv_shape
from gkestimator.operators.elementwise import FLOPS, GELU_TANH_FLOPS
from gkestimator.operators.indexing import unique
from gkestimator.operators.matmul import gemm_shape, matmul_kernels, matmul_shape
from gkestimator.operators.movement import rearrange, reshape
from gkestimator.operators.normalisation import axis_of, layer_norm
from gkestimator.operators.pooling import global_pool, pool_kernel
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule
from gkestimator.operators.resample import grid_sample, resize

MS = "com.microsoft"
NCHWC = "com.microsoft.nchwc"


def activation_flops(op: Operator) -> int:
    """FLOPs per element of the attribute ``activation`` of a fused operator (0 without one).

    Raises UnsupportedOperatorError for an activation that no elementwise rule knows.
    """
    name = op.attributes.get("activation")
    if not isinstance(name, str) or name.upper() in ("", "NONE"):
        return 0
    known = {key.upper(): entry[1] for key, entry in FLOPS.items()}.get(name.upper())
    if known is None:
        raise UnsupportedOperatorError(
            f"{op.op_type} {op.name!r}: activation {name!r} is not known, expected an elementwise operator's name"
        )
    return known


def _one(kernel: Kernel) -> Lowered:
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("FusedConv", domain=MS, kind="convolution", autocast="half")
@lowering_rule("Conv", domain=NCHWC, kind="convolution", autocast="half", feeds_in_place=True)
def fused_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """cudnnConvolutionBiasActivationForward: bias, residual and activation in the epilogue of one kernel."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    residual = optional_input(op, 3)
    extra = () if residual is None else (residual,)
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
    return Lowered(kernels=kernels, host_calls=1)


@lowering_rule("NhwcConv", domain=MS, kind="convolution", autocast="half")
@lowering_rule("NhwcFusedConv", domain=MS, kind="convolution")
def nhwc_conv(op: Operator, options: LoweringOptions) -> Lowered:
    """Input (N, spatial, C), weight (M, spatial, C/group): no layout conversion."""

    def first(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], shape[-1], *shape[1:-1])

    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    residual = optional_input(op, 3)
    extra = () if residual is None else (residual,)
    per_element = activation_flops(op) + len(extra)
    kernels = conv_kernels(
        conv_shape(op, first(source.shape), first(weight.shape), first(result.shape)),
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
    return Lowered(kernels=kernels, host_calls=1)


@lowering_rule("ConvTransposeWithDynamicPads", domain=MS, kind="transposed_convolution")
def conv_transpose_dynamic(op: Operator, options: LoweringOptions) -> Lowered:
    """ConvTranspose whose pads are an input; the bias is input 3."""
    source = input_at(op, 0)
    weight = input_at(op, 1)
    result = output_at(op)
    shape = conv_shape(op, source.shape, weight.shape, result.shape, transposed=True)
    kernels = conv_kernels(shape, source, weight, optional_input(op, 3), result, options, transposed=True)
    return Lowered(kernels=kernels, host_calls=1)


@lowering_rule("FusedGemm", domain=MS, kind="gemm", autocast="half")
def fused_gemm(op: Operator, options: LoweringOptions) -> Lowered:
    """Gemm with bias and activation in the epilogue."""
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
    return Lowered(kernels=kernels, host_calls=1)


@lowering_rule("FusedMatMul", domain=MS, kind="gemm", autocast="half")
@lowering_rule("TransposeMatMul", "FusedMatMulActivation", domain=MS, kind="gemm")
def fused_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """MatMul that reads its operands transposed (last two dimensions, or batch before rows) and scales by
    alpha.
    """

    def arranged(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
        if op.attributes.get(name, 0) and len(shape) > 2:  # (rows, batch..., cols) -> (batch..., rows, cols)
            return (*shape[1:-1], shape[0], shape[-1])
        return shape

    a = input_at(op, 0)
    b = input_at(op, 1)
    shape = matmul_shape(
        arranged(a.shape, "transBatchA"),
        arranged(b.shape, "transBatchB"),
        trans_a=bool(op.attributes.get("transA", 0)) and len(a.shape) > 1,
        trans_b=bool(op.attributes.get("transB", 0)) and len(b.shape) > 1,
    )
    scaled = 1 if op.attributes.get("alpha", 1.0) != 1.0 else 0
    epilogue = (scaled + activation_flops(op)) * shape.batch * shape.m * shape.n
    return Lowered(
        kernels=matmul_kernels(shape, (a, b), output_at(op), options, epilogue_flops=epilogue), host_calls=1
    )


@lowering_rule("GemmFastGelu", domain=MS, kind="gemm")
def gemm_fast_gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """MatMul, bias and tanh-GELU in the epilogue."""
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
    return Lowered(kernels=kernels, host_calls=1)


_QUICK_GELU = 6  # x sigmoid(alpha x): multiply, sigmoid (4), multiply
_ACTIVATIONS = {
    "Gelu": ("gelu", FLOPS["Gelu"][1]),
    "FastGelu": ("gelu_tanh", GELU_TANH_FLOPS),
    "BiasGelu": ("bias_gelu", FLOPS["Gelu"][1] + 1),
    "QuickGelu": ("quick_gelu", _QUICK_GELU),
    "BiasAdd": ("bias_add", 2),
    "BiasDropout": ("bias_add", 2),
}


@lowering_rule(*_ACTIVATIONS, domain=MS, kind="elementwise")
def activation(op: Operator, options: LoweringOptions) -> Lowered:
    """One kernel; FastGelu adds its bias when it has one, BiasDropout is an addition (and a residual) at
    inference.
    """
    variant, flops = _ACTIVATIONS[op.op_type]
    operands = tensor_inputs(op)
    if op.op_type == "FastGelu" and len(operands) > 1:
        variant = "bias_gelu_tanh"
        flops = flops + 1
    if op.op_type == "BiasDropout":
        operands = tuple(t for i in (0, 1, 2) if (t := optional_input(op, i)) is not None)
        flops = len(operands) - 1
    return _one(elementwise_kernel(variant, operands, tensor_outputs(op)[:1], flops_per_element=flops))


@lowering_rule("BiasSplitGelu", domain=MS, kind="gated_activation")
def bias_split_gelu(op: Operator, options: LoweringOptions) -> Lowered:
    """Bias on both halves, GELU of the second, product."""
    flops = FLOPS["Gelu"][1] + 3
    return _one(
        elementwise_kernel("bias_split_gelu", tensor_inputs(op), (output_at(op),), flops_per_element=flops)
    )


@lowering_rule("SimplifiedLayerNormalization", kind="layer_norm")
@lowering_rule("SimplifiedLayerNormalization", domain=MS, kind="layer_norm")
def simplified_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """RMS normalisation. ONNX Runtime keeps it in the standard domain; both are known."""
    source = input_at(op, 0)
    scale = input_at(op, 1)
    axis = axis_of(op, len(source.shape), -1)
    rows = math.prod(source.shape[:axis])
    cols = math.prod(source.shape[axis:])
    return _one(
        layernorm_kernel(
            "rms_norm",
            (source, scale),
            tensor_outputs(op),
            rows=rows,
            cols=cols,
            affine=1,
            per_element=RMSNORM_FLOPS,
        )
    )


lowering_rule("LayerNormalization", domain=MS, kind="layer_norm", autocast="fp32")(layer_norm)


@lowering_rule(
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MS, kind="skip_layer_norm"
)
def skip_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """input + skip (+ bias), then the normalisation, in one kernel."""
    simplified = op.op_type == "SkipSimplifiedLayerNormalization"
    source = input_at(op, 0)
    cols = source.shape[-1]
    bias = optional_input(op, 3 if simplified else 4)
    affine = 1 if simplified or optional_input(op, 3) is None else 2
    additions = 1 if bias is None else 2
    return _one(
        layernorm_kernel(
            "skip_rms_norm" if simplified else "skip_layer_norm",
            tensor_inputs(op),
            tensor_outputs(op),
            rows=source.elements // max(1, cols),
            cols=cols,
            affine=affine,
            per_element=(RMSNORM_FLOPS if simplified else LAYERNORM_FLOPS) + additions,
        )
    )


@lowering_rule("EmbedLayerNormalization", domain=MS, kind="embedding_layer_norm")
def embed_layer_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Word, position and segment rows gathered and added, then layer normalisation; the tables are read by
    row.
    """
    ids = input_at(op, 0)
    result = output_at(op)
    tables = [t for i in (2, 3, 4) if (t := optional_input(op, i)) is not None]
    parameters = [t for i in (5, 6) if (t := optional_input(op, i)) is not None]
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
        + sum(t.nbytes for t in parameters),
    )
    return _one(kernel)


@lowering_rule("GroupNorm", "SkipGroupNorm", domain=MS, kind="group_norm")
def group_norm(op: Operator, options: LoweringOptions) -> Lowered:
    """Group normalisation (NHWC by default) with an optional SiLU, and a residual sum in the Skip form."""
    source = input_at(op, 0)
    groups = op.attributes.get("groups", 1)
    count = groups if isinstance(groups, int) else 1
    rows = source.shape[0] * count
    silu = 5 if op.attributes.get("activation", 0) else 0
    additions = sum(1 for i in (3, 4) if optional_input(op, i) is not None)
    return _one(
        layernorm_kernel(
            "group_norm",
            tensor_inputs(op),
            tensor_outputs(op),
            rows=rows,
            cols=source.elements // max(1, rows),
            affine=2,
            per_element=LAYERNORM_FLOPS + silu + additions,
        )
    )


@lowering_rule("BiasSoftmax", domain=MS, kind="softmax")
def bias_softmax(op: Operator, options: LoweringOptions) -> Lowered:
    """Softmax of data + bias in one kernel."""
    source = input_at(op, 0)
    bias = input_at(op, 1)
    result = output_at(op)
    axis = axis_of(op, len(source.shape), 1)
    cols = math.prod(source.shape[axis:])
    flat = Tensor(
        name=source.name,
        dtype=source.dtype,
        shape=(source.elements // max(1, cols), cols),
        storage=source.storage,
    )
    base = softmax_kernel("softmax", flat, result, 1)
    return _one(
        memory_kernel(
            Family.SOFTMAX,
            "bias_softmax",
            (source, bias),
            (result,),
            flops=base.flops + source.elements,
            rows=base.rows,
            cols=base.cols,
        )
    )


@lowering_rule("Inverse", domain=MS, kind="matrix_inverse")
def inverse(op: Operator, options: LoweringOptions) -> Lowered:
    """LU factorisation and n triangular solves: 2 n^3 FLOPs a matrix."""
    source = input_at(op, 0)
    result = output_at(op)
    n = source.shape[-1]
    matrices = source.elements // max(1, n * n)
    return _one(
        memory_kernel(
            Family.REDUCTION,
            "inverse",
            (source,),
            (result,),
            flops=2 * n**3 * matrices,
            rows=max(1, matrices),
            cols=max(1, n * n),
            workspace_bytes=source.nbytes,
        )
    )


lowering_rule("Trilu", domain=MS, kind="copy")(rearrange)
lowering_rule("GridSample", domain=MS, kind="resample")(grid_sample)
lowering_rule("Unique", domain=MS, kind="sort")(unique)
lowering_rule("ExpandDims", domain=MS, kind="view")(reshape)
lowering_rule("LinearAttention", domain=MS, kind="linear_attention")(linear_attention)
lowering_rule("CausalConvWithState", domain=MS, kind="convolution")(causal_conv)
lowering_rule("GlobalAveragePool", "GlobalMaxPool", domain=NCHWC, kind="global_pool")(global_pool)
lowering_rule("Upsample", domain=NCHWC, kind="resample")(resize)


@lowering_rule("ReorderInput", "ReorderOutput", domain=NCHWC, kind="copy")
def reorder(op: Operator, options: LoweringOptions) -> Lowered:
    """Into or out of blocked channels."""
    return _one(copy_kernel("reorder", (input_at(op, 0),), (output_at(op),)))


_POOLS = {"MaxPool": ("max_pool", 1, 0), "AveragePool": ("average_pool", 1, 1)}


@lowering_rule(*_POOLS, domain=NCHWC, kind="pool")
def blocked_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Pooling on blocked channels."""
    variant, per_element, per_result = _POOLS[op.op_type]
    return _one(pool_kernel(op, variant, input_at(op, 0), tensor_outputs(op), per_element, per_result))


@lowering_rule("NhwcMaxPool", domain=MS, kind="pool")
def nhwc_max_pool(op: Operator, options: LoweringOptions) -> Lowered:
    """Max pooling with channels last: one comparison per window element."""
    window = op.attributes.get("kernel_shape")
    if isinstance(window, tuple):
        area = math.prod(int(v) for v in window)
    else:
        area = 1
    result = output_at(op)
    return _one(
        memory_kernel(
            Family.POOLING,
            "max_pool",
            (input_at(op, 0),),
            (result,),
            flops=area * result.elements,
            rows=result.elements,
            cols=area,
        )
    )
