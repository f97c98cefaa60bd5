"""Batches that are formed when the server is free: worked out by hand, and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from _runs import Cut, finished, replica, run, system

from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options

# A batch of one takes 10 ms, of two 12, of three 14, of four 16.
LATE = {"batching": "late"}


def test_what_waits_is_the_next_batch() -> None:
    # The first runs alone at once; the two that come meanwhile run together; no batch waits to fill.
    result = run(system([replica()]), Cut([[0, 3, 9, 30]]), **LATE)
    assert finished(result) == [10.0, 22.0, 22.0, 40.0]
    assert result.batches.tolist() == [3] and result.batches_timed_out.tolist() == [0]


def test_no_batch_is_larger_than_the_cap() -> None:
    # Five wait at 10: four of them run together, the fifth after them.
    result = run(system([replica()]), Cut([[0, 1, 2, 3, 4, 5]]), **LATE)
    assert finished(result) == [10.0, *[26.0] * 4, 36.0]
    assert result.batches_full.tolist() == [1]


def test_of_one_partition_the_oldest_request_goes_first() -> None:
    shared = {"partition": 0}
    asked = system([replica(0, **shared), replica(1, **shared)], models=2)
    # At 10 model 1's request (at 1) is older than model 0's (2, 3); at 20 both of these go together.
    result = run(asked, Cut([[0, 2, 3], [1, 15]]), **LATE)
    kept = result.requests
    assert kept is not None
    assert kept.model.tolist() == [0, 1, 0, 0, 1]
    assert finished(result) == [10.0, 20.0, 32.0, 32.0, 42.0]


def test_what_waits_counts_as_work_at_full_batches() -> None:
    # At 2 the first has 8 ms left, and the second 9; then 8 and 9 + 4 (a quarter of a full batch): the first again.
    asked = system([replica(), replica()])
    kept = run(asked, Cut([[0, 1, 2, 2, 2]]), routing="least-load", **LATE).requests
    assert kept is not None
    by_time = np.lexsort((kept.replica, kept.arrived_ms))
    assert kept.replica[by_time].tolist() == [0, 1, 0, 0, 1]


def test_requests_and_answers_travel_alone() -> None:
    asked = system([replica(request_ms=(1.0, 4.0), response_ms=(2.0, 8.0))])
    result = run(asked, Cut([[0, 0.5, 0.75]]), **LATE)
    # At the replica at 1, 1.5 and 1.75; served to 11 and to 23; back 2 ms later, though two were one batch.
    assert finished(result) == [13.0, 25.0, 25.0]


def test_a_copy_is_part_of_the_service() -> None:
    # The batch is known when the GPU is free, so nothing of it is copied before.
    asked = system([replica(copies_ms=(4.0, 4.0))])
    for copy in ("serial", "overlap"):
        assert finished(run(asked, Cut([[0, 1]]), copy=copy, **LATE)) == [14.0, 28.0]


def test_late_requests_are_refused_and_the_batch_fills_up() -> None:
    # Nine of the twelve at 0 are served by 42. To the objective, 50, nothing is served any more: the other three are
    # refused, and in their stead all four that came at 40 run.
    result = run(system([replica()]), Cut([[*[0.0] * 12, *[40.0] * 4]]), drop="late", **LATE)
    assert result.dropped.tolist() == [3]
    assert finished(result) == [10.0, *[26.0] * 4, *[42.0] * 4, *[58.0] * 4]


def test_retired_replicas_serve_what_waits() -> None:
    simulator = Simulator(system([replica()]), Options(duration_ms=100.0, keep_requests=True, **LATE))  # type: ignore[arg-type]
    simulator.advance(Chunk(end_ms=5.0, times_ms=(np.array([0.0, 1.0, 2.0]),)))
    assert simulator.outstanding().tolist() == [3]
    simulator.retire([0])
    simulator.add([replica(latencies_ms=(1.0, 1.0))], [5.0])
    simulator.advance(Chunk(end_ms=100.0, times_ms=(np.array([6.0]),)))
    result = simulator.finish()
    kept = result.requests
    assert kept is not None
    assert sorted(finished(result)) == [7.0, 10.0, 22.0, 22.0]
    assert kept.replica.tolist() == [1, 0, 0, 0]


def test_at_low_load_every_request_runs_alone_and_at_once() -> None:
    result = run(system([replica()]), Cut([np.arange(0, 990, 11.0).tolist()]), **LATE)
    assert result.wait_sums_ms.sum() == 0.0
    assert result.batches.tolist() == result.done.tolist() == [90]


def test_at_overload_batches_are_full() -> None:
    # 500 a second come, 4 / 16 ms are served.
    result = run(system([replica()]), Cut([np.arange(0, 1000, 2.0).tolist()]), 3000.0, **LATE)
    assert result.replica_requests.sum() / result.busy_ms.sum() == pytest.approx(4 / 16, rel=0.01)
    assert result.batches_full.sum() >= 0.95 * result.batches.sum()


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.2, 1.0, 3.0])
def test_batches_of_one_length_without_a_cap(load: float) -> None:
    """Every batch takes L: who finds the server busy waits for half of L in the mean, and it is busy for the part
    L / (L + e^(-aL) / a) of the time (a: rate), as it idles after a batch only if nothing came meanwhile."""
    length = 10.0
    rate = load / length
    asked = system([replica(batch_size=2000, batches=(1,), latencies_ms=(length,))])
    arrivals = make_arrivals("poisson", [1e3 * rate], ["m0"], seed=3)
    result = run(asked, arrivals, duration_ms=400_000 / rate / 4, **LATE)
    busy = length / (length + math.exp(-rate * length) / rate)
    mean = result.wait_sums_ms.sum() / result.done.sum()
    assert mean == pytest.approx(busy * length / 2, rel=0.02)
    assert result.busy_ms.sum() / result.until_ms == pytest.approx(busy, rel=0.02)


def test_a_batch_of_one_is_the_same_by_both_laws() -> None:
    times = np.sort(np.random.default_rng(5).random(80) * 900).tolist()
    single = replica(batch_size=1, max_wait_ms=0.0)
    early = run(system([single, single]), Cut([times]), routing="least-load")
    late = run(system([single, single]), Cut([times]), routing="least-load", **LATE)
    assert finished(early) == finished(late)
