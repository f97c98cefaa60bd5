"""Whole models in the queue of a run: order, weight, time limits, progress, and what is said of them at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gkest_fakes import QUICK, counts

from gkestimator.core.errors import UsageError
from gkestimator.profiling.plan import ModelPoint, SweepPlan
from gkestimator.profiling.raw import DeviceFacts, read_chunk
from gkestimator.profiling.running import Limits, RunReport
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.cluster_tasks import measure, unpack
from gkestimator.profiling.running.folder import plan_digest
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.running.pace import MOST_ENTRY_S, UNKNOWN_MODEL_S
from gkestimator.profiling.running.report import ModelCounts


def a_campaign(wanted: SweepPlan, options: Any = QUICK, *, kind: str = "gpu") -> Campaign:
    campaign = Campaign(
        wanted, options, executor="torch", collector="nsys", counters_collector=None,
        facts={"cuda:0": DeviceFacts(kind=kind, name="Fake")}, next_number=1,
    )  # fmt: skip
    campaign.resume(())
    return campaign


def all_ok(job: ChunkJob, *, working_s: float | None = None) -> ChunkResult:
    return ChunkResult(kind="whole", statuses={e.id: "ok" for e in job.entries}, working_s=working_s)


def jobs(campaign: Campaign) -> list[ChunkJob]:
    found = []
    while (job := campaign.next_job("cuda:0", None)) is not None:
        found.append(job)
        campaign.finished(job, all_ok(job))
    return found


def test_a_run_out_of_time_says_how_many_timelines_are_left(plan: Any) -> None:
    campaign = a_campaign(plan(0, models=4))
    job = campaign.next_job("cuda:0", None)
    assert job is not None and len(job.entries) == 4
    cut_off = ChunkResult(kind="stopped", statuses={e.id: "ok" for e in job.entries[:3]})
    campaign.finished(job, cut_off)
    campaign.stop("the time that was given is over", status=0)
    report = campaign.report("raw", 1.0)
    assert (report.ok, report.left, counts(report), report.exit_code) == (3, 1, (4, 3, 0, 0, 3), 0)
    assert "timelines of 3 whole models are left" in "\n".join(report.words())
    campaign.stopped = None
    assert [(j.pass_name, len(j.entries)) for j in jobs(campaign)] == [("latency", 1), ("timeline", 4)]
    assert counts(campaign.report("raw", 1.0)) == (4, 4, 4, 0, 0)


def test_what_stays_noisy_in_both_passes_is_repeated_in_each_as_often_as_asked(plan: Any) -> None:
    campaign = a_campaign(plan(2, models=2), replace(QUICK, retries=2, chunk_seconds=10.0))
    found = []
    while (job := campaign.next_job("cuda:0", None)) is not None:
        found.append((job.pass_name, job.attempt, tuple(e.model is not None for e in job.entries)))
        statuses = {e.id: "ok" for e in job.entries}
        campaign.finished(
            job, ChunkResult(kind="whole", statuses=statuses, qualities=dict.fromkeys(statuses, "noisy"))
        )
    models, operators = (True, True), (False, False)
    assert found == [
        *(("latency", 1, models), ("timeline", 1, models), ("timeline", 1, operators)),
        *(("latency", 2, models), ("timeline", 2, models), ("timeline", 2, operators)),
        *(("latency", 3, models), ("timeline", 3, models), ("timeline", 3, operators)),
    ]
    assert campaign.report("raw", 1.0).noisy == 4


def test_models_of_unknown_time_weigh_more_than_operators(plan: Any) -> None:
    found = jobs(a_campaign(plan(12, models=6, seconds=None), replace(QUICK, chunk_seconds=12.0)))
    sizes = [(j.pass_name, len(j.entries)) for j in found]
    per_chunk = int(12 / UNKNOWN_MODEL_S)
    assert per_chunk == 2
    assert sizes == [("latency", 2)] * 3 + [("timeline", 2)] * 3 + [("timeline", 12)]


def test_slow_models_do_not_make_operators_look_slow(plan: Any) -> None:
    campaign = a_campaign(plan(20, models=24, seconds=1.0), replace(QUICK, chunk_seconds=10.0))
    job = campaign.next_job("cuda:0", None)
    # A second is for both passes, so that twenty fit into ten seconds.
    assert job is not None and job.pass_name == "latency" and len(job.entries) == 20
    campaign.finished(job, all_ok(job, working_s=1000.0))
    rest = jobs(campaign)
    assert [len(j.entries) for j in rest if j.entries[0].model is not None] == [1] * (4 + 24)
    assert [len(j.entries) for j in rest if j.entries[0].model is None] == [10, 10]


@pytest.mark.parametrize(
    ("estimated_s", "limit_s"), [(None, 60.0), (5.0, 60.0), (50.0, 150.0), (1e11, MOST_ENTRY_S)]
)
def test_a_model_that_the_plan_knows_to_be_long_may_take_longer(
    plan: Any, estimated_s: float | None, limit_s: float
) -> None:
    wanted = plan(1, models=1)
    wanted = replace(wanted, entries=tuple(replace(e, estimated_s=estimated_s) for e in wanted.entries))
    found = jobs(a_campaign(wanted, replace(QUICK, limits=Limits())))
    assert [(j.entries[0].model is not None, j.limits.entry_s) for j in found] == [
        (True, limit_s), (True, limit_s), (False, 60.0),
    ]  # fmt: skip


def test_progress_counts_the_timelines_that_are_to_come(plan: Any) -> None:
    campaign = a_campaign(plan(2, models=2, seconds=1.0), replace(QUICK, chunk_seconds=0.5))
    seen = [campaign.progress()]
    while (job := campaign.next_job("cuda:0", None)) is not None:
        campaign.finished(job, all_ok(job))
        seen.append(campaign.progress())
    assert [(done, total) for _, done, total in seen] == [(i, 6) for i in range(7)]
    assert [stage for stage, _, _ in seen[:-1]] == ["latency"] * 2 + ["timeline"] * 4


def test_digests_of_plans_without_models_are_those_of_earlier_releases(plan: Any) -> None:
    """Else nobody could go on with a folder that an earlier release began."""
    assert plan_digest(plan(3, counters=(1,))) == "2c4de05249ca6b349fd4f4c013485ed4"


def test_a_chunk_of_latencies_travels_over_a_cluster(
    machine: Any, plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path
) -> None:
    fake()
    campaign = Campaign(
        plan(2, models=3), replace(QUICK, devices=(), engine="ray"), executor="onnxruntime", collector="nsys",
        counters_collector=None, facts={"cpu": fakes.facts("cpu")}, next_number=1,
    )  # fmt: skip
    campaign.resume(())
    job = campaign.next_job("cpu", None)
    assert job is not None and (job.pass_name, job.collector) == ("latency", "none")
    result, data = measure(job, machine(collector="nsys"), None)
    assert result.kind == "whole" and data is not None
    folder = tmp_path / job.folder_name
    folder.mkdir()
    unpack(data, folder, job, result)
    assert (read_chunk(folder).pass_name, read_chunk(folder).files) == ("latency", ())
    campaign.finished(job, result)
    following = campaign.next_job("cpu", None)
    assert following is not None and (following.pass_name, following.collector) == ("timeline", "nsys")


@pytest.mark.parametrize(
    ("ok", "latencies", "said"),
    [(3, 3, ("table",)), (3, 0, ("build",)), (3, 1, ("table", "build")), (0, 0, ())],
)
def test_the_closing_line_names_the_commands_that_have_something_to_do(
    ok: int, latencies: int, said: Sequence[str]
) -> None:
    report = RunReport(
        raw="RAW", entries=3, ok=ok, failed=3 - ok, skipped=0, noisy=0, left=0, counters=0, chunks=1, minutes=1.0,
        whole=ModelCounts(models=latencies, latencies=latencies, timelines=0, timelines_failed=0, timelines_left=0),
    )  # fmt: skip
    commands = {"table": "next: gkest profile table RAW -o measured.parquet",
                "build": "next: gkest profile build RAW -o DATASET.parquet"}  # fmt: skip
    assert [w for w in report.words() if w.startswith("next:")] == [commands[s] for s in said]
    assert ("whole models" in report.summary()) == bool(latencies)


def test_a_profiler_does_not_serve_the_latency_pass() -> None:
    from gkestimator.profiling.collectors import choose

    assert choose("none", "cuda:0", "latency").name == choose("auto", "cpu", "latency").name == "none"
    with pytest.raises(UsageError, match="collector kineto serves the pass timeline, not latency"):
        choose("kineto", "cpu", "latency")
    with pytest.raises(UsageError, match="collector none serves the pass timeline, not counters"):
        choose("none", "cpu", "counters")


def test_a_plan_that_calls_a_model_otherwise_is_another_plan(plan: Any) -> None:
    wanted = plan(1, models=1)
    operator, model = wanted.entries
    for point in (ModelPoint(name="other", batch_size=1), ModelPoint(name="m0", batch_size=1, dims={"s": 2})):
        other = replace(wanted, entries=(operator, replace(model, model=point)))
        assert plan_digest(other) != plan_digest(wanted)
