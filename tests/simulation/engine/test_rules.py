"""Times worked out by hand: batches, turns, copies, ties, replicas that come and go."""

from __future__ import annotations

import numpy as np
import pytest
from _runs import Cut, finished, replica, run, system

from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import SimSource, SimStage, System


def chunk(end_ms: float, *times: list[float]) -> Chunk:
    return Chunk(end_ms=end_ms, times_ms=tuple(np.array(t, float) for t in times))


def test_a_batch_fills_or_times_out() -> None:
    # Four at 0, 1, 2, 3 leave at 3 and take 16; the request at 30 waits 5 and takes 10, that at 35 opens the next batch.
    result = run(system([replica()]), Cut([[0, 1, 2, 3, 30, 35]]))
    assert finished(result) == [19.0] * 4 + [45.0, 55.0]
    assert result.batches.tolist() == [3]
    assert result.batches_full.tolist() == [1]
    assert result.batches_timed_out.tolist() == [2]
    assert result.busy_ms.tolist() == [36.0]


def test_many_at_one_time() -> None:
    result = run(system([replica()]), Cut([[7.0] * 9]))
    assert result.batches_full.tolist() == [2]
    # Two full batches at 7, the ninth at its time-out, all one after the other.
    assert finished(result) == [23.0] * 4 + [39.0] * 4 + [49.0]


def test_no_wait_no_batch() -> None:
    result = run(system([replica(max_wait_ms=0.0)]), Cut([[0, 0, 0]]))
    assert finished(result) == [10.0, 20.0, 30.0]
    assert result.batches_timed_out.tolist() == [3]


def test_turns() -> None:
    # Turns at 3, 23, 43, ...: the requests at 0 and 1 at the first, that at 3 comes after the turn at 3.
    asked = system([replica(duty_cycle_ms=20.0, turn_offset_ms=3.0, partition=0)])
    result = run(asked, Cut([[0, 1, 3]]))
    assert finished(result) == [15.0, 15.0, 33.0]
    assert result.busy_ms.tolist() == [22.0]


def test_turns_wait_for_the_server() -> None:
    # Both turns at 10; the second is due when the first's batch ends, and has the server before its own next turn.
    turns = {"duty_cycle_ms": 50.0, "turn_offset_ms": 10.0, "partition": 0}
    result = run(system([replica(0, **turns), replica(1, **turns)], models=2), Cut([[0], [0]]))
    assert finished(result) == [20.0, 30.0]


def test_copies_beside_compute() -> None:
    asked = system([replica(max_wait_ms=0.0, copies_ms=(4.0, 4.0))])
    serial = run(asked, Cut([[0, 0, 0]]), copy="serial")
    overlap = run(asked, Cut([[0, 0, 0]]), copy="overlap")
    assert finished(serial) == [14.0, 28.0, 42.0]
    assert finished(overlap) == [14.0, 24.0, 34.0]


def test_round_robin_by_weight() -> None:
    asked = system([replica(batch_size=1, weight=3.0), replica(batch_size=1, weight=1.0)])
    kept = run(asked, Cut([np.arange(0, 800, 2.0).tolist()])).requests
    assert kept is not None
    assert np.bincount(kept.replica).tolist() == [300, 100]


def test_least_load_takes_the_idle_one() -> None:
    asked = system([replica(batch_size=1, weight=9.0), replica(batch_size=1)], gpus=1)
    result = run(asked, Cut([[0, 1, 2, 11]]), routing="least-load")
    kept = result.requests
    assert kept is not None
    # At 2 the first has 8 left and the second 9; at 11 both had ended, but for the third request.
    order = np.argsort(kept.arrived_ms)
    assert kept.replica[order].tolist() == [0, 1, 0, 1]


def test_stages_join() -> None:
    stages = (
        SimStage(model=0),
        SimStage(model=1, after=(0,), fan_out=2.0),
        SimStage(model=2, after=(0,)),
        SimStage(model=0, after=(1, 2)),
    )
    plain = system([replica(m, 0, batch_size=1) for m in range(3)], models=3)
    app = SimSource(name="app", application=True, rate_rps=1.0, slo_ms=60.0, stages=stages)
    asked = System(sources=(app,), models=plain.models, gpus=plain.gpus, replicas=plain.replicas)
    result = run(asked, Cut([[5.0]]))
    # 10 for the first, 20 for two of the second on one replica, then two of the last (as many as the largest before).
    assert result.source_sums_ms.tolist() == [50.0]
    assert result.arrived.tolist() == [3, 2, 1]
    assert result.source_on_time.tolist() == [1]
    # A second one at the same time has the second model from 35 on, and is done at 75.
    assert run(asked, Cut([[5.0, 5.0]])).source_sums_ms.tolist() == [120.0]


def test_requests_wait_for_the_first_replica() -> None:
    simulator = Simulator(system([]), Options(duration_ms=100.0, keep_requests=True))
    simulator.advance(chunk(50.0, [0, 10, 20, 30, 40]))
    assert simulator.progress().done.tolist() == [0]
    assert simulator.progress().arrived.tolist() == [5]
    simulator.add([replica()], [50.0])
    assert simulator.outstanding().tolist() == [5]
    simulator.advance(chunk(100.0, []))
    # Four at once, the fifth at 55 after its time-out, when the first batch still runs.
    assert finished(simulator.finish()) == [66.0] * 4 + [76.0]


def test_a_model_without_replicas_never_answers() -> None:
    result = run(system([]), Cut([[1, 2, 3]]))
    assert (result.arrived.tolist(), result.done.tolist(), result.end_ms) == ([3], [0], 0.0)


def test_retired_replicas_finish_what_they_have() -> None:
    simulator = Simulator(system([replica(), replica()]), Options(duration_ms=100.0, keep_requests=True))
    simulator.advance(chunk(2.0, [0, 1]))  # under construction for the first
    simulator.retire([0])
    assert simulator.outstanding().tolist() == [2, 0]
    simulator.advance(chunk(100.0, [3, 20]))
    result = simulator.finish()
    assert result.replica_requests.tolist() == [3, 1]
    assert finished(result) == [19.0] * 3 + [35.0]  # three leave at 5 and take 14


def test_added_replicas_do_not_catch_up() -> None:
    simulator = Simulator(system([replica(batch_size=1)]), Options(duration_ms=1000.0))
    simulator.advance(chunk(500.0, np.arange(0, 500, 20.0).tolist()))
    assert simulator.add([replica(batch_size=1)], [600.0]) == [1]
    simulator.advance(chunk(1000.0, np.arange(500, 1000, 20.0).tolist()))
    # Five before it is available, then one each.
    assert simulator.finish().replica_requests.tolist() == [25 + 5 + 10, 10]


def test_a_replica_that_loads_is_used_where_there_is_no_other() -> None:
    simulator = Simulator(system([]), Options(duration_ms=100.0, keep_requests=True))
    simulator.add([replica(batch_size=1)], [30.0])
    simulator.advance(chunk(100.0, [10, 20]))
    assert finished(simulator.finish()) == [40.0, 50.0]


def test_turns_come_to_a_model_that_had_none() -> None:
    """A batch under construction of a model that was streamed, when a replica with a duty cycle is added to it."""
    simulator = Simulator(system([replica()]), Options(duration_ms=100.0, keep_requests=True))
    simulator.advance(chunk(2.0, [0, 1]))
    simulator.add([replica(duty_cycle_ms=20.0, partition=4)], [2.0])
    simulator.retire([0])
    simulator.advance(chunk(100.0, [3, 21]))
    # The third request joins the batch for the first replica, which leaves at 5; the fourth has a turn at 40.
    result = simulator.finish()
    assert finished(result) == [19.0] * 3 + [50.0]
    assert result.replica_requests.tolist() == [3, 1]


def test_overload_is_served_to_the_end() -> None:
    count = 3000
    result = run(system([replica()]), Cut([np.linspace(0, 999, count).tolist()]))
    assert result.done.tolist() == [count]
    # 750 full batches of 16 ms, without a pause from the first on.
    assert result.end_ms == pytest.approx(999 / (count - 1) * 3 + 750 * 16)
    assert result.busy_ms[0] == pytest.approx(1000 - 999 / (count - 1) * 3)


def test_a_hundred_gpus() -> None:
    asked = system([replica(k % 7, k) for k in range(100)], models=7, gpus=100)
    rng = np.random.default_rng(0)
    result = run(asked, Cut([rng.uniform(0, 1000, 2000).tolist() for _ in range(7)], [333.0]))
    assert result.done.tolist() == [2000] * 7
    assert (result.replica_batches > 0).all()
    assert result.gpu_busy_ms == pytest.approx(result.busy_ms)  # one replica each
    assert np.isnan(result.gpu_creq_ms).all()  # unknown


def test_the_circle_of_stages_is_refused() -> None:
    circle = SimSource(
        name="app",
        application=True,
        rate_rps=1.0,
        slo_ms=1.0,
        stages=(SimStage(model=0, after=(1,)), SimStage(model=0, after=(0,))),
    )
    plain = system([replica()])
    with pytest.raises(ValueError, match="'app': its stages follow each other in a circle"):
        run(
            System(sources=(circle,), models=plain.models, gpus=plain.gpus, replicas=plain.replicas),
            Cut([[]]),
        )
