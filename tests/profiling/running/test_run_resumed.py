"""What a resumed run owes to those before it: failures tried again, counters, the versions that rows will name."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gkest_fakes import QUICK, records

from gkestimator.core.errors import TableError, UsageError
from gkestimator.profiling.plan import read_plan
from gkestimator.profiling.raw import chunk_folders, read_chunk
from gkestimator.profiling.running import run_plan
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.jobs import ChunkResult


@pytest.mark.slow
def test_failed_entries_and_counters_are_measured_again_on_request_and_counted_in_the_same_run(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted, raw = plan(3, counters=(0, 1)), tmp_path / "raw"
    options = replace(QUICK, devices=("cuda:0",))
    tools = machine(collector="nsys", gpus=lambda: 1)
    fake({wanted.entries[0].id: "fail"})
    first = run_plan(wanted, raw, options, machine=tools)
    assert (first.ok, first.failed, first.counters) == (2, 1, 1)
    fake()
    second = run_plan(wanted, raw, replace(options, retry_failed=True), machine=tools)
    assert (second.ok, second.failed, second.counters) == (3, 0, 2)
    assert run_plan(wanted, raw, replace(options, retry_failed=True), machine=tools).chunks == 0


def test_libraries_that_changed_in_between_are_refused_for_rows_would_name_the_old_ones(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    wanted, raw = plan(2), tmp_path / "raw"
    run_plan(wanted, raw, QUICK, machine=machine(versions=lambda *_: {"onnxruntime": "1.30", "cudnn": "9"}))
    with pytest.raises(UsageError, match=r"onnxruntime 1\.30, found 1\.31"):
        run_plan(
            wanted, raw, QUICK, machine=machine(versions=lambda *_: {"onnxruntime": "1.31", "cudnn": "9"})
        )
    with pytest.raises(UsageError, match="cudnn 9, found none"):
        run_plan(wanted, raw, QUICK, machine=machine(versions=lambda *_: {"onnxruntime": "1.30"}))
    same = machine(versions=lambda *_: {"cudnn": "9", "onnxruntime": "1.30", "python": "4.0"})
    assert run_plan(wanted, raw, QUICK, machine=same).exit_code == 0


def test_counters_whose_turn_did_not_come_are_said(plan: Any, fakes: Any) -> None:
    wanted = plan(4, counters=range(3))
    campaign = Campaign(
        wanted, QUICK, executor="torch", collector="nsys", counters_collector="ncu",
        facts={"cuda:0": fakes.facts("cuda:0")}, next_number=1,
    )  # fmt: skip
    campaign.resume(())
    while (job := campaign.next_job("cuda:0", None)) is not None and job.pass_name == "timeline":
        statuses = {e.id: "ok" for e in job.entries}
        campaign.finished(job, ChunkResult(kind="whole", statuses=statuses))
    assert job is not None and len(job.entries) == 3
    campaign.finished(job, ChunkResult(kind="stopped", statuses={job.entries[0].id: "ok"}))
    report = campaign.report("raw", 1.0)
    assert (report.left, report.counters, report.counters_left) == (0, 1, 2)
    assert "counters of 2 entries are left; the same command goes on with them" in report.words()


@pytest.mark.slow
def test_a_chunk_that_cannot_be_read_is_said_with_the_remedy(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    wanted, raw = plan(12), tmp_path / "raw"
    run_plan(wanted, raw, QUICK, machine=machine())
    (raw / "plan.json").unlink()
    spoilt = chunk_folders(raw)[0]
    count = len(read_chunk(spoilt).entries)
    (spoilt / "records.jsonl").write_text("garbage\n")
    with pytest.raises(TableError, match=f"records.jsonl: line 1 is .*; remove {spoilt} to have"):
        run_plan(wanted, raw, QUICK, machine=machine())
    shutil.rmtree(spoilt)
    journal = fake()
    journal.unlink()
    report = run_plan(wanted, raw, QUICK, machine=machine())
    assert (report.ok, report.left) == (12, 0) and journal.read_text().count("begin") == count
    assert set(records(raw)) == {e.id for e in wanted.entries}
    assert [e.id for e in read_plan(raw / "plan.json").entries] == [e.id for e in wanted.entries]
