"""How long items are expected to take: what chunks have shown of their own kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.running.pace import MODEL_PASSES, Pace
from gkestimator.profiling.running.states import PendingPass


def test_quick_timelines_do_not_make_counters_look_quick(plan: Callable[..., SweepPlan]) -> None:
    entries = plan(10, counters=range(10), seconds=1.0, models=1).entries
    timelines = [PendingPass(entry=e, pass_name="timeline") for e in entries[:10]]
    counted = [PendingPass(entry=e, pass_name="counters") for e in entries[:10]]
    model = PendingPass(entry=entries[10], pass_name="latency")
    before = Pace().seconds(model)
    pace = Pace()
    for _ in range(20):
        pace.learn(timelines, 0.5)  # 50 ms each, where the plan allows a second for both passes
    assert pace.seconds(timelines[0]) == pytest.approx(0.05, rel=0.02)
    assert pace.seconds(counted[0]) == 1.0
    for _ in range(20):
        pace.learn(counted, 20.0)
    assert pace.seconds(counted[0]) == pytest.approx(2.0, rel=0.02)
    assert pace.seconds(timelines[0]) == pytest.approx(0.05, rel=0.02)
    assert pace.seconds(model) == before == (model.entry.estimated_s or 0) / MODEL_PASSES
