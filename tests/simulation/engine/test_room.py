"""Pools that grow, buffers that are emptied: whatever is under way at once."""

from __future__ import annotations

import numpy as np
from _runs import Cut, replica, run, system

from gkestimator.simulation.engine import pools
from gkestimator.simulation.system import SimSource, SimStage, System


def test_more_kept_requests_than_the_buffer_holds() -> None:
    count = 2 * pools.AT_ONCE + 17
    result = run(
        system([replica(batch_size=64, max_wait_ms=1.0)]), Cut([np.linspace(0, 999, count).tolist()])
    )
    assert result.requests is not None
    assert len(result.requests.model) == count == result.done[0]
    # In order of arrival, each once: one replica serves in order.
    assert np.all(np.diff(result.requests.arrived_ms) > 0)


def test_more_draws_than_the_buffer_holds() -> None:
    count = pools.AT_ONCE + 4321
    result = run(
        system([replica(batch_size=1)]), Cut([np.linspace(0, 999, count).tolist()]), service="exponential"
    )
    drawn = np.random.Generator(np.random.PCG64(np.random.SeedSequence(0).spawn(3)[1])).standard_exponential(
        count
    )
    assert result.requests is not None
    np.testing.assert_allclose(result.requests.gpu_ms, 10 * drawn, rtol=0, atol=1e-5)  # times of up to 1e6 ms


def test_a_request_that_becomes_hundreds() -> None:
    stages = (
        SimStage(model=0, fan_out=20.0),
        SimStage(model=1, after=(0,), fan_out=30.5),
        SimStage(model=0, after=(1,)),
    )
    plain = system([replica(0, batch_size=64), replica(1, batch_size=64)], models=2)
    app = SimSource(name="app", application=True, rate_rps=1.0, slo_ms=1e4, stages=stages)
    asked = System(sources=(app,), models=plain.models, gpus=plain.gpus, replicas=plain.replicas)
    result = run(asked, Cut([np.linspace(0, 900, 40).tolist()]))
    assert result.source_done.tolist() == [40]
    assert result.done.tolist() == [40 * (20 + 610), 40 * 610]
