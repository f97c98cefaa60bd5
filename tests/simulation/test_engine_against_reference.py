"""The engine gives what the reference gives, request by request."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import reference
from _cases import Case, case, closed_case

from gkestimator.documents.plan import BATCHINGS
from gkestimator.interference.registry import MODELS
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import COPIES, ROUTINGS, SERVICES
from gkestimator.simulation.result import Result

# Sums that are added up in another order; nothing else may differ.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-7}
COUNTS = [
    "arrived", "done", "done_by_end", "on_time", "batches", "batches_full", "batches_timed_out",
    "dropped", "source_dropped",
    "source_arrived", "source_rejected", "source_done", "source_done_by_end", "source_on_time",
    "arrived_by_window", "on_time_by_window", "done_by_window", "replica_batches", "replica_requests",
]  # fmt: skip
TIMES = [
    "end_ms", "sums_ms", "wait_sums_ms", "source_sums_ms", "wait_by_window_ms", "busy_ms", "last_done_ms",
    "gpu_busy_ms", "gpu_creq_ms",
]  # fmt: skip


def requests(result: Result) -> np.ndarray:
    """One row a request, sorted by who and when."""
    kept = result.requests
    assert kept is not None
    columns = [np.asarray(getattr(kept, f.name), float) for f in fields(kept)]
    rows = np.stack(columns, axis=1)
    # Times that differ in the last digits alone must not change the order.
    return rows[np.lexsort(np.round(rows, 5).T[::-1])]


def assert_equal(mine: Result, theirs: Result) -> None:
    found, expected = requests(mine), requests(theirs)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, **TOLERANCE)
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    for name in TIMES:
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), err_msg=name, **TOLERANCE)
    # A time that differs in its last digit may change its bin for the next.
    for name in ("histograms", "source_histograms"):
        a, b = np.cumsum(getattr(mine, name), axis=-1), np.cumsum(getattr(theirs, name), axis=-1)
        np.testing.assert_array_equal(a[..., -1], b[..., -1], err_msg=name)
        assert np.abs(a - b).sum() <= 3, name
    kept = mine.requests
    assert kept is not None
    done = kept.arrived_ms + kept.router_ms + kept.network_ms + kept.queue_ms + kept.gpu_ms
    assert np.all(np.diff(done) >= -1e-9), "in order of completion"


def both(asked: Case) -> None:
    assert_equal(asked.run(Simulator), asked.run(reference.Simulator))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_any_system(seed: int) -> None:
    both(case(seed))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("copy", COPIES)
def test_every_option(routing: str, service: str, copy: str) -> None:
    for seed in (1000,):
        both(case(seed, routing=routing, service=service, copy=copy))


@pytest.mark.parametrize("interference", MODELS)
def test_every_interference(interference: str) -> None:
    for seed in range(2000, 2003):
        both(case(seed, interference=interference))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("copy", COPIES)
def test_late_batching(routing: str, copy: str) -> None:
    for seed in range(4000, 4003):
        both(case(seed, routing=routing, copy=copy, batching="late"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_any_system_that_batches_late(seed: int) -> None:
    both(case(seed, batching="late"))


@pytest.mark.parametrize("batching", BATCHINGS)
def test_clients_that_wait(batching: str) -> None:
    for seed in range(5000, 5006):
        both(closed_case(seed, batching=batching))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_any_system_of_clients_that_wait(seed: int) -> None:
    both(closed_case(seed, batching=BATCHINGS[seed % 2]))


@pytest.mark.slow
def test_the_cases_have_every_corner() -> None:
    """What the cases above are drawn from is really in them: else equality would say little."""
    seen = [case(seed) for seed in range(40)]
    replicas = [r for c in seen for r in c.system.replicas]
    assert {r.batch_size for r in replicas} >= {1, 2, 8}
    assert any(r.duty_cycle_ms is not None and r.partition is not None for r in replicas)
    assert any(r.duty_cycle_ms is None and r.partition is not None for r in replicas)
    assert any(
        len(s.stages) > 2 and any(len(t.after) > 1 for t in s.stages) for c in seen for s in c.system.sources
    )
    assert any(change.retire and change.add for c in seen for change in c.changes)
    results = [c.run(reference.Simulator) for c in seen]
    assert sum(r.batches_timed_out.sum() for r in results) > 500
    assert sum((r.batches_full.sum()) for r in results) > 500
    assert sum((r.source_rejected.sum()) for r in results) > 500
    assert sum(r.dropped.sum() for r in results) > 500
    assert any((r.source_dropped > 0).any() and (r.dropped.sum() > r.source_dropped.sum()) for r in results)
    assert any((r.done + r.dropped < r.arrived).any() for r in results), (
        "requests that no replica is there for"
    )
    assert any(r.end_ms > 2 * r.until_ms for r in results), "overload"
