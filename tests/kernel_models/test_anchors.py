"""Anchors, repeated reads, and what each convolution algorithm would cost."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.convolution import convolution_columns, whole_channels
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.launch import matrix_tiles
from gkestimator.kernel_models.roofline import roofline
from gkestimator.kernel_models.traffic import least_traffic_us, softmax_misses
from gkestimator.training.rows import conv_table, kernel_table


def spec(name: str) -> GpuSpec:
    return gpu_catalogue().resolve(name)[0]


def convolution(
    *,
    n: int = 16,
    c: int = 64,
    h: int = 56,
    k: int = 128,
    r: int = 3,
    stride: int = 1,
    precision: str = "fp32",
) -> KernelTable:
    sizes = {"n": n, "c": c, "h": h, "w": h, "k": k, "r": r, "s": r, "pad_h": r // 2, "pad_w": r // 2, "stride_h": stride,
             "stride_w": stride}  # fmt: skip
    columns = {name: np.array([float(v)]) for name, v in sizes.items()}
    table = conv_table(**columns, precision=precision, size=4.0 if precision == "fp32" else 2.0)
    assert isinstance(table, KernelTable)
    return table


def softmax(rows: int, cols: int) -> KernelTable:
    size = 4.0 * rows * cols
    sizes = {"flops": 5.0 * rows * cols, "read_bytes": size, "write_bytes": size, "rows": rows, "cols": cols}
    columns = {name: np.array([float(v)]) for name, v in sizes.items()}
    return kernel_table(
        family="softmax", variant="softmax", precision="fp32", columns={**columns, "element_bytes": 4.0}
    )


def test_winograd_costs_by_hand() -> None:
    v100, table = spec("V100-SXM2-16GB"), convolution()
    roof = roofline(table, v100)
    columns = convolution_columns(table, v100, roof)
    tiles = 16 * 14 * 14  # 4 x 4 outputs
    compute = 2 * 36 * tiles * 64 * 128 / v100.peak_flops_per_s["fp32"] * 1e6
    assert columns["winograd4_compute"][0] == pytest.approx(np.log(compute / roof.roofline_us[0]))
    moved = 16 * 56 * 56 * (64 + 128) + 36 * 2 * (tiles * (64 + 128) + 64 * 128)
    memory = 4 * moved / v100.dram_bytes_per_s * 1e6
    assert columns["winograd4_time"][0] == pytest.approx(np.log((compute + memory) / roof.roofline_us[0]))
    # F(4x4, 3x3) multiplies 36 times where the direct algorithm does 144 times.
    assert columns["winograd4_compute"][0] == pytest.approx(np.log(36 / 144), abs=1e-6)
    assert columns["winograd4_useful"][0] == 1.0


@pytest.mark.parametrize(("area", "stride"), [(5, 1), (3, 2), (1, 1)])
def test_winograd_applies_to_3x3_of_stride_1_alone(area: int, stride: int) -> None:
    v100, table = spec("V100-SXM2-16GB"), convolution(r=area, stride=stride)
    columns = convolution_columns(table, v100, roofline(table, v100))
    assert columns["winograd4_time"][0] == columns["winograd2_compute"][0] == 0.0
    assert columns["winograd4_fill_64x64"][0] == 1.0


def test_tensor_cores_pay_for_whole_channels() -> None:
    v100, p100 = spec("V100-SXM2-16GB"), spec("P100-PCIE-16GB")
    few = convolution(c=3, precision="fp16")
    assert whole_channels(few)[0] == pytest.approx(8 / 3)
    assert whole_channels(convolution())[0] == 1.0
    for gpu, factor in ((v100, 8 / 3), (p100, 1.0)):
        roof = roofline(few, gpu)
        compute = roof.compute_us[0] * matrix_tiles(few, gpu).slowdown[0] * factor
        expected = compute / 0.7 + roof.memory_us[0] / 0.8 + 4.0
        assert ANCHORS["convolution"](few, gpu)[0] == pytest.approx(expected)


def test_rows_that_leave_the_l1_are_read_three_times() -> None:
    v100 = spec("V100-SXM2-16GB")
    misses = [softmax_misses(softmax(65536, cols), v100)[0] for cols in (1024, 4096, 6400, 16384)]
    assert misses[0] == 0 and misses[0] <= misses[1] < 0.2 < misses[2] < misses[3] == 1
    wide = softmax(65536, 16384)
    streamed = roofline(wide, v100).memory_us[0] / 0.87
    assert least_traffic_us(wide, v100)[0] == pytest.approx(
        0.9 * 2 * streamed
    )  # 3 reads + 1 write against 1 + 1
    assert least_traffic_us(softmax(65536, 1024), v100)[0] == 0
    assert least_traffic_us(softmax(8, 16384), spec("A100-PCIE-40GB"))[0] == 0  # few rows stay cached
    assert least_traffic_us(convolution(), v100)[0] == 0


def test_a_product_beyond_saturation_looks_like_the_largest() -> None:
    v100 = spec("V100-SXM2-16GB")

    def product(m: float) -> KernelTable:
        sizes = {"flops": 2 * m * 4096 * 4096, "read_bytes": 4 * (m * 4096 + 4096 * 4096), "write_bytes": 4 * m * 4096,
                 "weight_bytes": 4.0 * 4096 * 4096, "gemm_batch": 1.0, "gemm_m": m, "gemm_n": 4096.0, "gemm_k": 4096.0}  # fmt: skip
        columns = {name: np.array([float(v)]) for name, v in sizes.items()}
        return kernel_table(
            family="linear", variant="linear", precision="fp32", columns={**columns, "element_bytes": 4.0}
        )

    large, names = feature_matrix("product", product(65536.0), v100)
    larger, _ = feature_matrix("product", product(262144.0), v100)
    differ = {n for n, a, b in zip(names, large[0], larger[0], strict=True) if a != b}
    assert "log_m" in differ
    assert not any("waves" in name or "over_l2" in name or "roofline" in name for name in differ)
    assert not {"log_roofline", "log_compute", "log_memory"} & set(names)
