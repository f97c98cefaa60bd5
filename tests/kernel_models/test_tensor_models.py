"""The models of tensor-core products and fused attention: physics that has to hold, and figures by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.tensor_attention import fused_attention_us
from gkestimator.kernel_models.features.tensor_cores import (
    CONSTANTS,
    half_rate,
    has_tensor_cores,
    memory_us,
    sustained_tensor_rate,
    tensor_core_us,
    tensor_peak,
)
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.sustained import sustained_bytes_per_s

CATALOGUE = gpu_catalogue()


def gpu(name: str) -> GpuSpec:
    return CATALOGUE.resolve(name)[0]


def product(m: int, n: int, k: int, *, batch: int = 1, precision: Precision = Precision.FP16) -> Kernel:
    return Kernel(
        name="p", family=Family.LINEAR if batch == 1 else Family.BMM, variant="matmul", precision=precision,
        flops=2 * batch * m * n * k, read_bytes=2 * batch * (m * k + n * k), write_bytes=2 * batch * m * n,
        weight_bytes=2 * n * k, rows=batch * m, cols=n, element_bytes=2.0, inputs=2,
        gemm=GemmShape(batch=batch, m=m, n=n, k=k),
    )  # fmt: skip


def attention(heads: int, length: int, size: int, *, causal: bool = False) -> Kernel:
    scores = heads * length * (length + 1) // 2 if causal else heads * length * length
    one = 2 * heads * length * size
    return Kernel(
        name="a", family=Family.ATTENTION, variant="causal" if causal else "full", precision=Precision.FP16,
        flops=scores * (4 * size + 6), read_bytes=3 * one, write_bytes=one, rows=heads * length, cols=length,
        element_bytes=2.0, inputs=3, gemm=GemmShape(batch=heads, m=length, n=length, k=size),
    )  # fmt: skip


def product_us(kernel: Kernel, name: str) -> float:
    return float(tensor_core_us(KernelTable.from_kernels([kernel]), gpu(name))[0])


def attention_us(kernel: Kernel, name: str) -> float:
    return float(fused_attention_us(KernelTable.from_kernels([kernel]), gpu(name))[0])


def test_large_products_reach_the_sustained_rate_and_no_more() -> None:
    for name in ("A100-SXM4-80GB", "H100-SXM", "RTX-3090", "RTX-4090", "L4", "T4", "V100-SXM2-16GB"):
        size = 16_384
        reached = 2 * size**3 / product_us(product(size, size, size), name) * 1e6
        rate = sustained_tensor_rate(gpu(name), "fp16")
        assert 0.8 * rate < reached <= rate, name


def test_geforce_boards_halve_the_rate_with_fp32_accumulation() -> None:
    assert [half_rate(gpu(n)) for n in ("RTX-3090", "RTX-4090", "RTX-5090", "RTX-2080-TI")] == [True] * 4
    assert not any(
        half_rate(gpu(n)) for n in ("A40", "A100-SXM4-80GB", "H100-SXM", "RTX-PRO-6000", "L4", "T4")
    )
    # 82 SMs x 512 FLOPs per clock at the advertised 1,695 MHz and a tenth more, 95 % of it
    by_hand = 82 * 512 * 1695e6 * 1.1 * 0.95
    assert sustained_tensor_rate(gpu("RTX-3090"), "fp16") == pytest.approx(by_hand, rel=0.01)
    assert tensor_peak(gpu("A40"), "fp16") == pytest.approx(gpu("A40").peak_flops_per_s["fp16"])


def test_power_limits_small_boards_alone() -> None:
    assert sustained_tensor_rate(gpu("T4"), "fp16") == pytest.approx(0.8 * 70 / 1.6e-12)
    # Ada's boards lower clock and voltage until 72 W do: 1,100 of 2,040 MHz.
    l4 = gpu("L4")
    assert 0.45 < sustained_tensor_rate(l4, "fp16") / l4.peak_flops_per_s["fp16"] < 0.52
    assert sustained_tensor_rate(replace(l4, power_limit_w=300.0), "fp16") == pytest.approx(
        0.9 * l4.peak_flops_per_s["fp16"]
    )
    a100 = gpu("A100-SXM4-80GB")
    assert sustained_tensor_rate(a100, "bf16") == pytest.approx(
        CONSTANTS.efficiency * a100.peak_flops_per_s["bf16"]
    )
    starved = replace(a100, power_limit_w=100.0)
    assert sustained_tensor_rate(starved, "bf16") < 0.5 * sustained_tensor_rate(a100, "bf16")


def test_weights_are_read_from_dram_where_activations_stay_in_the_l2() -> None:
    board = gpu("L40S")
    traffic = np.array([0.3 * board.l2_bytes])
    activations = memory_us(traffic, board, CONSTANTS)
    weights = memory_us(traffic, board, CONSTANTS, traffic)
    assert activations < 0.7 * weights
    assert weights == pytest.approx(traffic * 1e6 / (0.97 * sustained_bytes_per_s(board)), rel=0.1)


def test_few_rows_of_fp8_wait_for_a_whole_tile_where_the_matrix_rate_is_low() -> None:
    few, many = (product(m, 2304, 4096, precision=Precision.FP8) for m in (8, 128))
    for name in ("H20", "H800-SXM"):
        assert product_us(few, name) == pytest.approx(product_us(many, name), rel=0.1)
    assert product_us(few, "H20") > 2 * product_us(few, "H800-SXM")


def test_heads_that_share_their_keys_fill_tiles_together() -> None:
    own = attention(512, 16, 128)
    shared = replace(own, read_bytes=own.write_bytes + (own.read_bytes - own.write_bytes) // 16)
    assert attention_us(shared, "A100-SXM4-80GB") < 0.8 * attention_us(own, "A100-SXM4-80GB")


def test_without_tensor_cores_half_precision_accumulates_in_fp32() -> None:
    pascal = gpu("P100-PCIE-16GB")
    assert not has_tensor_cores(pascal) and not has_tensor_cores(gpu("GTX-1080-TI"), "int8")
    assert tensor_peak(pascal, "fp16") == pascal.vector("fp32") < pascal.peak_flops_per_s["fp16"]
    assert tensor_peak(gpu("GTX-1080-TI"), "int8") == gpu("GTX-1080-TI").peak_flops_per_s["int8"]


def test_thin_products_read_at_the_speed_of_dram_and_small_ones_wait() -> None:
    weights = 2 * 8192 * 16384
    h100 = gpu("H100-SXM")
    thin = product_us(product(1, 8192, 16384), "H100-SXM")
    assert (
        weights / (0.95 * h100.dram_bytes_per_s) * 1e6
        < thin
        < 1.4 * weights / (0.87 * h100.dram_bytes_per_s) * 1e6
    )
    assert 1.5 < product_us(product(1, 32, 32), "H100-SXM") < 4
    cached, streamed = (
        product_us(product(1, 1024, 1024), "H100-SXM"),
        product_us(product(1, 65536, 1024), "H100-SXM"),
    )
    assert streamed > 5 * cached


def test_more_work_or_less_gpu_is_never_faster() -> None:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(1), np.log(8192), (200, 3))).astype(int)
    tables = [
        KernelTable.from_kernels([product(a * m, b * n, c * k) for m, n, k in sizes.tolist()])
        for a, b, c in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))
    ]
    for name in ("A100-SXM4-80GB", "RTX-4090"):
        base, *larger = (tensor_core_us(t, gpu(name)) for t in tables)
        for more in larger:
            assert (more >= 0.97 * base).all()
        slow = replace(gpu(name), dram_bytes_per_s=gpu(name).dram_bytes_per_s / 2)
        assert (tensor_core_us(tables[0], slow) >= base).all()
    everywhere = [tensor_core_us(tables[0], gpu(n)) for n in ("T4", "A100-SXM4-80GB", "H100-SXM")]
    assert everywhere[0].sum() > everywhere[1].sum() > everywhere[2].sum()


def test_convolutions_pad_their_channels() -> None:
    def conv(channels: int) -> Kernel:
        shape = ConvShape(
            batch=64, in_channels=channels, out_channels=64, groups=1, in_h=112, in_w=112, out_h=112, out_w=112,
            kernel_h=7, kernel_w=7, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
        )  # fmt: skip
        same = product(64 * 112 * 112, 64, 49 * 8)  # traffic of one of them for all
        gemm = GemmShape(batch=1, m=64 * 112 * 112, n=64, k=49 * channels)
        return replace(same, family=Family.CONV, gemm=gemm, conv=shape)

    three, four, five, eight = (product_us(conv(c), "A100-SXM4-80GB") for c in (3, 4, 5, 8))
    assert three == four < five == eight


def test_batches_of_products_fill_the_gpu() -> None:
    one, many = (
        product_us(product(256, 64, 256), "A100-SXM4-80GB"),
        product_us(product(256, 64, 256, batch=16), "A100-SXM4-80GB"),
    )
    assert one <= many < 3 * one


def test_attention_of_long_sequences_reaches_half_of_the_peak_and_causal_takes_half_the_time() -> None:
    full, causal = attention(96, 8192, 128), attention(96, 8192, 128, causal=True)
    for name in ("A100-SXM4-80GB", "H100-SXM", "RTX-PRO-6000", "RTX-3090"):
        reached = full.flops / attention_us(full, name) * 1e6
        assert 0.4 < reached / tensor_peak(gpu(name), "fp16") < 0.85, name
        assert attention_us(causal, name) / attention_us(full, name) == pytest.approx(0.52, abs=0.04)
    assert 5 < attention_us(attention(2, 16, 64), "A100-SXM4-80GB") < 20


def test_a_mask_or_an_old_gpu_keeps_flash_attention_from_running() -> None:
    plain = attention(96, 4096, 64)
    masked = replace(plain, variant="masked")
    for name in ("A100-SXM4-80GB", "RTX-4090"):
        assert attention_us(masked, name) / attention_us(plain, name) == pytest.approx(1.9, abs=0.12)
    assert attention_us(masked, "T4") == attention_us(plain, "T4")
    single = [replace(k, precision=Precision.FP32) for k in (plain, masked)]
    assert attention_us(single[0], "RTX-4090") == attention_us(single[1], "RTX-4090")


def test_attention_pads_queries_and_heads() -> None:
    assert attention_us(attention(4096, 197, 64), "RTX-3090") > 0.95 * attention_us(
        attention(4096, 256, 64), "RTX-3090"
    )
    assert attention_us(attention(512, 2048, 72), "A100-SXM4-80GB") == pytest.approx(
        attention_us(attention(512, 2048, 96), "A100-SXM4-80GB"), rel=0.1
    )


@pytest.mark.parametrize(
    ("features", "anchor"), [("tensor", "tensor"), ("fused_attention", "fused_attention")]
)
def test_features_and_anchors_are_finite_and_name_no_gpu(features: str, anchor: str) -> None:
    kernels = [
        product(1, 1, 1),
        product(197, 768, 3072),
        product(8192, 65536, 8192),
        product(64, 64, 64, batch=48),
    ]
    if features == "fused_attention":
        kernels = [attention(1, 1, 64), attention(768, 197, 64), attention(16, 4096, 256, causal=True)]
    table = KernelTable.from_kernels(kernels)
    for name in ("T4", "RTX-3090", "P100-PCIE-16GB", "B200"):
        matrix, names = feature_matrix(features, table, gpu(name))
        assert np.isfinite(matrix).all() and matrix.shape == (len(kernels), len(names))
        assert (ANCHORS[anchor](table, gpu(name)) > 0).all()
    a100 = gpu("A100-SXM4-80GB")
    assert not {"log_bandwidth", "log_peak", "log_sms"} & set(feature_matrix(features, table, a100)[1])
    empty = table.take(np.zeros(0, dtype=int))
    assert feature_matrix(features, empty, a100)[0].shape[0] == 0 == len(ANCHORS[anchor](empty, a100))
