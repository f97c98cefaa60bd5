"""The host's share in NeuSight's latencies: climbing floors, switching speeds, and no row in its own floor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.importers.launch_gap import climb, local_floor, with_launch_gaps
from gkestimator.training.rows import TrainingRows, conv_table, kernel_table

V100 = gpu_catalogue().resolve("V100-PCIE-32GB")[0]
NAME = "V100-PCIE-32GB"
HOLD = 14.0


def convolutions(count: int, rise_us: float) -> tuple[TrainingRows, np.ndarray]:
    """Convolutions at 70 % of the peak behind a gap that climbs to 60 + ``rise_us``, and that gap."""
    rng = np.random.default_rng(0)
    c, k = (np.exp(rng.uniform(np.log(4), np.log(1024), count)).round() for _ in range(2))
    n, h = rng.integers(1, 64, count).astype(float), rng.integers(5, 40, count).astype(float)
    three, one = np.full(count, 3.0), np.ones(count)
    table = conv_table(
        n=n, c=c, h=h, w=h, k=k, r=three, s=three, pad_h=one, pad_w=one, stride_h=one, stride_w=one, precision="fp32", size=4.0
    )  # fmt: skip
    time = table.columns["flops"] / (0.7 * V100.peak_flops_per_s["fp32"]) * 1e6 + 12
    gap = 60 + rise_us * np.linspace(0, 1, count) ** 2
    gpu = np.full(count, NAME, dtype=object)
    measured = (gap + np.maximum(time, HOLD)) * np.exp(rng.normal(0, 0.02, count))
    return TrainingRows.make(table, gpu=gpu, measured_us=measured, source="neusight/train"), gap


def additions(count: int, floor: np.ndarray) -> TrainingRows:
    rng = np.random.default_rng(1)
    elements = np.exp(rng.uniform(np.log(1e3), np.log(1e8), count)).round()
    table = kernel_table(
        family="elementwise",
        variant="add",
        precision="fp32",
        columns={"flops": elements, "read_bytes": 8 * elements, "write_bytes": 4 * elements, "element_bytes": 4.0},
    )  # fmt: skip
    time = elements * 12 / (0.88 * V100.dram_bytes_per_s) * 1e6 + 1.5
    gpu = np.full(count, NAME, dtype=object)
    return TrainingRows.make(
        table, gpu=gpu, measured_us=floor - HOLD + np.maximum(time, HOLD), source="neusight/train"
    )


@pytest.mark.parametrize("rise_us", [0.0, 300.0])
def test_a_climbing_gap_of_convolutions_is_found(rise_us: float) -> None:
    rows, gap = convolutions(3000, rise_us)
    found = climb(rows, V100, HOLD)
    assert np.abs(found - gap).max() < 30
    assert np.abs(found - gap).mean() < 15
    assert (np.diff(found) >= -1e-9).all()


def test_a_host_that_switches_speed_is_followed() -> None:
    floor = np.where((np.arange(2000) > 700) & (np.arange(2000) < 1300), 39.0, 32.0)
    rows = additions(2000, floor)
    found = local_floor("elem", rows, V100, HOLD)
    assert found is not None
    assert (np.abs(found - floor) < 0.5).mean() > 0.97
    operators = np.full(len(rows), "add", dtype=object)
    (filled,) = with_launch_gaps([("elem", rows, operators)], {NAME: V100})
    exact = np.abs(filled.gap_us + filled.hold_us - floor) < 0.5
    assert exact.mean() > 0.97
    larger = replace(rows, source=np.full(len(rows), "neusight/larger", dtype=object))
    _, other = with_launch_gaps([("elem", rows, operators), ("elem", larger, operators)], {NAME: V100})
    assert len(np.unique(other.gap_us)) == 1  # another session: only the level carries over


def test_a_row_does_not_enter_its_own_floor() -> None:
    rows = additions(1000, np.full(1000, 32.0))
    before = local_floor("elem", rows, V100, HOLD)
    spoilt = rows.measured_us.copy()
    spoilt[500] = 1e6
    after = local_floor("elem", replace(rows, measured_us=spoilt), V100, HOLD)
    assert before is not None and after is not None and before[500] == after[500]


def test_too_few_short_kernels_say_nothing() -> None:
    rows = additions(1000, np.full(1000, 32.0))
    long = rows.take(np.flatnonzero(rows.table.columns["flops"] > 1e6))
    assert local_floor("elem", long, V100, HOLD) is None
