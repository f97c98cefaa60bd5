"""SIGKILL at random moments: nothing lost, nothing measured twice in what is committed, no process left behind."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gkestimator.profiling.plan import SweepPlan, write_plan
from gkestimator.profiling.raw import chunk_folders, read_chunk
from gkestimator.profiling.records import read_records

KILLS = 10


def committed(raw: Path) -> Counter[str]:
    """Entries of the committed chunks, each of them checked."""
    found: Counter[str] = Counter()
    for folder in chunk_folders(raw):
        info = read_chunk(folder)
        ids = [r.entry_id for r in read_records(folder / "records.jsonl")]
        assert ids == list(info.entries) and ids
        assert all((folder / name).stat().st_size for name in info.files)
        if info.attempt == 1:
            found.update(ids)
    return found


def left_behind(word: str) -> list[str]:
    """Command lines of living processes that hold ``word``."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(path.name) != os.getpid():
            found.append(line)
    return found


def kill_and_resume(
    command: Sequence[str], raw: Path, plan: SweepPlan, *, seed: int, longest_s: float, last_s: float,
    environment: dict[str, str] | None = None, kills: int = KILLS,
) -> None:  # fmt: skip
    """Start, kill after a random time, ``kills`` times; then let it end."""
    rng, before = random.Random(seed), Counter[str]()
    alone = {"start_new_session": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(kills):
        process = subprocess.Popen(command, env=environment, **alone)  # type: ignore[call-overload]
        time.sleep(rng.uniform(0.1, longest_s))
        process.send_signal(signal.SIGKILL)
        process.wait()
        end = time.monotonic() + 5
        while left_behind(str(raw)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left_behind(str(raw))
        now = committed(raw) if raw.exists() else Counter[str]()
        assert before <= now and max(now.values(), default=1) == 1
        before = now
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=last_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(plan.entries)} ok" in done.stdout
    assert committed(raw) == Counter(e.id for e in plan.entries)
    assert not [p for p in (raw / "chunks").iterdir() if p.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["none", "nsys"])
def test_killed_at_ten_random_moments(
    plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path, collector: str
) -> None:
    journal, wanted, raw = fake(seconds=0.08), plan(60), tmp_path / "raw"
    write_plan(wanted, tmp_path / "plan.json")
    script = [sys.executable, "-P", str(Path(fakes.__file__ or "")), str(tmp_path / "plan.json")]
    kill_and_resume([*script, str(raw), collector], raw, wanted, seed=4, longest_s=1.6, last_s=60)
    ends = Counter(line.split()[-1] for line in journal.read_text().splitlines() if " end " in line)
    # Whole records of a chunk in the making are saved. One killed between its record and its word in the journal
    # is not done again, and so has no word: at most one a kill.
    missing = {e.id for e in wanted.entries} - set(ends)
    assert len(missing) <= (KILLS if collector == "none" else 0)
    if collector == "none":
        # An entry is done again only if it was killed before its record was whole, or while its folder was being sealed.
        assert sum(ends.values()) <= 60 + KILLS


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_keeps_what_is_measured(
    plan: Any, fake: Any, fakes: ModuleType, tmp_path: Path, asked: signal.Signals
) -> None:
    fake(seconds=0.2)
    wanted, raw = plan(40), tmp_path / "raw"
    wanted = replace(wanted, entries=tuple(replace(e, estimated_s=0.01) for e in wanted.entries))
    write_plan(wanted, tmp_path / "plan.json")
    command = [sys.executable, "-P", str(fakes.__file__), str(tmp_path / "plan.json"), str(raw), "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        lines = [p.read_bytes().count(b"\n") for p in raw.glob("chunks/.aside-*/records.jsonl")]
        if sum(lines) >= 3:
            break
        time.sleep(0.02)
    process.send_signal(asked)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130, out
    assert 3 <= sum(committed(raw).values()) < 40 and f"{sum(committed(raw).values())} ok" in out
    assert not left_behind(str(raw))


def nsys() -> str | None:
    """The folder of nsys from GKEST_NSIGHT or PATH."""
    for prefix in filter(None, os.environ.get("GKEST_NSIGHT", "").split(":")):
        if (Path(prefix) / "bin" / "nsys").exists():
            return str(Path(prefix) / "bin")
    found = shutil.which("nsys")
    return None if found is None else str(Path(found).parent)


@pytest.mark.slow
@pytest.mark.parametrize("collector", ["none", "nsys"])
def test_the_real_chain_killed_at_random_moments(plan: Any, tmp_path: Path, collector: str) -> None:
    """A few: benchmarks/kill_matrix.py has thirty."""
    pytest.importorskip("onnxruntime")
    if importlib.util.find_spec("gkestimator.profiling.executors.child") is None:
        pytest.skip("the executor's child is not there")
    folder = nsys()
    if collector == "nsys" and folder is None:
        pytest.skip("no nsys in GKEST_NSIGHT or on PATH")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if folder is not None:
        environment["PATH"] = f"{folder}:{environment['PATH']}"
    wanted, raw = plan(40), tmp_path / "raw"
    wanted = replace(wanted, entries=tuple(replace(e, estimated_s=0.2) for e in wanted.entries))
    write_plan(wanted, tmp_path / "plan.json")
    command = [sys.executable, "-P", "-c", "from gkestimator.cli import main; main()", "profile", "run"]
    command += [str(tmp_path / "plan.json"), "-o", str(raw), "--executor", "onnxruntime", "--device", "cpu"]
    command += ["--collector", collector, "--chunk-seconds", "2", "--retries", "0"]
    kill_and_resume(command, raw, wanted, seed=7, longest_s=9.0, last_s=240, environment=environment, kills=4)
