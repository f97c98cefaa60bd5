"""Mean power and energy of a model, by hand: weights by time, idle gaps, kernels of unknown power, null rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_programs import ask, kernels, predictions, program

from gkestimator.estimation.power import model_power
from gkestimator.kernel_models.power import KernelPower
from gkestimator.kernel_models.prediction import KernelPredictions

LEAST, MOST = 100.0, 700.0


def with_power(duration: list[float], watts: list[float]) -> KernelPredictions:
    known = np.array(watts)
    power = KernelPower(watts=known, low_w=known * 0.9, high_w=known * 1.1, least_w=LEAST, most_w=MOST)
    return replace(predictions(duration), power=power)


def test_power_is_weighted_by_time_and_energy_is_power_times_latency() -> None:
    pred = with_power([30.0, 10.0], [600.0, 200.0])
    p = program(kernels(2), repeat=5)
    m = ask(p, pred)
    known = model_power(p, pred, m)
    assert known is not None
    assert known.watts.value == pytest.approx(500.0)
    assert (known.watts.low, known.watts.high) == pytest.approx((450.0, 550.0))
    assert known.joules.value == pytest.approx(500.0 * 0.2e-3)
    # Errors of power and time are independent: narrower than both ends together, wider than the time's alone.
    low_time, high_time = m.latency_low_ms / m.latency_ms, m.latency_high_ms / m.latency_ms
    assert 0.9 * low_time < known.joules.low / known.joules.value < low_time
    assert high_time < known.joules.high / known.joules.value < 1.1 * high_time


def test_an_idle_board_draws_from_nothing_to_the_least_measured() -> None:
    pred = with_power([50.0], [600.0])
    p = program(kernels(1))
    m = ask(
        p,
        pred,
        families=np.array(["copy"], dtype=object),
        host_overhead_us=100.0,
        host_range_us=(100.0, 100.0),
    )
    known = model_power(p, pred, m)
    assert known is not None and m.latency_ms == pytest.approx(0.150)
    assert known.watts.value == pytest.approx(600 / 3 + LEAST / 2 * 2 / 3)
    assert known.watts.low < 540 / 3 and known.watts.high > 660 / 3 + LEAST * 2 / 3
    copied = model_power(p, pred, m, copy_ms=0.150)
    assert copied is not None and copied.watts.value == pytest.approx(600 / 6 + LEAST / 2 * 5 / 6)
    assert copied.joules.value == pytest.approx(copied.watts.value * 0.3e-3)


def test_kernels_that_nobody_measured_count_between_the_least_and_the_most() -> None:
    pred = with_power([60.0, 40.0], [500.0, np.nan])
    p = program(kernels(2))
    known = model_power(p, pred, ask(p, pred))
    assert known is not None
    assert known.watts.value == pytest.approx(0.6 * 500 + 0.4 * (LEAST + MOST) / 2)
    assert (known.watts.low, known.watts.high) == pytest.approx(
        (0.6 * 450 + 0.4 * LEAST, 0.6 * 550 + 0.4 * MOST)
    )


@pytest.mark.parametrize("watts", [[np.nan, np.nan], [np.nan, 500.0]])
def test_power_is_unknown_where_less_than_half_of_the_time_is_known(watts: list[float]) -> None:
    pred = with_power([60.0, 40.0], watts)
    p = program(kernels(2))
    assert model_power(p, pred, ask(p, pred)) is None


def test_power_is_unknown_without_measurements_and_without_kernels() -> None:
    p = program(kernels(2))
    pred = predictions([60.0, 40.0])
    assert model_power(p, pred, ask(p, pred)) is None
    nothing = with_power([], [])
    empty = program([])
    assert model_power(empty, nothing, ask(empty, nothing)) is None


@pytest.mark.parametrize("seed", range(30))
def test_the_ends_enclose_the_figures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    watts = rng.uniform(LEAST, MOST, 4)
    watts[rng.random(4) < 0.3] = np.nan
    pred = with_power(list(10 ** rng.uniform(0, 3, 4)), list(watts))
    p = program(kernels(4))
    host = float(10 ** rng.uniform(-1, 3))
    families = np.full(4, "copy", dtype=object)
    m = ask(p, pred, families=families, host_overhead_us=host, host_range_us=(host / 2, host * 2))
    known = model_power(p, pred, m)
    if known is not None:
        for figure in (known.watts, known.joules):
            assert 0 <= figure.low <= figure.value <= figure.high < np.inf
