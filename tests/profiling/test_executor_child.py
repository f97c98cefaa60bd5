"""The child as a process: records, crashes, kills, time-outs, wrong usage; and under the real Nsight Systems."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.executors import EXECUTORS, child
from gkestimator.profiling.plan import PlanEntry, SweepPlan, plan_of, write_plan
from gkestimator.profiling.records import EntryRecord, read_records

pytest.importorskip("onnxruntime")
LIMIT_S = 120


def fragment(op: str, *shapes: tuple[int, ...], weight: tuple[int, ...] | None = None) -> Fragment:
    tensors = [FragmentTensor(name=f"x{i}", dtype=DType.FLOAT, shape=s) for i, s in enumerate(shapes)]
    if weight is not None:
        tensors.append(FragmentTensor(name="w", dtype=DType.FLOAT, shape=weight, role="weight"))
    node = FragmentNode(
        op_type=op, domain="", attributes={}, inputs=tuple(t.name for t in tensors), outputs=("y",)
    )
    return Fragment(opsets={"": 17}, nodes=(node,), tensors=tuple(tensors), outputs=("y",))


def plan(*fragments: Fragment) -> SweepPlan:
    return plan_of([(f, "fp32", "test") for f in fragments], runtime="onnxruntime")


SMALL = tuple(fragment("Relu", (n, 7)) for n in range(1, 9))
LONG = fragment("MatMul", (2048, 2048), weight=(2048, 2048))


def command(
    folder: Path, chosen: SweepPlan, *options: str, executor: str = "onnxruntime", device: str = "cpu"
) -> list[str]:
    write_plan(chosen, folder / "entries.json")
    return [
        sys.executable, "-P", "-m", "gkestimator.profiling.executors.child",
        "--entries", str(folder / "entries.json"), "--records", str(folder / "records.jsonl"),
        "--executor", executor, "--device", device, *options,
    ]  # fmt: skip


def run(
    words: Sequence[str], cwd: Path, preexec: Callable[[], None] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        words,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment,
        preexec_fn=preexec,
        check=False,
    )


def records(folder: Path) -> dict[str, EntryRecord]:
    found = list(read_records(folder / "records.jsonl"))
    assert len({r.entry_id for r in found}) == len(found)
    return {r.entry_id: r for r in found}


@pytest.mark.slow
def test_every_entry_has_a_record_in_the_plan_s_order(tmp_path: Path) -> None:
    chosen = plan(*SMALL)
    done = run(command(tmp_path, chosen), tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = records(tmp_path)
    assert list(found) == [e.id for e in chosen.entries]
    assert {r.status for r in found.values()} == {"ok"}
    assert [r.output_shapes for r in found.values()] == [((n, 7),) for n in range(1, 9)]
    assert all(5 <= (r.repeats or 0) <= 50 for r in found.values())
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["entries.json", "records.jsonl"]


@pytest.mark.slow
def test_repeats_and_the_pass_are_as_told(tmp_path: Path) -> None:
    run(command(tmp_path, plan(SMALL[0]), "--repeats", "3"), tmp_path)
    assert [r.repeats for r in records(tmp_path).values()] == [3]
    (tmp_path / "records.jsonl").unlink()
    run(command(tmp_path, plan(SMALL[0]), "--repeats", "3", "--pass", "counters"), tmp_path)
    assert [(r.repeats, r.kernels) for r in records(tmp_path).values()] == [(1, None)]


@pytest.mark.slow
def test_what_cannot_run_is_a_record_and_the_rest_goes_on(tmp_path: Path) -> None:
    wrong = fragment("MatMul", (4, 5), weight=(6, 7))
    unknown = fragment("NoSuchOperator", (4, 5))
    vast = fragment("MatMul", (2**16, 2**14), weight=(2**14, 2**16))  # 4 + 4 + 16 GiB
    chosen = plan(SMALL[0], wrong, unknown, vast, SMALL[1])

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    done = run(command(tmp_path, chosen), tmp_path, little_memory)
    assert done.returncode == 0, done.stderr
    found = [records(tmp_path)[e.id] for e in chosen.entries]
    assert [r.status for r in found] == ["ok", "failed", "skipped", "failed", "ok"]
    assert "out of memory" in (found[3].reason or "")
    assert "NoSuchOperator" in (found[2].reason or "")
    for r in found[1:4]:
        assert r.reason
        assert "\n" not in r.reason
        assert (r.repeats, r.elapsed_us, r.kernels, r.output_shapes) == (None, None, None, None)


@pytest.mark.slow
def test_memory_that_the_runtime_itself_lacks_is_a_record(tmp_path: Path) -> None:
    """Inputs are small, so that the guard lets it pass; the outer product does not fit below the limit."""
    chosen = plan(fragment("MatMul", (2**15, 1), (1, 2**15)), SMALL[0])

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))

    done = run(command(tmp_path, chosen), tmp_path, little_memory)
    assert done.returncode == 0, done.stderr
    found = [records(tmp_path)[e.id] for e in chosen.entries]
    assert [r.status for r in found] == ["failed", "ok"]
    assert "out of memory" in (found[0].reason or "")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_child_leaves_whole_lines_and_says_what_it_was_at(
    tmp_path: Path, number: signal.Signals
) -> None:
    chosen = plan(*SMALL[:3], LONG, *SMALL[3:])
    target = chosen.entries[3].id
    started = subprocess.Popen(
        command(tmp_path, chosen, "--repeats", "5000"), cwd=tmp_path, stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip
    current = tmp_path / "records.jsonl.current"
    try:
        wait_for(lambda: current.exists() and current.read_text() == target + "\n")
        time.sleep(0.3)
        before = time.monotonic()
        started.send_signal(number)
        assert started.wait(LIMIT_S) == -number
        assert time.monotonic() - before < 10
    finally:
        started.kill()
        started.wait()
    assert (tmp_path / "records.jsonl").read_bytes().endswith(b"\n")
    assert list(records(tmp_path)) == [e.id for e in chosen.entries[:3]]
    assert current.read_text() == target + "\n"


@pytest.mark.slow
def test_half_a_line_of_a_killed_child_is_cut_off(tmp_path: Path) -> None:
    chosen = plan(*SMALL[:2])
    (tmp_path / "records.jsonl").write_text('{"entry_id":"a","status":"skipped"}\n{"entry_id":"b","stat')
    run(command(tmp_path, chosen), tmp_path)
    assert list(records(tmp_path)) == ["a", *(e.id for e in chosen.entries)]


@pytest.mark.slow
def test_records_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    words = command(tmp_path, plan(SMALL[0]))
    (tmp_path / "records.jsonl").mkdir()
    done = run(words, tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "records.jsonl: cannot be written" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "says"), [("records", "cannot be written: File too large"), ("profile", "is the disk full?")]
)
def test_a_full_disk_ends_in_one_line_and_whole_records(tmp_path: Path, place: str, says: str) -> None:
    def little_file() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    options = ("--repeats", "200", "--pass", "counters") if place == "records" else ("--repeats", "50")
    chosen = plan(*SMALL, *(fragment("Relu", (n, 5)) for n in range(1, 9)))
    done = run(command(tmp_path, chosen, *options), tmp_path, little_file)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    found = records(tmp_path)
    assert len(found) < len(chosen.entries)
    assert {r.status for r in found.values()} <= {"ok"}, "no entry is blamed for the disk"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"--executor": "tensorrt"}, "invalid choice"),
        ({"--device": "gpu"}, "found 'gpu', expected cpu or cuda:N"),
        ({"--entries": "nowhere.json"}, "nowhere.json: not a sweep plan"),
        ({"--warmup": "0"}, "--warmup: found 0, expected 1 to"),
        ({"--repeats": "1000000"}, "--repeats: found 1000000"),
        ({"--min-ms": "nan"}, "--min-ms: found nan"),
        ({"--pass": "other"}, "invalid choice"),
        ({"--seed": "x"}, "invalid int value"),
        ({"--unknown": "x"}, "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str], expected: str
) -> None:
    words = command(tmp_path, plan(SMALL[0]))[4:]
    for key, value in changed.items():
        words = (
            [*words[: words.index(key) + 1], value, *words[words.index(key) + 2 :]]
            if key in words
            else [*words, key, value]
        )
    assert child.main(words) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert len(message.splitlines()) == 1
    assert not (tmp_path / "records.jsonl").exists()


def test_a_gpu_that_the_runtime_does_not_know_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has the CUDA provider")
    assert child.main(command(tmp_path, plan(SMALL[0]), device="cuda:0")[4:]) == 2
    assert "has no CUDA provider; install onnxruntime-gpu" in capsys.readouterr().err


class Doomed:
    """An executor whose device dies at the second entry."""

    name = "doomed"
    output_shapes = ((1,),)

    def __init__(self, device: str) -> None:
        self.prepared = 0

    def versions(self) -> dict[str, str]:
        return {}

    def prepare(self, entry: PlanEntry, seed: int) -> Doomed:
        self.prepared += 1
        return self

    def run(self) -> None:
        if self.prepared >= 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")

    def synchronise(self) -> None: ...

    def workspace_bytes(self) -> None: ...

    def host_kernels(self, repeats: int) -> None: ...

    def close(self) -> None: ...


def test_a_lost_device_ends_the_child_with_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ModuleType("doomed_executor")
    module.Doomed = Doomed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "doomed_executor", module)
    monkeypatch.setitem(EXECUTORS, "doomed", ("doomed_executor", "Doomed"))
    chosen = plan(*SMALL[:4])
    assert child.main(command(tmp_path, chosen, executor="doomed")[4:]) == 3
    found = records(tmp_path)
    assert [(r.entry_id, r.status) for r in found.values()] == [
        (chosen.entries[0].id, "ok"), (chosen.entries[1].id, "failed"),
    ]  # fmt: skip
    assert found[chosen.entries[0].id].kernels is None
    assert "illegal memory access" in (found[chosen.entries[1].id].reason or "")
    assert (tmp_path / "records.jsonl.current").read_text() == chosen.entries[1].id + "\n"
    assert len(capsys.readouterr().err.splitlines()) == 1


def nsight() -> list[Path]:
    """nsys of every prefix in GKEST_NSIGHT, and the one on PATH."""
    prefixes = [Path(p) / "bin" / "nsys" for p in os.environ.get("GKEST_NSIGHT", "").split(":") if p]
    found = shutil.which("nsys")
    return [p for p in prefixes if p.is_file()] or ([Path(found)] if found else [])


@pytest.mark.slow
def test_real_nsight_systems_sees_a_range_of_every_entry(tmp_path: Path) -> None:
    tools = nsight()
    if not tools:
        pytest.skip("no nsys: neither GKEST_NSIGHT nor PATH has one")
    chosen = plan(*SMALL[:4], fragment("NoSuchOperator", (4, 5)))
    for number, nsys in enumerate(tools):
        # nsys 2022.4 loses every range of a run now and then, whichever client of NVTX: three attempts
        for attempt in range(3):
            expected, seen = captured(nsys, tmp_path / f"{number}-{attempt}", chosen)
            if seen:
                break
        assert len(expected) == 4
        assert seen == expected


def captured(nsys: Path, folder: Path, chosen: SweepPlan) -> tuple[list[str], list[str]]:
    """The ranges that the records of a run under ``nsys`` promise, and those that its capture holds."""
    folder.mkdir()
    (folder / "tmp").mkdir()
    profile = [
        str(nsys), "profile", "-t", "nvtx", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true",
        "-o", str(folder / "capture"), *command(folder, chosen),
    ]  # fmt: skip
    done = run(profile, folder, TMPDIR=str(folder / "tmp"))
    assert done.returncode == 0, done.stderr
    export = [
        str(nsys), "export", "--type", "sqlite", "--lazy=false", "--quiet=true", "--force-overwrite=true",
        "-o", str(folder / "capture.sqlite"), str(folder / "capture.nsys-rep"),
    ]  # fmt: skip
    run(export, folder)
    ok = [r for r in records(folder).values() if r.status == "ok"]
    return [f"{r.entry_id}#{r.repeats}" for r in ok], pushed(folder / "capture.sqlite")


def pushed(path: Path) -> list[str]:
    with sqlite3.connect(path) as database:
        domains = database.execute("SELECT domainId, text FROM NVTX_EVENTS WHERE eventType = 75").fetchall()
        if not domains:
            return []
        assert [text for _, text in domains] == ["gkestimator"]
        rows = database.execute(
            "SELECT coalesce(e.text, s.value), end FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId"
            " WHERE eventType = 59 AND domainId = ? ORDER BY start",
            (domains[0][0],),
        ).fetchall()
    assert all(end is not None for _, end in rows)
    return [text for text, _ in rows]


@pytest.mark.slow
def test_kineto_writes_a_trace_with_a_range_of_every_entry(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    chosen = plan(*SMALL[:3])
    done = run(command(tmp_path, chosen, "--kineto", str(tmp_path / "trace.json.gz")), tmp_path)
    assert done.returncode == 0, done.stderr
    with gzip.open(tmp_path / "trace.json.gz", "rt") as stream:
        trace: dict[str, Any] = json.load(stream)
    marked = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    assert [e["name"] for e in sorted(marked, key=lambda e: e["ts"])] == [
        f"gkestimator:{r.entry_id}#{r.repeats}" for r in records(tmp_path).values()
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["entries.json", "records.jsonl", "trace.json.gz"]


@pytest.mark.slow
def test_kineto_told_to_end_writes_what_it_has(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    chosen = plan(*SMALL[:2], *(fragment("Relu", (n, 64)) for n in range(1, 400)))
    words = command(tmp_path, chosen, "--repeats", "500", "--kineto", str(tmp_path / "trace.json.gz"))
    process = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and not (
            (p := tmp_path / "records.jsonl").exists() and p.stat().st_size
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
    done = records(tmp_path)
    assert 1 <= len(done) < len(chosen.entries)
    with gzip.open(tmp_path / "trace.json.gz", "rt") as stream:
        trace: dict[str, Any] = json.load(stream)
    marked = {
        e["name"].partition(":")[2].partition("#")[0]
        for e in trace["traceEvents"]
        if e.get("cat") == "user_annotation"
    }
    assert marked == set(done)
