"""Whole runs in which a policy runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
import pytest
import reference
from _replans import V100

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount
from gkestimator.documents.workload import Application, ModelLoad, Stage
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.rates import Profile
from gkestimator.simulation.building import build_system
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.control import Replanned, control
from gkestimator.simulation.replanning.report import replan_json, report_of
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.result import Result
from gkestimator.tables import Requirement

SPEC = gpu_catalogue().spec(V100)
RENTED = Cluster(elastic=(ElasticGpu(spec=SPEC, price_per_hour=3.0),))
NAMES = ("a", "b", "c")


def row(model: str, batch: int, latency: float, memory: float) -> Requirement:
    return Requirement(
        model=model, gpu=V100, runtime="torch", dtype="fp32", batch_size=batch, latency_ms=latency,
        throughput_rps=1e3 * batch / latency, sm_util_mean_pct=30.0, occupancy_max_pct=30.0, mreq_pct=memory,
        mreq_bytes=round(memory / 100 * 16144 * 2**20), source="measured", occupancy_source="measured",
        memory_source="measured",
    )  # fmt: skip


# One V100 serves some 150 requests a second of one model.
ROWS = [row(m, b, 10.0 + 5.0 * b, 40.0 + b) for m in NAMES for b in (1, 4, 8)]
WORKLOAD = Workload(models=tuple(ModelLoad(name=m, rate_rps=100.0, slo_ms=400.0) for m in NAMES))
# By second, requests a second.
UP_AND_DOWN = {
    "a": Profile(times_s=(0, 5, 10, 15), rates_rps=(100, 300, 400, 40)),
    "b": Profile(times_s=(0, 8, 14), rates_rps=(100, 0, 250)),
    "c": Profile(times_s=(0, 12), rates_rps=(100, 300)),
}
ALL = [
    *("source_" + n for n in ("arrived", "rejected", "done", "on_time")),
    "arrived",
    "done",
    "on_time",
    "batches",
]


def arrivals(profiles: Mapping[str, Profile] | None = None, seed: int = 1) -> Arrivals:
    return make_arrivals("poisson", [100.0] * 3, NAMES, seed=seed, profiles=profiles)


def run(
    settings: Replanning,
    *,
    cluster: Cluster = RENTED,
    policy: str = "exclusive",
    profiles: Mapping[str, Profile] | None = UP_AND_DOWN,
    workload: Workload = WORKLOAD,
    coming: Arrivals | None = None,
    simulator: object = reference.Simulator,
    rows: list[Requirement] = ROWS,
    **options: object,
) -> Replanned:
    chosen = make_policy(policy)

    def plan(asked: Workload) -> PlacementPlan:
        return place(chosen, build_problem(rows, asked, cluster, seed=0))

    return control(
        plan(workload),
        plan,
        lambda p: build_system(p, rows, interference=None, batching=str(options.get("batching", "early"))),
        coming or arrivals(profiles),
        Options(**({"duration_ms": 20_000.0} | options)),  # type: ignore[arg-type]
        settings,
        pool={g.spec.name: [f"{g.spec.name}-{i}" for i in range(g.count)] for g in cluster.gpus} or None,
        simulator=simulator,  # type: ignore[arg-type]
    )


USHER = Replanning(kind="usher", threshold_rps=50.0)
GPULET = Replanning(kind="gpulet", period_ms=4000.0, background_from_ms=1000.0, background_to_ms=2000.0)


def fixed(count: int) -> Cluster:
    return Cluster(gpus=(GpuCount(spec=SPEC, count=count),))


def total(result: Result, name: str) -> int:
    return int(getattr(result, name).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy, cluster, settings",
    [
        ("exclusive", RENTED, USHER),
        ("exclusive", fixed(2), GPULET),
        ("nexus", fixed(2), USHER),
        ("nexus", RENTED, GPULET),
        ("gkest", fixed(4), USHER),
        ("gkest", fixed(2), GPULET),
    ],
)
def test_no_request_is_lost_and_no_memory_is_used_twice(
    policy: str, cluster: Cluster, settings: Replanning
) -> None:
    found = run(settings, cluster=cluster, policy=policy)
    result = found.result
    assert total(result, "source_arrived") == total(result, "source_rejected") + total(result, "source_done")
    assert total(result, "source_arrived") == sum(
        len(t) for c in arrivals(UP_AND_DOWN).chunks(20_000.0) for t in c.times_ms
    )
    assert sum(d.counted is not None for d in found.decisions) >= 3
    for gpu, memory in found.peak_memory_pct.items():
        assert memory is not None and memory <= 100 + 1e-4, gpu
    # The first plan's replicas, those loaded since and less those that ended, are the last plan's.
    changes = [d for d in found.decisions if d.counted is not None]
    count = placed(found.plan) + sum(
        d.counted.loads - d.counted.ends for d in changes if d.counted is not None
    )
    last = changes[-1].plan
    assert last is not None and count == placed(last)


def placed(plan: PlacementPlan) -> int:
    return sum(len(g.replicas) for g in plan.gpus)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [USHER, GPULET])
def test_gpus_follow_the_rate(settings: Replanning) -> None:
    settings = replace(settings, headroom=1.4, smoothing=0.7)
    profile = Profile(times_s=(0, 5, 18), rates_rps=(80, 300, 60))
    options = Options(duration_ms=30_000.0)
    found = run(settings, profiles=dict.fromkeys(NAMES, profile), duration_ms=30_000.0)
    report = report_of(
        found,
        policy="exclusive",
        arrivals="steps",
        options=options,
        replan=settings,
        prices={V100: 3.0},
    )
    gpus = report.timeline.gpus
    assert gpus[4] == 3.0
    assert max(gpus[6:18]) >= 6
    assert gpus[-1] == 3.0
    assert report.totals.gpus_peak == max(gpus)
    assert report.totals.gpus_mean == pytest.approx(np.mean(gpus))
    assert report.totals.cost == pytest.approx(np.mean(gpus) * 30 / 3600 * 3)
    waits = [w for w in report.timeline.wait_mean_ms if w is not None]
    assert len(waits) == 30
    assert max(waits[5:10]) > 5 * max(waits[:5])  # until the new replicas are there
    assert max(waits[-3:]) < 2 * max(waits[:5])


@pytest.mark.slow
def test_steady_rates_move_nothing() -> None:
    found = run(USHER, profiles=None)
    assert found.decisions == ()
    assert len(found.uses) == len({u.gpu for u in found.uses})
    by_period = run(GPULET, profiles=None)
    assert len(by_period.decisions) == 4
    assert all(d.counted is not None and d.counted.loads == d.counted.ends == 0 for d in by_period.decisions)


@pytest.mark.slow
def test_without_a_decision_it_is_the_plain_simulation() -> None:
    found = run(USHER, profiles=None)
    system = build_system(
        place(make_policy("exclusive"), build_problem(ROWS, WORKLOAD, RENTED)), ROWS, interference=None
    )
    plain = reference.simulate(system, arrivals(), Options(duration_ms=20_000.0))
    for field in fields(Result):
        if field.name != "requests":
            assert np.array_equal(getattr(found.result, field.name), getattr(plain, field.name)), field.name


@pytest.mark.slow
@pytest.mark.parametrize("settings", [USHER, GPULET])
def test_one_seed_one_result(settings: Replanning) -> None:
    def text(seed: int) -> str:
        options = Options(duration_ms=20_000.0, seed=seed)
        found = run(settings, seed=seed)
        return replan_json(
            report_of(found, policy="x", arrivals="y", options=options, replan=settings, prices={V100: None})
        )

    assert text(3) == text(3)
    if settings is GPULET:
        assert text(3) != text(4)  # the times of the changes are drawn


@pytest.mark.slow
def test_a_rate_of_zero_keeps_a_replica_and_comes_back() -> None:
    settings = replace(USHER, headroom=1.4)
    found = run(settings, profiles={"a": Profile(times_s=(0, 4, 12), rates_rps=(100, 0, 200))})
    to_zero = next(d for d in found.decisions if d.rates_rps[0] == 0.0)
    assert to_zero.plan is not None
    assert to_zero.plan.workload.models[0].rate_rps == 1.4
    assert "a" in {r.model for g in to_zero.plan.gpus for r in g.replicas}
    assert total(found.result, "source_done") == total(found.result, "source_arrived")
    # At once, by the replica that was kept.
    waited = found.result.wait_by_window_ms[0] / np.maximum(1, found.result.arrived_by_window[0])
    assert found.result.arrived_by_window[0][4:12].sum() == 0
    assert found.result.done[0] == found.result.arrived[0]
    assert 0 < waited[12] < 2000
    back = next(d for d in found.decisions if d.time_ms == 13_000)
    assert back.counted is not None and back.counted.loads >= 1


@pytest.mark.slow
def test_a_policy_that_cannot_answer_leaves_the_plan_as_it_is_and_is_asked_again() -> None:
    chosen = make_policy("exclusive")
    asked = []

    def plan(workload: Workload) -> PlacementPlan:
        asked.append(workload)
        if len(asked) == 2:
            raise UsageError("out of ideas")
        return place(chosen, build_problem(ROWS, workload, RENTED))

    found = control(
        plan(WORKLOAD), plan, lambda p: build_system(p, ROWS, interference=None), arrivals(UP_AND_DOWN),
        Options(duration_ms=20_000.0), USHER, simulator=reference.Simulator,  # type: ignore[arg-type]
    )  # fmt: skip
    first, second = found.decisions[:2]
    assert (first.failed, first.plan, first.counted) == ("out of ideas", None, None)
    assert second.failed is None
    assert second.counted is not None
    report = report_of(
        found,
        policy="x",
        arrivals="y",
        options=Options(duration_ms=20_000.0),
        replan=USHER,
        prices={V100: None},
    )
    assert report.totals.failed == 1
    assert report.totals.cost is None
    assert report.decisions[0].gpus is None


@pytest.mark.slow
def test_what_the_new_plan_cannot_serve_is_turned_away_once_it_stands() -> None:
    found = run(USHER, cluster=fixed(1), profiles={m: Profile(times_s=(0, 5), rates_rps=(30, 400)) for m in NAMES},
                workload=replace(WORKLOAD, models=tuple(replace(m, rate_rps=30.0) for m in WORKLOAD.models)),
                policy="nexus")  # fmt: skip
    assert found.decisions[0].plan is not None
    assert found.decisions[0].plan.unserved
    assert total(found.result, "source_rejected") > 0
    assert total(found.result, "source_done") + total(found.result, "source_rejected") == total(
        found.result, "source_arrived"
    )
    options = Options(duration_ms=20_000.0)
    report = report_of(found, policy="x", arrivals="y", options=options, replan=USHER, prices={V100: None})
    assert sum(m.rejected for m in report.models) == report.totals.rejected
    assert (
        sum(m.arrived for m in report.models) == report.totals.arrived
    )  # as in the totals: refused ones are not on time


@pytest.mark.slow
def test_what_is_late_is_dropped_and_counted() -> None:
    found = run(USHER, drop="late")
    result = found.result
    assert total(result, "source_dropped") > 0
    assert total(result, "source_dropped") + total(result, "source_done") == total(result, "source_arrived")
    options = Options(duration_ms=20_000.0, drop="late")
    report = report_of(found, policy="x", arrivals="y", options=options, replan=USHER, prices={V100: None})
    assert (report.totals.dropped, report.totals.unanswered) == (total(result, "source_dropped"), 0)


@pytest.mark.slow
def test_late_batches_outlive_their_plan() -> None:
    """What waits at a replica that is retired is served there to its end, by the engine as by the reference."""
    found, expected = (run(USHER, batching="late", simulator=s) for s in (Simulator, reference.Simulator))
    assert total(found.result, "source_done") == total(found.result, "source_arrived")
    assert sum(d.counted is not None and d.counted.ends > 0 for d in found.decisions) >= 1
    for name in ("done", "batches", "batches_full", "replica_requests"):
        np.testing.assert_array_equal(
            getattr(found.result, name), getattr(expected.result, name), err_msg=name
        )


@pytest.mark.slow
def test_an_application_is_planned_for_by_its_requests() -> None:
    workload = Workload(
        applications=(
            Application(
                name="app", rate_rps=60.0, slo_ms=900.0,
                stages=(Stage(model="a"), Stage(model="b", after=("a",), fan_out=2.0), Stage(model="c", after=("b",))),
            ),
        )
    )  # fmt: skip
    coming = make_arrivals(
        "poisson", [60.0], ["app"], profiles={"app": Profile(times_s=(0, 6), rates_rps=(60, 150))}
    )
    found = run(USHER, workload=workload, coming=coming)
    assert found.decisions[0].reason.startswith("b: from 120 to ")
    assert total(found.result, "source_done") == total(found.result, "source_arrived")
    loads = [d.counted.loads for d in found.decisions if d.counted is not None]
    assert sum(loads) >= 3
