"""No estimate and no interval goes below what the hardware can do."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.least import HIGHEST_CLOCK, least_us
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.train import training_gpus

CATALOGUE = gpu_catalogue(training_gpus())  # those of old boards that public tables measured among them
GPUS = (
    "P4",
    "T4",
    "V100-SXM2-16GB",
    "GTX-1080-TI",
    "A100-SXM4-80GB",
    "RTX-3080",
    "L4",
    "RTX-4090",
    "H100-SXM",
    "H20",
    "B200",
)
SHARED = os.environ.get("GKEST_SHARED")


def product(family: Family, batch: int, m: int, n: int, k: int, precision: Precision) -> Kernel:
    size = 4 if precision is Precision.FP32 else 2
    return Kernel(
        name="p", family=family, variant=family.value, precision=precision, flops=2 * batch * m * n * k,
        read_bytes=size * batch * (m * k + n * k), write_bytes=size * batch * m * n, rows=batch * m * n, inputs=2,
        element_bytes=size, gemm=GemmShape(batch=batch, m=m, n=n, k=k),
    )  # fmt: skip


def convolution(batch: int, channels: int, pixels: int, side: int, precision: Precision) -> Kernel:
    size = 4 if precision is Precision.FP32 else 2
    work = batch * pixels * pixels * channels * channels * side * side
    image = size * batch * channels * pixels * pixels
    weights = size * channels * channels * side * side
    shape = ConvShape(
        batch=batch, in_channels=channels, in_h=pixels, in_w=pixels, out_channels=channels, out_h=pixels, out_w=pixels,
        kernel_h=side, kernel_w=side, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1, groups=1,
    )  # fmt: skip
    gemm = GemmShape(batch=1, m=batch * pixels * pixels, n=channels, k=channels * side * side)
    return Kernel(
        name="c", family=Family.CONV, variant="conv", precision=precision, flops=2 * work, read_bytes=image + weights,
        write_bytes=image, weight_bytes=weights, rows=batch * channels * pixels * pixels, inputs=2, element_bytes=size,
        conv=shape, gemm=gemm,
    )  # fmt: skip


def stream(family: Family, rows: int, cols: int, precision: Precision) -> Kernel:
    size = 4 if precision is Precision.FP32 else 2
    moved = size * rows * cols
    return Kernel(
        name="s", family=family, variant="relu" if family is Family.ELEMENTWISE else family.value,
        precision=precision, flops=rows * cols, read_bytes=moved, write_bytes=moved, rows=rows, cols=cols,
        element_bytes=size,
    )  # fmt: skip


def random_kernels(count: int, seed: int) -> KernelTable:
    """Return kernels of every family with a bound, of sizes from a single row to far beyond any trained on."""
    rng = np.random.default_rng(seed)
    kernels = []
    for _ in range(count):
        precision = Precision.FP32 if rng.random() < 0.5 else Precision.FP16
        batch, m, n, k = (int(2 ** rng.uniform(0, top)) for top in (7, 13, 13, 13))
        kernels += [
            product(Family.LINEAR, 1, m, n, k, precision),
            product(Family.BMM, batch, m, n, min(k, 512), precision),
            convolution(
                batch,
                8 * int(2 ** rng.uniform(0, 6)),
                int(rng.integers(4, 160)),
                int(rng.choice([1, 3, 5])),
                precision,
            ),
        ]
        for family in (Family.ELEMENTWISE, Family.SOFTMAX, Family.LAYERNORM):
            kernels.append(stream(family, m * batch, n, precision))
    return KernelTable.from_kernels(kernels)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("share", [100.0, 25.0])
def test_neither_estimates_nor_low_ends_beat_the_hardware(name: str, share: float) -> None:
    gpu = CATALOGUE.spec(name)
    table = random_kernels(60, seed=len(name))
    predicted = load_bundle().predict(table, gpu, sm_share_pct=share)
    least = least_us(table, gpu, roofline(table, gpu))
    assert (least > 0).mean() > 0.5
    assert (predicted.low_us >= least * (1 - 1e-9)).all()
    assert (predicted.low_us <= predicted.duration_us * (1 + 1e-9)).all()
    assert (predicted.duration_us <= predicted.high_us * (1 + 1e-9)).all()


def test_the_bound_is_arithmetic_at_the_highest_clock_and_bytes_beyond_the_cache() -> None:
    a100 = CATALOGUE.spec("A100-SXM4-80GB")
    table = KernelTable.from_kernels(
        [
            product(Family.LINEAR, 1, 8192, 8192, 8192, Precision.FP16),
            stream(Family.ELEMENTWISE, 1 << 14, 1 << 14, Precision.FP32),
            stream(Family.ELEMENTWISE, 64, 1024, Precision.FP32),
            convolution(64, 64, 56, 3, Precision.FP32),
        ]
    )
    product_us, stream_us, cached_us, winograd_us = least_us(table, a100, roofline(table, a100))
    assert product_us == pytest.approx(2 * 8192**3 / a100.peak("fp16") * 1e6 / HIGHEST_CLOCK)
    beyond = 2 * (4 * 2**28 - a100.l2_bytes)
    assert stream_us == pytest.approx(beyond / a100.dram_bytes_per_s * 1e6)
    assert cached_us == 0.0  # what fits into the L2 need not come from DRAM
    direct = float(roofline(table, a100).compute_us[3])
    assert winograd_us == pytest.approx(direct / 4 / HIGHEST_CLOCK)


@pytest.mark.slow
@pytest.mark.skipif(SHARED is None, reason="wants GKEST_SHARED, the folder of public data")
def test_measurements_keep_the_bound(tmp_path: Path) -> None:
    """All but four convolutions of the T4, from whose time more was taken off on import than they took."""
    from gkestimator.training.train import measured_rows

    _, rows, _ = measured_rows(
        [Path(SHARED or "") / "data" / name for name in ("neusight", "deepbench", "vidur")]
    )
    broken = 0
    for loaded in rows:
        for name in sorted(set(loaded.gpu.tolist())):
            part = loaded.take(np.flatnonzero((loaded.gpu == name) & np.isfinite(loaded.duration_us)))
            gpu = CATALOGUE.spec(name)
            broken += int((part.duration_us < least_us(part.table, gpu, roofline(part.table, gpu))).sum())
    assert broken <= 4
