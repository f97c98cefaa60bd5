"""Runs on one machine with a fake child: every entry exactly once, whatever goes wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gkest_fakes import QUICK, records

from gkestimator.core.errors import TableError, UsageError
from gkestimator.profiling.collectors.base import CollectorError
from gkestimator.profiling.raw import chunk_folders, read_chunk, read_run
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.running import Limits, RunReport, run_plan


def in_the_making(raw: Path) -> list[Path]:
    return [p for p in (raw / "chunks").iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_every_entry_is_measured_once_in_the_plans_order(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    journal, wanted, raw = fake(), plan(12), tmp_path / "raw"
    seen: list[tuple[str, int, int]] = []
    report = run_plan(wanted, raw, QUICK, machine=machine(), progress=lambda *s: seen.append(s))
    assert (report.ok, report.failed, report.skipped, report.left, report.exit_code) == (12, 0, 0, 0, 0)
    assert list(records(raw)) == [e.id for e in wanted.entries]
    assert journal.read_text().count("begin") == 12
    assert report.chunks == len(chunk_folders(raw)) >= 2
    info = read_run(raw)
    assert (info.executor, info.collector, info.versions["fake"]) == ("onnxruntime", "none", "1")
    assert not in_the_making(raw)
    assert seen[-1][1] == 12 and report.summary().startswith(f"{raw}: 12 ok")
    again = run_plan(wanted, raw, QUICK, machine=machine())
    assert (again.ok, again.chunks) == (12, 0)
    assert journal.read_text().count("begin") == 12


@pytest.mark.slow
def test_chunks_grow_to_the_asked_length_once_the_pace_is_known(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake(seconds=0.001)
    options = replace(QUICK, chunk_seconds=2.0)
    run_plan(plan(120, seconds=1.0), tmp_path / "raw", options, machine=machine())
    sizes = [len(read_chunk(f).entries) for f in chunk_folders(tmp_path / "raw")]
    assert sizes[0] == 2 and max(sizes) > 4 and sum(sizes) == 120


@pytest.mark.parametrize("word", ["fail", "skip"])
def test_what_the_child_says_is_kept(machine: Any, plan: Any, fake: Any, tmp_path: Path, word: str) -> None:
    wanted = plan(4)
    fake({wanted.entries[1].id: word})
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine())
    record = records(tmp_path / "raw")[wanted.entries[1].id]
    assert (record.status, record.reason) == ({"fail": "failed", "skip": "skipped"}[word], "as told")
    assert (report.ok, report.exit_code) == (3, 1 if word == "fail" else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "said"), [("segv", "SIGSEGV"), ("hang", "no result within 1 s"), ("exit1", "no more words")]
)
def test_an_entry_that_brings_the_child_down_is_recorded_and_the_rest_goes_on(
    machine: Any, plan: Any, fake: Any, tmp_path: Path, word: str, said: str
) -> None:
    wanted = plan(8)
    journal = fake({wanted.entries[2].id: word})
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine(collector="nsys"))
    found = records(tmp_path / "raw")
    assert (report.ok, report.failed, report.left, report.exit_code) == (7, 1, 0, 1)
    assert found[wanted.entries[2].id].status == "failed"
    assert said in (found[wanted.entries[2].id].reason or "")
    assert any(wanted.entries[2].id in p and said in p for p in report.problems)
    assert max(Counter(x.split()[-1] for x in journal.read_text().splitlines() if "end" in x).values()) == 1


@pytest.mark.slow
def test_three_crashes_in_a_row_end_the_run_and_the_next_run_goes_on(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(10)
    fake({e.id: "segv" for e in wanted.entries[:4]})
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine())
    assert (report.ok, report.failed, report.left, report.exit_code) == (0, 3, 7, 1)
    assert "3 chunks in a row" in (report.stopped or "") and "SIGSEGV" in (report.stopped or "")
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine())
    assert (report.ok, report.failed, report.left) == (6, 4, 0)


@pytest.mark.slow
def test_a_broken_context_is_not_a_device_that_is_gone(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(8)
    fake({wanted.entries[2].id: "exit3"})
    report = run_plan(wanted, tmp_path / "here", QUICK, machine=machine())
    assert (report.ok, report.failed, report.left) == (7, 1, 0)
    gone = run_plan(wanted, tmp_path / "gone", QUICK, machine=machine(present=lambda _: False))
    assert (gone.ok, gone.failed, gone.left, gone.exit_code) == (2, 0, 6, 1)
    assert "gone" in (gone.stopped or "") and any("does not answer" in p for p in gone.problems)
    fake({})
    back = run_plan(wanted, tmp_path / "gone", QUICK, machine=machine())
    assert (back.ok, back.failed, back.left, back.exit_code) == (8, 0, 0, 0)


@pytest.mark.slow
def test_failed_entries_are_measured_again_on_request(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted, raw = plan(4), tmp_path / "raw"
    fake({wanted.entries[1].id: "fail"})
    assert run_plan(wanted, raw, QUICK, machine=machine()).failed == 1
    fake()
    assert run_plan(wanted, raw, QUICK, machine=machine()).failed == 1
    report = run_plan(wanted, raw, replace(QUICK, retry_failed=True), machine=machine())
    assert (report.ok, report.failed, report.chunks, report.exit_code) == (4, 0, 1, 0)
    assert read_chunk(chunk_folders(raw)[-1]).attempt == 2


def test_a_child_that_cannot_write_blames_no_entry(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(6)
    fake({wanted.entries[2].id: "exit2"})
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine())
    assert (report.ok, report.failed, report.left, report.exit_code) == (2, 0, 4, 1)
    assert "cannot be written" in (report.stopped or "")


@pytest.mark.slow
def test_noisy_entries_are_measured_again_and_the_best_counts(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    wanted = plan(6)
    shaky, hopeless = wanted.entries[1].id, wanted.entries[4].id
    seen: Counter[str] = Counter()

    def judge(_: Any, record: EntryRecord, cv: float | None, on_cpu: bool) -> str:
        assert cv == 0.0 and on_cpu  # of the five equal host times
        seen[record.entry_id] += 1
        bad = record.entry_id == hopeless or (record.entry_id == shaky and seen[shaky] == 1)
        return "noisy" if bad else "ok"

    raw = tmp_path / "raw"
    report = run_plan(wanted, raw, QUICK, machine=machine(judge=judge))
    assert (report.ok, report.noisy, report.exit_code) == (6, 1, 0)
    assert seen == {e.id: 1 for e in wanted.entries} | {shaky: 2, hopeless: 3}
    attempts = [(read_chunk(f).attempt, set(read_chunk(f).entries)) for f in chunk_folders(raw)]
    assert (2, {shaky, hopeless}) in attempts and (3, {hopeless}) in attempts
    assert run_plan(wanted, raw, QUICK, machine=machine(judge=judge)).chunks == 0


@pytest.mark.slow
def test_counters_come_in_a_pass_of_their_own_and_only_of_what_could_be_measured(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(6, counters=(0, 2, 4))
    journal = fake({wanted.entries[2].id: "skip"})
    options = replace(QUICK, devices=("cuda:0",))
    report = run_plan(wanted, tmp_path / "raw", options, machine=machine(collector="nsys", gpus=lambda: 1))
    assert report.counters == 2
    assert set(records(tmp_path / "raw", "counters")) == {wanted.entries[0].id, wanted.entries[4].id}
    assert [x.split()[1] for x in journal.read_text().splitlines()][-1] == "counters"
    assert {read_chunk(f).collector for f in chunk_folders(tmp_path / "raw")} == {"nsys", "ncu"}
    on_cpu = run_plan(wanted, tmp_path / "cpu", QUICK, machine=machine())
    assert any("counters of 3 entries left out" in m for m in on_cpu.messages)


@pytest.mark.slow
def test_counters_that_cannot_be_had_are_given_up_and_the_times_stay(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    wanted = plan(6, counters=range(6))
    options = replace(QUICK, devices=("cuda:0",))
    tools = machine(gpus=lambda: 1, lose=lambda _: True)
    report = run_plan(wanted, tmp_path / "raw", options, machine=tools)
    assert (report.ok, report.counters, report.left, report.exit_code) == (6, 0, 0, 0)
    assert any(p.startswith("counters given up") for p in report.problems)


@pytest.mark.slow
def test_the_collector_ncu_counts_everything_and_times_under_the_best_there_is(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    wanted, raw = plan(4, counters=(1,)), tmp_path / "raw"
    options = replace(QUICK, devices=("cuda:0",), collector="ncu")
    tools = machine(collector="nsys", gpus=lambda: 1)
    report = run_plan(wanted, raw, options, machine=tools)
    assert (report.ok, report.counters, read_run(raw).collector) == (4, 4, "ncu")
    assert [read_chunk(f).collector for f in chunk_folders(raw)] == ["nsys", "ncu"]
    again = run_plan(wanted, raw, replace(options, collector="auto"), machine=tools)
    assert (again.counters, again.chunks) == (4, 0)
    with pytest.raises(UsageError, match="goes with counters"):
        run_plan(wanted, tmp_path / "b", replace(options, counters=False), machine=tools)


@pytest.mark.slow
def test_no_collector_on_a_gpu_says_that_nothing_comes_of_it(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    options = replace(QUICK, devices=("cuda:0",), collector="none")
    report = run_plan(plan(2), tmp_path / "gpu", options, machine=machine(gpus=lambda: 1))
    assert any("can make no rows" in m for m in report.messages)
    report = run_plan(plan(2), tmp_path / "cpu", replace(QUICK, collector="none"), machine=machine())
    assert not report.messages


@pytest.mark.slow
def test_minutes_end_the_run_in_time_and_the_next_goes_on(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(40)
    journal = fake(seconds=0.1)
    options = replace(QUICK, minutes=0.02, chunk_seconds=10)
    report = run_plan(wanted, tmp_path / "raw", options, machine=machine())
    assert 0 < report.ok < 40 and report.left == 40 - report.ok
    assert report.exit_code == 0 and "time that was given" in (report.stopped or "")
    assert run_plan(wanted, tmp_path / "raw", QUICK, machine=machine()).ok == 40
    assert Counter(x.split()[2] for x in journal.read_text().splitlines())["end"] <= 41


@pytest.mark.slow
def test_several_devices_share_the_plan(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    fake(seconds=0.05)
    options = replace(QUICK, devices=("all",))
    wanted = plan(24)
    report = run_plan(wanted, tmp_path / "raw", options, machine=machine(gpus=lambda: 2))
    assert report.ok == 24 and len(read_run(tmp_path / "raw").devices) == 2
    assert set(records(tmp_path / "raw")) == {e.id for e in wanted.entries}
    assert {f.name.split("-")[1] for f in chunk_folders(tmp_path / "raw")} == {"cuda0", "cuda1"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"executor": "torch"}, "was measured with executor onnxruntime, found torch"),
        ({"collector": "nsys"}, "was measured with collector none, found nsys"),
    ],
)
def test_a_folder_of_another_run_is_refused(
    machine: Any, plan: Any, fake: Any, tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    fake()
    run_plan(plan(2), tmp_path / "raw", QUICK, machine=machine())
    with pytest.raises(UsageError, match=said):
        run_plan(plan(2), tmp_path / "raw", replace(QUICK, **changed), machine=machine())
    with pytest.raises(UsageError, match="was measured with plan"):
        run_plan(plan(3), tmp_path / "raw", QUICK, machine=machine())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(UsageError, match=r"holds thesis\.txt but no run\.json"):
        run_plan(plan(2), tmp_path / "mine", QUICK, machine=machine())


@pytest.mark.slow
def test_two_runs_never_write_one_folder(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    fake(seconds=0.3)
    raw, done = tmp_path / "raw", []
    first = threading.Thread(target=lambda: done.append(run_plan(plan(6), raw, QUICK, machine=machine())))
    first.start()
    while first.is_alive() and not (raw / "run.json").exists():
        time.sleep(0.01)
    with pytest.raises(UsageError, match=rf"process {os.getpid()} on .* is writing it"):
        run_plan(plan(6), raw, QUICK, machine=machine())
    first.join()
    assert done[0].ok == 6


def test_a_missing_tool_or_executor_is_said_before_anything_starts(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    journal = fake()

    def missing(*_: str) -> Any:
        raise CollectorError("nsys: not found, expected it on PATH")

    def unloadable(*_: str) -> Any:
        raise UsageError("executor torch: No module named 'torch'")

    for changed, said in (({"collector": missing}, "nsys: not found"), ({"versions": unloadable}, "torch")):
        with pytest.raises((CollectorError, UsageError), match=said) as caught:
            run_plan(plan(2), tmp_path / "raw", QUICK, machine=replace(machine(), **changed))
        assert caught.value.exit_code == 2
    assert not journal.exists() and not (tmp_path / "raw" / "run.json").exists()
    with pytest.raises(UsageError, match="no GPU answers"):
        run_plan(plan(2), tmp_path / "raw", replace(QUICK, devices=("all",)), machine=machine())
    with pytest.raises(UsageError, match="shows 0 GPUs"):
        run_plan(plan(2), tmp_path / "raw", replace(QUICK, devices=("cuda:0",)), machine=machine())


def test_a_child_that_refuses_its_arguments_ends_the_run_at_once(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake(refuse="--warmup: no such option")
    report = run_plan(plan(4), tmp_path / "raw", QUICK, machine=machine())
    assert report.exit_code == 2 and "--warmup: no such option" in (report.stopped or "")


class Wrapped:
    """A collector whose tool is a shell script around the child."""

    def __init__(self, inner: Any, script: str) -> None:
        self._inner, self._script = inner, script

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def command(self, child: Any, folder: Path) -> list[str]:
        return ["sh", "-c", self._script, "tool", *child]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('"$@"; sleep 600 & setsid sleep 600', "still at work 1 s after its program had ended, and killed"),
        ("sleep 600", "no entry begun within 5 s"),
        ("echo no licence >&2; exit 1", "no licence"),
    ],
)
def test_a_tool_that_hangs_or_fails_is_ended_with_all_it_started(
    machine: Any, plan: Any, fake: Any, tmp_path: Path, script: str, said: str
) -> None:
    fake()
    tools = machine(collector="nsys")
    make = tools.collector
    tools = replace(tools, collector=lambda *a: Wrapped(make(*a), script.replace("600", "61234")))
    report = run_plan(plan(1), tmp_path / "raw", QUICK, machine=tools)
    assert report.exit_code == 1 and any(said in p for p in report.problems)
    assert "61234" not in processes()


def processes() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


@pytest.mark.slow
def test_a_full_disk_stops_the_run_and_blames_no_entry(
    machine: Any, plan: Any, fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plan(10)
    fake()
    real, calls = shutil.disk_usage, Counter[str]()

    def usage(path: Any) -> Any:
        calls["disk"] += 1
        found = real(path)
        return found if calls["disk"] <= 2 else found._replace(free=1000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    report = run_plan(wanted, tmp_path / "raw", replace(QUICK, chunk_seconds=0.15), machine=machine())
    assert 0 < report.ok < 10 and report.failed == 0 and report.exit_code == 1
    assert "disk of the raw folder is full" in (report.stopped or "")
    monkeypatch.setattr(shutil, "disk_usage", real)
    assert run_plan(wanted, tmp_path / "raw", QUICK, machine=machine()).ok == 10


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_disk_that_is_really_full(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        wanted = plan(200)
        fake(host_us=[1.0] * 4000)  # 16 kB a record
        options = replace(QUICK, chunk_seconds=4, min_free_mb=0.05)
        report = run_plan(wanted, disk / "raw", options, machine=machine())
        assert 0 < report.ok < 200 and report.failed == 0 and report.exit_code == 1
        assert "disk" in (report.stopped or "")
        assert set(records(disk / "raw")) and not in_the_making(disk / "raw")
        held = report.ok
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        report = run_plan(wanted, disk / "raw", options, machine=machine())
        assert report.ok == 200 and held < 200 and len(records(disk / "raw")) == 200
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_broken_chunk_is_named(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    fake()
    run_plan(plan(3), tmp_path / "raw", QUICK, machine=machine())
    (chunk_folders(tmp_path / "raw")[0] / "chunk.json").write_text("{")
    with pytest.raises(TableError, match=r"chunk\.json: cannot be read"):
        run_plan(plan(3), tmp_path / "raw", QUICK, machine=machine())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"repeats": 0}, "repeats: found 0"),
        ({"minutes": -1.0}, "minutes: found -1.0"),
        ({"chunk_seconds": float("nan")}, "chunk-seconds: found nan"),
        ({"limits": Limits(entry_s=0.0)}, "entry-timeout: found 0.0"),
        ({"engine": "slurm"}, "engine: found 'slurm'"),
        ({"gpu_types": ("H100",)}, "gpu-type: goes with engine ray"),
    ],
)
def test_options_are_checked(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replace(QUICK, **changed)


def test_words_for_people(tmp_path: Path) -> None:
    report = RunReport(
        raw="RAW", entries=9, ok=5, failed=1, skipped=1, noisy=2, left=2, counters=0, chunks=3, minutes=1.25
    )
    assert report.exit_code == 1
    text = "\n".join(report.words())
    assert (
        "3 chunks in 1.2 minutes" in text
        and "2 entries are left" in text
        and "gkest profile build RAW" in text
    )
