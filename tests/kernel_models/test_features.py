"""Features, roofline, shares of SMs and the analytical model."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.features.vector import FEATURE_SETS, elementwise_variant, feature_matrix
from gkestimator.kernel_models.roofline import KERNEL_LATENCY_US, confined, roofline

CATALOGUE = gpu_catalogue()
V100 = CATALOGUE.resolve("V100-SXM2-16GB")[0]
H100 = CATALOGUE.resolve("H100-SXM")[0]
P100 = CATALOGUE.resolve("P100-PCIE-16GB")[0]


def product(m: int, n: int, k: int, precision: Precision = Precision.FP32) -> Kernel:
    return Kernel(
        name="linear", family=Family.LINEAR, variant="linear", precision=precision, flops=2 * m * n * k,
        read_bytes=4 * (m * k + n * k), write_bytes=4 * m * n, weight_bytes=4 * n * k, rows=m * n, inputs=2,
        gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )  # fmt: skip


def conv() -> Kernel:
    shape = ConvShape(
        batch=8, in_channels=64, out_channels=64, groups=1, in_h=56, in_w=56, out_h=56, out_w=56, kernel_h=3, kernel_w=3,
        stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
    )  # fmt: skip
    m, k = 8 * 56 * 56, 64 * 9
    return Kernel(
        name="conv", family=Family.CONV, variant="conv", precision=Precision.FP32, flops=2 * m * 64 * k,
        read_bytes=4 * (m * 64 + 64 * k), write_bytes=4 * m * 64, weight_bytes=4 * 64 * k, rows=m * 64,
        gemm=GemmShape(batch=1, m=m, n=64, k=k), conv=shape,
    )  # fmt: skip


def memory(family: Family, rows: int, cols: int = 1, variant: str = "add") -> Kernel:
    size = 4 * rows * cols
    return Kernel(
        name=variant, family=family, variant=variant, precision=Precision.FP32, flops=rows * cols, read_bytes=size,
        write_bytes=size, rows=rows, cols=cols,
    )  # fmt: skip


def table(*kernels: Kernel) -> KernelTable:
    return KernelTable.from_kernels(kernels)


def test_roofline_by_hand() -> None:
    roof = roofline(table(product(1024, 1024, 1024)), V100)
    assert roof.compute_us[0] == pytest.approx(2 * 1024**3 / V100.peak_flops_per_s["fp32"] * 1e6)
    assert roof.memory_us[0] == pytest.approx(3 * 4 * 1024**2 / V100.dram_bytes_per_s * 1e6)
    assert roof.roofline_us[0] == max(roof.compute_us[0], roof.memory_us[0])


def test_a_precision_the_gpu_lacks_runs_in_a_wider_one() -> None:
    roof = roofline(table(product(512, 512, 512, Precision.BF16), product(512, 512, 512)), P100)
    assert roof.compute_us[0] == roof.compute_us[1]


@pytest.mark.parametrize("name", sorted(FEATURE_SETS))
@pytest.mark.parametrize("gpu", [V100, H100], ids=lambda g: g.name)
def test_features_are_finite_and_a_row_does_not_depend_on_its_neighbours(name: str, gpu: object) -> None:
    kernels = [
        product(1, 1000, 4096),
        conv(),
        memory(Family.ELEMENTWISE, 1),
        memory(Family.SOFTMAX, 7, 30_000),
    ]
    whole, names = feature_matrix(name, table(*kernels), gpu)
    assert whole.shape == (4, len(names)) and whole.dtype == np.float32
    assert len(set(names)) == len(names)
    assert np.isfinite(whole).all()
    for i, kernel in enumerate(kernels):
        alone, _ = feature_matrix(name, table(kernel), gpu)
        np.testing.assert_array_equal(alone[0], whole[i])
    empty, _ = feature_matrix(name, table(), gpu)
    assert empty.shape == (0, len(names))


def test_wave_features_by_hand() -> None:
    matrix, names = feature_matrix("matrix", table(product(1280, 1024, 96)), V100)
    value = dict(zip(names, matrix[0], strict=True))
    assert value["log_waves_128x128"] == pytest.approx(0.0)  # 10 x 8 tiles on 80 SMs
    assert value["fill_128x128"] == pytest.approx(1.0)
    assert value["useful_256x128"] == pytest.approx(1.0)
    assert value["align_k"] == 5 and value["align_m"] == 6


def test_variants_are_looked_up_exactly() -> None:
    assert elementwise_variant("sigmoid") == "tanh"
    assert elementwise_variant("sub") == "add"
    assert elementwise_variant("substring") is None


@pytest.mark.parametrize("share", [0.0, -1.0, 100.1, float("nan"), float("inf")])
def test_an_absurd_share_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="SM share"):
        confined(V100, share)


def test_a_share_scales_arithmetic_but_little_bandwidth() -> None:
    half = confined(V100, 50)
    assert half.sms == 40
    assert half.peak_flops_per_s["fp32"] == pytest.approx(V100.peak_flops_per_s["fp32"] / 2)
    assert half.dram_bytes_per_s == V100.dram_bytes_per_s
    assert confined(V100, 5).dram_bytes_per_s < V100.dram_bytes_per_s / 5
    assert confined(V100, 0.001).sms == 1
    assert confined(V100, 100) is V100


@pytest.mark.parametrize("family", list(Family))
def test_the_analytical_model_answers_every_family(family: Family) -> None:
    big = table(memory(family, 1 << 20))
    duration = analytical_duration_us(big, V100)
    if family is Family.HOST:
        assert duration[0] == 0
    else:
        assert duration[0] >= roofline(big, V100).roofline_us[0] + KERNEL_LATENCY_US
        assert duration[0] < 100 * roofline(big, V100).roofline_us[0]


def test_depthwise_is_bound_by_its_slow_arithmetic() -> None:
    kernel = Kernel(
        name="dw", family=Family.DEPTHWISE, variant="conv", precision=Precision.FP32, flops=10**9, read_bytes=10**6,
        write_bytes=10**6,
    )  # fmt: skip
    expected = 1e9 / (0.08 * V100.vector_flops_per_s["fp32"]) * 1e6 + KERNEL_LATENCY_US
    assert analytical_duration_us(table(kernel), V100)[0] == pytest.approx(expected)
