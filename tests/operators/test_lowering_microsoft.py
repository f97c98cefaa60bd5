"""``com.microsoft`` operators: the counts of a few, worked out by hand."""

from __future__ import annotations

import pytest

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import LOWERINGS, LoweringOptions

OPTIONS = LoweringOptions(
    runtime="onnxruntime", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
)


def tensor(name: str, *shape: int, dtype: DType = DType.FLOAT, weight: bool = False) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name, is_weight=weight)


def lower(
    op_type: str, inputs: tuple[Tensor | None, ...], *outputs: Tensor, **attributes: Attribute
) -> tuple[Kernel, ...]:
    op = Operator(
        name="n", domain="com.microsoft", op_type=op_type, version=1, attributes=attributes, inputs=inputs,
        outputs=outputs,
    )  # fmt: skip
    return LOWERINGS[op.key](op, OPTIONS).kernels


def test_attention_projects_then_attends() -> None:
    x, w, b = tensor("x", 2, 16, 32), tensor("w", 32, 96, weight=True), tensor("b", 96, weight=True)
    projection, *composed = lower("Attention", (x, w, b), tensor("y", 2, 16, 32), num_heads=4)
    assert projection.flops == 2 * 32 * 96 * 32 + 32 * 96
    # In float32 the fused kernel begins at 256 tokens.
    assert [kernel.name for kernel in composed] == [
        "copy.transpose", "bmm", "softmax.softmax", "bmm", "copy.transpose"
    ]  # fmt: skip
    x = tensor("x", 2, 256, 32)
    _, attend = lower("Attention", (x, w, b), tensor("y", 2, 256, 32), num_heads=4)
    assert attend.family is Family.ATTENTION
    assert attend.flops == 2 * 4 * 256 * 256 * (2 * (8 + 8) + 1 + 5)
    assert attend.read_bytes == 2 * 256 * 96 * 4


def test_attention_with_a_mask_is_fused_in_float32_only_as_starts_of_sequences() -> None:
    x, w, b = tensor("x", 2, 256, 32), tensor("w", 32, 96, weight=True), tensor("b", 96, weight=True)
    for mask, count in ((tensor("m", 2, 256), 6), (tensor("m", 3 * 2 + 2), 2)):
        assert len(lower("Attention", (x, w, b, mask), tensor("y", 2, 256, 32), num_heads=4)) == count


def test_grouped_query_attention_reads_the_whole_cache() -> None:
    past = tensor("pk", 1, 2, 7, 8), tensor("pv", 1, 2, 7, 8)
    new = tensor("k", 1, 1, 16), tensor("v", 1, 1, 16)
    present = tensor("k2", 1, 2, 8, 8), tensor("v2", 1, 2, 8, 8)
    inputs = (tensor("q", 1, 1, 32), *new, *past)
    kernels = lower(
        "GroupQueryAttention",
        inputs,
        tensor("y", 1, 1, 32),
        *present,
        num_heads=4,
        kv_num_heads=2,
        do_rotary=1,
    )
    assert [k.variant for k in kernels] == ["rotary", "rotary", "concat", "concat", "attention"]
    assert kernels[-1].flops == 4 * 8 * (2 * 16 + 1 + 5 + 1)
    assert kernels[-1].read_bytes == 4 * (32 + 2 * 2 * 8 * 8)


def test_skip_layer_norm_and_fused_matmul() -> None:
    x, skip, scale = tensor("x", 4, 8), tensor("s", 4, 8), tensor("g", 8, weight=True)
    (norm,) = lower("SkipLayerNormalization", (x, skip, scale, scale), tensor("y", 4, 8))
    assert norm.flops == 32 * (5 + 1 + 2)
    assert norm.read_bytes == 4 * (32 + 32 + 8)
    a, b = tensor("a", 2, 5, 8), tensor("b", 2, 7, 8)
    (product,) = lower("FusedMatMul", (a, b), tensor("c", 2, 5, 7), transB=1, alpha=0.5)
    assert product.flops == 2 * (2 * 5 * 7 * 8) + 2 * 5 * 7


def test_fused_conv_has_one_kernel_with_its_epilogue() -> None:
    x, w, b = tensor("x", 1, 3, 8, 8), tensor("w", 4, 3, 3, 3, weight=True), tensor("b", 4, weight=True)
    (conv,) = lower("FusedConv", (x, w, b), tensor("y", 1, 4, 6, 6), activation="Relu")
    assert conv.flops == 2 * 4 * 36 * 27 + 2 * 4 * 36


@pytest.mark.parametrize("bits", [4, 8])
def test_weight_only_products_read_packed_weights(bits: int) -> None:
    packed = tensor("b", 16, 2, 32 * bits // 8, dtype=DType.UINT8, weight=True)
    scales = tensor("s", 32, weight=True)
    weight = {"K": 64, "N": 16, "bits": bits, "block_size": 32}
    (product,) = lower("MatMulNBits", (tensor("a", 1, 64), packed, scales), tensor("y", 1, 16), **weight)
    assert product.weight_bytes == 16 * 64 * bits // 8 + 128
    assert product.flops == 2 * 16 * 64 + 2 * 16 * 64
    assert product.precision is Precision.FP32
    # ONNX Runtime's fused kernel takes a single row; for more it writes the weight out.
    widen, product = lower("MatMulNBits", (tensor("a", 3, 64), packed, scales), tensor("y", 3, 16), **weight)
    assert (widen.family, widen.write_bytes) == (Family.QUANTIZE, 4 * 16 * 64)
    assert product.flops == 2 * 3 * 16 * 64


def test_dynamic_quantisation_multiplies_in_int8() -> None:
    b = tensor("b", 64, 16, dtype=DType.INT8, weight=True)
    extrema, quantise, product = lower(
        "DynamicQuantizeMatMul", (tensor("a", 3, 64), b, tensor("s", 1)), tensor("y", 3, 16)
    )
    assert (extrema.family, quantise.family) == (Family.REDUCTION, Family.QUANTIZE)
    assert product.precision is Precision.INT8
    assert product.read_bytes == 3 * 64 + 64 * 16 + 4


def test_channels_last_convolutions_keep_winograds_scratch_and_no_copies() -> None:
    x, wide = tensor("x", 1, 64, 64, 128), tensor("w", 128, 3, 3, 128, weight=True)
    (kernel,) = lower("NhwcConv", (x, wide), tensor("y", 1, 64, 64, 128), pads=(1, 1, 1, 1))
    image = 64 * 64 * 128 * 4
    assert kernel.workspace_bytes == 2 * image * 9 // 4 + 4 * 128 * 9 * 128 * 4
    thin = tensor("w", 64, 3, 3, 128, weight=True)
    (kernel,) = lower("NhwcConv", (x, thin), tensor("y", 1, 64, 64, 64), pads=(1, 1, 1, 1))
    assert kernel.workspace_bytes == 0
