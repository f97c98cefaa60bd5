"""Launch geometry: PyTorch's rules exactly, and what follows from them by hand calculation."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.launch import (
    Launch,
    blocks_per_sm,
    kept_up,
    launch_geometry,
    memory_launch,
    occupancy,
    sm_utilisation_pct,
)

V100 = gpu_catalogue().resolve("V100-SXM2-16GB")[0]


def kernel(family: Family, rows: int, cols: int = 1, **more: object) -> Kernel:
    size = 4 * rows * cols
    return Kernel(
        name="k", family=family, variant="add", precision=Precision.FP32, flops=rows * cols, read_bytes=size,
        write_bytes=size, rows=rows, cols=cols, **more,
    )  # fmt: skip


def launched(*kernels: Kernel) -> Launch:
    return launch_geometry(KernelTable.from_kernels(kernels), V100)


@pytest.mark.parametrize(
    ("family", "rows", "cols", "grid", "threads"),
    [
        (Family.ELEMENTWISE, 512, 1, 1, 128),
        (Family.ELEMENTWISE, 513, 1, 2, 128),
        (Family.SOFTMAX, 127, 168, 32, 128),  # NeuSight, P100: 32 blocks of 32 x 4
        (Family.SOFTMAX, 223, 114, 28, 128),
        (Family.SOFTMAX, 77, 3, 2, 128),
        (Family.SOFTMAX, 9, 1031, 9, 128),
        (Family.SOFTMAX, 9, 1033, 9, 256),
        (Family.SOFTMAX, 9, 2065, 9, 512),
        (Family.SOFTMAX, 9, 16384, 9, 512),
        (Family.LAYERNORM, 164, 2560, 164, 128),
        (Family.LAYERNORM, 164, 2561, 164, 512),
        (Family.BATCHNORM, 8192, 1, 2, 512),
    ],
)
def test_grid_and_block_follow_the_runtime(
    family: Family, rows: int, cols: int, grid: int, threads: int
) -> None:
    launch = launched(kernel(family, rows, cols))
    assert (launch.grid_blocks[0], launch.block_threads[0]) == (grid, threads)


def test_host_kernels_launch_nothing() -> None:
    launch = launched(kernel(Family.HOST, 10))
    assert launch.grid_blocks[0] == 0
    assert sm_utilisation_pct(launch, V100)[0] == 0
    assert occupancy(launch, V100)[1][0] == 0


def test_large_product_takes_large_tiles_and_a_small_one_is_split() -> None:
    def product(m: int, n: int, k: int) -> Kernel:
        return kernel(Family.LINEAR, m * n, gemm=GemmShape(batch=1, m=m, n=n, k=k))

    launch = launched(product(4096, 4096, 64), product(64, 64, 8192))
    assert launch.grid_blocks[0] == (4096 / 128) ** 2
    assert 1 < launch.grid_blocks[1] <= V100.sms * 4


def one(grid: float, threads: float, registers: float = 32, shared: float = 0) -> Launch:
    return Launch(grid_blocks=np.array([grid]), block_threads=np.array([threads]),
                  registers_per_thread=np.array([registers]), shared_bytes=np.array([shared]))  # fmt: skip


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "fit"),
    [
        (128, 32, 0, 16),
        (64, 32, 0, 32),
        (1024, 32, 0, 2),
        (256, 128, 0, 2),
        (128, 32, 48 * 1024, 2),
        (256, 255, 0, 1),
    ],
)
def test_blocks_that_fit_on_a_v100_sm(threads: int, registers: int, shared: int, fit: int) -> None:
    # 64 warps, 32 blocks, 65,536 registers and 96 KiB of shared memory per SM.
    assert blocks_per_sm(one(1000, threads, registers, shared), V100)[0] == fit


def test_sm_utilisation_is_the_design_formula() -> None:
    # 128 threads: 16 blocks fit, so 100 blocks need 7 of 80 SMs.
    assert sm_utilisation_pct(one(100, 128), V100)[0] == pytest.approx(100 * 7 / 80)
    assert sm_utilisation_pct(one(10**6, 128), V100)[0] == 100


def test_achieved_occupancy_counts_the_tail_and_active_sms_only() -> None:
    slots = 16 * 80
    theoretical, achieved = occupancy(one(slots, 128), V100)
    assert theoretical[0] == achieved[0] == 100
    # One full wave and a last one of 80 blocks: one block of 4 warps per SM.
    _, tailed = occupancy(one(slots + 80, 128), V100)
    assert tailed[0] == pytest.approx((100 + 100 * 4 / 64) / 2)
    # A single block keeps one SM at 4 of 64 warps, whatever the others do.
    assert occupancy(one(1, 128), V100)[1][0] == pytest.approx(6.25)


def test_streams_of_short_blocks_never_quite_fill_the_sms() -> None:
    slots = 16 * 80
    # w waves of 16 blocks x 4 warps on each SM: 94 % of it kept up, half a wave lost at the end.
    for waves in (1, 4.9, 100):
        _, achieved = occupancy(one(waves * slots, 128), V100, streaming=True)
        assert achieved[0] == pytest.approx(94 * waves / (waves + 0.5))
    # 120 blocks on 80 SMs: 1.5 blocks of 4 of 64 warps each on average, one short wave.
    _, small = occupancy(one(120, 128), V100, streaming=True)
    assert small[0] == pytest.approx(100 * 1.5 * 4 / 64 * 0.94 / 1.5)
    # 40 registers: 1,280 a warp, 12 warps in each quarter of the SM: 6 blocks of 8 warps, 48 of 64.
    theoretical, _ = occupancy(one(10**6, 256, 40), V100, streaming=True)
    assert theoretical[0] == 75


def test_a_reduction_along_long_rows_loses_less_between_its_blocks() -> None:
    short, long, wave = (
        kernel(Family.REDUCTION, 100_000, 64), kernel(Family.REDUCTION, 100_000, 512 * 24),
        kernel(Family.LINEAR, 100_000, 64),
    )  # fmt: skip
    table = KernelTable.from_kernels([short, long, wave])
    # A block of 512 threads a long row: 24 elements a thread in place of the 4 of an elementwise kernel.
    kept = kept_up(launch_geometry(table, V100), table)
    assert kept.tolist() == pytest.approx([0.94, 1 - 0.06 * 4 / 24, 1])


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "warps"),
    [
        ("T4", 1024, 32, 0, 32),  # 32 warps an SM: one block of 1,024 threads
        ("T4", 128, 128, 0, 16),  # 65,536 / (128 x 32) = 16 warps
        ("A100-PCIE-40GB", 128, 32, 16 * 1024, 36),  # 164 KiB / (16 + 1 KiB reserved) = 9 blocks of 4 warps
        ("RTX-3090", 256, 32, 0, 48),  # 48 warps: 6 blocks of 8
        # 37 x 32 -> 1,280 registers a warp: 12 of them in each quarter of 16,384, though 51 in 65,536.
        ("V100-SXM2-16GB", 96, 37, 0, 48),
        ("P100-PCIE-16GB", 96, 37, 0, 48),  # two halves of 32,768: 25 each, 50 warps, 16 blocks of 3
    ],
)
def test_theoretical_occupancy_by_the_rules_of_the_programming_guide(
    gpu: str, threads: int, registers: int, shared: int, warps: int
) -> None:
    spec = gpu_catalogue().resolve(gpu)[0]
    theoretical, _ = occupancy(one(10**6, threads, registers, shared), spec)
    assert theoretical[0] == pytest.approx(100 * warps / spec.warps_per_sm)


@pytest.mark.shared
@pytest.mark.parametrize(("name", "least"), [("elem", 1.0), ("softmax", 0.999), ("ln", 1.0)])
def test_grids_equal_those_that_neusight_recorded(name: str, least: float) -> None:
    root = os.environ.get("GKEST_SHARED")
    if not root or not (Path(root) / "data/neusight").is_dir():
        pytest.skip("GKEST_SHARED does not name a folder with data/neusight (recorded launches)")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = parquet.read_table(Path(root) / f"data/neusight/train_{name}.parquet").to_pandas().iloc[::7]
    family = {"elem": Family.ELEMENTWISE, "softmax": Family.SOFTMAX, "ln": Family.LAYERNORM}[name]
    table = KernelTable.from_kernels(
        [
            kernel(family, b * h) if family is Family.ELEMENTWISE else kernel(family, b, h)
            for b, h in zip(data.B.tolist(), data.H.tolist(), strict=True)
        ]
    )
    grid, threads = memory_launch(table)
    assert np.mean(grid == data["Grid x"].to_numpy()) >= least
    assert np.mean(threads == (data["Block x"] * data["Block y"]).to_numpy()) >= least
