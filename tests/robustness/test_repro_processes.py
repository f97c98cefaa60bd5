"""Processes and their surroundings: closed streams, odd environments, locks on folders, what killed processes left."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gkestimator.cli import run
from gkestimator.cli.group import gkest
from gkestimator.core.errors import UsageError
from gkestimator.core.leftovers import begun, remove_leftovers, scratch_folder, temporary_prefix
from gkestimator.jobs.disk import held, held_beside
from gkestimator.tables import write_bytes

GKEST = [sys.executable, "-P", "-c", "from gkestimator.cli import main; main()"]
ASKED = ["gpus"]


def test_streams_that_are_closed(tmp_path: Path) -> None:
    """``>&-`` was "a defect ... AttributeError"; with stderr closed the result was empty."""
    whole = subprocess.run([*GKEST, *ASKED], capture_output=True, check=True, timeout=60).stdout
    shell = {
        ">&-": (ASKED, 0, b""),
        "2>&-": (ASKED, 0, whole),
        "<&- >&- 2>&-": (["gpus", "none", "such"], 2, b""),
    }
    for closed, (arguments, status, out) in shell.items():
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *GKEST, *arguments],
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (status, out), (closed, done)
        assert b"error" not in done.stderr


@pytest.mark.slow
def test_odd_environments_change_nothing() -> None:
    """All at once, for each is a process that mostly imports."""
    changes: list[dict[str, str | None]] = [
        {},
        {"HOME": None, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONOPTIMIZE": "2", "COLUMNS": "1", "LINES": "1", "TERM": "dumb"},
        {"HOME": "/dev/null/home", "TMPDIR": "/dev/null/tmp", "TZ": "No/Where", "PYTHONWARNINGS": "error"},
    ]
    running = []
    for change in changes:
        environment = {k: v for k, v in (os.environ | change).items() if v is not None}
        command = [*GKEST, "demo", "--gpu", "T4", "--batch-size", "1"]
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    ended = [(*process.communicate(timeout=120), process.returncode) for process in running]
    assert ended[0][2] == 0
    for change, end in zip(changes, ended, strict=True):
        assert end == ended[0], change


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def during_an_import() -> None:
        try:
            interrupted()
        except KeyboardInterrupt as e:
            raise ImportError("half a library") from e

    for callback in (interrupted, during_an_import):
        command = click.Command("gpus", callback=callback)
        monkeypatch.setattr(gkest, "get_command", lambda ctx, name, command=command: command)
        assert run(["gpus"]) == 130
        assert capsys.readouterr().err == "gkest: error: interrupted\n"


def test_an_interrupt_while_an_object_is_destroyed_is_not_lost() -> None:
    code = (
        "import signal, sys, time; from gkestimator import cli\n"
        "class Slow:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT); [None for _ in range(9)]\n"
        "def run(arguments):\n"
        "    try: Slow(); time.sleep(20); return 0\n"
        "    except KeyboardInterrupt: return 130\n"
        "cli.run = run; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"")


def test_the_second_command_on_a_folder_says_who_holds_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    words = rf"process {os.getpid()} on {platform.node()} \(since 20.* UTC\) is writing it"
    # What a dead process left, from a clock that went back since, keeps nobody out.
    lock.write_text("process 1 on elsewhere (since 2999-01-01 00:00:00 UTC)\n")
    with held(lock, tmp_path), pytest.raises(UsageError, match=words), held(lock, tmp_path):
        pass
    assert not lock.exists()
    bundle = tmp_path / "bundle"
    with held_beside(bundle), pytest.raises(UsageError, match=words), held_beside(bundle):
        pass
    with held_beside(bundle), held_beside(tmp_path / "other"):
        pass
    assert not any(tmp_path.iterdir())


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import os, sys; from pathlib import Path; from gkestimator.jobs.disk import held\n"
        "with held(Path(sys.argv[1]), Path('folder')): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(lock)], check=False, timeout=60)
    assert lock.read_text().startswith("process ")
    with held(lock, tmp_path):
        assert lock.read_text().startswith(f"process {os.getpid()} ")
    assert not lock.exists()


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        mine = temporary_prefix(".t.csv")
        theirs = mine.replace(
            f"-{os.getpid():x}-{begun(os.getpid()):x}-", f"-{other.pid:x}-{begun(other.pid):x}-"
        )
        before = mine.replace(f"-{begun(os.getpid()):x}-", "-1-")  # a process that had our number once
        host, _, rest = before.rpartition(".")[2].partition("-")
        elsewhere = f".t.csv.{int(host, 16) ^ 1:04x}-{rest}"
        living = [f"{prefix}abcdefgh.tmp" for prefix in (mine, theirs, elsewhere)]
        for name in (*living, f"{before}abcdefgh.tmp", f"{before}abcdefgh.tmp.old", "t.csv.tmp"):
            (tmp_path / name).write_text("half")
        (tmp_path / f"{before}_folder_.tmp").mkdir()
        write_bytes(tmp_path / "t.csv", b"whole")
        assert {p.name for p in tmp_path.iterdir()} == {*living, "t.csv.tmp", "t.csv"}
        other.kill()
    remove_leftovers.cache_clear()
    with scratch_folder("gkest-test", tmp_path) as folder:
        assert {p.name for p in tmp_path.iterdir()} == {
            living[0],
            living[2],
            "t.csv.tmp",
            "t.csv",
            folder.name,
        }
