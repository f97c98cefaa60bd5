"""Captures that are lost: made again, halved, settled at the end; a profiler that records nothing blames no entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gkest_fakes import QUICK, records

from gkestimator.profiling.captures import Capture, EntryRange
from gkestimator.profiling.collectors.base import CollectorError
from gkestimator.profiling.raw import chunk_folders, read_chunk
from gkestimator.profiling.records import read_records
from gkestimator.profiling.running import run_plan


@pytest.mark.slow
def test_a_lost_capture_is_made_again_then_in_halves_and_the_culprit_settled_at_the_end(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(8)
    journal, bad = fake(), wanted.entries[2].id
    tools = machine(collector="nsys", lose=lambda entries: bad in entries)
    report = run_plan(wanted, tmp_path / "raw", replace(QUICK, chunk_seconds=5), machine=tools)
    found = records(tmp_path / "raw")
    assert (report.ok, report.failed, report.left) == (7, 1, 0)
    assert "while others were not" in (found[bad].reason or "") and "truncated" in (found[bad].reason or "")
    counted = Counter(x.split()[-1] for x in journal.read_text().splitlines() if " begin " in x)
    assert counted[bad] == 6  # eight, eight again, four, two, alone, and alone when all else was done
    assert [counted[e.id] for e in wanted.entries[4:]] == [3] * 4
    assert journal.read_text().split()[-1] == bad
    for folder in chunk_folders(tmp_path / "raw"):
        for entry in read_chunk(folder).entries:
            assert (folder / "capture.txt").exists() == (found[entry].status == "ok")


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 12])
def test_a_profiler_that_records_nothing_ends_the_run_and_no_entry_is_blamed(
    machine: Any, plan: Any, fake: Any, tmp_path: Path, count: int
) -> None:
    fake()
    broken = machine(collector="nsys", lose=lambda _: True, probe=lambda *_: "fake 1.0: no range at all")
    wanted = plan(count)
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=broken)
    assert (report.ok, report.failed, report.left, report.exit_code) == (0, 0, count, 1)
    assert report.stopped == "stopped: nsys records nothing any more: fake 1.0: no range at all"
    assert run_plan(wanted, tmp_path / "raw", QUICK, machine=machine(collector="nsys")).ok == count


@pytest.mark.slow
def test_captures_lost_without_end_end_the_run(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    fake(seconds=0.001)
    tools = machine(collector="nsys", lose=lambda _: True)
    report = run_plan(plan(40), tmp_path / "raw", QUICK, machine=tools)
    assert (report.ok, report.failed, report.exit_code) == (0, 0, 1)
    assert "12 captures in a row were lost" in (report.stopped or "")


@pytest.mark.slow
def test_ranges_that_a_killed_child_took_with_it_cost_only_their_entries(
    machine: Any, plan: Any, fake: Any, fakes: Any, tmp_path: Path
) -> None:
    wanted = plan(6)
    journal = fake({wanted.entries[3].id: "segv"})

    class Forgetful(fakes.FakeCollector):  # type: ignore[misc, name-defined]
        """Like nsys after a crash: the capture lacks what the child did last."""

        def finish(self, folder: Path, entries: Any, log: str) -> tuple[str, ...]:
            if wanted.entries[2].id in entries and wanted.entries[0].id in entries:
                raise CollectorError("the capture lacks a range")
            return tuple(super().finish(folder, entries, log))

        def capture(self, folder: Path) -> Capture:
            written = [r.entry_id for r in read_records(folder / "records.jsonl")]
            last = wanted.entries[2].id
            there = [i for i in written if i != last or journal.read_text().count(i) > 2]
            ranges = (EntryRange(entry_id=i, repeats=5, start_ns=0, end_ns=1, launches=()) for i in there)
            return Capture(tool="fake", tool_version=None, schema=None, ranges=tuple(ranges))

    tools = replace(machine(), collector=lambda *_: Forgetful("nsys", "timeline"))
    report = run_plan(wanted, tmp_path / "raw", replace(QUICK, chunk_seconds=5), machine=tools)
    assert (report.ok, report.failed) == (5, 1)
    first = read_chunk(chunk_folders(tmp_path / "raw")[0])
    assert first.entries == tuple(wanted.entries[i].id for i in (0, 1, 3))
    counted = Counter(x.split()[-1] for x in journal.read_text().splitlines() if " begin " in x)
    assert [counted[e.id] for e in wanted.entries] == [1, 1, 2, 1, 1, 1]
