"""Recurrent layers: what a step costs by the formula, and what the shipped regressors never say."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.launch import bandwidth_pct, launch_geometry
from gkestimator.kernel_models.recurrent import (
    CALL_US,
    SHORTEST_STEP_US,
    STEP_US,
    recurrent_us,
    slowly_rising_us,
    step_memory_us,
    step_product_us,
    step_traffic_bytes,
    step_weight_bytes,
)
from gkestimator.kernel_models.sustained import sustained_bytes_per_s
from gkestimator.training.importers.deepbench_rnn import recurrence_table

CATALOGUE = gpu_catalogue()
V100 = CATALOGUE.spec("V100-SXM2-16GB")
SIZES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0}


def layers(cell: str, hidden: object, batch: object, steps: object, precision: str = "fp32") -> KernelTable:
    sizes = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (hidden, batch, steps)))
    wide, rows, long = (np.atleast_1d(column).copy() for column in sizes)
    count = len(wide)
    return recurrence_table(
        np.array([cell] * count, dtype=object),
        np.array([precision] * count, dtype=object),
        hidden=wide,
        batch=rows,
        steps=long,
        size=np.full(count, SIZES[precision]),
    )


def test_weights_are_held_in_registers_then_in_the_l2_then_read_from_dram() -> None:
    registers = V100.sms * V100.registers_per_sm * 4 / 2
    held, large = layers("LSTM", 256, 1, 10), layers("LSTM", 4096, 1, 10)
    assert step_weight_bytes(held)[0] < registers / 2
    assert [float(column[0]) for column in step_traffic_bytes(held, V100)] == [0.0, 0.0]
    size = float(step_weight_bytes(large)[0])
    assert [float(column[0]) for column in step_traffic_bytes(large, V100)] == [size, size]
    assert step_memory_us(large, V100)[0] == pytest.approx(size / sustained_bytes_per_s(V100) * 1e6)
    # A cache as large as the weights twice over is all that a step needs; registers hold no such layer.
    cached = replace(V100, l2_bytes=int(2 * size))
    from_dram, through_l2 = step_traffic_bytes(large, cached)
    assert (float(from_dram[0]), float(through_l2[0])) == (0.0, size)
    assert step_memory_us(large, cached)[0] < step_memory_us(large, V100)[0]


def test_a_thin_product_pays_for_whole_tiles_and_idle_sms() -> None:
    thin, full = layers("LSTM", 1024, 1, 1), layers("LSTM", 1024, 32, 1)
    assert step_product_us(thin, V100)[0] == step_product_us(full, V100)[0]
    # 16 x 1 tiles of 64 columns: without a split along k most of 80 SMs idle.
    pascal = replace(V100, compute_capability=(6, 0))
    assert step_product_us(full, pascal)[0] > 1.5 * step_product_us(full, V100)[0]


def test_a_layer_is_its_call_and_its_steps() -> None:
    one, many = (recurrent_us(layers("GRU", 512, 8, steps), V100)[0] for steps in (1, 100))
    assert many - one == pytest.approx(99 * (one - CALL_US))
    assert one - CALL_US > STEP_US


@pytest.mark.parametrize("anchor", [recurrent_us, slowly_rising_us])
@pytest.mark.parametrize("gpu", ["V100-SXM2-16GB", "P100-PCIE-16GB", "H100-SXM"])
def test_anchors_rise_with_every_size(anchor: object, gpu: str) -> None:
    _assert_rising(lambda table: anchor(table, CATALOGUE.spec(gpu)), "LSTM", "fp32")  # type: ignore[operator]


def _assert_rising(estimate: object, cell: str, precision: str) -> None:
    """Check that times rise along each size while the two others stand still, over a grid and random sizes."""
    rng = np.random.default_rng(0)
    hidden = np.unique(np.concatenate([2 ** np.arange(4, 14), rng.integers(16, 6000, 20)]))
    batch = np.unique(np.concatenate([2 ** np.arange(0, 9), rng.integers(1, 400, 20)]))
    steps = np.unique(np.concatenate([[1, 2, 25, 150, 1500], rng.integers(1, 3000, 8)]))
    grid = np.array(list(itertools.product(hidden, batch, steps)), dtype=np.float64)
    times = estimate(layers(cell, *grid.T, precision=precision))  # type: ignore[operator]
    assert np.all(times >= SHORTEST_STEP_US * grid[:, 2])
    times = times.reshape(len(hidden), len(batch), len(steps))
    for axis, name in enumerate(("hidden", "batch", "steps")):
        falls = np.diff(times, axis=axis) < -1e-6 * np.delete(times, 0, axis=axis)
        assert not falls.any(), f"{name}: {int(falls.sum())} falls"


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize(
    ("gpu", "precision"),
    [
        ("V100-SXM2-16GB", "fp32"),
        ("V100-SXM2-16GB", "fp16"),
        ("GTX-1080-TI", "fp32"),
        ("A100-SXM4-80GB", "tf32"),
        ("T4", "fp32"),
        ("H100-SXM", "bf16"),
    ],
)
def test_a_larger_layer_is_never_estimated_to_be_faster(gpu: str, precision: str, cell: str) -> None:
    spec = CATALOGUE.spec(gpu)
    _assert_rising(lambda table: load_bundle().predict(table, spec).duration_us, cell, precision)


def inside(cell: str, gpu: GpuSpec, precision: str = "fp32", hidden: int = 1024) -> bool:
    answer = load_bundle().predict(layers(cell, hidden, 32, 25, precision), gpu)
    assert answer.trained.all()
    return bool(answer.in_range[0])


def test_what_was_not_measured_is_out_of_range() -> None:
    assert inside("LSTM", V100)
    assert inside("LSTM", V100, "fp16")
    assert inside("GRU", CATALOGUE.spec("P100-PCIE-16GB"))
    assert not inside("LSTM", CATALOGUE.spec("P100-PCIE-16GB"), "fp16")  # half was measured on the V100 alone
    assert not inside("LSTM", V100, "bf16")
    assert not inside("RNN", V100)  # one gate
    assert not inside("LSTM", V100, hidden=8192)
    assert not inside("LSTM", CATALOGUE.spec("H100-SXM"))


def test_one_step_is_launched_at_a_time_and_weights_count_at_every_step() -> None:
    few, many = layers("LSTM", 4096, 64, 2), layers("LSTM", 4096, 64, 200)
    launches = [launch_geometry(table, V100) for table in (few, many)]
    assert launches[0].grid_blocks[0] == launches[1].grid_blocks[0]
    # 268 MB of weights a step within 400 us: three quarters of 900 GB/s, whatever the number of steps.
    for table, launch, steps in zip((few, many), launches, (2, 200), strict=True):
        dram, _ = bandwidth_pct(table, launch, np.array([400.0 * steps]), V100)
        assert 70 < dram[0] < 90


def test_layers_unlike_any_measured_are_no_more_certain_than_the_formula() -> None:
    def factor(gpu: str, hidden: int) -> float:
        answer = load_bundle().predict(layers("LSTM", hidden, 32, 25), CATALOGUE.spec(gpu))
        return float(answer.high_us[0] / answer.duration_us[0])

    assert factor("V100-SXM2-16GB", 2048) < 2
    assert factor("V100-SXM2-16GB", 16384) >= 2
    for later in ("T4", "A100-SXM4-80GB", "H100-SXM"):
        assert factor(later, 2048) >= 2
