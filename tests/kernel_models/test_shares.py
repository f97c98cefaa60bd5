"""Kernels on a part of a GPU's SMs: what each loses, over random kernels of every family."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import KERNEL_LATENCY_US
from gkestimator.kernel_models.launch import launch_geometry
from gkestimator.kernel_models.shares import slowdown_on_part

V100 = gpu_catalogue().spec("V100-SXM2-16GB")
SHARES = (0.5, 1.25, 3.0, 10.0, 12.5, 20.0, 33.0, 50.0, 51.0, 75.0, 99.0, 100.0)
TILED = (Family.LINEAR, Family.BMM, Family.ATTENTION, Family.RNN)
CONVOLUTIONS = (Family.CONV, Family.CONV_TRANSPOSE, Family.DEPTHWISE)


def power(rng: np.random.Generator, most: int) -> int:
    """Return a whole number from 1, as often small as large."""
    return int(2 ** rng.uniform(0, most))


def random_kernel(rng: np.random.Generator, family: Family) -> Kernel:
    gemm = conv = None
    flops = rows = power(rng, 24)
    cols = power(rng, 12)
    inputs, outputs = rows * min(cols, 64), rows
    if family in TILED:
        gemm = GemmShape(batch=power(rng, 7), m=power(rng, 11), n=power(rng, 12), k=power(rng, 12))
        flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k
        inputs, outputs = gemm.k * (gemm.m + gemm.n), gemm.batch * gemm.m * gemm.n
    if family in CONVOLUTIONS:
        side, channels, filters = power(rng, 7), power(rng, 9), power(rng, 9)
        conv = ConvShape(
            batch=power(rng, 6), in_channels=channels, out_channels=filters, groups=1, in_h=side, in_w=side,
            out_h=side, out_w=side, kernel_h=3, kernel_w=3, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
        )  # fmt: skip
        gemm = GemmShape(batch=1, m=conv.batch * side * side, n=filters, k=9 * channels)
        flops = 2 * gemm.m * gemm.n * gemm.k
        inputs, outputs = gemm.m * channels + gemm.n * gemm.k, gemm.m * filters
    if family is Family.HOST:
        flops = 0
    return Kernel(
        name="k",
        family=family,
        variant="add" if family is Family.ELEMENTWISE else family.value,
        precision=Precision(str(rng.choice(["fp32", "fp16", "tf32"]))),
        flops=flops,
        read_bytes=4 * inputs,
        write_bytes=4 * outputs,
        rows=max(rows, 1),
        cols=cols,
        gemm=gemm,
        conv=conv,
    )


@pytest.fixture(scope="module")
def random_table() -> KernelTable:
    rng = np.random.default_rng(0)
    kernels = [random_kernel(rng, family) for family in Family for _ in range(12)]
    return KernelTable.from_kernels(kernels)


@pytest.mark.parametrize("gpu", ["V100-SXM2-16GB", "T4", "H100-SXM", "RTX-4090"])
@pytest.mark.parametrize("trained", [True, False])
def test_no_kernel_gains_on_a_part_nor_loses_more_than_its_share(
    random_table: KernelTable, gpu: str, trained: bool
) -> None:
    spec = gpu_catalogue().spec(gpu)
    bundle = load_bundle() if trained else Bundle(name="analytical", models=())
    times = [bundle.predict(random_table, spec, sm_share_pct=share).duration_us for share in SHARES]
    on_host = random_table.family == Family.HOST
    for share, on_part in zip(SHARES, times, strict=True):
        slowdown = on_part[~on_host] / times[-1][~on_host]
        assert slowdown.min() >= 1 - 1e-9
        assert slowdown.max() <= 100 / share * (1 + 1e-9)
    for less, more in pairwise(times):
        assert np.all(more <= less * (1 + 1e-9))


def slowdown(kernel: Kernel, share: float, *, times: float = 1.0) -> float:
    """Return the slowdown of a kernel that takes ``times`` what the analytical model says of the whole GPU."""
    table = KernelTable.from_kernels([kernel])
    whole = Bundle(name="analytical", models=()).predict(table, V100).duration_us
    launch = launch_geometry(table, V100)
    return float(slowdown_on_part(table, launch, V100, share, whole * times)[0])


def elementwise(elements: int) -> Kernel:
    return Kernel(
        name="e", family=Family.ELEMENTWISE, variant="add", precision=Precision.FP32, flops=elements,
        read_bytes=8 * elements, write_bytes=4 * elements, rows=elements, inputs=2,
    )  # fmt: skip


def product(m: int, n: int, k: int) -> Kernel:
    return Kernel(
        name="p", family=Family.LINEAR, variant="matmul", precision=Precision.FP32, flops=2 * m * n * k,
        read_bytes=4 * (m * k + n * k), write_bytes=4 * m * n, rows=m, cols=n, inputs=2,
        gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )  # fmt: skip


def test_work_that_fits_on_the_part_does_not_feel_it() -> None:
    # 8,192 threads: four of the eight SMs of a tenth hold them.
    assert slowdown(elementwise(8 * 1024), 10) == pytest.approx(1, abs=1e-3)
    assert slowdown(elementwise(64 * 1024 * 1024), 10) > 4  # bound by what eight SMs draw


def test_work_that_fills_the_gpu_loses_what_it_is_denied() -> None:
    large = product(8192, 8192, 4096)
    assert slowdown(large, 50) == pytest.approx(2, rel=0.02)
    assert slowdown(large, 10) == pytest.approx(10, rel=0.02)
    # More than the model explains: a full wave of blocks is slow because its work is.
    assert slowdown(large, 10, times=3.0) == pytest.approx(10, rel=0.02)


def test_what_small_work_takes_beyond_itself_is_latency() -> None:
    small = product(64, 512, 512)
    expected, slow = (slowdown(small, 10, times=times) for times in (1.0, 4.0))
    assert 1 < slow < expected
    # A quarter of the time scales, and of the rest what its few blocks fill of a wave.
    assert (slow - 1) / (expected - 1) == pytest.approx(0.25, abs=0.2)


def test_starting_a_kernel_takes_as_long_on_a_part() -> None:
    empty = elementwise(1)
    table = KernelTable.from_kernels([empty])
    bundle = Bundle(name="analytical", models=())
    for share in (1, 10, 100):
        assert bundle.predict(table, V100, sm_share_pct=share).duration_us[0] == pytest.approx(
            KERNEL_LATENCY_US, rel=1e-3
        )
