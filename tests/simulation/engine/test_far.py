"""Times, windows and turns far beyond what is real: no index outside of an array, no loop without end."""

from __future__ import annotations

import pytest
from _runs import Cut, replica, run, system

from gkestimator.simulation.system import SimSource, SimStage, System


@pytest.mark.parametrize("routing", ["round-robin", "least-load"])
@pytest.mark.parametrize("seed", range(3))
def test_services_of_ages(routing: str, seed: int) -> None:
    """Latencies of eleven days that are taken to be wrong by a factor of e to the 50 z, turns of a millionth of a
    millisecond: time over either is beyond whole numbers of 64 bits."""
    wrong = {"latencies_ms": (1e9, 1e9), "sigma_below": 50.0, "sigma_above": 50.0, "partition": 1}
    result = run(
        system([replica(duty_cycle_ms=1e-6, **wrong), replica(**wrong)]),
        Cut([[float(k) for k in range(50)]]),
        service="interval",
        window_ms=0.01,
        routing=routing,
        seed=seed,
    )
    assert result.done.tolist() == [50]
    assert result.done_by_window.sum() == result.arrived_by_window.sum() == 50


def test_a_stage_begins_ages_after_the_last_window() -> None:
    """Later stages arrive when earlier ones are done; they count in the last window."""
    plain = system([replica(latencies_ms=(1e9, 1e9), sigma_above=50.0, sigma_below=50.0)])
    stages = (SimStage(model=0), SimStage(model=0, after=(0,)))
    app = SimSource(name="app", application=True, rate_rps=1.0, slo_ms=1.0, stages=stages)
    latest = 0.0
    for seed in range(4):
        result = run(
            System(sources=(app,), models=plain.models, gpus=plain.gpus, replicas=plain.replicas),
            Cut([[0.0, 1.0, 2.0]]),
            service="interval",
            window_ms=0.01,
            seed=seed,
        )
        assert result.arrived_by_window.sum() == result.done_by_window.sum() == 6
        if result.end_ms > 1e9:
            assert result.arrived_by_window[0, -1] == 3
        latest = max(latest, result.end_ms)
    assert latest > 1e30


@pytest.mark.slow
def test_batches_of_a_hundred_thousand() -> None:
    result = run(
        system([replica(batch_size=100_000, batches=(1, 100_000))]),
        Cut([[k / 300 for k in range(250_000)]]),
        duration_ms=1000.0,
    )
    assert result.done.tolist() == [250_000]
