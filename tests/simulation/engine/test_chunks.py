"""How arrivals are cut into chunks changes nothing; nor does asking for progress; the seed alone decides."""

from __future__ import annotations

import numpy as np
import pytest
from _runs import Cut, content, replica, run, system
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import SimGpu, SimModel, SimSource, SimStage, System

NETWORK = {"request_ms": (1.0, 2.0), "response_ms": (0.5, 0.5)}


def mixed() -> System:
    """Two plain models, one of them with turns, and an application of two stages whose fan-out is drawn."""
    plain = system(
        [
            replica(0, 0),
            replica(0, 1, weight=2.0, **NETWORK),
            replica(1, 0, duty_cycle_ms=20.0, partition=0),
            replica(1, 1, duty_cycle_ms=20.0, turn_offset_ms=7.0, partition=1),
            replica(2, 1, partition=1),
        ],
        models=2,
        gpus=2,
    )
    app = SimSource(
        name="app",
        application=True,
        rate_rps=1.0,
        slo_ms=100.0,
        stages=(SimStage(model=0), SimStage(model=2, after=(0,), fan_out=1.4)),
    )
    return System(
        sources=(*plain.sources, app),
        models=(*plain.models, SimModel(name="m2", slo_ms=50.0)),
        gpus=plain.gpus,
        replicas=plain.replicas,
    )


def times(seed: int, count: int = 120) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    # Some at whole milliseconds, so that requests of several sources come at once, at time-outs and at turns.
    return [
        [*rng.uniform(0, 1000, count).tolist(), *rng.integers(0, 1000, count).astype(float).tolist()]
        for _ in range(3)
    ]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 5), st.lists(st.integers(1, 999).map(float), max_size=40, unique=True))
def test_cuts_change_nothing(seed: int, ends: list[float]) -> None:
    asked = mixed()
    whole = run(asked, Cut(times(seed)), service="exponential", seed=seed)
    cut = run(asked, Cut(times(seed), ends), service="exponential", seed=seed)
    assert content(whole) == content(cut)


@pytest.mark.parametrize("routing", ["round-robin", "least-load"])
def test_same_seed_same_bytes(routing: str) -> None:
    results = [
        content(run(mixed(), Cut(times(1)), service="exponential", routing=routing, seed=seed))
        for seed in (3, 3, 4)
    ]
    assert results[0] == results[1] != results[2]


def test_progress_only_looks() -> None:
    options = Options(duration_ms=1000.0, keep_requests=True, service="exponential")
    looked, left = Simulator(mixed(), options), Simulator(mixed(), options)
    before = -1
    for chunk in Cut(times(2), [100.0 * k for k in range(1, 10)]).chunks(1000.0):
        looked.advance(chunk)
        left.advance(chunk)
        now = looked.progress()
        assert int(now.done.sum()) >= max(before, 0)
        assert now.requests is not None
        assert len(now.requests.model) == now.done.sum()
        before = int(now.done.sum())
        now.done[:] = -1  # its arrays are its own
        now.histograms[:] = -1
    assert content(looked.finish()) == content(left.finish())


def test_admission_draws_by_seed() -> None:
    asked = system([replica()], admit=0.3)
    arrivals = Cut([np.linspace(0, 999, 1000).tolist()])
    result = run(asked, arrivals)
    assert result.source_arrived[0] == 1000
    assert result.source_rejected[0] + result.arrived[0] == 1000
    assert 230 < result.arrived[0] < 370
    assert content(result) == content(run(asked, arrivals))
    door = np.random.Generator(np.random.PCG64(np.random.SeedSequence(0).spawn(3)[0]))
    assert result.arrived[0] == int((door.random(1000) < 0.3).sum())


def test_nothing_at_all() -> None:
    empty = System(sources=(), models=(), gpus=(), replicas=())
    result = run(empty, Cut([]))
    assert result.end_ms == 0
    assert result.done.shape == (0,)
    no_requests = run(system([replica()]), Cut([[]]))
    assert no_requests.done.tolist() == [0]
    assert no_requests.busy_ms.tolist() == [0.0]
    gpu = System(sources=(), models=(), gpus=(SimGpu(id="g", type="any", price_per_hour=None),), replicas=())
    assert run(gpu, Cut([])).gpu_busy_ms.tolist() == [0.0]
