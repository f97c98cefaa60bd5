"""What a GPU sustains in a running model: power on T4, instructions of broadcasting kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable, plain_variant
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.features.vector import elementwise_variant
from gkestimator.kernel_models.steady import steady_floor_us


def product(m: int = 6144, n: int = 3072, k: int = 768) -> Kernel:
    return Kernel(
        name="linear",
        family=Family.LINEAR,
        variant="matmul",
        precision=Precision.FP16,
        flops=2 * m * n * k,
        read_bytes=2 * (m * k + k * n),
        write_bytes=2 * m * n,
        element_bytes=2,
        gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )


def addition(variant: str, elements: int) -> Kernel:
    return Kernel(
        name=f"elementwise.{variant}",
        family=Family.ELEMENTWISE,
        variant=variant,
        precision=Precision.FP16,
        flops=elements,
        read_bytes=2 * elements,
        write_bytes=2 * elements,
        rows=elements,
        element_bytes=2,
    )


def floor_us(gpu: str, kernel: Kernel) -> float:
    return float(steady_floor_us(KernelTable.from_kernels([kernel]), gpu_catalogue().spec(gpu))[0])


def test_turing_tensor_cores_stay_within_70_watts() -> None:
    # 0.8 x 70 W / 2.3 pJ: what Volta, of the same process, takes a FLOP.
    rate = product().flops / floor_us("T4", product()) / 1e6
    assert rate == pytest.approx(24.3, abs=0.1)


def test_boards_with_power_to_spare_are_not_slowed() -> None:
    kernel = product()
    table = KernelTable.from_kernels([kernel])
    for gpu in ("A100-SXM4-80GB", "H100-SXM"):
        assert floor_us(gpu, kernel) < analytical_duration_us(table, gpu_catalogue().spec(gpu))[0]


def test_divided_indices_take_longer_than_memory_on_a_fast_gpu() -> None:
    elements = 28_311_552
    a100 = gpu_catalogue().spec("A100-SXM4-80GB")
    expected = elements * (12 + 12 * 4) / (108 * 64 * 1410)
    assert floor_us("A100-SXM4-80GB", addition("add.indexed4", elements)) == pytest.approx(expected)
    assert expected > 4 * elements / a100.dram_bytes_per_s * 1e6


def test_plain_kernels_have_no_floor_of_instructions() -> None:
    assert floor_us("A100-SXM4-80GB", addition("add", 1 << 20)) == 0


def test_indexed_variants_cost_what_the_plain_one_does_otherwise() -> None:
    assert plain_variant("add.indexed3") == "add"
    assert elementwise_variant("sub.indexed4") == elementwise_variant("sub") == "add"
    table = KernelTable.from_kernels([addition("add", 1 << 20), addition("add.indexed3", 1 << 20)])
    durations = analytical_duration_us(table, gpu_catalogue().spec("T4"))
    assert np.ptp(durations) == 0
