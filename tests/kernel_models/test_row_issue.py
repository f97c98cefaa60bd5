"""Layer normalisations of short rows: instructions, not bytes."""

from __future__ import annotations

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.attainable import attainable_us
from gkestimator.kernel_models.row_issue import row_issue_us

ROWS = 1_000_000


def norm(cols: int, variant: str = "layer_norm", size: int = 4) -> Kernel:
    moved = ROWS * cols * size
    return Kernel(
        name=f"layernorm.{variant}", family=Family.LAYERNORM, variant=variant, precision=Precision.FP32,
        flops=8 * ROWS * cols, read_bytes=moved, write_bytes=moved, rows=ROWS, cols=cols, element_bytes=size,
    )  # fmt: skip


def test_a_row_costs_by_the_warps_that_have_elements() -> None:
    gpu, _ = gpu_catalogue((), bundles=()).resolve("A100-PCIE-40GB")
    kernels = [norm(40), norm(128), norm(129), norm(512), norm(1024), norm(64, "rms_norm")]
    times = row_issue_us(KernelTable.from_kernels(kernels), gpu) * gpu.sms * gpu.boost_clock_mhz / ROWS
    assert times.tolist() == pytest.approx([200, 200, 400, 800, 1080, 0])


def test_narrow_rows_wait_for_instructions_and_wide_ones_for_memory() -> None:
    gpu, _ = gpu_catalogue((), bundles=()).resolve("A100-PCIE-40GB")
    table = KernelTable.from_kernels([norm(64), norm(64, size=2), norm(4096), norm(4096, size=2)])
    narrow, narrow_half, wide, wide_half = attainable_us(table, gpu).tolist()
    assert narrow == narrow_half
    assert wide_half < 0.7 * wide
