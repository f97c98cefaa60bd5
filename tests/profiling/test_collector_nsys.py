"""nsys: its silent failures by a stand-in that ends with status 0, and a real capture where a real nsys is at hand."""

from __future__ import annotations

import mmap
import os
import shutil
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gkestimator.profiling.collectors import CollectorError, choose, make_collector, probe
from gkestimator.profiling.collectors.nsys import NsysCollector, nsys_ranges, sweep_semaphores
from gkestimator.profiling.tools import run_tool

FAKE = """#!{python}
import os, shutil, subprocess, sys, time
mode, args = os.environ.get("FAKE_NSYS", ""), sys.argv[1:]
if args == ["--version"]:
    print("NVIDIA Nsight Systems version 2099.1.2.3-4v0"); sys.exit(0)
if args[:2] == ["profile", "--help"]:
    print("  --stats=\\n  --cuda-graph-trace=\\n"); sys.exit(0)
out = next(a.split("=", 1)[1] for a in args if a.startswith("--output="))
if args[0] == "profile":
    if mode == "hang":
        subprocess.Popen(["sleep", "600"], start_new_session=True); time.sleep(600)
    if mode == "stream":
        open(out + ".qdstrm", "w").write("x")
        print("Importer error status: Importation failed."); sys.exit(0)
    if mode == "nothing":
        print("ERROR: no space left"); sys.exit(0)
    open(out + ".nsys-rep", "w").write("report"); sys.exit(0)
if mode == "export-hang":
    time.sleep(600)
if mode == "export-nothing":
    print("SKIPPED: a.nsys-rep does not contain data"); sys.exit(0)
if mode == "export-garbage":
    open(out, "w").write("SQLite format 3\\0 but no more"); sys.exit(0)
shutil.copy(os.environ["FAKE_DATABASE"], out)
"""


def database(
    path: Path, ranges: list[tuple[str, str, bool]], *, cuda: int | None = None, by_id: bool = False
) -> Path:
    """An export with push/pop ranges of (domain, text, whether it ended)."""
    with sqlite3.connect(path) as c:
        c.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, textId, domainId)")
        c.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        domains = {
            name: i for i, name in enumerate(dict.fromkeys(domain for domain, _, _ in ranges), start=1)
        }
        for name, number in domains.items():
            c.execute("INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, ?, NULL, ?)", (name, number))
        for i, (domain, text, ended) in enumerate(ranges):
            if by_id:
                c.execute("INSERT INTO StringIds VALUES (?, ?)", (i, text))
            row = (
                i,
                i + 1 if ended else None,
                None if by_id else text,
                i if by_id else None,
                domains[domain],
            )
            c.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)", row)
        if cuda is not None:
            c.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start)")
            c.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?)", [(i,) for i in range(cuda)])
    return path


GOOD = [("gkestimator", "a#3", True), ("gkestimator", "b#3", True), ("other", "c#1", True)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = tmp_path / "tools" / "nsys"
    tool.parent.mkdir()
    tool.write_text(FAKE.format(python=sys.executable))
    tool.chmod(0o755)
    monkeypatch.setenv("GKEST_NSYS", str(tool))
    monkeypatch.setenv("FAKE_DATABASE", str(database(tmp_path / "export.sqlite", GOOD)))
    folder = tmp_path / "chunk"
    folder.mkdir()
    return folder


def captured(folder: Path, entries: list[str], device: str = "cpu") -> tuple[str, ...]:
    collector = make_collector("nsys", device)
    result = run_tool(collector.command(["true"], folder), timeout_s=30)
    return collector.finish(folder, entries, result.output)


@pytest.mark.slow
def test_a_whole_capture(fake: Path) -> None:
    assert captured(fake, ["a", "b"]) == ("capture.sqlite", "capture.nsys-rep")
    assert (fake / "capture.sqlite").is_file()


def test_options_are_those_that_this_version_knows(fake: Path) -> None:
    on_cpu = make_collector("nsys", "cpu").command(["child", "--x"], fake)
    assert on_cpu[-2:] == ["child", "--x"]
    assert "--trace=nvtx" in on_cpu and "--stats=false" in on_cpu
    assert not any(o.startswith(("--resolve-symbols", "--cuda-graph-trace")) for o in on_cpu)
    on_gpu = make_collector("nsys", "cuda:1").command(["child"], fake)
    assert "--trace=nvtx,cuda" in on_gpu and "--cuda-graph-trace=node" in on_gpu


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (
            "stream",
            r"made no report: only a \.qdstrm is left, so its importer .* is missing; it said: Importer error",
        ),
        ("nothing", "made no report; it said: ERROR: no space left"),
        ("export-nothing", "export made no database; it said: SKIPPED: a.nsys-rep does not contain data"),
        ("export-garbage", "not a whole export of nsys"),
    ],
)
def test_failures_with_status_0(fake: Path, monkeypatch: pytest.MonkeyPatch, mode: str, message: str) -> None:
    monkeypatch.setenv("FAKE_NSYS", mode)
    with pytest.raises(CollectorError, match=message) as e:
        captured(fake, ["a"])
    assert "\n" not in str(e.value)


@pytest.mark.slow
def test_a_hanging_export_is_killed(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "export-hang")
    monkeypatch.setattr("gkestimator.profiling.collectors.nsys._EXPORT_S", 0.5)
    with pytest.raises(
        CollectorError, match=r"nsys 2099\.1\.2\.3 export did not end within 1 s and was killed"
    ):
        captured(fake, ["a"])


@pytest.mark.slow
def test_a_missing_range_is_named(fake: Path) -> None:
    with pytest.raises(CollectorError, match=r"lacks the ranges of 1 of 2 entries \(z"):
        captured(fake, ["a", "z"])


@pytest.mark.slow
def test_no_range_at_all_names_the_version(
    fake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = database(tmp_path / "none.sqlite", [("other", "a#1", True)])
    monkeypatch.setenv("FAKE_DATABASE", str(empty))
    with pytest.raises(
        CollectorError, match=r"nsys 2099\.1\.2\.3: the capture holds no NVTX range .*GKEST_NSYS"
    ):
        captured(fake, ["a"])
    assert captured(fake, []) == (
        "capture.sqlite",
        "capture.nsys-rep",
    )  # every entry failed: nothing is missed


@pytest.mark.slow
def test_on_a_gpu_cuda_calls_must_be_there(
    fake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, calls in (("absent", None), ("empty", 0)):
        monkeypatch.setenv("FAKE_DATABASE", str(database(tmp_path / f"{name}.sqlite", GOOD, cuda=calls)))
        with pytest.raises(CollectorError, match="recorded no CUDA call"):
            captured(fake, ["a"], "cuda:0")
    monkeypatch.setenv("FAKE_DATABASE", str(database(tmp_path / "calls.sqlite", GOOD, cuda=2)))
    assert captured(fake, ["a"], "cuda:0")


@pytest.mark.slow
def test_a_hanging_nsys_is_found_by_the_probe(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "hang")
    reason = probe(make_collector("nsys", "cpu"), "cpu", limit_s=1.0)
    assert reason == "nsys hung: a probe of two ranges did not end within 1 s and was killed"


def test_a_named_collector_that_does_not_work_is_refused(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS", "nothing")
    with pytest.raises(CollectorError, match="made no report"):
        choose("nsys", "cpu")


def test_a_silent_tool_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nsys"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("GKEST_NSYS", str(tool))
    assert "does not answer" in (make_collector("nsys", "cpu").unavailable() or "")


@pytest.mark.parametrize("by_id", [False, True])
def test_ranges_of_our_domain_that_ended(tmp_path: Path, by_id: bool) -> None:
    rows = [*GOOD, ("gkestimator", "cut#3", False), ("gkestimator", "no-number", True)]
    assert nsys_ranges(database(tmp_path / "d.sqlite", rows, by_id=by_id)) == {"a", "b"}


def test_a_lazy_export_without_the_table(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "d.sqlite").execute("CREATE TABLE X (a)").connection.close()
    assert nsys_ranges(tmp_path / "d.sqlite") == frozenset()


def test_semaphores_of_killed_sessions_are_swept(tmp_path: Path) -> None:
    mine, gone = os.getpid(), 2**22 + 11  # no process has the latter id
    for name, age_s, stays in (
        (f"sem.nsys_sem_{gone}", 3600, False),
        (f"sem.NSys-process_waiter-{gone}-4026531836-2023.4.4", 3600, False),
        (f"quadd-agent-instance-{gone}", 3600, False),
        (f"sem.nsys_sem_{mine}", 3600, True),
        (f"quadd-agent-instance-{gone + 1}", 5, True),
        (f"sem.others_{gone}", 3600, True),
        (f"quadd-agent-instance-{gone}x", 3600, True),
        ("NSys-2022.4.2.1", 3600, False),
        ("NSys-2022.4.2.1", 5, True),
        ("NSys-others", 3600, True),
    ):
        path = tmp_path / name
        path.touch()
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
        sweep_semaphores(tmp_path)
        assert path.exists() == stays, name


def test_a_lock_that_a_process_has_mapped_stays(tmp_path: Path) -> None:
    path = tmp_path / "NSys-2023.4.4.54"
    path.write_bytes(b"lock")
    os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        sweep_semaphores(tmp_path)
        assert path.exists()
    sweep_semaphores(tmp_path)
    assert not path.exists()


def real_tools() -> list[Path]:
    found = [Path(p) / "bin" / "nsys" for p in os.environ.get("GKEST_NSIGHT", "").split(":") if p]
    on_path = shutil.which("nsys")
    return [p for p in (*found, *([Path(on_path)] if on_path else [])) if p.is_file()]


REAL = real_tools()
CHILD = """
import os, signal, sys
from gkestimator.profiling.executors.nvtx_ranges import NvtxRanges
ranges = NvtxRanges("gkestimator")
for name in sys.argv[2].split(","):
    with ranges.range(f"{name}#1"):
        pass
if sys.argv[1] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_lock_left_by_a_killed_nsys_is_named(tmp_path: Path) -> None:
    with pytest.raises(CollectorError, match=r"Agent launcher failed.*remove /dev/shm/NSys-\*"):
        make_collector("nsys", "cpu").finish(tmp_path, ["one"], "Agent launcher failed.\n")


@pytest.mark.skipif(not REAL, reason="needs nsys on PATH or in GKEST_NSIGHT (.ci/install-nsight.sh)")
@pytest.mark.parametrize("tool", REAL, ids=str)
class TestRealNsys:
    @pytest.fixture(autouse=True)
    def _named(self, tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("gkestimator.profiling.executors.nvtx_ranges")
        monkeypatch.setenv("GKEST_NSYS", str(tool))

    def test_probe(self) -> None:
        assert probe(make_collector("nsys", "cpu"), "cpu") is None
        assert isinstance(choose("auto", "cpu"), NsysCollector)

    @pytest.mark.parametrize("ends", ["well", "crash"])
    def test_ranges_of_a_child(self, tmp_path: Path, ends: str) -> None:
        collector = make_collector("nsys", "cpu")
        child = [sys.executable, "-P", "-c", CHILD, ends, "one,two"]
        result = run_tool(
            collector.command(child, tmp_path), timeout_s=120, cwd=tmp_path, env=collector.environment()
        )
        assert (result.status == 0) == (ends == "well")
        try:
            made = collector.finish(tmp_path, ["one", "two"], result.output)
        except CollectorError as e:
            # What a child had not handed over when it died is lost: then that is said.
            assert ends == "crash" and "range" in str(e)
            return
        assert made == ("capture.sqlite", "capture.nsys-rep")
        with pytest.raises(CollectorError, match="lacks the ranges of 1 of 3 entries"):
            collector.finish(tmp_path, ["one", "two", "three"], result.output)

    def test_a_cut_report_is_found_out(self, tmp_path: Path) -> None:
        collector = make_collector("nsys", "cpu")
        child = [sys.executable, "-P", "-c", CHILD, "well", "one"]
        result = run_tool(
            collector.command(child, tmp_path), timeout_s=120, cwd=tmp_path, env=collector.environment()
        )
        report = tmp_path / "capture.nsys-rep"
        whole = report.read_bytes()
        for share in (0.0, 0.1, 0.6):
            report.write_bytes(whole[: int(len(whole) * share)])
            with pytest.raises(CollectorError):
                collector.finish(tmp_path, ["one"], result.output)

    def test_captures_side_by_side_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        def one(number: int) -> tuple[str, ...]:
            # nsys loses a capture now and then on a busy machine; like the run, measure it again.
            for attempt in range(3):
                folder = tmp_path / f"{number}-{attempt}"
                folder.mkdir()
                collector = make_collector("nsys", "cpu")
                child = [sys.executable, "-P", "-c", CHILD, "well", "one,two"]
                result = run_tool(
                    collector.command(child, folder), timeout_s=120, env=collector.environment()
                )
                try:
                    return collector.finish(folder, ["one", "two"], result.output)
                except CollectorError as e:
                    if attempt == 2 or "Agent launcher failed" in str(e):
                        raise
            raise AssertionError("no attempt")

        with ThreadPoolExecutor(3) as pool:
            try:
                assert len(list(pool.map(one, range(6)))) == 6
            except CollectorError as e:
                if "Agent launcher failed" not in str(e):
                    raise
                pytest.skip(f"agents of this nsys wait for each other, which is no doing of ours: {e}")

    def test_nothing_lives_on_after_a_killed_nsys(self, tmp_path: Path) -> None:
        word = f"gkest-sleeper-{os.getpid()}-{tmp_path.name}"
        command = make_collector("nsys", "cpu").command(
            [sys.executable, "-c", f"import time; time.sleep(600)  # {word}"], tmp_path
        )
        assert run_tool(command, timeout_s=4).timed_out
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                assert word.encode() not in (folder / "cmdline").read_bytes()
            except OSError:
                continue
