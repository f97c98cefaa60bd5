"""Whole models: latency first and without a profiler, then the timeline, whatever goes wrong with either."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gkest_fakes import QUICK, begun, counts, models_of, records

from gkestimator.profiling.collectors.base import CollectorError
from gkestimator.profiling.plan import write_plan
from gkestimator.profiling.raw import chunk_folders, read_chunk, read_environment
from gkestimator.profiling.records import EntryRecord, MemoryUse
from gkestimator.profiling.running import RunOptions, run_plan

ON_GPU = replace(QUICK, devices=("cuda:0",))


@pytest.mark.slow
def test_latency_comes_first_and_has_no_profiler_beside_it(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    journal, raw = fake(), tmp_path / "raw"
    wanted = plan(3, counters=(0,), models=2)
    models, operators = models_of(wanted), [e.id for e in wanted.entries[:3]]
    tools = machine(collector="nsys", gpus=lambda: 1)
    report = run_plan(wanted, raw, ON_GPU, machine=tools)
    assert begun(journal) == [
        *(("latency", m) for m in models),
        *(("timeline", m) for m in models),
        *(("timeline", o) for o in operators),
        ("counters", operators[0]),
    ]
    assert counts(report) == (2, 2, 2, 0, 0)
    assert (report.ok, report.left, report.counters, report.exit_code) == (5, 0, 1, 0)
    chunks = [read_chunk(f) for f in chunk_folders(raw)]
    collectors = {(c.pass_name, c.collector, bool(c.files)) for c in chunks}
    assert collectors == {("latency", "none", False), ("timeline", "nsys", True), ("counters", "ncu", True)}
    assert chunk_folders(raw)[0].name == "000001-cuda0-latency"
    found = records(raw, "latency")
    assert list(found) == models
    assert found[models[0]].latency_us == (1000.0,) * 5
    assert found[models[0]].memory == MemoryUse(reserved_bytes=2**20, allocated_bytes=2**19)
    again = run_plan(wanted, raw, ON_GPU, machine=tools)
    assert (counts(again), again.chunks, again.exit_code) == ((2, 2, 2, 0, 0), 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("word", "status"), [("fail", "failed"), ("skip", "skipped")])
def test_a_model_without_latency_counts_so_and_gets_no_timeline(
    machine: Any, plan: Any, fake: Any, tmp_path: Path, word: str, status: str
) -> None:
    wanted = plan(1, models=3)
    models = models_of(wanted)
    journal = fake({models[1]: word})
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine())
    assert (report.ok, getattr(report, status), report.exit_code) == (3, 1, 1 if word == "fail" else 0)
    assert counts(report) == (3, 2, 2, 0, 0)
    assert ("timeline", models[1]) not in begun(journal)
    fake()
    options = replace(QUICK, retry_failed=True)
    report = run_plan(wanted, tmp_path / "raw", options, machine=machine())
    if word == "skip":
        assert (report.skipped, report.chunks) == (1, 0)
    else:
        assert (counts(report), report.exit_code) == ((3, 3, 3, 0, 0), 0)
        assert begun(journal)[-2:] == [("latency", models[1]), ("timeline", models[1])]
        assert [read_chunk(f).attempt for f in chunk_folders(tmp_path / "raw")[-2:]] == [2, 1]


@pytest.mark.slow
def test_a_model_that_brings_the_child_down_costs_itself_alone(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(2, models=4)
    models = models_of(wanted)
    fake({f"latency:{models[1]}": "hang", f"timeline:{models[2]}": "segv"})
    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine(collector="nsys"))
    assert counts(report) == (4, 3, 2, 1, 0)
    assert (report.ok, report.failed, report.left, report.exit_code) == (5, 1, 0, 1)
    found = records(tmp_path / "raw", "latency")
    assert found[models[1]].status == "failed" and "no result within 1 s" in (found[models[1]].reason or "")
    assert found[models[2]].status == "ok"
    for said in (f"{models[1]}: latency failed: no result", f"{models[2]}: timeline failed: the executor's"):
        assert any(p.startswith(said) for p in report.problems)
    assert any("1 whole models have a latency and no timeline" in w for w in report.words())


@pytest.mark.slow
def test_a_timeline_whose_capture_is_lost_leaves_the_latency_and_is_measured_again_on_request(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted, raw = plan(2, models=3), tmp_path / "raw"
    bad, journal = models_of(wanted)[1], fake()
    tools = machine(collector="nsys", lose=lambda entries: bad in entries)
    report = run_plan(wanted, raw, QUICK, machine=tools)
    assert (report.ok, report.failed, report.exit_code) == (5, 0, 1)
    assert counts(report) == (3, 3, 2, 1, 0)
    assert records(raw, "latency")[bad].latency_us is not None
    assert "capture was lost three times" in (records(raw)[bad].reason or "")
    assert Counter(begun(journal))[("latency", bad)] == 1
    assert begun(journal)[-1] == ("timeline", bad)  # settled when all else is done
    again = run_plan(wanted, raw, QUICK, machine=machine(collector="nsys"))
    assert (again.chunks, counts(again)) == (0, (3, 3, 2, 1, 0))
    again = run_plan(wanted, raw, replace(QUICK, retry_failed=True), machine=machine(collector="nsys"))
    assert (again.chunks, counts(again), again.exit_code) == (1, (3, 3, 3, 0, 0), 0)
    assert Counter(begun(journal))[("latency", bad)] == 1


@pytest.mark.slow
def test_a_profiler_that_records_nothing_leaves_latencies_and_says_what_is_left(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    wanted, raw = plan(0, models=3), tmp_path / "raw"
    broken = machine(collector="nsys", lose=lambda _: True, probe=lambda *_: "fake: no range at all")
    report = run_plan(wanted, raw, QUICK, machine=broken)
    assert (report.ok, counts(report), report.exit_code) == (3, (3, 3, 0, 0, 3), 1)
    words = "\n".join(report.words())
    assert "records nothing any more" in words
    assert "timelines of 3 whole models are left; the same command goes on with them" in words
    assert f"gkest profile table {raw}" in words and "profile build" not in words
    report = run_plan(wanted, raw, QUICK, machine=machine(collector="nsys"))
    assert (counts(report), report.exit_code) == ((3, 3, 3, 0, 0), 0)


@pytest.mark.slow
def test_without_a_collector_a_gpu_gives_latencies_and_no_timeline(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    journal, wanted = fake(), plan(0, models=2)
    options = replace(ON_GPU, collector="none")
    tools = machine(gpus=lambda: 1)
    report = run_plan(wanted, tmp_path / "gpu", options, machine=tools)
    assert [p for p, _ in begun(journal)] == ["latency", "latency"]
    assert (counts(report), report.exit_code) == ((2, 2, 0, 0, 0), 0)
    assert [m for m in report.messages if "2 whole models" in m and "a latency and no timeline" in m]
    assert not any("gkest profile build" in line for line in (*report.messages, *report.words()))
    assert run_plan(wanted, tmp_path / "gpu", options, machine=tools).chunks == 0
    # A CPU's runtime says itself what ran.
    report = run_plan(wanted, tmp_path / "cpu", replace(QUICK, collector="none"), machine=machine())
    assert (counts(report), report.messages) == ((2, 2, 2, 0, 0), ())


@pytest.mark.slow
def test_whole_models_are_planned_alike_for_every_runtime(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    fake()
    for operators, said in ((0, False), (1, True)):
        wanted = plan(operators, models=1)
        other = "torch" if wanted.runtime == "onnxruntime" else "onnxruntime"
        options = replace(QUICK, executor=other, collector="none")
        report = run_plan(wanted, tmp_path / f"raw{operators}", options, machine=machine())
        assert any("the plan's patterns are those of" in m for m in report.messages) is said


def test_where_no_profiler_works_it_is_said_what_does(machine: Any, plan: Any, tmp_path: Path) -> None:
    def broken(*_: str) -> Any:
        raise CollectorError("kineto: CUPTI did not start")

    tools = machine(collector="nsys", gpus=lambda: 1)
    tools = replace(tools, collector=broken)
    for models, said in ((1, "CUPTI did not start; collector none would give"), (0, "CUPTI did not start$")):
        with pytest.raises(CollectorError, match=said):
            run_plan(plan(1, models=models), tmp_path / "raw", ON_GPU, machine=tools)
    assert not (tmp_path / "raw").exists()


@pytest.mark.slow
def test_counters_of_models_are_never_taken(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    journal, wanted = fake(), plan(1, models=1)
    wanted = replace(wanted, entries=tuple(replace(e, counters=True) for e in wanted.entries))
    options = replace(ON_GPU, collector="ncu")
    tools = machine(collector="nsys", gpus=lambda: 1)
    report = run_plan(wanted, tmp_path / "raw", options, machine=tools)
    assert [e for p, e in begun(journal) if p == "counters"] == [wanted.entries[0].id]
    assert report.counters == 1 and any(
        "counters of 1 whole models are not taken" in m for m in report.messages
    )


@pytest.mark.slow
def test_noisy_latencies_are_repeated_by_their_own_spread(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    from gkestimator.profiling.environment import judge

    wanted, raw = plan(1, models=3), tmp_path / "raw"
    steady, shaky, third = models_of(wanted)
    # A fifth of the median either way: too much for a GPU, as the operating system makes it on a CPU.
    fake(latency_us={shaky: [80.0, 90.0, 100.0, 120.0, 130.0], third: [100.0, 100.5, 101.0, 100.0, 900.0]})
    tools = machine(collector="nsys", gpus=lambda: 1, judge=judge)
    report = run_plan(wanted, raw, ON_GPU, machine=tools)
    assert (report.ok, report.noisy, counts(report)) == (4, 1, (3, 3, 3, 0, 0))
    latency = [read_chunk(f) for f in chunk_folders(raw) if "latency" in f.name]
    assert [(c.attempt, c.entries) for c in latency] == [
        (1, (steady, shaky, third)),
        (2, (shaky,)),
        (3, (shaky,)),
    ]
    timelines = Counter(e for f in chunk_folders(raw) if "timeline" in f.name for e in read_chunk(f).entries)
    assert set(timelines.values()) == {1}
    on_cpu = machine(judge=judge)
    fake(latency_us={shaky: [80.0, 90.0, 100.0, 120.0, 130.0]})
    assert run_plan(wanted, tmp_path / "cpu", QUICK, machine=on_cpu).noisy == 0


@pytest.mark.slow
def test_noisy_timelines_are_repeated_and_the_latency_is_not(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    journal, wanted = fake(), plan(1, models=2)
    first, second = models_of(wanted)
    seen: Counter[str] = Counter()

    def judge(_: Any, record: EntryRecord, __: float | None, ___: bool) -> str:
        if record.latency_us is None:
            seen[record.entry_id] += 1
            return "noisy" if record.entry_id == first and seen[first] == 1 else "ok"
        return "ok"

    report = run_plan(wanted, tmp_path / "raw", QUICK, machine=machine(judge=judge))
    assert (report.ok, report.noisy, report.exit_code) == (3, 0, 0)
    assert Counter(begun(journal)) == {
        ("latency", first): 1, ("latency", second): 1, ("timeline", first): 2, ("timeline", second): 1,
        ("timeline", wanted.entries[0].id): 1,
    }  # fmt: skip


@pytest.mark.slow
def test_a_broken_context_and_a_device_that_is_gone(
    machine: Any, plan: Any, fake: Any, tmp_path: Path
) -> None:
    wanted = plan(2, models=4)
    fake({f"latency:{models_of(wanted)[2]}": "exit3"})
    here = run_plan(wanted, tmp_path / "here", QUICK, machine=machine())
    assert (here.ok, here.failed, counts(here)) == (5, 1, (4, 3, 3, 0, 0))
    gone = run_plan(wanted, tmp_path / "gone", QUICK, machine=machine(present=lambda _: False))
    assert (gone.ok, gone.failed, gone.left, counts(gone)) == (2, 0, 4, (4, 2, 0, 0, 2))
    fake()
    back = run_plan(wanted, tmp_path / "gone", QUICK, machine=machine())
    assert (back.ok, counts(back), back.exit_code) == (6, (4, 4, 4, 0, 0), 0)


@pytest.mark.slow
def test_killed_in_the_latency_pass_what_was_recorded_is_kept(
    plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path
) -> None:
    """Although the timelines have a profiler: latencies need no capture."""
    journal, wanted, raw = fake(seconds=0.2), plan(0, models=6), tmp_path / "raw"
    write_plan(wanted, tmp_path / "plan.json")
    command = [sys.executable, "-P", str(fakes.__file__), str(tmp_path / "plan.json"), str(raw), "nsys"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if sum(p.read_bytes().count(b"\n") for p in raw.glob("chunks/.aside-*/records.jsonl")) >= 2:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    fake(seconds=0.01)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 ok" in done.stdout and "of 6 whole models 6 with latency, 6 with timeline" in done.stdout
    again = Counter(e for p, e in begun(journal) if p == "latency")
    assert set(again) == set(models_of(wanted)) and sum(again.values()) <= 7
    assert len(records(raw, "latency")) == len(records(raw)) == 6


@pytest.mark.slow
def test_ctrl_c_keeps_the_latencies_that_are_there(
    plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path
) -> None:
    fake(seconds=0.2)
    wanted, raw = plan(0, models=12, seconds=0.01), tmp_path / "raw"
    write_plan(wanted, tmp_path / "plan.json")
    command = [sys.executable, "-P", str(fakes.__file__), str(tmp_path / "plan.json"), str(raw), "nsys"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if sum(p.read_bytes().count(b"\n") for p in raw.glob("chunks/.aside-*/records.jsonl")) >= 3:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130, out
    kept = records(raw, "latency")
    assert 3 <= len(kept) < 12 and f"{len(kept)} with latency, 0 with timeline" in out


@pytest.mark.slow
def test_several_devices_share_models(machine: Any, plan: Any, fake: Any, tmp_path: Path) -> None:
    fake(seconds=0.05)
    wanted, lock = plan(2, models=8), threading.Lock()
    shown: list[int] = []

    def progress(_: str, done: int, total: int) -> None:
        with lock:
            assert done <= total
            shown.append(done)

    options = replace(QUICK, devices=("all",), chunk_seconds=0.2)
    tools = machine(collector="nsys", gpus=lambda: 2)
    report = run_plan(wanted, tmp_path / "raw", options, machine=tools, progress=progress)
    assert (report.ok, counts(report)) == (10, (8, 8, 8, 0, 0))
    models = [f.name.split("-")[1] for f in chunk_folders(tmp_path / "raw") if "latency" in f.name]
    assert set(models) == {"cuda0", "cuda1"}
    assert shown[-1] == 18


@pytest.mark.slow
def test_the_real_child_gives_latencies_then_pieces(plan: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    wanted, raw = plan(1, models=2), tmp_path / "raw"
    options = RunOptions(devices=("cpu",), collector="none", min_free_mb=1, retries=0)
    report = run_plan(wanted, raw, options)
    assert (counts(report), report.ok, report.exit_code) == ((2, 2, 2, 0, 0), 3, 0), report.problems
    assert [f.name for f in chunk_folders(raw)] == [
        "000001-cpu-latency", "000002-cpu-timeline", "000003-cpu-timeline",
    ]  # fmt: skip
    latency, timeline = records(raw, "latency"), records(raw)
    assert list(latency) == models_of(wanted)
    for model in models_of(wanted):
        record = latency[model]
        times = record.latency_us or ()
        assert len(times) == record.repeats and all(t > 0 for t in times)
        assert record.kernels is None and timeline[model].latency_us is None
        # Relu and MatMul, each as often as the model was called.
        assert len(timeline[model].kernels or ()) == 2
        assert record.output_shapes == timeline[model].output_shapes
    assert all(list(read_environment(f)) for f in chunk_folders(raw))
