"""The shape of USHER's autoscaling figure, small; and runs from rows and a cluster to the report."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import reference

from gkestimator.core.errors import UsageError
from gkestimator.documents import PlacementPlan, Workload
from gkestimator.documents.cluster import Cluster, ElasticGpu, GpuCount
from gkestimator.documents.workload import ModelLoad
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.registry import make_interference
from gkestimator.placement.building import build_problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.rates import Profile
from gkestimator.simulation.building import build_system
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.control import control
from gkestimator.simulation.replanning.picture import draw_replanned
from gkestimator.simulation.replanning.report import ReplanReport, replan_document, report_of
from gkestimator.simulation.replanning.running import simulate_replanned
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.replanning.words import render_replan
from gkestimator.tables import REQUIREMENTS, read_table

V100 = "V100-SXM2-16GB"
SPEC = gpu_catalogue().spec(V100)
ROWS = read_table(Path(str(files("gkestimator.datasets"))) / "published" / "ethz_v100.csv", REQUIREMENTS)
RENTED = Cluster(elastic=(ElasticGpu(spec=SPEC, price_per_hour=3.06),))
# Seconds, requests a second: up, up, down, up.
STEPS = Profile(times_s=(0, 12, 24, 36, 48), rates_rps=(200, 800, 1400, 200, 1000))
STEP_S = 12


def workload(rate: float = 200.0, *names: str) -> Workload:
    return Workload(models=tuple(ModelLoad(name=n, rate_rps=rate, slo_ms=200.0) for n in names or ("vgg19",)))


@pytest.fixture(scope="module")
def usher() -> ReplanReport:
    """USHER on table A.1, as benchmarks/autoscaling.py does it for longer."""
    policy = make_policy("usher")
    settings, options = Replanning(kind="usher", headroom=1.5), Options(duration_ms=60_000.0)

    def plan(asked: Workload) -> PlacementPlan:
        return place(policy, build_problem(ROWS, asked, RENTED, creq="occupancy-max"))

    run = control(
        plan(workload()), plan, lambda p: build_system(p, ROWS, interference=None),
        make_arrivals("poisson", [200.0], ["vgg19"], seed=2, profiles={"vgg19": STEPS}), options, settings,
        simulator=reference.Simulator,  # type: ignore[arg-type]
    )  # fmt: skip
    return report_of(
        run,
        policy="usher",
        arrivals="steps",
        options=options,
        replan=settings,
        prices={V100: 3.06},
        notes=["a note"],
    )


@pytest.mark.slow
def test_gpus_follow_the_rate_and_the_wait_settles_after_each_step(usher: ReplanReport) -> None:
    time = usher.timeline
    assert np.corrcoef(time.gpus, time.arrived)[0, 1] > 0.8
    waits = np.array([w if w is not None else np.nan for w in time.wait_mean_ms])
    calm = waits[:STEP_S].max()
    for step in (1, 2, 4):
        here = waits[step * STEP_S : (step + 1) * STEP_S]
        assert here.max() > 3 * calm  # nobody knew
        assert here[-2:].max() < here.max() / 3  # and it settles
    assert waits[3 * STEP_S + 2 : 4 * STEP_S].max() < 3 * calm  # down: no wait to speak of
    assert usher.totals.gpus_mean < usher.totals.gpus_peak
    assert [round(d.time_s) for d in usher.decisions] == [13, 25, 37, 49]


@pytest.mark.slow
def test_the_report_in_its_forms(usher: ReplanReport) -> None:
    text = render_replan(usher, "table").decode()
    assert "vgg19: from 200 to " in text
    assert "note: a note" in text
    assert max(map(len, text.splitlines())) <= 110
    found = json.loads(render_replan(usher, "json"))
    assert found == json.loads(json.dumps(replan_document(usher)))
    assert found["totals"]["arrived"] == sum(found["timeline"]["arrived"])
    table = render_replan(usher, "csv").decode().splitlines()
    assert table[0] == "start_s,arrived,on_time,wait_mean_ms,gpus"
    assert len(table) == 61
    assert table[1].startswith("0.0,")


@pytest.mark.slow
def test_the_picture_is_the_same_each_time(usher: ReplanReport) -> None:
    pytest.importorskip("matplotlib")
    two = {"one": usher, "$other_": usher}
    assert draw_replanned(two, "svg") == draw_replanned(two, "svg")
    with pytest.raises(UsageError, match="found 5 runs, expected 1 to 4"):
        draw_replanned({str(i): usher for i in range(5)}, "svg")


def simulated(
    start: PlacementPlan | Workload, cluster: Cluster, replanning: Replanning | None, **kwargs: object
) -> ReplanReport:
    names = [m.name for m in (start if isinstance(start, Workload) else start.workload).models]
    return simulate_replanned(
        start, ROWS, cluster, make_arrivals("poisson", [100.0] * len(names), names), Options(duration_ms=3000.0),
        replanning, **kwargs,  # type: ignore[arg-type]
    )  # fmt: skip


def four(count: int = 4) -> Cluster:
    return Cluster(gpus=(GpuCount(spec=SPEC, count=count),))


def test_from_a_workload_or_from_a_plan_it_is_the_same() -> None:
    asked = workload(100.0, "resnet50", "alexnet")
    plan = place(make_policy("nexus"), build_problem(ROWS, asked, four()))
    settings = Replanning(kind="gpulet", period_ms=1000.0, background_from_ms=0.0, background_to_ms=0.0)
    by_plan = simulated(plan, four(), settings)
    assert by_plan.policy == "nexus"
    assert by_plan == simulated(asked, four(), settings, policy="nexus")
    assert by_plan.totals.decisions == 2
    assert simulated(plan, four(), None).totals.decisions == 0


def test_gpus_of_other_names_become_those_of_the_cluster() -> None:
    import dataclasses

    plan = place(
        make_policy("exclusive"), build_problem(ROWS, workload(100.0, "resnet50", "alexnet"), four())
    )
    renamed = dataclasses.replace(
        plan, gpus=tuple(dataclasses.replace(g, id=f"mine-{i}") for i, g in enumerate(plan.gpus))
    )
    usher = Replanning(kind="usher")
    assert simulated(renamed, four(), usher).totals == simulated(plan, four(), usher).totals
    with pytest.raises(UsageError, match=f"the plan uses more {V100} than the cluster has, 1 of them"):
        simulated(renamed, four(1), usher)
    t4 = Cluster(gpus=(GpuCount(spec=gpu_catalogue().spec("T4"), count=1),))
    with pytest.raises(UsageError, match=f"the plan uses {V100}, expected GPUs of the cluster: T4"):
        simulated(renamed, t4, usher)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="no policy is named"):
        simulated(workload(), RENTED, Replanning(kind="usher"))
    with pytest.raises(UsageError, match="re-planning follows rates"):
        simulate_replanned(
            workload(), ROWS, RENTED, make_arrivals("closed:2", [1.0], ["a"]),
            Options(duration_ms=1000.0), None, policy="usher",
        )  # fmt: skip
    with pytest.raises(UsageError, match="found 2 streams, expected 1"):
        simulate_replanned(
            workload(), ROWS, RENTED, make_arrivals("poisson", [1.0, 1.0], ["a", "b"]),
            Options(duration_ms=1000.0), None, policy="usher",
        )  # fmt: skip
    with pytest.raises(UsageError, match="interference none has none"):
        simulated(workload(), RENTED, None, policy="usher", coefficients="x.yaml")


def test_a_replica_that_is_alone_now_can_be_slowed_down_by_one_that_joins_it() -> None:
    plan = place(make_policy("exclusive"), build_problem(ROWS, workload(100.0), four()))
    law = make_interference("contention")
    alone, joined = (build_system(plan, ROWS, interference=law, joined=j) for j in (False, True))
    assert alone.replicas[0].features is None
    assert joined.replicas[0].features is not None
    assert joined.gpus[0].terms == law.terms(SPEC)
