"""The attainable time and the features of regressors for GPUs that were not measured."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.attainable import (
    attainable_us,
    compute_us,
    footprint,
    memory_us,
    tile_slowdown,
)
from gkestimator.kernel_models.features.vector import FEATURE_SETS, feature_matrix
from gkestimator.training.plan import PLAN

F = 4
SETS = ("transfer_matrix", "transfer_conv", "transfer_memory", "transfer_elementwise", "transfer_layernorm")


def spec(name: str) -> GpuSpec:
    return gpu_catalogue().spec(name)


def product(m: int, n: int, k: int, *, batch: int = 1, family: Family = Family.LINEAR) -> Kernel:
    right = batch * n * k * F
    return Kernel(
        name=str(family), family=family, variant=str(family), precision=Precision.FP32, flops=2 * batch * m * n * k,
        read_bytes=batch * m * k * F + right, write_bytes=batch * m * n * F,
        weight_bytes=right if family is Family.LINEAR else 0, rows=batch * m * n, inputs=2,
        gemm=GemmShape(batch=batch, m=m, n=n, k=k),
    )  # fmt: skip


def conv(n: int, c: int, h: int, k: int, r: int) -> Kernel:
    shape = ConvShape(
        batch=n, in_channels=c, out_channels=k, groups=1, in_h=h, in_w=h, out_h=h, out_w=h, kernel_h=r, kernel_w=r,
        stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
    )  # fmt: skip
    base = product(n * h * h, k, c * r * r)
    return replace(base, name="conv", family=Family.CONV, variant="conv", conv=shape)


def rowwise(family: Family, variant: str, rows: int, cols: int, *, inputs: int = 1) -> Kernel:
    weights = 2 * cols * F if family is Family.LAYERNORM else 0
    size = rows * cols * F
    return Kernel(
        name=variant, family=family, variant=variant, precision=Precision.FP32, flops=rows * cols, read_bytes=inputs * size + weights,
        write_bytes=size, weight_bytes=weights, rows=rows, cols=cols, inputs=inputs,
    )  # fmt: skip


KERNELS = (
    product(4096, 4096, 4096),
    product(512, 4096, 1024),
    product(1, 4096, 4096),
    product(512, 512, 64, batch=96, family=Family.BMM),
    product(512, 64, 512, batch=96, family=Family.BMM),
    conv(32, 64, 56, 64, 3),
    conv(1, 256, 14, 256, 3),
    rowwise(Family.ELEMENTWISE, "add", 64_000_000, 1, inputs=2),
    rowwise(Family.ELEMENTWISE, "relu", 100_000, 1),
    rowwise(Family.SOFTMAX, "softmax", 49152, 512),
    rowwise(Family.SOFTMAX, "softmax", 4096, 8192),
    rowwise(Family.LAYERNORM, "layer_norm", 65536, 4096),
    rowwise(Family.LAYERNORM, "layer_norm", 4096, 768),
)
TABLE = KernelTable.from_kernels(KERNELS)


def one(kernel: Kernel) -> KernelTable:
    return KernelTable.from_kernels([kernel])


@pytest.mark.parametrize("name", gpu_catalogue().complete_names())
def test_attainable_is_finite_and_no_less_than_both_sides(name: str) -> None:
    gpu = spec(name)
    time = attainable_us(TABLE, gpu)
    assert np.isfinite(time).all()
    assert (time > memory_us(TABLE, gpu)).all()
    matrix = np.flatnonzero(np.isfinite(TABLE.columns["gemm_m"]))
    part = TABLE.take(matrix)
    assert (time[matrix] > compute_us(part, gpu)).all()
    assert (tile_slowdown(TABLE, gpu) >= 1).all()


@pytest.mark.parametrize("name", gpu_catalogue().complete_names())
def test_more_of_anything_is_never_slower(name: str) -> None:
    gpu = spec(name)
    before = attainable_us(TABLE, gpu)
    nominal = replace(gpu, dram_sustained_bytes_per_s=None)
    assert (
        attainable_us(TABLE, replace(nominal, dram_bytes_per_s=2 * gpu.dram_bytes_per_s))
        <= attainable_us(TABLE, nominal)
    ).all()
    assert (attainable_us(TABLE, replace(gpu, l2_bytes=2 * gpu.l2_bytes)) <= before).all()
    assert (attainable_us(TABLE, replace(gpu, power_limit_w=2 * gpu.power_limit_w)) <= before).all()
    faster = replace(gpu, peak_flops_per_s={k: 2 * v for k, v in gpu.peak_flops_per_s.items()})
    assert (attainable_us(TABLE, faster) <= before).all()


@pytest.mark.parametrize(
    ("better", "worse"),
    [("H100-SXM", "A100-SXM4-80GB"), ("H100-PCIE", "A100-PCIE-40GB"), ("RTX-4090", "RTX-3090"), ("A100-SXM4-80GB", "V100-SXM2-16GB"),
     ("A10G", "T4"), ("L4", "T4"), ("RTX-5090", "RTX-3090"), ("L40S", "L4"), ("H200", "H100-SXM")],
)  # fmt: skip
def test_better_boards_are_no_slower_on_large_kernels(better: str, worse: str) -> None:
    large = TABLE.take(np.array([0, 5, 7, 9, 11]))
    if (better, worse) == ("L4", "T4"):  # 300 against 320 GB/s: memory-bound kernels are another matter
        large = TABLE.take(np.array([0, 5]))
    assert (attainable_us(large, spec(better)) <= attainable_us(large, spec(worse))).all()


def test_layer_norm_reads_twice_what_l2_does_not_hold() -> None:
    """V100, 4,096 columns: 16 blocks of 128 threads on each of 80 SMs, a row of 16 KiB each: 20 MiB in work against
    6 MiB of L2, so input, input again and output: 3 x 1 GiB and the weights, at 0.9 x 900 GB/s, and 1.5 us."""
    kernel = one(rowwise(Family.LAYERNORM, "layer_norm", 65536, 4096))
    expected = (3 * 2**30 + 2 * 4096 * 4) / (0.9 * 900e9) * 1e6 + 1.5
    assert attainable_us(kernel, spec("V100-PCIE-32GB"))[0] == pytest.approx(expected, rel=1e-9)
    # 64 columns: 320 KiB in work, so it stays and is read from DRAM once, in less time than a row's 200 clocks take.
    narrow = one(rowwise(Family.LAYERNORM, "layer_norm", 4194304, 64))
    expected = 4194304 * 200 / (80 * 1380e6) * 1e6 + 1.5
    assert attainable_us(narrow, spec("V100-PCIE-32GB"))[0] == pytest.approx(expected, rel=1e-9)


def test_softmax_of_wide_rows_reads_three_times() -> None:
    wide = one(rowwise(Family.SOFTMAX, "softmax", 16384, 16384))
    shape = footprint(wide, spec("V100-PCIE-32GB"))
    assert shape.extra_passes[0] == 2
    assert attainable_us(wide, spec("V100-PCIE-32GB"))[0] == pytest.approx(
        4 * 2**30 / (0.9 * 900e9) * 1e6 + 1.5, rel=1e-9
    )
    assert (
        footprint(one(rowwise(Family.SOFTMAX, "softmax", 65536, 1024)), spec("V100-PCIE-32GB")).extra_passes[
            0
        ]
        == 0
    )


def test_rms_normalisation_is_bound_by_the_sms_of_a_gpu_with_fast_memory() -> None:
    """65,536 x 4,096 in two passes: an H100 moves 4.35 bytes per SM and clock, 132 SMs at 1,980 MHz; an A40's DRAM is
    slower than that. LayerNorm proper is not bound so."""
    kernel = one(rowwise(Family.LAYERNORM, "rms_norm", 65536, 4096))
    moved = 2 * 2**30 + 2 * 4096 * 4
    expected = moved / (4.35 * 132 * 1980e6) * 1e6 + 1.5
    assert attainable_us(kernel, spec("H100-SXM"))[0] == pytest.approx(expected, rel=1e-9)
    layer = one(rowwise(Family.LAYERNORM, "layer_norm", 65536, 4096))
    assert attainable_us(layer, spec("H100-SXM"))[0] < 0.8 * expected
    assert attainable_us(kernel, spec("A40"))[0] == attainable_us(layer, spec("A40"))[0]


def test_what_fits_into_l2_moves_at_its_rate() -> None:
    """8 MB on an A100 (40 MiB of L2): 8e6 bytes / (108 SMs x 20 bytes x 1,410 MHz) and 1.5 us, less than DRAM takes."""
    kernel = one(rowwise(Family.ELEMENTWISE, "relu", 1_000_000, 1))
    expected = 8e6 / (108 * 20 * 1410e6) * 1e6 + 1.5
    assert attainable_us(kernel, spec("A100-PCIE-40GB"))[0] == pytest.approx(expected, rel=1e-9)
    assert expected < 8e6 / 1400e9 * 1e6 + 1.5


def test_batched_products_pay_for_the_one_tile_of_their_library() -> None:
    """108 products of 64 x 64 x 112 on the 108 SMs of an A100: one wave of 128 x 128 tiles, a quarter of them used, 16
    steps of prologue: 4 x 128 / 112. A V100 has 64 x 64 tiles at 0.85: two waves over 80 SMs for 108 / 80 of work."""
    kernel = one(product(64, 64, 112, batch=108, family=Family.BMM))
    assert tile_slowdown(kernel, spec("A100-PCIE-40GB"))[0] == pytest.approx(4 * 128 / 112)
    assert tile_slowdown(kernel, spec("V100-PCIE-32GB"))[0] == pytest.approx(2 * 80 / 108 * 128 / 112 / 0.85)


def test_kernels_without_matrix_dimensions_have_no_tiles() -> None:
    assert (tile_slowdown(TABLE.take(np.array([7, 9, 11])), spec("T4")) == 1).all()


@pytest.mark.parametrize("name", ["P4", "T4", "H100-SXM", "RTX-5090", "K80"])
@pytest.mark.parametrize("features", SETS)
def test_features_are_finite_and_named_alike_everywhere(features: str, name: str) -> None:
    matrix, names = feature_matrix(features, TABLE, spec(name))
    assert matrix.shape == (len(TABLE), len(names))
    assert np.isfinite(matrix).all()
    assert names == feature_matrix(features, TABLE, spec("V100-PCIE-32GB"))[1]
    raw = {"log_bandwidth", "log_sms", "log_clock", "log_peak", "log_l2", "compute_capability"}
    assert not raw & set(names)


@pytest.mark.parametrize("features", SETS)
def test_a_gpu_twice_the_size_with_twice_the_work_looks_the_same(features: str) -> None:
    """Twice the SMs, bandwidth, L2 and rates, and twice the batch: every ratio stays; only the batch and the rows
    themselves tell the two apart (and the weights that a batched product does not have, over the L2)."""
    gpu = replace(spec("V100-PCIE-32GB"), power_limit_w=1e4)
    double = replace(
        gpu, sms=160, dram_bytes_per_s=2 * gpu.dram_bytes_per_s, l2_bytes=2 * gpu.l2_bytes,
        peak_flops_per_s={k: 2 * v for k, v in gpu.peak_flops_per_s.items()},
    )  # fmt: skip
    if features in ("transfer_matrix", "transfer_conv"):
        small, large = (one(product(256, 256, 256, batch=b, family=Family.BMM)) for b in (40, 80))
    else:
        small, large = (one(rowwise(Family.SOFTMAX, "softmax", r, 512)) for r in (1 << 18, 1 << 19))
    first, names = feature_matrix(features, small, gpu)
    second, _ = feature_matrix(features, large, double)
    differ = {
        n for n, a, b in zip(names, first[0], second[0], strict=True) if not np.isclose(a, b, atol=1e-5)
    }
    assert differ - {"log_weight_over_l2"} in ({"log_batch"}, {"log_rows"})


def test_every_trained_pair_is_answered_on_gpus_not_measured() -> None:
    """What a model for measured GPUs answers, one for the others answers too (or the measured one out of range).

    TensorRT's depthwise convolutions were measured on too few GPUs: elsewhere they are calculated.
    """
    pairs = {
        scope: {p for plan in PLAN if plan.scope == scope for p in (*plan.trains, *plan.covers)}
        for scope in ("seen", "unseen")
    }
    calculated = {pair for pair in pairs["seen"] if pair[0] == "depthwise"}
    assert pairs["seen"] - calculated <= pairs["unseen"]
    for plan in PLAN:
        assert plan.features in FEATURE_SETS
        assert plan.anchor in ANCHORS
        assert (plan.folds == "gpu") == (plan.scope == "unseen")
        assert 0 < plan.shrink <= 1


@pytest.mark.shared
def test_the_specification_alone_meets_the_bars_on_measured_gpus() -> None:
    """NeuSight's rows, nothing fitted: mean per GPU of the error of what was measured, then over GPUs."""
    pytest.importorskip("pyarrow")
    from gkestimator.training.importers import load_source

    shared = os.environ.get("GKEST_SHARED")
    if not shared:
        pytest.skip("GKEST_SHARED names no folder with the public measurements")
    folder = Path(shared) / "data" / "neusight"
    _, parts = load_source(folder)
    errors: dict[str, dict[str, float]] = {}
    for rows in parts:
        family = str(rows.table.family[0])
        if rows.source[0] != "neusight/train" or family == "conv":
            continue
        for name in sorted(set(rows.gpu.tolist())):
            part = rows.take(np.flatnonzero(rows.gpu == name)[::5])
            predicted = part.as_measured_us(attainable_us(part.table, spec(name)))
            errors.setdefault(family, {})[name] = (
                float(np.mean(np.abs(predicted / part.measured_us - 1))) * 100
            )
    mean = {family: np.mean(list(values.values())) for family, values in errors.items()}
    bars = {"linear": 22, "bmm": 25, "elementwise": 4, "softmax": 10, "layernorm": 15}
    assert {family: value for family, value in mean.items() if value > bars[family]} == {}
    assert set(mean) == set(bars)
