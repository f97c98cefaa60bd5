"""When the policy runs again, and for which rates."""

from __future__ import annotations

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.documents import Workload
from gkestimator.documents.workload import Application, ModelLoad, Stage
from gkestimator.simulation.replanning.settings import Replanning, replanning_from
from gkestimator.simulation.replanning.triggers import make_trigger, source_rates_rps, with_rates

WORKLOAD = Workload(
    models=(ModelLoad(name="a", rate_rps=1000, slo_ms=100),),
    applications=(
        Application(
            name="app", rate_rps=100, slo_ms=100, stages=(Stage(model="b"), Stage(model="a", after=("b",), fan_out=4))
        ),
    ),
)  # fmt: skip


def test_usher_runs_again_once_a_model_has_moved_by_the_threshold() -> None:
    trigger = make_trigger(Replanning(kind="usher"), WORKLOAD)
    trigger.observe([1499, 100])
    assert trigger.due(1000) is None
    trigger.observe([1500, 100])
    assert trigger.due(2000) == "a: from 1400 to 1900 req/s"
    trigger.planned(2000)
    assert trigger.due(2000) is None
    trigger.observe([1001, 100])  # 499 less than the last plan's
    assert trigger.due(3000) is None
    trigger.observe([1000, 100])
    assert trigger.due(4000) is not None


def test_an_applications_requests_count_as_often_as_they_reach_the_model() -> None:
    trigger = make_trigger(Replanning(kind="usher"), WORKLOAD)
    trigger.observe([1000, 225])  # a is asked 4 x 125 more often
    assert trigger.due(1000) == "a: from 1400 to 1900 req/s"


def test_gpulet_runs_again_every_period_on_the_moving_average() -> None:
    trigger = make_trigger(Replanning(kind="gpulet", smoothing=0.25, period_ms=3000), WORKLOAD)
    for now, counted in ((1000, 2000.0), (2000, 2000.0)):
        trigger.observe([counted, 0.0])
        assert trigger.due(now) is None
    trigger.observe([0.0, 0.0])
    assert trigger.due(3000) == "3 s are over"
    # 1000 -> 1250 -> 1437.5 -> 1078.125
    assert trigger.rates_rps == (1078.125, 100 * 0.75**3)
    trigger.planned(3000)
    assert trigger.due(5999) is None
    assert trigger.due(6000) is not None
    trigger.planned(13000)  # periods in which it could not run are not made up for
    assert trigger.due(14999) is None
    assert trigger.due(15000) is not None


def test_the_policy_is_asked_for_the_floor_at_least_and_for_the_headroom() -> None:
    trigger = make_trigger(Replanning(kind="usher", headroom=1.25, floor_rps=4), WORKLOAD)
    trigger.observe([0.0, 8.0])
    asked = trigger.asked()
    assert source_rates_rps(asked) == (5.0, 10.0)
    assert [m.slo_ms for m in asked.models] == [100]
    assert asked.applications[0].stages == WORKLOAD.applications[0].stages


def test_rates_are_given_back_in_order() -> None:
    assert source_rates_rps(with_rates(WORKLOAD, (3.0, 4.0))) == (3.0, 4.0)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"kind": "hourly"}, "replan 'hourly' is not known, expected one of none, usher, gpulet"),
        ({"threshold_rps": 0}, "replan threshold-rps: found 0, expected a number above 0"),
        ({"control_ms": float("nan")}, "replan control-ms: found nan, expected a number of 1 or more"),
        ({"control_ms": 1e-9}, "replan control-ms: found 1e-09, expected a number of 1 or more"),
        ({"period_ms": 1e-9}, "replan period-ms: found 1e-09, expected a number of 1 or more"),
        ({"period_ms": float("inf")}, "replan period-ms: found inf, expected a number of 1 or more"),
        ({"smoothing": 1.5}, "replan smoothing: found 1.5, expected a number above 0, at most 1"),
        ({"load_ms": -1}, "replan load-ms: found -1, expected a number of 0 or more"),
        (
            {"background_to_ms": 5},
            "replan background-to-ms: found 5, expected background-from-ms, 10000, or more",
        ),
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        Replanning(**({"kind": "usher"} | given))  # type: ignore[arg-type]


def test_settings_by_name() -> None:
    assert replanning_from("usher", {"threshold_rps": 250, "load_ms": 1.5}) == Replanning(
        kind="usher", threshold_rps=250.0, load_ms=1.5
    )
    with pytest.raises(
        UsageError, match="replan has no option treshold-rps; it has control-ms, threshold-rps"
    ):
        replanning_from("usher", {"treshold_rps": 250})
    with pytest.raises(UsageError, match="replan load-ms: found 'soon', expected a number"):
        replanning_from("usher", {"load_ms": "soon"})
    with pytest.raises(UsageError, match="replan load-ms: found True, expected a number"):
        replanning_from("usher", {"load_ms": True})
