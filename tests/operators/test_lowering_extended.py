"""Operators of ONNX Runtime's optimiser, quantiser and model builders: counts by hand, and who stays refused."""

from __future__ import annotations

import math

import pytest

import gkestimator.onnx_io  # noqa: F401  (registers the shape rules)
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import LOWERINGS, LoweringOptions
from gkestimator.operators.registry import SHAPE_RULES

OPTIONS = LoweringOptions(
    runtime="onnxruntime", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
)
MS = "com.microsoft"

# Shapes are known, work is not: it hangs on data (sparse layouts, global tokens), or no runtime covered here has a
# GPU kernel and no exporter emits it. Each refuses a model by name; a rule added must leave this list.
REFUSED = frozenset(
    [
        (MS, "BitmaskBiasDropout"), (MS, "BitmaskDropout"),
        (MS, "LongformerAttention"), (MS, "MatMulInteger16"), (MS, "MulInteger"), (MS, "NGramRepeatBlock"),
        (MS, "QOrderedLongformerAttention"), (MS, "ReduceSumInteger"), (MS, "SparseAttention"),
        (MS, "SparseToDenseMatMul"), (MS, "TorchEmbedding"), (MS, "UnfoldTensor"),
    ]
)  # fmt: skip


def tensor(name: str, *shape: int, dtype: DType = DType.FLOAT, weight: bool = False) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name, is_weight=weight)


def lower(
    op_type: str,
    inputs: tuple[Tensor | None, ...],
    *outputs: Tensor,
    domain: str = MS,
    **attributes: Attribute,
) -> tuple[Kernel, ...]:
    op = Operator(
        name="n", domain=domain, op_type=op_type, version=1, attributes=attributes, inputs=inputs, outputs=outputs
    )  # fmt: skip
    return LOWERINGS[op.key](op, OPTIONS).kernels


def test_operators_with_a_shape_but_without_a_lowering_rule_are_these() -> None:
    assert set(SHAPE_RULES) - set(LOWERINGS) == REFUSED


def test_packed_attention_counts_the_padded_batch() -> None:
    x, w, b = tensor("x", 20, 32), tensor("w", 32, 96, weight=True), tensor("b", 96, weight=True)
    offset, lengths = tensor("o", 2, 12, dtype=DType.INT32), tensor("c", 3, dtype=DType.INT32)
    project, attend = lower("PackedAttention", (x, w, b, offset, lengths), tensor("y", 20, 32), num_heads=4)
    assert project.flops == 2 * 20 * 32 * 96 + 20 * 96
    assert attend.flops == 2 * 4 * 12 * 12 * (2 * (8 + 8) + 1 + 5)
    assert attend.read_bytes == 20 * 96 * 4 + 3 * 4
    assert (attend.sequences, attend.gemm.batch) == (2, 2 * 4)


def test_padding_is_moved_not_calculated() -> None:
    x, counts = tensor("x", 2, 12, 32), tensor("n", 2, dtype=DType.INT32)
    outputs = (tensor("y", 24, 32), tensor("o", 2, 12, dtype=DType.INT32), tensor("c", 3, dtype=DType.INT32))
    listing, gathered = lower("RemovePadding", (x, counts), *outputs)
    assert (listing.family, gathered.family) == (Family.SCAN, Family.COPY)
    assert (gathered.flops, gathered.write_bytes) == (0, 24 * 32 * 4)


@pytest.mark.parametrize(("shared", "kv_len", "copies"), [(1, 16, 0), (0, 17, 2)])
def test_a_decoding_step_attends_to_its_cache(shared: int, kv_len: int, copies: int) -> None:
    query, key, value = (tensor(n, 2, 1, 32) for n in "qkv")
    past = tensor("pk", 2, 4, 16, 8), tensor("pv", 2, 4, 16, 8)
    presents = tensor("k2", 2, 4, kv_len, 8), tensor("v2", 2, 4, kv_len, 8)
    kernels = lower(
        "DecoderMaskedMultiHeadAttention",
        (query, key, value, None, None, *past),
        tensor("y", 2, 1, 32),
        *presents,
        num_heads=4,
        past_present_share_buffer=shared,
    )
    assert [k.variant for k in kernels] == ["concat"] * copies + ["decode"]
    assert kernels[-1].flops == 2 * 4 * kv_len * (2 * 16 + 1 + 5)
    assert kernels[-1].read_bytes >= 2 * 2 * 4 * kv_len * 8 * 4
    assert (kernels[-1].sequences, kernels[-1].gemm.batch) == (2, 2 * 4)


def test_position_biases() -> None:
    table = tensor("t", 32, 4, weight=True)
    (bias,) = lower("RelativePositionBias", (table, tensor("q"), tensor("k")), tensor("y", 1, 4, 10, 10))
    assert (bias.read_bytes, bias.write_bytes, bias.flops) == (32 * 4 * 4, 1600, 8 * 400)
    inputs = (tensor("x", 2, 10, 32), tensor("b", 32), tensor("p", 1, 4, 10, 10), tensor("w", 8, 8, weight=True),
              tensor("wb", 8), tensor("e", 1, 4, 1, 1))  # fmt: skip
    add, product, gate = lower("GatedRelativePositionBias", inputs, tensor("y", 2, 4, 10, 10), num_heads=4)
    assert add.flops == 2 * 10 * 32
    assert product.flops == 2 * (2 * 4 * 10) * 8 * 8
    assert gate.flops == 2 * 4 * 10 * (2 * 8 + 10) + 2 * 4 * 10 * 10


def test_ordered_int8_products() -> None:
    int8 = {"dtype": DType.INT8}
    a, b = tensor("a", 2, 16, 32, **int8), tensor("b", 32, 64, weight=True, **int8)
    one = [tensor(f"s{i}", 1) for i in range(12)]
    bias = tensor("c", 64)
    (product,) = lower("QOrderedMatMul", (a, one[0], b, one[1], one[2], bias), tensor("y", 2, 16, 64, **int8))
    assert product.precision is Precision.INT8
    assert product.flops == 2 * 32 * 64 * 32 + (5 + 1) * 2 * 16 * 64
    weights = [tensor(f"w{i}", 32, 32, weight=True, **int8) for i in range(3)]
    biases = [tensor(f"b{i}", 32) for i in range(3)]
    inputs = (a, *one[:4], *weights, *one[4:7], *biases, *one[7:10])
    kernels = lower("QOrderedAttention", inputs, tensor("y", 2, 16, 32, **int8), num_heads=4)
    assert [k.flops for k in kernels[:3]] == [2 * 32 * 32 * 32 + 6 * 32 * 32] * 3
    assert kernels[3].family is Family.ATTENTION and kernels[3].precision is Precision.INT8


def test_float8_products_run_in_float8() -> None:
    a, b = (
        tensor("a", 16, 32, dtype=DType.FLOAT8E4M3FN),
        tensor("b", 64, 32, dtype=DType.FLOAT8E4M3FN, weight=True),
    )
    (product,) = lower("GemmFloat8", (a, b), tensor("y", 16, 64), transB=1, activation="RELU")
    assert product.precision is Precision.FP8
    assert product.flops == 2 * 16 * 64 * 32 + 2 * 16 * 64


def test_experts_by_their_weights() -> None:
    x, router = tensor("x", 6, 32), tensor("r", 6, 4)
    first, second = (
        tensor("w1", 4, 32, 128, weight=True),
        tensor("w2", 4, 64, 32, weight=True),
    )  # gate fused: 2 x 64
    kernels = lower(
        "MoE", (x, router, first, None, second), tensor("y", 6, 32), k=2, activation_type="swiglu"
    )
    assert [k.variant for k in kernels] == ["softmax", "grouped", "activation", "grouped", "weighted_sum"]
    assert kernels[1].flops == 2 * 12 * 128 * 32
    assert kernels[3].flops == 2 * 12 * 32 * 64
    packed = {"dtype": DType.UINT8, "weight": True}
    w1, w2 = tensor("w1", 4, 128, 16, **packed), tensor("w2", 4, 32, 32, **packed)  # two weights a byte
    s1, s2 = tensor("s1", 4, 128, weight=True), tensor("s2", 4, 32, weight=True)
    quantised = lower(
        "QMoE", (x, router, w1, s1, None, w2, s2), tensor("y", 6, 32), k=2, activation_type="swiglu"
    )
    assert quantised[1].flops == 2 * 12 * 128 * 32 + 2 * 4 * 128 * 32
    assert quantised[1].weight_bytes == 4 * 128 * 16 + 4 * 128 * 4
    assert quantised[1].precision is Precision.FP32


def test_real_transforms() -> None:
    (forward,) = lower("Rfft", (tensor("x", 3, 256),), tensor("y", 3, 129, 2))
    assert forward.flops == 3 * (5 * 256 * int(math.log2(256)) // 2)
    inverse, scale = lower("Irfft", (tensor("x", 3, 129, 2),), tensor("y", 3, 256))
    assert (inverse.flops, scale.flops) == (forward.flops, 3 * 256)


@pytest.mark.parametrize(
    ("op_type", "domain", "flops"),
    [("Affine", "", 2), ("ParametricSoftplus", "", 5), ("ScaledTanh", "", 3), ("ScaledSiLU", MS, 6)],
)
def test_old_elementwise_operators(op_type: str, domain: str, flops: int) -> None:
    (kernel,) = lower(op_type, (tensor("x", 7, 5),), tensor("y", 7, 5), domain=domain)
    assert (kernel.family, kernel.flops, kernel.read_bytes) == (Family.ELEMENTWISE, 35 * flops, 140)


def test_what_the_runtime_has_on_the_cpu_alone_is_host_work() -> None:
    x = tensor("x", 5, 2, 8)
    w, r = (tensor(n, 1, s, 64, dtype=DType.INT8, weight=True) for n, s in (("w", 8), ("r", 16)))
    (lstm,) = lower("DynamicQuantizeLSTM", (x, w, r), tensor("y", 5, 1, 2, 16), hidden_size=16)
    assert lstm.family is Family.HOST
    assert lstm.flops == 5 * 2 * (2 * 4 * 16 * (8 + 16) + 22 * 16)
    (distance,) = lower(
        "CDist", (tensor("a", 3, 8), tensor("b", 4, 8)), tensor("y", 3, 4), metric="euclidean"
    )
    assert (distance.family, distance.flops) == (Family.HOST, 12 * 25)
