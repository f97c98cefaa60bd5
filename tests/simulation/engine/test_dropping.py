"""Requests that would be late, dropped when their batch is about to be served."""

from __future__ import annotations

import numpy as np
from _runs import Cut, finished, replica, run, system

from gkestimator.simulation.system import SimSource, SimStage, System


def test_the_earliest_go_until_the_rest_is_on_time() -> None:
    # SLO 50. A full batch runs from 0 to 16, the next from 16 to 32, the third to 48. The fourth would end at 64.
    asked = system([replica()])
    times = [[0.0] * 12 + [10.0, 12.0, 14.0, 14.0]]
    whole = run(asked, Cut(times))
    assert (whole.done.tolist(), whole.on_time.tolist(), whole.dropped.tolist()) == ([16], [14], [0])
    late = run(asked, Cut(times), drop="late")
    # Started at 48 with four it ends at 64, after 10 + 50 and, with three, at 62, just in time for that of 12.
    assert (late.done.tolist(), late.on_time.tolist(), late.dropped.tolist()) == ([15], [15], [1])
    assert late.source_dropped.tolist() == [1]
    assert finished(late)[-3:] == [62.0] * 3
    assert late.requests is not None
    assert late.requests.batch[-3:].tolist() == [3, 3, 3]
    assert late.batches_full.tolist() == [3]


def test_a_batch_that_is_late_as_a_whole_takes_no_time() -> None:
    asked = system([replica(batch_size=1, latencies_ms=(30.0, 30.0))])
    result = run(asked, Cut([[0.0, 1.0, 2.0, 60.0]]), drop="late")
    # The second would end at 60, the third too: the server is free at 30, and serves the fourth at once.
    assert finished(result) == [30.0, 90.0]
    assert result.dropped.tolist() == [2]
    assert result.batches.tolist() == [2]
    assert result.busy_ms.tolist() == [60.0]


def test_turns() -> None:
    asked = system([replica(duty_cycle_ms=20.0, turn_offset_ms=45.0, partition=0)])
    result = run(asked, Cut([[0.0, 1.0, 20.0]]), drop="late")
    # With three at 45 the batch would end at 59, with two at 57, with one at 55.
    assert finished(result) == [55.0]
    assert (result.dropped.tolist(), result.batches.tolist()) == ([2], [1])


def test_a_turn_drops_of_all_that_wait() -> None:
    # Ten from a burst at 0 are late at the turn at 45; four of the five that came at 30 are taken, one at 65, where it is
    # in time.
    asked = system([replica(duty_cycle_ms=20.0, turn_offset_ms=45.0, partition=0)])
    result = run(asked, Cut([[0.0] * 10 + [30.0] * 5]), drop="late")
    assert finished(result) == [61.0] * 4 + [75.0]
    assert result.dropped.tolist() == [10]


def test_a_turn_that_finds_nothing_takes_no_time() -> None:
    turns = {"duty_cycle_ms": 200.0, "partition": 0}
    asked = system(
        [replica(0, turn_offset_ms=100.0, **turns), replica(1, turn_offset_ms=100.0, **turns)], models=2
    )
    result = run(asked, Cut([[1.0, 250.0], [90.0]]), drop="late")
    # The first model's waited for 99 ms: dropped; the second has the server at 100. The next of the first: at 300.
    assert finished(result) == [110.0]
    assert result.dropped.tolist() == [2, 0]
    assert result.batches.tolist() == [0, 1]


def test_an_application_is_dropped_once() -> None:
    stages = (SimStage(model=0, fan_out=3.0), SimStage(model=1, after=(0,)))
    plain = system([replica(m, batch_size=1, latencies_ms=(20.0, 20.0)) for m in range(2)], models=2)
    app = SimSource(name="app", application=True, rate_rps=1.0, slo_ms=500.0, stages=stages)
    asked = System(sources=(app,), models=plain.models, gpus=plain.gpus, replicas=plain.replicas)
    result = run(asked, Cut([[0.0, 200.0]]), drop="late")
    # Of each, two are done by 40 and the third would be at 60, after the model's 50; its second stage never starts.
    assert result.arrived.tolist() == [6, 0]
    assert result.done.tolist() == [4, 0]
    assert result.dropped.tolist() == [2, 0]
    assert (result.source_dropped.tolist(), result.source_done.tolist()) == ([2], [0])


def test_nothing_is_lost_in_overload() -> None:
    rng = np.random.default_rng(0)
    times = [rng.uniform(0, 1000, 1500).tolist() for _ in range(2)]
    asked = system(
        [replica(0), replica(1, partition=1), replica(0, duty_cycle_ms=30.0, partition=1)], models=2
    )
    result = run(asked, Cut(times, [100.0, 400.0]), drop="late", warmup_ms=200.0)
    assert (result.done + result.dropped == result.arrived).all()
    assert (result.dropped > 100).all()
    assert (result.on_time == result.done).all()  # the estimate is exact here
    assert result.end_ms < 1060
    assert (result.source_dropped == result.dropped).all()
