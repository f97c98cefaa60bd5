"""Runs of pairs from end to end, with workers that pretend: what is measured, what is whose fault, what is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretend_machine import HERE, alive, means, mps_script
from small_models import mlp, plan

from gkestimator.core.errors import OutputError, TableError, UsageError
from gkestimator.interference.training import train_interference
from gkestimator.profiling.colocating.jobs import PairOptions
from gkestimator.profiling.colocating.run import measure_pairs
from gkestimator.profiling.plan import PlanEntry, write_plan
from gkestimator.profiling.raw import EnvironmentSample
from gkestimator.profiling.records import EntryRecord
from gkestimator.tables import COLOCATION, REQUIREMENTS, CoRun, Requirement, read_table, write_table

QUICK = PairOptions(seconds=0.1, minutes=None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of sleeps need no time to warm up."""
    monkeypatch.setattr("gkestimator.profiling.colocating.session._LEAD_S", 0.03)


def rows(path: Path) -> tuple[CoRun, ...]:
    return read_table(path, COLOCATION)


def lines(path: Path) -> list[list[str]]:
    """What the workers prepared: model, share, pipe folder, process."""
    return [line.split() for line in path.read_text().splitlines()]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "prepared"
    path.touch()
    monkeypatch.setenv("PRETEND_LOG", str(path))
    return path


@pytest.mark.slow
def test_under_mps_every_share_has_its_worker(tmp_path: Path, prepared: Path) -> None:
    script, output = mps_script(tmp_path), tmp_path / "p.csv"
    options = PairOptions(seconds=0.1, minutes=None, shares=((100.0, 100.0), (20.0, 80.0)), pairs=1)
    report = measure_pairs(plan(mlp("ok1"), mlp("ok2")), output, options, means=means(script))
    assert (report.exit_code, report.pairs, report.failed, report.left) == (0, 2, 0, 0)
    found = rows(output)
    assert {r.sharing for r in found} == {"mps"} and {r.gpu for r in found} == {"H200"}
    assert [r.sm_share_pct for r in found] == [100.0, 100.0, 20.0, 80.0]
    for row in found:
        # Sleeps of 2 ms: a neighbour does not lengthen them, a loaded machine may.
        assert 2.0 <= row.latency_alone_ms < 60 and row.latency_together_ms is not None
        assert row.latency_together_ms >= 2.0
    log = lines(prepared)
    assert sorted((name, share) for name, share, _, _ in log) == [
        ("ok1", "100"), ("ok1", "20" if found[2].model == "ok1" else "80"),
        ("ok2", "100"), ("ok2", "20" if found[2].model == "ok2" else "80"),
    ]  # fmt: skip
    assert len({pid for *_, pid in log}) == 4 and len({pipes for _, _, pipes, _ in log}) == 1
    assert "SMs that workers see: 26 at 20 %, 105 at 80 %, 132 at 100 %" in report.messages
    assert report.words()[-1] == f"next: gkest train --interference {output} -o interference.yaml"
    assert "the same command with --table measured.parquet fills it" in report.words()[-2]
    # Nothing is left of workers, daemon or folders.
    pid = int((tmp_path / "calls").read_text().split("daemon ")[1].split()[0])
    assert not any(alive(int(p)) for *_, p in log) and not alive(pid)
    assert not Path(log[0][2]).exists()
    # The same command again measures nothing again.
    prepared.unlink()
    no_gpu = means(None, gpus=lambda: 0)
    again = measure_pairs(plan(mlp("ok1"), mlp("ok2")), output, options, means=no_gpu)
    assert (again.pairs, again.left, again.exit_code) == (2, 0, 0) and rows(output) == found
    assert not prepared.exists()  # and needs no GPU for it


@pytest.mark.slow
def test_what_was_measured_is_trained_on(tmp_path: Path) -> None:
    """Under MPS, at two shares, with a measured table without counters that came later."""
    pytest.importorskip("scipy")
    output, table = tmp_path / "p.csv", tmp_path / "t.csv"
    models = plan(*(mlp(f"ok{i}") for i in range(3)))
    options = PairOptions(seconds=0.1, minutes=None, shares=((100.0, 100.0), (50.0, 50.0)))
    assert measure_pairs(models, output, options, means=means(mps_script(tmp_path))).pairs == 12
    with pytest.raises(TableError, match="row 1, column sm_util_mean_pct: found nothing"):
        train_interference(output)
    known = [
        Requirement(
            model=f"ok{i}", gpu="H200", runtime="torch", dtype="fp32", batch_size=1, sm_util_mean_pct=40.0 + 20 * i,
            source="measured", occupancy_source="measured", memory_source=None,
        )
        for i in range(3)
    ]  # fmt: skip
    write_table(REQUIREMENTS, known, table)
    again = measure_pairs(models, output, options, tables=[table], means=means(None, gpus=lambda: 0))
    assert again.problems == () and again.messages[0].startswith("nothing is left to measure")
    for row in rows(output):
        asked = 40.0 + 20 * int(row.model[-1])
        if row.sm_share_pct == 100.0:
            assert row.sm_util_mean_pct == asked
        else:
            # Sleeps take as long on half the SMs; a loaded machine may lengthen either.
            assert row.sm_util_mean_pct is not None and row.sm_util_mean_pct <= 50.0
    fit = train_interference(output).found.fit
    assert (fit.measurements, fit.groups, fit.models, fit.gpus) == (24, 12, ("ok0", "ok1", "ok2"), ("H200",))
    assert "24 of 24 slowdowns are of models of which DRAM or L2 demand is not known" in fit.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("missing", "nvidia-cuda-mps-control is not on this machine"),
        ("refuse", "-d: status 1: Cannot start: permission denied"),
        ("idle", "no MPS server comes up although clients run"),
    ],
)
def test_by_turns_where_mps_cannot_be_had(tmp_path: Path, prepared: Path, trouble: str, said: str) -> None:
    script: Path | None = mps_script(tmp_path)
    if trouble == "missing":
        script = None
    else:
        (tmp_path / trouble).touch()
    models = plan(mlp("ok1"), mlp("ok2"))
    report = measure_pairs(
        models, tmp_path / "p.csv", PairOptions(seconds=0.1, minutes=None, pairs=1), means=means(script)
    )
    assert report.exit_code == 0 and {r.sharing for r in rows(tmp_path / "p.csv")} == {"time"}
    assert {r.sm_share_pct for r in rows(tmp_path / "p.csv")} == {100.0}
    assert any(
        m.startswith("models share NVIDIA H200 by turns, not at once") and said in m for m in report.messages
    )
    assert "asks for MPS" in report.words()[-1]
    # Who measured had no share, and no daemon to find.
    assert lines(prepared)[-1][1] == "None" and lines(prepared)[-1][2].endswith("no-pipes")
    required = PairOptions(seconds=0.1, mps="required")
    with pytest.raises(UsageError, match=f"mps: required, and cannot be had: .*{said}"):
        measure_pairs(models, tmp_path / "q.csv", required, means=means(script))
    assert not list(tmp_path.glob("q.csv*"))


@pytest.mark.slow
def test_whose_fault_it_was(tmp_path: Path, prepared: Path) -> None:
    entries = [mlp(n) for n in ("ok1", "crash", "broken", "quarrel")]
    output = tmp_path / "p.csv"
    report = measure_pairs(plan(*entries), output, QUICK, means=means(None))
    measured = {
        frozenset((a.model, b.model)) for a, b in zip(rows(output)[::2], rows(output)[1::2], strict=True)
    }
    assert measured == {frozenset(("ok1",))}
    assert (report.pairs, report.failed, report.left, report.exit_code) == (1, 9, 0, 1)
    text = "\n".join(report.problems)
    assert "crash (fp32, batch 1): its worker died (status 7)" in text
    assert "broken (fp32, batch 1): broken: nobody runs this" in text
    assert "quarrel (fp32, batch 1): its worker died (status 9)" in text
    # A model that fails by itself is tried once, not in each of its four pairs.
    names = [name for name, *_ in lines(prepared)]
    assert names.count("crash") == 1 and names.count("broken") == 1
    assert names.count("quarrel") >= 2


@pytest.mark.slow
def test_the_first_model_breaks_and_no_server_comes(tmp_path: Path) -> None:
    """Neither is taken for the other's fault: by turns the rest is measured."""
    (tmp_path / "idle").touch()
    crashing = plan(mlp("crash"), mlp("ok1"))
    report = measure_pairs(crashing, tmp_path / "p.csv", QUICK, means=means(mps_script(tmp_path)))
    assert (report.sharing, report.pairs, report.failed, report.exit_code) == ("time", 1, 2, 1)


@pytest.mark.slow
def test_after_a_break_all_is_new_and_proved_again(tmp_path: Path, prepared: Path) -> None:
    """Under MPS a worker that dies takes the others and the daemon with it; one that serves nobody measures nothing."""
    options = PairOptions(seconds=0.1, minutes=None, shares=((100.0, 100.0),))
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
    (bad / "once").touch()
    report = measure_pairs(
        plan(mlp("ok1"), mlp("quarrel")), good / "p.csv", options, means=means(mps_script(good))
    )
    assert (report.pairs, report.failed) == (1, 2)
    folders = {pipes for _, _, pipes, _ in lines(prepared)}
    assert len(folders) == (good / "calls").read_text().count("-d pipe=") >= 2
    four = plan(mlp("ok1"), mlp("ok2"), mlp("ok3"), mlp("quarrel"))
    report = measure_pairs(four, bad / "p.csv", options, means=means(mps_script(bad)))
    # What was measured was measured before the break: nothing after it has a server, and so it is given up.
    assert report.stopped is not None and "workers in a row broke" in report.stopped
    log = [json.loads(line) for line in (bad / "p.csv.journal.jsonl").read_text().splitlines()]
    failed = ["reason" in record and record["reason"] is not None for record in log]
    assert failed == sorted(failed) and failed.count(True) == 3
    assert any("no MPS server is there although clients run" in line for line in report.problems)


@pytest.mark.slow
def test_one_that_hangs_is_killed_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gkestimator.profiling.colocating.session._HANG_S", 1.0)
    output = tmp_path / "p.csv"
    report = measure_pairs(plan(mlp("ok1"), mlp("hang")), output, QUICK, means=means(None))
    assert {r.model for r in rows(output)} == {"ok1"}
    assert report.failed == 2 and "no answer within" in report.problems[0]


@pytest.mark.slow
def test_models_that_do_not_fit_together_take_turns_in_memory(tmp_path: Path, prepared: Path) -> None:
    report = measure_pairs(plan(mlp("ok1"), mlp("greedy")), tmp_path / "p.csv", QUICK, means=means(None))
    assert (report.pairs, report.failed, report.exit_code) == (3, 0, 0)
    assert len(lines(prepared)) > 4  # closed, and prepared again


@pytest.mark.slow
def test_gives_up_when_worker_after_worker_breaks(tmp_path: Path) -> None:
    report = measure_pairs(
        plan(*(mlp(f"crash{i}") for i in range(8))), tmp_path / "p.csv", QUICK, means=means(None)
    )
    assert report.exit_code == 2 and report.pairs == 0 and report.left > 20
    assert report.stopped is not None and report.stopped.startswith("stopped: 3 workers in a row broke")
    assert not (tmp_path / "p.csv").exists()
    gone = means(None, present=lambda _: False)
    report = measure_pairs(plan(mlp("crash0"), mlp("ok1")), tmp_path / "q.csv", QUICK, means=gone)
    assert report.stopped == "stopped: NVIDIA H200 does not answer any more" and report.failed == 0


@pytest.mark.slow
def test_throttled_pairs_are_told(tmp_path: Path) -> None:
    seen = means(
        None,
        judge=lambda samples, record, *_: (
            "throttled" if record.started_unix_ns < record.ended_unix_ns else "ok"
        ),
        sampling=lambda _: lambda: EnvironmentSample(unix_ns=time.time_ns(), sm_clock_mhz=1200.0),
    )
    options = PairOptions(seconds=0.5, minutes=None, pairs=1)
    report = measure_pairs(plan(mlp("ok1"), mlp("ok2")), tmp_path / "p.csv", options, means=seen)
    assert report.marked == 1 and "throttled while they were measured" in report.problems[0]
    record = json.loads((tmp_path / "p.csv.journal.jsonl").read_text().splitlines()[-1])
    assert record["quality"] == "throttled" and record["sm_clock_mhz"] == 1200.0


@pytest.mark.slow
def test_what_is_disturbed_alone_marks_the_pair_and_is_measured_again(tmp_path: Path) -> None:
    judged: list[str] = []

    def judge(samples: object, record: EntryRecord, *_: object) -> str:
        judged.append(record.entry_id)
        return "noisy" if len(judged) == 2 else "ok"  # of the first pair: side by side, then each alone

    output, options = tmp_path / "p.csv", PairOptions(seconds=0.1, minutes=None)
    report = measure_pairs(plan(mlp("ok1"), mlp("ok2")), output, options, means=means(None, judge=judge))
    assert (report.pairs, report.marked) == (3, 1)
    first = json.loads((tmp_path / "p.csv.journal.jsonl").read_text().splitlines()[1])
    assert first["quality"] == "noisy" and first["key"][0] == judged[1]
    # Three pairs side by side; each model alone in both processes, and the disturbed one once more.
    assert len(judged) == 3 + 4 + 1


def ending(folder: Path, entries: list[PlanEntry]) -> subprocess.Popen[str]:
    """A run that has measured a pair by now."""
    write_plan(plan(*entries), folder / "plan.json")
    process = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "pretend_machine.py"), str(folder / "plan.json"), str(folder / "p.csv"),
         str(mps_script(folder))],
        stdout=subprocess.PIPE, text=True, cwd=folder,
    )  # fmt: skip
    journal, end = folder / "p.csv.journal.jsonl", time.monotonic() + 60
    before = journal.read_text().count("\n") if journal.exists() else 0
    while time.monotonic() < end and process.poll() is None:
        if journal.exists() and journal.read_text().count("\n") > before + 1:  # the run's line, and a pair's
            return process
        time.sleep(0.05)
    raise AssertionError(f"no pair was measured: {process.poll()}")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files whose path a socket's may begin with."""
    with tempfile.TemporaryDirectory(prefix="gk", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.mark.slow
def test_killed_told_to_end_and_gone_on_with(tmp_path: Path, short: Path) -> None:
    entries = [mlp(f"ok{i}") for i in range(12)]
    killed = ending(tmp_path, entries)
    killed.kill()
    killed.wait()
    pids = [int(pid) for *_, pid in lines(tmp_path / "p.csv.log")]
    pids.append(int((tmp_path / "calls").read_text().rpartition("daemon ")[2].split()[0]))
    end = time.monotonic() + 20
    while any(alive(p) for p in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(p) for p in pids)
    assert not (tmp_path / "p.csv").exists()  # but every pair is in the journal
    told = ending(tmp_path, entries)
    told.send_signal(signal.SIGTERM)
    said, _ = told.communicate(timeout=60)
    assert told.returncode == 130 and "interrupted" in said and "the same command goes on" in said
    journal = (tmp_path / "p.csv.journal.jsonl").read_text()
    assert len(rows(tmp_path / "p.csv")) == 2 * journal.count('"kind":"pair"') >= 2
    # What the killed run could not clear away was removed by the other, which left nothing either.
    assert list(short.iterdir()) == []


@pytest.mark.slow
def test_stops_in_time(tmp_path: Path) -> None:
    options = PairOptions(seconds=0.1, minutes=0.05)
    report = measure_pairs(
        plan(*(mlp(f"ok{i}") for i in range(40))), tmp_path / "p.csv", options, means=means(None)
    )
    assert report.exit_code == 0 and report.left > 0 and report.minutes < 0.5
    assert report.stopped is None or "time that was given is over" in report.stopped


def test_wrong_inputs_are_one_line_and_leave_nothing(tmp_path: Path) -> None:
    from dataclasses import replace

    good, machine = plan(mlp("ok1"), mlp("ok2")), means(None)
    operator = replace(mlp("x"), model=None)
    cases = [
        (plan(operator), "p.csv", QUICK, UsageError, "holds no whole model"),
        (good, "p.txt", QUICK, UsageError, "p.txt"),
        (good, "none/p.csv", QUICK, OutputError, "none/p.csv: its folder does not exist"),
        (good, "p.csv", PairOptions(device="cuda:1"), UsageError, "device cuda:1: this machine shows 1 GPUs"),
        (good, "p.csv", PairOptions(device="all2"), UsageError, "found 'all2'"),
        (good, "p.csv", PairOptions(device="cpu", shares=((50, 50),)), UsageError, "a CPU has no SMs"),
        (good, "p.csv", PairOptions(device="cpu", mps="required"), UsageError, "expected a GPU"),
        (good, "p.csv", PairOptions(mps="off", shares=((20, 80),)), UsageError, "without MPS nothing confines"),
        (good, "p.csv", PairOptions(shares=((20, 80),)), UsageError, "expected 100:100 among them: MPS cannot be had"),
    ]  # fmt: skip
    for what, name, options, kind, said in cases:
        with pytest.raises(kind, match=said) as e:
            measure_pairs(what, tmp_path / name, options, means=machine)
        assert "\n" not in str(e.value)
    (tmp_path / "t.csv").write_text("model\nx\n")
    with pytest.raises(TableError, match=r"t.csv: column"):
        measure_pairs(good, tmp_path / "p.csv", QUICK, tables=[tmp_path / "t.csv"], means=machine)
    silent = means(None, worker=(sys.executable, "-c", "raise SystemExit('no such runtime')"))
    with pytest.raises(UsageError, match=r"no worker starts: died \(status 1\): no such runtime"):
        measure_pairs(good, tmp_path / "p.csv", QUICK, means=silent)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    "changed",
    [
        {"minutes": 0.0}, {"minutes": float("nan")}, {"seconds": 0.0}, {"seconds": float("nan")}, {"pairs": 0},
        {"mps": "maybe"}, {"seed": -1}, {"entry_s": 0.0}, {"shares": ()}, {"shares": ((0.0, 100.0),)},
        {"shares": ((50.0, 101.0),)}, {"shares": ((float("nan"), 100.0),)}, {"shares": ((100.0, 100.0),) * 17},
    ],
)  # fmt: skip
def test_options_beyond_their_bounds(changed: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="found"):
        PairOptions(**changed)  # type: ignore[arg-type]


@pytest.mark.slow
def test_another_version_asks_for_another_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, options = plan(mlp("ok1"), mlp("ok2")), PairOptions(seconds=0.1, minutes=None, pairs=1)
    measure_pairs(models, tmp_path / "p.csv", options, means=means(None))
    before = (tmp_path / "p.csv.journal.jsonl").read_bytes()
    monkeypatch.setenv("PRETEND_VERSION", "2")
    with pytest.raises(UsageError, match="with versions pretend 1, found pretend 2"):
        measure_pairs(models, tmp_path / "p.csv", QUICK, means=means(None))
    assert (tmp_path / "p.csv.journal.jsonl").read_bytes() == before
