"""The same over Ray: a local cluster of several nodes, each type measures the whole plan, and a node that dies midway."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.raw import chunk_folders, read_chunk, read_run, run_folders
from gkestimator.profiling.records import read_records
from gkestimator.profiling.running import Limits, RunOptions, run_plan
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.cluster_tasks import measure, unpack

OPTIONS = RunOptions(engine="ray", chunk_seconds=0.45, limits=Limits(entry_s=5.0), min_free_mb=1)


def measured(raw: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for folder in chunk_folders(raw):
        ids = [r.entry_id for r in read_records(folder / "records.jsonl")]
        assert tuple(ids) == read_chunk(folder).entries
        found.update(ids)
    return found


@pytest.fixture
def cluster(fakes: ModuleType, fake: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without GPU types, two nodes of type A and one of type B; the fake child takes 0.15 s an entry."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_health_check_period_ms", "500")
    fake(seconds=0.15)
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    try:
        del small["include_dashboard"]
        made.first = made.add_node(num_cpus=1, resources={"gkest:A": 1}, **small)
        made.add_node(num_cpus=1, resources={"gkest:A": 1}, **small)
        made.add_node(num_cpus=1, resources={"gkest:B": 1}, **small)
        ray.init(address=made.address, log_to_driver=False, configure_logging=False)
        ray.cloudpickle.register_pickle_by_value(fakes)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.slow
def test_types_measure_the_whole_plan_and_a_dead_node_costs_nothing(
    cluster: Any, machine: Any, plan: Any, tmp_path: Path
) -> None:
    wanted, raw = plan(24, models=3), tmp_path / "raw"
    killed: list[float] = []

    def kill_midway() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end and len(chunk_folders(raw / "A")) < 2:
            time.sleep(0.02)
        cluster.remove_node(cluster.first, allow_graceful=False)
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill_midway)
    killer.start()
    report = run_plan(wanted, raw, OPTIONS, machine=machine(collector="nsys"))
    killer.join()
    assert killed, "the node outlived the test"
    assert (report.ok, report.failed, report.left, report.exit_code) == (54, 0, 0, 0)
    assert (report.whole.models, report.whole.latencies, report.whole.timelines) == (6, 6, 6)
    assert [p.name for p in run_folders(raw)] == ["A", "B"]
    for part in ("A", "B"):
        assert measured(raw / part) == Counter({e.id: 1 if e.model is None else 2 for e in wanted.entries})
        assert read_run(raw / part).executor == "onnxruntime"
    assert not list(raw.glob("*/chunks/.aside-*"))
    again = run_plan(wanted, raw, OPTIONS, machine=machine(collector="nsys"))
    assert (again.ok, again.chunks) == (54, 0)
    with pytest.raises(UsageError, match="gpu-type H100: the cluster offers A, B"):
        run_plan(wanted, raw, replace(OPTIONS, gpu_types=("H100",)), machine=machine())
    with pytest.raises(UsageError, match=r"gpu-type: found '\.\./x'"):
        run_plan(wanted, raw, replace(OPTIONS, gpu_types=("../x",)), machine=machine())
    one = run_plan(
        wanted, tmp_path / "b", replace(OPTIONS, gpu_types=("B",), minutes=0.03), machine=machine()
    )
    assert one.exit_code == 0 and one.left > 0 and "time that was given" in (one.parts[0].stopped or "")


def test_without_ray_or_a_cluster_it_is_said_in_one_line(
    machine: Any, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Ray is missing"):
        run_plan(plan(1), tmp_path / "raw", OPTIONS, machine=machine())
    assert not (tmp_path / "raw").exists()


def a_job(wanted: SweepPlan, fakes: ModuleType) -> Any:
    campaign = Campaign(
        wanted, OPTIONS, executor="onnxruntime", collector="nsys", counters_collector=None,
        facts={"cpu": fakes.facts("cpu")}, next_number=1,
    )  # fmt: skip
    campaign.resume(())
    return campaign.next_job("cpu", None)


def test_a_chunk_travels_whole(machine: Any, plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path) -> None:
    fake()
    job = a_job(plan(3), fakes)
    result, data = measure(job, machine(collector="nsys"), None)
    assert result.kind == "whole" and data is not None
    (tmp_path / "here").mkdir()
    unpack(data, tmp_path / "here", job, result)
    assert read_chunk(tmp_path / "here").files == ("capture.txt",)
    other = replace(job, facts=replace(job.facts, name="H100"))
    result, data = measure(other, machine(), None)
    assert (result.kind, data) == ("device", None) and "has Fake, expected H100" in (result.line or "")


@pytest.mark.parametrize("what", ["cut", "path", "entries"])
def test_what_comes_back_is_not_trusted(
    machine: Any, plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path, what: str
) -> None:
    fake()
    job = a_job(plan(3), fakes)
    result, data = measure(job, machine(collector="nsys"), None)
    assert data is not None
    folder = tmp_path / "here"
    folder.mkdir()
    if what == "cut":
        data["records.jsonl"] = data["records.jsonl"][:50]
    elif what == "path":
        data["../evil"] = b""
    else:
        job = replace(job, entries=job.entries[1:])
    assert result.statuses
    result = unpack(data, folder, job, result)
    assert result.kind == "lost" and not result.statuses
    assert not (tmp_path / "evil").exists()
