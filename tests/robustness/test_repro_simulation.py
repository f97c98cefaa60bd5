"""Rates that no cluster could serve: refused by the number of requests or instances, before any is made."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.documents.plan import plan_json
from gkestimator.placement.registry import POLICIES
from gkestimator.placement.scheduling import schedule
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.rates import Bursts
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.simulation.running import FileRun, replan_files, simulate_files

_CLUSTERS = (
    {"gpus": [{"type": "V100", "count": 2}]},
    {"elastic": [{"type": "V100", "price_per_hour": 3.0}]},
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of one model at some batches and shares."""
    lines = ["model,gpu,runtime,dtype,batch_size,sm_share_pct,latency_ms,sm_util_mean_pct,l2_util_mean_pct,"]
    lines[0] += (
        "power_w,input_bytes,output_bytes,kernels,dram_util_mean_pct,occupancy_max_pct,mreq_bytes,source"
    )
    for batch, share in itertools.product((1, 8), (20, 50, 100)):
        latency = (1 + 0.4 * batch) * (0.4 + 60 / share)
        lines.append(
            f"m,V100,onnxruntime,fp32,{batch},{share},{latency},20,10,100,1000,10,50,20,50,700000000,measured"
        )
    path = tmp_path_factory.mktemp("table") / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def workload(rate_rps: float) -> dict[str, object]:
    return {"models": [{"name": "m", "rate_rps": rate_rps, "slo_ms": 100}]}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cluster", _CLUSTERS, ids=["fixed", "elastic"])
def test_a_rate_of_a_trillion_is_refused_by_every_policy(
    table: Path, policy: str, cluster: dict[str, object]
) -> None:
    try:
        schedule(table, workload(100), cluster, policy=policy)
    except UsageError as e:
        if "cannot minimise cost" in str(e):
            pytest.skip(str(e))
    with pytest.raises(UsageError, match=r"m: rate_rps 1e\+12 .* worth of requests, expected at most 10,000"):
        schedule(table, workload(1e12), cluster, policy=policy)


def test_a_scale_of_a_million_is_refused_by_the_number_of_requests(table: Path) -> None:
    plan = schedule(table, workload(1000), _CLUSTERS[0]).plan
    with pytest.raises(
        UsageError, match=r"found 6e\+10 requests of a simulation, expected at most 10,000,000"
    ):
        simulate_files(plan, [table], FileRun(rate_scale=1e6))


def test_looking_at_the_rates_for_thirty_years_is_refused_before_it_begins(
    table: Path, tmp_path: Path
) -> None:
    scheduled = schedule(table, workload(1000), _CLUSTERS[0])
    plan, cluster = tmp_path / "plan.json", tmp_path / "cluster.yaml"
    plan.write_text(plan_json(scheduled.plan))
    cluster.write_text("gpus: [{type: V100, count: 2}]")
    run = FileRun(duration_s=1e9, rate_scale=1e-9)
    with pytest.raises(
        UsageError, match=r"replan: found 1e\+09 looks at the rates, .* \(GKEST_LIMITS=looks="
    ):
        replan_files(plan, [table], cluster, Replanning(kind="gpulet"), run)


def test_the_limit_is_raised_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals = make_arrivals("poisson", [1000.0], ["m"])
    monkeypatch.setenv("GKEST_LIMITS", "requests=500")
    with pytest.raises(UsageError, match="found 1,000 requests"):
        next(arrivals.chunks(1e3))
    monkeypatch.setenv("GKEST_LIMITS", "requests=2000")
    assert sum(len(chunk.times_ms[0]) for chunk in arrivals.chunks(1e3)) > 500


def test_bursts_of_microseconds_are_refused_by_the_number_of_changes() -> None:
    bursts = Bursts.of(factor=3, share=0.2, burst_s=1e-6)
    with pytest.raises(UsageError, match=r"found 4e\+08 changes of rate .*, expected .*rate_changes=NUMBER"):
        next(make_arrivals("mmpp", [1.0], ["m"], bursts=bursts).chunks(1e6))
    # The same bursts, and as many seconds of longer ones.
    assert list(make_arrivals("mmpp", [1.0], ["m"], bursts=bursts).chunks(1e3))
    assert list(make_arrivals("mmpp", [1.0], ["m"]).chunks(1e6))
    assert list(make_arrivals("poisson", [1.0], ["m"], bursts=bursts).chunks(1e6))
